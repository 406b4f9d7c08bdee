"""Tables of rebalances, moves, gaps and restores, made of workers' event logs (`worker --events`).

Times of one process are compared by the monotonic clock of that process. Times of several processes
are compared by the wall clocks of their hosts; a span that is negative by these clocks becomes 0
and is marked `clamped`. So events are matched by generation, which all members count alike, and
never by time alone. A `rebalance_started` belongs to the generation that its worker is assigned
next, any other event to the last generation that its worker was assigned. When a group is made
anew, its generations begin anew; `life` distinguishes them.

A killed process logs no end of its tasks: their end is the time of the last event in its log.

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
"""Suffixes of the files that count as event logs in a folder."""
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
"""Query for the events of all processes, with their rounds.

`round`: life and generation of an `assigned` event. `since`: the last round before the event.
`leads_to`: the next round. The query looks for the next round in backward order, because a frame
that ends with following rows costs the square of the number of rows. `opening`: how often this
process had opened the task. The same generation more than an hour later belongs to another life."""

GIVEN: Final = """
    select * from (
      select *, lag(instance) over (partition by task order by round) before
      from (select round, instance, explode(active) task from {story} where event = 'assigned'))
    where before <> instance"""
"""Query for the tasks assigned to another instance than the last one that ran them."""

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
"""Queries for the tables.

`reason`: the reason of a worker that started the rebalance, not of one that followed it. `clean`:
the owner logged the time at which it stopped. `nobody`: during the gap a worker started while no
other worker ran. A restore ends where it first reaches `total`, even if the task reads on
afterwards. Restores of no records are left out."""


class EventTables(NamedTuple):
    """Tables of events, and the number of lines read.

    Attributes:
        tables: the tables, by the names of TABLES.
        lines: number of lines read.
        torn: number of these lines that a process was writing when the process ended.
    """

    tables: "dict[str, DataFrame]"
    lines: int
    torn: int


def events(spark: "SparkSession", paths: Iterable[str]) -> EventTables:
    """Read event logs into tables.

    Args:
        spark: the session that runs the queries.
        paths: paths of event logs, as `files_of` returns them.

    Raises:
        UsageError: a file is no event log, or the logs belong to several apps.
    """
    # Use checkpoints: a cache would return the former contents of files that have changed.
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
    """Check that the files are event logs of one app, and not all empty.

    Each process may leave one torn line, the last line that the process wrote. A file with more
    torn lines, or with torn lines only, is no event log.

    Raises:
        UsageError: a file is no event log, the files belong to several apps, or all are empty.
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
    """Return the path of a `file:` URI; return any other URI as given."""
    split = urlsplit(uri)
    return unquote(split.path) if split.scheme == "file" else uri


def files_of(words: Iterable[str]) -> list[str]:
    """Return the sorted paths of event logs, each once.

    A file stands for itself, a folder for the event logs in the folder. URIs are left to Spark.

    Raises:
        NotFound: a file or folder does not exist.
        UsageError: a folder holds no event log, or Spark would skip a file because of its name.
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
    """Save each table as a parquet file.

    Returns:
        The tables by name, and the names of the files.
    """
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
    """Return the number of rows of each table, and the median, 99th percentile and maximum gap.

    Gaps in which no worker ran are counted apart.
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
