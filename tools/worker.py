"""`streamsx worker`: runs one worker of an app, until it is told to leave.

SIGTERM and SIGINT make the worker leave gracefully: if others can take over, they learn the tasks
first. A second signal stops the worker at once.
"""

import argparse
import gc
import io
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from streamsx.tools.cli.command import Command

if TYPE_CHECKING:
    from streamsx.config import Config
    from streamsx.state.directory import StateDirectory

SETTINGS = ("bootstrap", "state_dir", "instance_id", "events_file", "log_level", "snapshot")
"""Options that are settings of the app."""
EXAMPLES = """\
examples:
  streamsx worker shop                          the app of shop.py in this folder
  streamsx worker shop --instance-id a -l warning
  streamsx worker my.shop:app --events a.jsonl  with a file of events"""
NAME_DIGITS = 4
OFF = "off"
GC_THRESHOLDS = (100_000, 50, 100)


def main() -> None:
    """Run the command: exit with 0 after a clean leave."""
    purpose = "Run one worker of an app until it is told to leave. Ctrl-C and SIGTERM tell it so."
    command = Command("worker", purpose, epilog=EXAMPLES)
    add = command.add_argument
    add("app", metavar="MODULE[:ATTR]", help="the app, as in an import, or its file")
    add(
        "--bootstrap", metavar="HOST:PORT[,HOST:PORT]",
        help="addresses of brokers ($STREAMSX_BOOTSTRAP, else the app's, else localhost:9092)",
    )  # fmt: skip
    add(
        "--state-dir", metavar="DIR",
        help="the state directory of this worker (its own folder in ./ID-data/, else a free one)",
    )  # fmt: skip
    add("--instance-id", metavar="ID", help="its name in status, leave and events (kept there)")
    add(
        "--events",
        dest="events_file",
        metavar="FILE",
        help="write events to this file, one JSON object a line",
    )
    add("--snapshot", metavar="URI", help="fill empty stores from the newest snapshot there")
    add(
        "-l",
        "--loglevel",
        dest="log_level",
        metavar="LEVEL",
        help="debug, info, warning, error or critical (info)",
    )
    add("--web", type=no_web, default=OFF, metavar=OFF, help="this version has no web server")
    add("--without-web", action="store_const", const=OFF, dest="web", help="the same as --web off")
    add(
        "--processes", type=one_process, default=1, metavar="1",
        help="this version runs one worker: start the command once for each",
    )  # fmt: skip
    users = UsersCode()
    try:
        command.run(lambda options: work(options, users))
    except SystemExit as end:
        end_without(users, end)
        raise


def no_web(text: str) -> str:
    """Parse `--web`. Raises argparse.ArgumentTypeError for an address."""
    if text != OFF:
        raise argparse.ArgumentTypeError(
            f"invalid choice: {text!r}: this version has no web server: leave --web out; `streamsx "
            "status` and --events tell what a worker does"
        )
    return text


def one_process(text: str) -> int:
    """Parse `--processes`. Raises argparse.ArgumentTypeError for more than one."""
    if text != "1":
        raise argparse.ArgumentTypeError(
            f"invalid choice: {text!r}: a command runs one worker: start it once for each worker"
        )
    return 1


@dataclass(slots=True)
class UsersCode:
    """State of users' code at the end of a worker."""

    left: bool = False
    """User code still runs in the event loop, and will not end."""
    patience_s: float | None = None
    """Seconds that threads of user code may still take; None while no worker has run."""


def work(options: argparse.Namespace, users: UsersCode) -> int:
    """Run a worker; return its exit code.

    Raises:
        UsageError: an option is wrong, or the app cannot be imported.
        StreamsxError: any other error; `tools.cli.command` lists the exit codes.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # before the worker has joined a group
    if isinstance(sys.stdout, io.TextIOWrapper):  # else what an app prints waits for 8 KiB
        sys.stdout.reconfigure(line_buffering=True)
    # With Python's own thresholds, imports alone cause 100 collections.
    gc.set_threshold(*GC_THRESHOLDS)

    import asyncio

    from streamsx.app.lookup import app_named
    from streamsx.clock import SystemClock
    from streamsx.journal import LOG, Journal
    from streamsx.log_sentences import sentence
    from streamsx.state.disk import raise_descriptor_limit
    from streamsx.tools.cli.logs import set_up
    from streamsx.worker.worker import Worker

    raise_descriptor_limit()
    app = app_named(options.app)
    given = ((name, getattr(options, name)) for name in SETTINGS)
    app.override(**{name: value for name, value in given if value is not None})
    config = app.conf
    topology = app.topology()
    set_up(config.log_level, config.log_format)
    for note in (*app.settled.notes, *topology.notes):
        LOG.warning("%s", sentence(note))
    directory = directory_of(config)
    clock = SystemClock()
    events = Path(config.events_file) if config.events_file else None
    as_json = config.log_format == "json"
    journal = Journal(named(directory, config), clock, events, as_json=as_json)
    worker = Worker(
        topology,
        config,
        directory,
        journal,
        clock,
        services=[(job.name, job.run) for job in app.jobs],
        hosted=lambda host: setattr(app, "host", host),
        listeners=app.listeners,
        begun=calm_gc,
    )
    runner = asyncio.Runner()
    try:
        return runner.run(worker.run())
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the worker has ended already
        users.left = bool(worker.left_behind)
        users.patience_s = worker.patience_s()
        if not users.left:
            runner.get_loop().close()  # `runner.close` would wait for threads without a limit
        journal.close()
        directory.release()


def end_without(users: UsersCode, end: SystemExit) -> None:
    """End the process at once if users' tasks still run, or later if users' threads still run.

    Python itself would wait for both. Threads have `patience_s` to end.
    """
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if users.left:
        _exit(code)
    if users.patience_s is None:
        return
    watchdog = threading.Timer(users.patience_s, _exit_beside_threads, [code])
    watchdog.daemon = True
    watchdog.start()


def _exit_beside_threads(code: int) -> None:
    """End the process, and log the threads that still run; idle threads have ended by then."""
    from streamsx.journal import LOG

    threads = {each.name for each in threading.enumerate() if not each.daemon}
    if threads := threads - {threading.main_thread().name}:
        LOG.warning("Left behind: threads %s. The worker ends without them.", sorted(threads))
    _exit(code)


def _exit(code: int) -> None:
    """End the process at once, even if threads or tasks still run."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def calm_gc() -> None:
    """Freeze all objects that exist now: a full collection would block the data loop for long."""
    gc.collect()
    gc.freeze()


def directory_of(config: "Config") -> "StateDirectory":
    """Return the state directory from the settings, or a slot of the folder `ID-data`.

    The slot is the instance's own, else the first free one.
    """
    from streamsx.journal import LOG
    from streamsx.state.directory import StateDirectory

    if config.state_dir is not None:
        return StateDirectory(Path(config.state_dir), config.id)
    found = StateDirectory.in_slot(Path(f"{config.id}-data"), config.id, config.instance_id)
    if found.own_slot_taken:
        LOG.warning(
            "Worker %s begins in slot %s, with the state that is there: its own slot is taken: "
            "%s.",
            config.instance_id, found.root.name, found.own_slot_taken,
        )  # fmt: skip
    return found


def named(directory: "StateDirectory", config: "Config") -> str:
    """Return the name of the instance, and store the name in its state directory.

    The name comes from the settings, else from the directory, else from the host and some digits.
    """
    made = f"{socket.gethostname()}-{os.urandom(NAME_DIGITS // 2).hex()}"
    instance = config.instance_id or directory.instance_id or made
    directory.name_instance(instance)
    return instance
