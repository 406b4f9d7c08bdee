"""`streamsx spark`: runs an app on Spark, makes its state from history, shows stores as tables.

Each subcommand is a row of COMMANDS, and each option a row of OPTIONS. A subcommand imports pyspark
only after its options have been parsed, and the JVM starts at the first use of Spark. Wrong
arguments are therefore reported before both.

spark-submit can run this file with the same effect; `entry` prints the path of the file.
"""

import argparse
import json
import logging
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple

from streamsx.config import positive, seconds, size_bytes, text, whole
from streamsx.errors import SparkGone, StreamsxError, UsageError
from streamsx.state.snapshot_files import masked, open_files
from streamsx.tools.cli.command import CommandGroup, tell, value
from streamsx.tools.cli.folder import new_folder
from streamsx.tools.cli.later import LateSession, interrupts
from streamsx.tools.cli.progress import blocking_progress

Say = Callable[[str], None]
"""Function that shows people the current step of the work."""
SparkResult = dict[str, Any]
"""Object that `--json` prints."""
SETTLED = "rebalances.png"
GAPS = "gaps.png"


class SparkCommand(NamedTuple):
    """Subcommand of `spark`.

    `needs` and `takes` name required and optional OPTIONS. `work` receives the session, and raises
    StreamsxError for an expected failure. `told` turns the result into text for people. `texts`
    overrides fields of its OPTIONS. `settings` are settings of Spark. A command that is `alone`
    imports nothing of Spark.
    """

    purpose: str
    needs: str
    takes: str
    work: Callable[[argparse.Namespace, Say, Any], SparkResult]
    told: Callable[[SparkResult], str]
    texts: Mapping[str, Mapping[str, str]] = {}
    settings: Mapping[str, str] = {}
    alone: bool = False


def main() -> None:
    """Run `spark COMMAND`."""
    parser().run(lambda options: run(options.command, COMMANDS[options.command], options))


def parser() -> CommandGroup:
    """Return the parser of all commands, with their options."""
    made = CommandGroup("spark", PURPOSE)
    for name, job in COMMANDS.items():
        command = made.add_command(name, job.purpose)
        command.epilog = f"example:\n  streamsx spark {EXAMPLES[name]}"
        needs = job.needs.split()
        for word in (*needs, *job.takes.split()):
            required = {"required": word in needs} if word.startswith("-") else {}
            how = {**OPTIONS[word], **required, **job.texts.get(word, {})}
            command.add_argument(word, **how)
        command.add_json()
    return made


def run(name: str, job: SparkCommand, options: argparse.Namespace) -> int:
    """Run a command and print its result.

    Returns:
        Exit code: 2 for a result that is not `ok`, else 0.

    Raises:
        StreamsxError: the command failed.
        KeyboardInterrupt: SIGINT or SIGTERM arrived.
    """
    begin = time.monotonic()
    with ExitStack() as stack:
        say = stack.enter_context(blocking_progress(sys.stderr, f"{name}: starting"))
        if job.alone:
            result = job.work(options, say, None)
        else:
            from streamsx.spark.session import require, translate_error

            require()
            spark = stack.enter_context(LateSession(job.settings, options, say))
            stopped = interrupts()
            try:
                result = job.work(options, spark.say, spark)
            except Exception as error:
                if stopped.is_set():
                    raise KeyboardInterrupt from error
                raise translate_error(error) from error
    if "uri" in result:  # of a command that writes snapshots
        result |= {"uri": masked(result["uri"]), "seconds": round(time.monotonic() - begin, 3)}
    ok = result.get("ok", True)
    print(job.told(result), file=options.people if ok else sys.stderr)
    tell(options, result)
    return 0 if ok else UsageError.exit_code


# -- options


class Once(argparse.Action):
    """Action that collects pairs into a dict.

    A name that is given twice is refused, because the second value would silently replace the
    first.
    """

    def __call__(
        self, parser: object, options: argparse.Namespace, given: Any, option: object = None
    ) -> None:
        found: dict[str, Any] = {**getattr(options, self.dest)}
        for name, word in given if isinstance(given, list) else [given]:
            if name in found:
                raise argparse.ArgumentError(self, f"{name} is given twice: give it once")
            found[name] = word
        setattr(options, self.dest, found)


