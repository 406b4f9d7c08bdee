"""`streamsx spark`: runs what is too much for one machine, or is a table, on Spark.

Each of its commands is a row of COMMANDS. pyspark is imported by the one that runs, behind its
options: what is wrong with those is said before a JVM starts.

Run as a file, by spark-submit, it is the same; `entry` says where it is.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from streamsx.errors import UsageError
from streamsx.tools.cli.command import Command, tell
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


# -- entry


def entry(_: argparse.Namespace, __: Say) -> SparkResult:
    """This file."""
    return {"entry": os.path.abspath(__file__)}


COMMANDS: Final[Mapping[str, SparkCommand]] = {
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
}  # fmt: skip


if __name__ == "__main__":
    main()
