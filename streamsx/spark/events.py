"""What the event logs of workers tell (`worker --events`), as tables: who got what, when, how fast.

Times of one process are compared by its monotonic clock; those of several by the wall clocks of
their hosts, and a span that is negative by them is 0, and `clamped`. So what belongs together is
found by generations, which all members count alike, and never by time alone: of `rebalance_started`
the one that its worker is assigned next, of any other event the last one that it was assigned.
Somebody who makes the group anew begins to count anew (`life`).

A process that is killed says nothing of its tasks: they stopped with the last word of its log.

Not here: drawing (`tools.cli.plots`).
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from streamsx.errors import NotFound, UsageError
from streamsx.group.member_events import FOLLOWS
from streamsx.spark.session import PASSED_OVER

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

SUFFIXES: Final = (".jsonl", ".jsonl.gz")
"""Of the files that a folder stands for."""
EXCERPT_CHARS: Final = 60
REMEDY: Final = "give files that `worker --events` wrote"

FIELDS: Final = (
    "t double, mono double, instance string, event string, app string, generation int, "
    "reason string, task string, role string, `from` string, `to` string, lag long, "
    "handover_ms double, restored long, `end` long, active array<string>, learner array<string>"
)

LINES: Final = """
    select path, said.*, said.t is null or said.instance is null or said.event is null bad,
           if(bad, value, null) example
    from {text} where trim(value) <> ''"""

FILES: Final = """
    select path, count(*) lines, count_if(bad) torn, count_if(event = 'worker_started') starts,
           first(example, true) example, collect_set(app) apps
    from {lines} group by path order by path"""

STORY: Final = """
    with heard as (
      select *, max(t) over (partition by instance, process) last_word
      from (select *, sum(int(event = 'worker_started')) over (
              partition by instance order by t, mono) process from {lines} where not bad)
    ), told as (
      select *, if(event = 'assigned', struct(max(again) over (order by t) life, generation), null)
                round
      from (select *, int(event = 'assigned') * sum(int(t - before > 3600)) over (
              partition by event, generation order by t) again
            from (select *, lag(t, 1, t) over (partition by event, generation order by t) before
                  from heard where event in (
                    'assigned', 'rebalance_started', 'task', 'learner_ready', 'promoted',
                    'restore_progress')))
    )
    select * except (path, bad, example, before, again),
           last_value(round, true) over (partition by instance order by t, mono) since,
           last_value(round, true) over (
             partition by instance, process order by t desc, mono desc) leads_to,
           sum(int(event = 'task' and `from` = 'created')) over (
             partition by instance, process, task order by t, mono) opening
    from told"""
"""`round`: of `assigned`, life and generation; `since`: the one that was the last when something
happened; `leads_to`: the one that comes next (looked for backwards: a frame that ends with what
follows costs the square of the rows); `opening`: how often this process had opened the
task. The same generation more than an hour later is another life's."""

GIVEN: Final = """
    select * from (
      select *, lag(instance) over (partition by task order by round) before
      from (select round, instance, explode(active) task from {story} where event = 'assigned'))
    where before <> instance"""
"""Tasks that came to who had not been the last to run them."""

