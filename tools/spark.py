"""`streamsx spark`: runs what is too much for one machine, or is a table, on Spark.

Each of its commands is a row of COMMANDS. pyspark is imported by the one that runs, behind its
options: what is wrong with those is said before a JVM starts.

Run as a file, by spark-submit, it is the same; `entry` says where it is.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple

from streamsx.config import seconds, size_bytes, whole
from streamsx.errors import UsageError
from streamsx.state.snapshot_files import masked
from streamsx.tools.cli.command import Command, tell, value
from streamsx.tools.cli.progress import blocking_progress

Say = Callable[[str], None]
"""What is being done now, for people who wait."""
SparkResult = dict[str, Any]
"""The object of --json."""


class SparkCommand(NamedTuple):
    """`options`: that it has beside those of all; `work`: raises StreamsxError for what is wrong;
    `told`: what people read of the result.
    """

    purpose: str
    options: Callable[[Command], None]
    work: Callable[[argparse.Namespace, Say], SparkResult]
    told: Callable[[SparkResult], str]


def main() -> None:
    """`spark COMMAND`: 2 for a command that is not there."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("-h", "--help"):
        print(usage())
        return
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        print(f"error: no such command: spark {name}: {hint}" if name else usage(), file=sys.stderr)
        sys.exit(UsageError.exit_code)
    del sys.argv[0]
    job = COMMANDS[name]
    command = Command(f"spark {name}", job.purpose)
    job.options(command)
    command.add_json()
    command.run(lambda options: run(name, job, options))


def run(name: str, job: SparkCommand, options: argparse.Namespace) -> int:
    """2 where something is not `ok`. Raises StreamsxError."""
    with blocking_progress(sys.stderr, f"{name}: starting") as say:
        result = job.work(options, say)
    ok = result.get("ok", True)
    print(job.told(result), file=options.people if ok else sys.stderr)
    tell(options, result)
    return 0 if ok else UsageError.exit_code


def usage() -> str:
    """A line per command."""
    lines = [f"  {name:<12}{job.purpose.rstrip('.')}" for name, job in COMMANDS.items()]
    told = "streamsx spark COMMAND --help: its options"
    return "\n".join(["usage: streamsx spark COMMAND ...", "", *lines, "", told])


# -- what commands with a session share


def add_session(command: Command) -> None:
    """The options of Spark itself."""
    add = command.add_argument
    add("--master", metavar="M", help="where Spark runs (spark-submit's, else all cores here)")
    add(
        "--conf", metavar="K=V", action="append", default=[], type=setting,
        help="a setting of Spark; may be given more than once",
    )  # fmt: skip


def setting(text: str) -> tuple[str, str]:
    """K=V, as spark-submit takes it."""
    name, sign, value = text.partition("=")
    if not (name.startswith("spark.") and sign):
        raise argparse.ArgumentTypeError(f"{text!r}: write spark.NAME=VALUE")
    return name, value