def pair(form: str, parse: Callable[[object], object], prefix: str = "") -> dict[str, Any]:
    """Return an option of two words with a sign between them, as `form` shows.

    The first word must begin with `prefix`.
    """

    def parsed(given: str) -> tuple[str, Any]:
        name, sign, word = given.partition("=" if "=" in form else ":")
        try:
            if name.startswith(prefix) and name != prefix and sign:
                return name, parse(word)
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{given!r}: write {form}")

    return {"metavar": form, "default": {}, "action": Once, "type": parsed}


def moment(text: str) -> int:
    """Parse an ISO time, in UTC unless the text has a zone; return ms since 1970.

    Raises:
        argparse.ArgumentTypeError: the text has another form.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write 2026-01-31T12:00") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def sink(given: str) -> str:
    if given not in ("kafka", "noop") and not re.match("parquet=.", given):
        raise argparse.ArgumentTypeError(f"{given!r}: write kafka, noop or parquet=DIR")
    return given


def option(
    metavar: str, help_text: str, parse: Callable[[object], object] = text
) -> dict[str, Any]:
    return {"metavar": metavar, "help": help_text, "type": value(parse)}


PURPOSE: Final = "Run an app on Spark, make its state from history, show its stores as tables."
EXAMPLES: Final[Mapping[str, str]] = {
    "bootstrap": "bootstrap shop --history orders=orders.parquet --out s3://bucket/shop",
    "compact": "compact shop --out s3://bucket/shop",
    "copy": "copy shop --state s3://bucket/shop-12 --topics orders:orders-12",
    "rescale": "rescale shop --state s3://bucket/shop --partitions orders=12 --out s3://bucket/s12",
    "state": "state shop --store totals --live",
    "check": "check shop",
    "entry": "entry",
    "events": "events a.jsonl b.jsonl --out report",
    "handover": "handover shop --state s3://bucket/shop",
    "run": "run shop --state s3://bucket/shop --every 10s",
}
OPTIONS: Final[Mapping[str, dict[str, Any]]] = {
    "app": option("MODULE[:ATTR]", "the app, as in an import, or its file"),
    "paths": option("PATH", "event logs, or folders with *.jsonl in them") | {"nargs": "+"},
    "--out": option("URI", "the folder for its snapshots"),
    "--state": option("URI", "the folder of its snapshots; the newest is used"),
    "--live": {"action": "store_true", "help": "read its changelog, as it is now"},
    "--store": option("S", "only this store; may be repeated") | {"action": "append"},
    "--sql": option("Q", "a query instead of all rows; the store is the table of its name"),
    "--limit": option("N", "rows to show (20)", whole(1)) | {"default": 20},
    "--partitions": pair("TOPIC=N", whole(1))
    | {"nargs": "+", "help": "partitions of topics that do not exist yet"},
    "--keyed": pair("STORE=TOPIC", text)
    | {"nargs": "+", "help": "the topic whose keys a store has, where the rows cannot show it"},
    "--topics": pair("OLD:NEW", text) | {"nargs": "+", "help": "a topic, and its new topic"},
    "--history": pair("TOPIC=PATH", text)
    | {"help": "parquet, orc or JSON lines with columns key, value, timestamp; or TOPIC=kafka, or "
            "TOPIC=none; one for each topic"},
    "--until": {
        "metavar": "ISO", "type": moment, "help": "leave out records from this time on",
    },
    "--replace": {"action": "store_true", "help": "write even if snapshots exist there"},
    "--force": {
        "action": "store_true",
        "help": "continue even if a query has died there, or history overlaps",
    },
    "--available-now": {"action": "store_true", "help": "end when all records of now are read"},
    "--every": option("TIME", "time between batches (1s)", positive(seconds)) | {"default": 1.0},
    "--max-records": option("N", "most records of a batch", whole(1)),
    "--from": {
        "dest": "start", "choices": ["earliest", "latest", "group"], "default": "earliest",
        "help": "the start without a snapshot (earliest); group: what workers have committed",
    },
    "--sink": {
        "metavar": "S", "type": sink, "default": "kafka",
        "help": "the place for outputs: kafka, noop or parquet=DIR",
    },
    "--keep": option("N", "number of snapshots that stay (10)", whole(1)) | {"default": 10},
    "--scratch": option("DIR", "folder for databases of executors (Spark's own)"),
    "--task-memory": option("SIZE", "for changed rows of a task (256MiB)", positive(size_bytes))
    | {"dest": "task_bytes", "default": size_bytes("256MiB")},
    "--no-publish": {
        "dest": "publishes", "action": "store_false", "help": "write no changelogs",
    },
    "--master": option("M", "master of Spark (spark-submit's, else all cores here)"),
    "--conf": pair("spark.NAME=VALUE", str, "spark.")
    | {"help": "a setting of Spark; may be repeated"},
}  # fmt: skip
SESSION: Final = "--master --conf"
PIPELINE: Final = f"--scratch --task-memory --no-publish --force {SESSION}"


# -- check


def check(options: argparse.Namespace, _: Say, __: None) -> SparkResult:
    """Check whether an app can run on Spark; list its stages, or the reasons against it.

    Raises:
        UsageError: the name does not lead to an app.
    """
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


def events(options: argparse.Namespace, say: Say, spark: Any) -> SparkResult:
    """Write tables and plots of event logs into a new folder.

    Raises:
        StreamsxError: the request is wrong, such as UsageError; nothing has been written then.
    """
    from streamsx.spark.events import events, files_of, save, summary
    from streamsx.tools.cli.plots import gap_lengths, require_plots, settle_times

    require_plots()
    with new_folder(options.out) as draft:
        paths = files_of(options.paths)
        say(f"reading event logs: {len(paths)}")
        read = events(spark, paths)
        tables, files = save(read, draft, say)
        say("drawing")
        rounds = tables["rebalances"].to_pydict()
        gaps = tables["gaps"].to_pydict()
        settle_times(draft / SETTLED, rounds["generation"], rounds["ms"], rounds["moved"])
        kinds = list(zip(gaps["gap_ms"], gaps["clean"], gaps["nobody"], strict=True))
        reported, silent = ([ms for ms, *kind in kinds if kind == [each, False]] for each in (1, 0))
        gap_lengths(draft / GAPS, reported, silent, [ms for ms, _, nobody in kinds if nobody])
    files = [str(Path(options.out, Path(name).name)) for name in (*files, SETTLED, GAPS)]
    counted = {"events": read.lines - read.torn, "torn_lines": read.torn}
    return summary(tables) | {"files": files} | counted


def events_told(result: SparkResult) -> str:
    gaps = (f"{name[:-3]} {ms:,.0f} ms" for name, ms in result["gaps"].items() if ms is not None)
    counts = (
        f"events: {result['events']}, rebalances: {result['rebalances']}, tasks that were learned "
        f"and moved: {result['moves']}, restores: {result['restores']}"
    )
    more = result["gaps_without_workers"]
    rest = f"; {more} more while no worker ran" if more else ""
    lines = [counts, f"gaps: {', '.join(gaps) or 'none'}{rest}"]
    if result["torn_lines"]:
        lines.append(f"{result['torn_lines']} torn lines of processes that were killed: left out")
    if result["clock_skew"]:
        lines.append(f"{result['clock_skew']} spans were negative: clocks of the hosts differ")
    return "\n".join([*lines, *result["files"]])


# -- snapshots of an app, and its stores as tables


def compact(options: argparse.Namespace, say: Say, spark: Any) -> SparkResult:
    """Write a snapshot of an app's changelogs.

    Raises:
        StreamsxError: the request is wrong, such as UsageError; nothing has been written then.
    """
    from streamsx.spark.compact import compact, sizes

    say("compacting changelogs")
    made = compact(options.app, options.out, stores=options.store, spark=spark)
    return {"uri": options.out, **sizes(made)}


def rescale(options: argparse.Namespace, say: Say, spark: Any) -> SparkResult:
    """Write the state of a snapshot for other numbers of partitions.

    Raises:
        StreamsxError: the request is wrong, such as UsageError; nothing has been written then.
    """
    from streamsx.spark.compact import sizes
    from streamsx.spark.rescale import procedure, rescale

    say("writing state for other partitions")
    how = {"keyed": options.keyed, "spark": spark}
    made = rescale(options.app, options.state, options.out, options.partitions, **how)
    steps = procedure(options.app, options.state, options.out)
    return {"uri": options.out, **sizes(made), "procedure": steps}


def copy(options: argparse.Namespace, say: Say, spark: Any) -> SparkResult:
    """Copy the records behind a snapshot into other topics.

    Raises:
        StreamsxError: the request is wrong, such as UsageError; nothing has been written then.
    """
    from streamsx.spark.rescale import copy

    if astray := options.partitions.keys() - options.topics.values():
        raise UsageError(f"--partitions of {', '.join(sorted(astray))}: nothing is copied there")
    records = 0
    positions = {}
    for old, new in options.topics.items():
        say(f"copying {old} to {new}")
        how = {"spark": spark, "partitions": options.partitions.get(new)}
        sent, positions[old] = copy(options.app, options.state, old, new, **how)
        records += sent
    return {"records": records, "positions": positions}


def state(options: argparse.Namespace, say: Say, spark: Any) -> SparkResult:
    """Return rows of a store, or write all of them as parquet with `--out`.

    Raises:
        StreamsxError: the request is wrong, such as UsageError; nothing has been written then.
    """
    from streamsx.spark.session import probe_cluster
    from streamsx.spark.state import state

    store, *more = options.store
    if more:
        raise UsageError(f"{len(more) + 1} stores: {', '.join(options.store)}: give one at a time")
    if options.live == bool(options.state):
        raise UsageError(f"which state of {store}: give either --state URI or --live")
    with new_folder(options.out) if options.out else nullcontext() as draft:
        say("reading the store")
        frame = state(options.app, store, path=options.state, spark=spark)
        frame.createOrReplaceTempView(f"`{store}`")
        if options.sql:
            frame = spark.sql(options.sql)
        if draft:
            # Executors with another disk here would write there: our folder would stay empty.
            probe_cluster(spark, options.app, str(draft.parent), "a shared mount as --out")
            frame.write.mode("append").parquet(str(draft))  # the draft is empty
            return {"store": store, "file": options.out}
    rows = frame.limit(options.limit).selectExpr("to_json(struct(*)) row").collect()
    return {"store": store, "rows": [json.loads(each.row) for each in rows]}


def state_told(result: SparkResult) -> str:
    rows = result.get("rows")
    return result["file"] if rows is None else "\n".join(map(json.dumps, rows))


def line_told(result: SparkResult) -> str:
    """Return a line with the result, and a line for each step of the procedure that follows."""
    line = ", ".join(f"{name}: {found}" for name, found in result.items() if name != "procedure")
    steps = (f"  {n}. {step}" for n, step in enumerate(result.get("procedure", ()), 1))
    none = ["no state: what was read has no rows"] if result.get("rows") == 0 else []
    return "\n".join([line, *none, *steps])


# -- bootstrap, run, handover


def pipeline(options: argparse.Namespace, say: Say, spark: Any) -> dict[str, Any]:
    """Return the arguments that `bootstrap` and `run` share.

    Raises:
        UsageError: the app cannot run on Spark.
    """
    from streamsx.app.lookup import app_named
    from streamsx.spark.plan import check, refuse

    app = app_named(options.app)
    refuse(app.conf.id, check(app))
    names = ("scratch", "task_bytes", "publishes", "force")
    return {"spark": spark, "name": options.app, "say": say} | {n: vars(options)[n] for n in names}


def bootstrap(options: argparse.Namespace, say: Say, spark: Any) -> SparkResult:
    """Make the state of an app out of history, as a snapshot.

    Raises:
        StreamsxError: the request is wrong; nothing has been written then.
    """
    from streamsx.spark.bootstrap import bootstrap
    from streamsx.spark.compact import sizes

    more = pipeline(options, say, spark)
    open_files(options.out).names("")
    say("reading history")
    done = bootstrap(
        out=options.out, history=options.history, partitions=options.partitions,
        until_ms=options.until, replace=options.replace, **more,
    )  # fmt: skip
    summary = {"uri": options.out, "records": done.records}
    summary |= {**sizes(done.manifest), "tasks": len(done.reports)}
    return summary | {"procedure": before_workers(options.app, options.out)}


def run_query(options: argparse.Namespace, say: Say, spark: Any) -> SparkResult:
    """Run an app as a query until all records are read, or until SIGTERM.

    SIGTERM lets the current batch end. An error that ends the query is raised.
    """
    from streamsx.spark.runner import run
    from streamsx.spark.session import translate_error

    stop = Event()

    def end(*_: object) -> None:
        stop.set()
        logging.getLogger("py4j").disabled = True

    signal.signal(signal.SIGTERM, end)
    more = pipeline(options, say, spark)
    open_files(options.state).names("")
    sums = {"number": None, "batches": 0, "records": 0, "outputs": 0}

    def heard(done: Any) -> None:
        new = {"batches": 1, "records": done.records, "outputs": done.outputs}
        sums.update({name: sums[name] + more for name, more in new.items()})
        sums["number"] = done.manifest.number
        say(f"batch {sums['number']}: {done.records} records, {sums['records']} in all")

    names = ("state", "available_now", "max_records", "start", "sink", "keep")
    given = {name: vars(options)[name] for name in names}
    try:
        run(every_s=options.every, heard=heard, **given, **more).wait(stop)
    except Exception as error:
        ours = isinstance(found := translate_error(error), StreamsxError) and not isinstance(
            found, SparkGone
        )
        if ours or not stop.is_set():
            raise
        words = "stopped amid a batch, which does not count: the JVM was stopped too"
        print(words, file=sys.stderr)
    return {"uri": options.state, **sums, "procedure": before_workers(options.app, options.state)}


def before_workers(app: str, uri: str) -> list[str]:
    return [f"python -m streamsx spark handover {app} --state {shlex.quote(uri)}  # then workers"]


def handover(options: argparse.Namespace, say: Say, _: Any) -> SparkResult:
    """Hand the newest snapshot over to workers: changelogs and offsets. No session is needed.

    Raises:
        StreamsxError: the request is wrong; nothing has been written then.
    """
    from streamsx.spark.handover import handover

    say("changelogs and offsets")
    return handover(options.app, options.state, force=options.force)._asdict()


def handover_told(result: SparkResult) -> str:
    at = {t: ", ".join(map(str, each.values())) for t, each in sorted(result["positions"].items())}
    lines = [f"published: {size} rows of {store}" for store, size in result["published"].items()]
    lines += [
        f"committed: {result['group']} continues in {topic} at {ns}" for topic, ns in at.items()
    ]
    return "\n".join([*lines, result["worker"]])


COMMANDS: Final[Mapping[str, SparkCommand]] = {
    "bootstrap": SparkCommand(
        "Make the state of an app from history: from files, or from all records of a topic.",
        "app --out", f"--history --until --partitions --replace {PIPELINE}", bootstrap, line_told,
    ),
    "compact": SparkCommand(
        "Write the newest row of each key of an app's changelogs, as a snapshot for workers.",
        "app --out", f"--store {SESSION}", compact, line_told,
    ),
    "copy": SparkCommand(
        "Copy the records behind a snapshot into a topic with another number of partitions.",
        "app --state --topics", f"--partitions {SESSION}", copy,
        lambda result: f"{result['records']} records copied; again until there are none",
    ),
    "rescale": SparkCommand(
        "Write a snapshot's state for another number of partitions.",
        "app --state --partitions --out", f"--keyed {SESSION}", rescale, line_told,
        {"--partitions": {"help": "new partitions of topics"}},
    ),
    "state": SparkCommand(
        "Show the rows of a store, from a snapshot or from its changelog.",
        "app --store", f"--state --live --sql --out --limit {SESSION}", state, state_told,
        {"--store": {"help": "which one"},
         "--out": {"metavar": "DIR", "help": "a new folder, for the rows as parquet"}},
        {"spark.sql.jsonGenerator.ignoreNullFields": "false"},
    ),
    "check": SparkCommand(
        "Tell whether an app can run on Spark, and each reason why not.",
        "app", "", check, check_told, alone=True,
    ),
    "entry": SparkCommand(
        "Say which file spark-submit runs, as in spark-submit $(streamsx spark entry) run shop.",
        "", "", lambda *_: {"entry": os.path.abspath(__file__)},
        lambda result: result["entry"], alone=True,
    ),
    "events": SparkCommand(
        "Turn event logs of workers into tables and plots: rebalances, moves, gaps, restores.",
        "paths --out", SESSION, events, events_told,
        {"--out": {"metavar": "DIR", "help": "a new folder, for tables (parquet) and plots"}},
        # Logs of a night are small. Empty partitions and code generation took most of the time.
        {
            "spark.sql.shuffle.partitions": "2", "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    ),
    "handover": SparkCommand(
        "Hand the newest snapshot over to workers: changelogs, offsets, and what to start.",
        "app --state", "--force", handover, handover_told,
    ),
    "run": SparkCommand(
        "Run an app as a query; what its bodies keep between records is lost after each batch.",
        "app --state",
        f"--available-now --every --max-records --from --sink --keep {PIPELINE}",
        run_query, line_told,
    ),
}  # fmt: skip


if __name__ == "__main__":
    main()