TABLES: Final = {
    "rebalances": """
        with moved as (
          select round, count(*) moved from {given} group by round
        ), seen as (
          select leads_to round,
            min(t) filter (where event = 'rebalance_started') started,
            min_by(reason, struct(reason = {follows}, t))
              filter (where event = 'rebalance_started') reason,
            count(distinct instance) filter (where event = 'assigned') members,
            max(t) filter (where event = 'assigned') ended,
            sum(size(learner)) filter (where event = 'assigned') learners,
            max(size(active)) filter (where event = 'assigned')
              - min(size(active)) filter (where event = 'assigned') imbalance
          from {story} where event in ('rebalance_started', 'assigned') and leads_to is not null
          group by leads_to
        )
        select round.generation, timestamp_seconds(started) started, reason, members,
          round(greatest(1e3 * (ended - started), 0), 1) ms, coalesce(moved, 0) moved, learners,
          imbalance, coalesce(ended < started, false) clamped
        from seen left join moved using (round) order by round""",
    "moves": """
        with learned as (
          select task, instance, process, opening,
            min(t) filter (where event = 'task' and `from` = 'created') learning,
            min(t) filter (where event = 'learner_ready') ready,
            min(t) filter (where event = 'promoted') promoted,
            1e3 * (min(mono) filter (where event = 'learner_ready')
              - min(mono) filter (where event = 'task' and `from` = 'created')) learn_ms,
            min(handover_ms) handover_ms,
            min(lag) filter (where event = 'promoted') lag,
            min(since) filter (where event = 'promoted') since
          from {story} where task is not null group by task, instance, process, opening
        )
        select l.task, max_by(before, round) `from`, l.instance `to`,
          timestamp_seconds(learning) learning, timestamp_seconds(ready) ready,
          timestamp_seconds(promoted) promoted, round(learn_ms, 1) learn_ms, handover_ms, lag
        from learned l left join {given} g
          on g.task = l.task and g.instance = l.instance and round <= since
        where promoted is not null group by all order by promoted, task""",
    "gaps": """
        with lives as (
          select instance, process, min(t) began, max(t) ended from {story} group by all
        ), firsts as (
          select collect_list(a.began) firsts from lives a
          left anti join lives b on b.began < a.began and b.ended >= a.began
        )
        select task, before.instance `from`, instance `to`, timestamp_seconds(stopped) stopped,
          round(greatest(1e3 * (t - stopped), 0), 1) gap_ms, clean, t < stopped clamped,
          exists(firsts, at -> stopped < at and at <= t) nobody
        from (
          select *, before.`from` = 'running' clean,
            if(before.`from` = 'running', before.t, before.last_word) stopped
          from (
            select *, lag(struct(instance, process, `from`, t, last_word))
              over (partition by task order by since, t, mono) before
            from {story} where event = 'task' and role = 'active' and 'running' in (`from`, `to`)))
        cross join firsts
        where `to` = 'running' and before is not null
          and (clean or (instance, process) <> (before.instance, before.process))
        order by stopped, task""",
    "restores": """
        with told as (
          select *, sum(int(restored < before)) over (
            partition by instance, process, task, opening order by t, mono) run
          from (select *, lag(restored, 1, restored) over (
                  partition by instance, process, task, opening order by t, mono) before
                from {story} where event = 'restore_progress')
        ), runs as (
          select task, min_by(role, struct(t, mono)) role, instance, min(t) started,
            min(mono) began,
            coalesce(min(struct(mono, t, restored, `end`)) filter (where restored >= `end`),
                     max(struct(mono, t, restored, `end`))) last
          from told group by task, instance, process, opening, run
        )
        select task, role, instance, timestamp_seconds(started) started,
          timestamp_seconds(last.t) ended, last.restored records, last.`end` total,
          round(last.restored / nullif(last.mono - began, 0), 1) records_per_s
        from runs where last.`end` > 0 order by started, task""",
}
"""`reason`: not that of those who merely followed. `clean`: the owner said when it stopped.
`nobody`: a worker began meanwhile, and was the only one. A restore ends where it first reaches
`total`, whatever the task follows afterwards; those of nothing are left out."""


class EventTables(NamedTuple):
    """`tables`: by the names of TABLES. `lines`: that were read; `torn`: of them, those that a
    process was writing when it ended.
    """

    tables: "dict[str, DataFrame]"
    lines: int
    torn: int


def events(spark: "SparkSession", paths: Iterable[str]) -> EventTables:
    """Of event logs by their paths, as `files_of` gives them. Raises UsageError for what is none,
    and for those of several apps.
    """
    # Checkpoints, not a cache, which would hand out what was in the files before.
    said = f"from_json(value, '{FIELDS}') said"
    text = spark.read.text(list(paths)).selectExpr("_metadata.file_path path", "value", said)
    lines = spark.sql(LINES, text=text).localCheckpoint()
    found = [row.asDict() for row in spark.sql(FILES, lines=lines).collect()]
    check(found)
    story = spark.sql(STORY, lines=lines).localCheckpoint()
    given = spark.sql(GIVEN, story=story).localCheckpoint()
    frames: dict[str, Any] = {"story": story, "given": given, "follows": FOLLOWS}
    tables = {
        name: spark.sql(query, **{n: f for n, f in frames.items() if f"{{{n}}}" in query})
        for name, query in TABLES.items()
    }
    return EventTables(tables, sum(f["lines"] for f in found), sum(f["torn"] for f in found))