def settings_of(
    options: argparse.Namespace, defaults: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Of Spark, as the options say; `defaults`: of this command."""
    master = {"spark.master": options.master} if options.master else {}
    return {**(defaults or {}), **master, **dict(options.conf)}


def add_app(command: Command) -> None:
    """As for `worker`."""
    command.add_argument("app", metavar="MODULE[:ATTR]", help="the app, as in an import")


# -- check


def check(options: argparse.Namespace, _: Say) -> SparkResult:
    """Needs no Spark. Raises UsageError for what is no app."""
    from streamsx.app.lookup import app_named
    from streamsx.spark import plan

    app = app_named(options.app)
    reasons = plan.check(app)
    ok = not any(reason.fatal for reason in reasons)
    stages = plan.stages(app.topology(), {}, app.conf.topic_partitions) if ok else []
    return {
        "ok": ok,
        "app": app.conf.id,
        "stages": [
            {
                "stage": stage.number,
                "tasks": stage.tasks,
                "topics": [*stage.external, *stage.inner],
                "stores": [store.name for store in stage.subtopology.stores],
            }
            for stage in stages
        ],
        "reasons": [reason._asdict() for reason in reasons],
    }


def check_told(result: SparkResult) -> str:
    fatal = [reason for reason in result["reasons"] if reason["fatal"]]
    count = f"{len(fatal)} reason{'s' * (len(fatal) > 1)}"
    wrong = f"error: app {result['app']!r} cannot run on Spark ({count}):"
    fine = f"app {result['app']!r} runs on Spark, in {len(result['stages'])} stages:"
    lines = [fine if result["ok"] else wrong]
    for stage in result["stages"]:
        stores = f"; keeps {', '.join(stage['stores'])}" if stage["stores"] else ""
        lines.append(
            f"  {stage['stage']}: {stage['tasks']} tasks read {', '.join(stage['topics'])}{stores}"
        )
    for reason in sorted(result["reasons"], key=lambda reason: not reason["fatal"]):
        note = "" if reason["fatal"] else "note: "
        lines.append(f"  {note}{reason['what']} ({reason['place']}): {reason['message']}")
    return "\n".join(lines)


# -- events

EVENTS_SETTINGS: Final = {"spark.sql.shuffle.partitions": "4"}
"""Logs of a night are small: Spark's own 200 would take minutes for empty partitions."""


def events_options(command: Command) -> None:
    add = command.add_argument
    add("paths", metavar="PATH", nargs="+", help="event logs, or folders with *.jsonl in them")
    add("--out", metavar="DIR", type=Path, required=True, help="the folder of tables and plots")
    add_session(command)


def events(options: argparse.Namespace, say: Say) -> SparkResult:
    """Raises UsageError and others, before anything is written."""
    from streamsx.spark.events import events, files_of, save, summary
    from streamsx.spark.session import require, session
    from streamsx.tools.cli.plots import gap_lengths, require_plots, settle_times

    require()
    require_plots()
    paths = files_of(options.paths)
    out = folder(options.out)
    say("starting Spark")
    spark = session(settings_of(options, EVENTS_SETTINGS), debug=options.debug)
    say(f"reading event logs: {len(paths)}")
    read = events(spark, paths)
    tables, files = save(read, out, say)
    say("drawing")
    rounds, gaps = tables["rebalances"].to_pydict(), tables["gaps"].to_pydict()
    plots = [out / "rebalances.png", out / "gaps.png"]
    settle_times(plots[0], rounds["generation"], rounds["ms"], rounds["moved"])
    lengths = list(zip(gaps["gap_ms"], gaps["clean"], strict=True))
    gap_lengths(plots[1], [g for g, clean in lengths if clean], [g for g, c in lengths if not c])
    files += map(str, plots)
    counted = {"events": read.lines - read.torn, "torn_lines": read.torn}
    return summary(tables) | {"files": files} | counted


def folder(path: Path) -> Path:
    """One that is there. Raises UsageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"no folder: {path}: {error.strerror}: give another --out") from None
    return path


def events_told(result: SparkResult) -> str:
    gaps = (f"{name[:-3]} {ms:,.0f} ms" for name, ms in result["gaps"].items() if ms is not None)
    counts = (
        f"events: {result['events']}, rebalances: {result['rebalances']}, tasks that were learned "
        f"and moved: {result['moves']}, restores: {result['restores']}"
    )
    lines = [counts, f"gaps: {', '.join(gaps) or 'none'}"]
    if result["torn_lines"]:
        lines.append(f"{result['torn_lines']} torn lines of processes that were killed: left out")
    if result["clock_skew"]:
        lines.append(f"{result['clock_skew']} spans were negative: clocks of the hosts differ")
    return "\n".join([*lines, *result["files"]])


# -- compact, rescale, copy: snapshots of an app


def snapshot_options(*names: str) -> Callable[[Command], None]:
    """Of commands that read or write snapshots: those of SNAPSHOTS with these names."""

    def options(command: Command) -> None:
        add_app(command)
        add_session(command)
        for name in names:
            command.add_argument(f"--{name}", **SNAPSHOTS[name])

    return options


def pair(parse: Callable[[str], Any], form: str) -> Callable[[str], tuple[str, Any]]:
    """Two words with a sign between them, as `form` shows."""

    def parsed(text: str) -> tuple[str, Any]:
        name, _, word = text.partition("=" if "=" in form else ":")
        try:
            return named(name), parse(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: write {form}") from None

    return parsed


def named(text: str) -> str:
    if not text:
        raise ValueError("no name")
    return text


def count(text: str) -> int:
    if int(text) < 1:
        raise ValueError("none")
    return int(text)


SNAPSHOTS: Final[Mapping[str, dict[str, Any]]] = {
    "out": {"metavar": "URI", "required": True, "help": "where the snapshot is written"},
    "state": {"metavar": "URI", "required": True, "help": "where snapshots lie: the newest counts"},
    "store": {"metavar": "S", "action": "append", "help": "only this one; may be given repeatedly"},
    "partitions": {
        "metavar": "T=N", "nargs": "+", "required": True, "type": pair(count, "TOPIC=N"),
        "help": "how many partitions the new topics have",
    },
    "keyed": {
        "metavar": "STORE=TOPIC", "nargs": "+", "default": [], "type": pair(named, "STORE=TOPIC"),
        "help": "whose records' keys a store has, where its rows are too few to show it",
    },
    "topics": {
        "metavar": "OLD:NEW", "nargs": "+", "required": True, "type": pair,
        "help": "from which topic to which",
    },
}  # fmt: skip


def begun(options: argparse.Namespace, say: Say, uri: str, defaults: Any = None) -> Any:
    """The session, whose executors see the URI. Raises UsageError, before a JVM starts."""
    from streamsx.app.lookup import app_named
    from streamsx.spark.session import is_local, probe, require, session

    require()
    app_named(options.app)
    say("starting Spark")
    spark = session(settings_of(options, defaults), debug=options.debug)
    if uri and not is_local(spark.sparkContext.master or ""):
        probe(spark, options.app, uri)
    return spark


def compact(options: argparse.Namespace, say: Say) -> SparkResult:
    """Raises UsageError and others, before anything is written."""
    began, spark = time.monotonic(), begun(options, say, options.out)
    from streamsx.spark.compact import compact, sizes

    say("compacting changelogs")
    made = compact(options.app, options.out, stores=options.store, spark=spark)
    return {"uri": options.out, **sizes(made), "seconds": round(time.monotonic() - began, 1)}


def rescale(options: argparse.Namespace, say: Say) -> SparkResult:
    """Raises UsageError and others, before anything is written."""
    began, spark = time.monotonic(), begun(options, say, options.state)
    from streamsx.spark.compact import sizes
    from streamsx.spark.rescale import PROCEDURE, rescale

    say("writing state for other partitions")
    counts = dict(options.partitions)
    keyed = dict(options.keyed)
    made = rescale(options.app, options.state, options.out, counts, keyed=keyed, spark=spark)
    named = {"app": options.app, "source": options.state, "target": options.out}
    return {
        "uri": options.out, **sizes(made), "seconds": round(time.monotonic() - began, 1),
        "procedure": [step.format(**named) for step in PROCEDURE],
    }  # fmt: skip


def copy(options: argparse.Namespace, say: Say) -> SparkResult:
    """Raises UsageError and others, before anything is written."""
    spark, records, positions = begun(options, say, ""), 0, {}
    from streamsx.spark.rescale import copy

    for old, new in options.topics:
        say(f"copying {old} to {new}")
        sent, positions[old] = copy(options.app, options.state, old, new, spark)
        records += sent
    return {"records": records, "positions": positions}


def snapshot_told(result: SparkResult) -> str:
    told = (
        f"snapshot {result['number']} under {masked(result['uri'])}: {result['rows']} rows of "
        f"{result['tasks']} store partitions, {result['bytes']} bytes, {result['seconds']} s"
    )
    steps = (f"  {n}. {step}" for n, step in enumerate(result.get("procedure", ()), 1))
    return "\n".join([told, *steps])


# -- state


def state_options(command: Command) -> None:
    add_app(command)
    add = command.add_argument
    add("--store", metavar="S", required=True, help="which; in SQL it is the table of this name")
    where = command.add_mutually_exclusive_group(required=True)
    where.add_argument("--state", metavar="URI", help="its newest snapshot there")
    where.add_argument("--live", action="store_true", help="its changelog, as of now")
    add("--sql", metavar="Q", help="a query instead of all rows")
    add("--out", metavar="FILE.parquet", type=Path, help="all rows as parquet")
    add("--limit", metavar="N", type=int, default=20, help="rows to show (20)")
    add_session(command)


def state(options: argparse.Namespace, say: Say) -> SparkResult:
    """Raises UsageError and others, before anything is written."""
    if options.out and options.out.exists():
        raise UsageError(f"is there already: {options.out}: give another --out")
    spark = begun(options, say, options.state or "", STATE_SETTINGS)
    from streamsx.spark.session import told
    from streamsx.spark.state import state

    frame = state(options.app, options.store, path=options.state, spark=spark)
    say("reading the store")
    try:
        frame.createOrReplaceTempView(f"`{options.store}`")
        if options.sql:
            frame = spark.sql(options.sql)
        if options.out:
            frame.write.parquet(str(options.out.absolute()))
            return {"store": options.store, "file": str(options.out)}
        rows = frame.limit(options.limit).selectExpr("to_json(struct(*)) row").collect()
    except Exception as error:
        raise told(error) from error
    return {"store": options.store, "rows": [json.loads(each.row) for each in rows]}


STATE_SETTINGS: Final = {"spark.sql.jsonGenerator.ignoreNullFields": "false"}


def state_told(result: SparkResult) -> str:
    rows = result.get("rows")
    return result["file"] if rows is None else "\n".join(map(json.dumps, rows))


# -- entry


def entry(_: argparse.Namespace, __: Say) -> SparkResult:
    """This file."""
    return {"entry": os.path.abspath(__file__)}


# -- bootstrap and run


def add_pipeline(command: Command) -> None:
    """What commands share that run an app's tasks."""
    add = command.add_argument
    add_app(command)
    add_session(command)
    add("--connector", choices=["python", "jvm"], default="python", help="who reads Kafka (python)")
    add("--jars", metavar="DIR", type=Path, help="of --connector jvm (copied through Maven)")
    add("--scratch", metavar="DIR", help="for databases of executors (Spark's own)")
    add(
        "--task-memory", dest="task_bytes", metavar="SIZE", type=value(size_bytes),
        default=size_bytes("256MiB"), help="of changed rows, in each task (256MiB)",
    )  # fmt: skip
    add("--no-publish", dest="publishes", action="store_false", help="write no changelogs")


def pipeline(options: argparse.Namespace, say: Say) -> dict[str, Any]:
    """What both take, with a session. The app is looked at before a JVM starts."""
    from streamsx.app.lookup import app_named
    from streamsx.spark.connector import settings
    from streamsx.spark.plan import check, refuse
    from streamsx.spark.session import require, session

    require()
    app = app_named(options.app)
    refuse(app.conf.id, check(app))
    say("starting Spark")
    jars = settings(options.connector, options.jars)
    spark = session(settings_of(options, jars), debug=options.debug)
    names = ("connector", "scratch", "task_bytes", "publishes")
    return {"spark": spark, "name": options.app, "say": say} | {n: vars(options)[n] for n in names}


def moment(text: str) -> int:
    """In ms since 1970; without a zone it is in UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write 2026-01-31T12:00") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def bootstrap_options(command: Command) -> None:
    add = command.add_argument
    add_pipeline(command)
    add(
        "--history", metavar="TOPIC=PATH", action="append", default=[],
        type=pair(named, "TOPIC=PATH"),
        help="parquet, orc or JSON lines; or TOPIC=kafka, or TOPIC=none; one for each topic",
    )  # fmt: skip
    add("--out", metavar="URI", required=True, help="where the snapshot goes")
    add("--until", metavar="ISO", type=moment, help="leave out what was recorded from there on")
    add(
        "--partitions", metavar="TOPIC=N", action="append", default=[],
        type=pair(count, "TOPIC=N"),
        help="of topics that the brokers do not have",
    )  # fmt: skip
    add("--replace", action="store_true", help="also where snapshots are already")


def bootstrap(options: argparse.Namespace, say: Say) -> SparkResult:
    """Raises StreamsxError, before anything is written."""
    from streamsx.spark.bootstrap import bootstrap

    begin = time.monotonic()
    done = bootstrap(
        out=options.out, history=dict(options.history), partitions=dict(options.partitions),
        until_ms=options.until, replace=options.replace, **pipeline(options, say),
    )  # fmt: skip
    files = [file for report in done.reports for chain in report.chains.values() for file in chain]
    return {
        "uri": masked(options.out),
        "number": done.manifest.number,
        "records": done.records,
        "tasks": len(done.reports),
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.bytes for file in files),
        "seconds": round(time.monotonic() - begin, 3),
    }


def run_options(command: Command) -> None:
    add = command.add_argument
    add_pipeline(command)
    add("--state", metavar="URI", required=True, help="its snapshots: it goes on from the newest")
    add("--available-now", action="store_true", help="end when all is read that is there now")
    add("--every", metavar="TIME", type=value(seconds), default=1.0, help="a batch (1s)")
    add("--max-records", metavar="N", type=value(whole(1)), help="in a batch")
    add(
        "--from", dest="start", choices=["earliest", "latest"], default="earliest",
        help="where it begins without a snapshot (earliest)",
    )  # fmt: skip
    add(
        "--sink",
        metavar="S",
        default="kafka",
        help="what is sent goes to: kafka, noop, parquet=DIR",
    )
    add("--checkpoint", metavar="DIR", help="Spark's own (under URI, or here)")
    add("--keep", metavar="N", type=value(whole(1)), default=10, help="snapshots (10)")


def run_query(options: argparse.Namespace, say: Say) -> SparkResult:
    """Until all is read, or SIGTERM, which lets the batch end. Raises what ends the query."""
    from streamsx.spark.runner import run

    begin, stop = time.monotonic(), Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    sums = {"number": None, "batches": 0, "records": 0, "outputs": 0}

    def heard(done: Any) -> None:
        new = {"batches": 1, "records": done.records, "outputs": done.outputs}
        sums.update({name: sums[name] + more for name, more in new.items()})
        sums["number"] = done.manifest.number
        say(f"batch {sums['number']}: {done.records} records, {sums['records']} in all")

    names = ("state", "available_now", "max_records", "start", "sink", "checkpoint", "keep")
    given = {name: vars(options)[name] for name in names}
    run(every_s=options.every, heard=heard, **given, **pipeline(options, say)).wait(stop)
    uri, took = masked(options.state), round(time.monotonic() - begin, 3)
    return {"uri": uri, **sums, "seconds": took}


def line_told(result: SparkResult) -> str:
    return ", ".join(f"{name}: {found}" for name, found in result.items())


# -- handover


def handover_options(command: Command) -> None:
    add = command.add_argument
    add_app(command)
    add(
        "--state", metavar="URI", required=True, help="its snapshots: workers go on from the newest"
    )
    add("--force", action="store_true", help="also if a query has died there just now")


def handover(options: argparse.Namespace, say: Say) -> SparkResult:
    """Needs no session. Raises StreamsxError, before anything is written."""
    from streamsx.spark.handover import handover
    from streamsx.spark.session import require

    require()
    say("changelogs and offsets")
    return handover(options.app, options.state, force=options.force)._asdict()


COMMANDS: Final[Mapping[str, SparkCommand]] = {
    "bootstrap": SparkCommand(
        "Make the state of an app out of history: of files, or all that a topic holds.",
        bootstrap_options, bootstrap, line_told,
    ),
    "compact": SparkCommand(
        "Write a snapshot of an app's changelogs, for worker --snapshot: each key's newest row.",
        snapshot_options("out", "store"), compact, snapshot_told,
    ),
    "copy": SparkCommand(
        "Copy the records behind a snapshot into a topic with another number of partitions.",
        snapshot_options("state", "topics"), copy,
        lambda result: f"{result['records']} records copied; again until there are none",
    ),
    "rescale": SparkCommand(
        "Write a snapshot's state for another number of partitions.",
        snapshot_options("state", "partitions", "keyed", "out"), rescale, snapshot_told,
    ),
    "state": SparkCommand(
        "Show a store as rows: from a snapshot, or live from its changelog.",
        state_options, state, state_told,
    ),
    "check": SparkCommand(
        "Tell whether an app can run on Spark, and each reason why not.",
        add_app, check, check_told,
    ),
    "entry": SparkCommand(
        "Say which file spark-submit runs: spark-submit $(streamsx spark entry) COMMAND ...",
        lambda _: None, entry, lambda result: result["entry"],
    ),
    "events": SparkCommand(
        "Turn event logs of workers into tables and plots: rebalances, moves, gaps, restores.",
        events_options, events, events_told,
    ),
    "handover": SparkCommand(
        "Hand the newest snapshot over to workers: changelogs, offsets, and what to start.",
        handover_options, handover, lambda result: result["worker"],
    ),
    "run": SparkCommand(
        "Run an app as a query; what its bodies keep between records is lost after each batch.",
        run_options, run_query, line_told,
    ),
}  # fmt: skip


if __name__ == "__main__":
    main()