def check(files: Iterable[Mapping[str, Any]]) -> None:
    """Each process may have left one torn line, the last one that it wrote; anything more is no
    event log. Raises UsageError.
    """
    apps: dict[str, str] = {}
    lines = 0
    for file in files:
        where = plain(file["path"])
        if file["torn"] > max(1, file["starts"]) or file["torn"] == file["lines"]:
            line = f"{file['torn']} of {file['lines']} lines are none, as"
            excerpt = file["example"][:EXCERPT_CHARS]
            raise UsageError(f"not an event log: {where}: {line} {excerpt!r}: {REMEDY}")
        apps |= dict.fromkeys(file["apps"], where)
        lines += file["lines"]
    if len(apps) > 1:
        which = ", ".join(f"{app} in {where}" for app, where in sorted(apps.items()))
        raise UsageError(f"events of {len(apps)} apps: {which}: give those of one at a time")
    if not lines:
        raise UsageError(f"no events: all the files are empty: {REMEDY}")


def plain(uri: str) -> str:
    """A file of this machine as its path."""
    split = urlsplit(uri)
    return unquote(split.path) if split.scheme == "file" else uri


def files_of(words: Iterable[str]) -> list[str]:
    """Files as they are, folders as the event logs in them, each once; URIs as Spark reads them.
    Raises NotFound, UsageError for a folder without any, and for what Spark would pass over.
    """
    found: set[str] = set()
    for word in words:
        path = Path(word).resolve()
        if "://" in word:
            found.add(word)
            continue
        if path.is_dir():
            logs = {str(p) for p in path.iterdir() if p.is_file() and p.name.endswith(SUFFIXES)}
            if not logs:
                what = " or ".join(f"*{suffix}" for suffix in SUFFIXES)
                raise UsageError(f"no event log: folder {word}: there is no {what}: name the files")
        elif path.is_file():
            logs = {str(path)}
        else:
            raise NotFound(f"no such file: {word}: {REMEDY}")
        if unread := next(filter(PASSED_OVER.search, sorted(logs)), None):
            raise UsageError(f"Spark does not read a file of this name: {unread}: rename it")
        found |= logs
    return sorted(found)


def save(
    read: EventTables, out: Path, say: Callable[[str], None]
) -> tuple[dict[str, "pyarrow.Table"], list[str]]:
    """One parquet file per table. The tables, and the files' names."""
    from pyarrow import parquet

    tables: dict[str, pyarrow.Table] = {}
    names = []
    for name, table in read.tables.items():
        say(f"{name}: {read.lines} events")
        tables[name] = table.toArrow()
        names.append(str(out / f"{name}.parquet"))
        parquet.write_table(tables[name], names[-1])
    return tables, names


def summary(tables: "Mapping[str, pyarrow.Table]") -> dict[str, Any]:
    """Numbers of rows; of the gaps, what most, nearly all and the longest of them lasted, but for
    those in which no worker ran.
    """
    from pyarrow import compute

    nobody = tables["gaps"]["nobody"]
    moved = tables["gaps"].filter(compute.invert(nobody))
    gaps = compute.quantile(moved["gap_ms"], q=[0.5, 0.99, 1.0]).to_pylist()
    clamped = (table["clamped"] for name, table in tables.items() if name in ("rebalances", "gaps"))
    return {
        "rebalances": tables["rebalances"].num_rows,
        "moves": tables["moves"].num_rows,
        "gaps": dict(zip(("p50_ms", "p99_ms", "max_ms"), gaps, strict=True)),
        "gaps_without_workers": compute.sum(nobody).as_py() or 0,
        "restores": tables["restores"].num_rows,
        "clock_skew": sum(compute.sum(column).as_py() or 0 for column in clamped),
    }
