"""`streamsx status`: who is in the group of an app, and what each runs and learns.

The command needs the broker and no connection to the workers. The lag of a learner dates from the
last rebalance. The lag of a task counts the records that the group has not committed by now.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import RenderableType
from rich.live import Live

from streamsx.clock import Clock
from streamsx.config import whole
from streamsx.errors import BrokerUnreachable, NotFound, UsageError, WorldError
from streamsx.log_sentences import counted
from streamsx.tools.cli.cluster import ClusterCommand, connected
from streamsx.tools.cli.command import tell, value
from streamsx.tools.cli.group_status import (
    NO_WORKER,
    as_data,
    commit_s,
    failed_check,
    quiet_tasks,
    stale_s,
)
from streamsx.tools.cli.group_table import drawn
from streamsx.tools.cli.progress import console_on, progress
from streamsx.tools.cli.times import utc

if TYPE_CHECKING:
    from streamsx.client.cluster import Cluster
    from streamsx.group.admin.describe import GroupDescription

__all__ = ["NO_WORKER"]

SETTLE_S = 10.0
"""Longest time to wait, by asking again, while the group rebalances."""
WATCH_EVERY_S = 2.0
TRIES_FOR_S = 2.0
"""Time without an answer after which `--watch` says so."""
SECOND_LOOK_S = 2.0
SECOND_LOOK_MAX_S = 6.0
"""Pause before a second look at tasks that have not committed for long: longer than a commit
interval, and two of the usual one. Tasks that commit more seldom than the longest pause are not
suspected, because their next commit cannot be waited for."""
MOVING = ("committed",)
"""Fields that change with each commit, and are no reason to print the status again."""
TOLD_ANEW = ("at", "time", "notes", "time_notes")
"""Fields of the whole app that change without news."""
EXAMPLES = """\
examples:
  streamsx status --app shop                            what each worker runs, and how far behind
  streamsx status --app shop --watch                    the same, until Ctrl-C
  streamsx status --app shop --check --max-lag 10000    for an alarm: exits 1 if not all is well
"""


def main() -> None:
    """Run the command: exit with 3 if the cluster does not know the app."""
    purpose = "Show the workers of an app, what each runs, and how far behind its tasks are."
    command = ClusterCommand("status", purpose, epilog=EXAMPLES)
    command.add_app(required=True)
    add = command.add_argument
    add(
        "--watch", action="store_true",
        help="show it again and again, also while the broker is away or the app is not there yet",
    )  # fmt: skip
    add("--time", action="store_true", help="show the event time of each task too")
    add(
        "--check", action="store_true",
        help="exit with 1 if tasks have stopped, a topic is gone, no worker runs, or by --max-lag",
    )  # fmt: skip
    add(
        "--max-lag", type=value(whole(0)), metavar="N",
        help="with --check: exit with 1 if a task is more than N records behind",
    )  # fmt: skip
    command.ask(status)


async def status(options: argparse.Namespace, clock: Clock) -> int | None:
    """Print the status once, check it, or print it again and again.

    Raises:
        UsageError: the options contradict each other.
        NotFound: the cluster does not know the app.
        StreamsxError: any other error, such as BrokerUnreachable.
    """
    if options.max_lag is not None and not options.check:
        raise UsageError("--max-lag without --check: give both, or none")
    if options.watch and options.check:
        raise UsageError("--check with --watch: a check looks once: give one of them")
    if options.watch:
        await watch(options, clock)
        return None
    async with connected(options) as cluster:
        data = await first_look(cluster, options, clock)
    if options.check:
        return check(options, data)
    with painter(options.people, live=False) as paint:
        paint(drawn(data, clock.wall(), times=options.time))
    tell(options, data)
    return None


def check(options: argparse.Namespace, data: dict[str, Any]) -> int:
    """Print whether all is well in one line, and return the exit code."""
    wrong = failed_check(data, options.max_lag)
    known = f"{counted(data['tasks'], 'task')} on {counted(len(data['instances']), 'worker')}"
    far = "" if data["lag"] is None else f", {counted(data['lag'], 'record')} behind{worst(data)}"
    line = f"not ok: {wrong}" if wrong else f"ok: {known}{far}"
    print(f"{options.app}: {line}", file=options.people)
    tell(options, {**data, "ok": not wrong, "wrong": wrong})
    return int(bool(wrong))


def worst(data: dict[str, Any]) -> str:
    """Return the largest lag of a task and the task, as the end of a line; "" if no task lags."""
    instances = data["instances"].values()
    lags = {task: lag for here in instances for task, lag in here["lag"].items() if lag}
    if not lags:
        return ""
    task = max(lags, key=lambda each: lags[each])
    return f", at most {lags[task]:,} in {task}"


async def first_look(
    cluster: "Cluster", options: argparse.Namespace, clock: Clock
) -> dict[str, Any]:
    """Return the status of a settled group, or after `SETTLE_S` that of one that rebalances."""
    from streamsx.group.admin.describe import settled

    async with progress(sys.stderr, f"looking at the group of {options.app}") as say:
        again = f"the group of {options.app} is rebalancing: asking again"
        seen = await settled(cluster, clock, options.app, SETTLE_S, lambda _: say(again))
        return await known(cluster, options.app, clock, seen)


async def known(
    cluster: "Cluster", app: str, clock: Clock, seen: "GroupDescription"
) -> dict[str, Any]:
    """Return the status; look again at tasks whose last commit is old although records wait."""
    from streamsx.group.admin.describe import look
    from streamsx.tools.cli.lags import input_of

    found = await input_of(cluster, app, seen.report)
    old_s = stale_s(seen.report)
    stuck = quiet_tasks(found, clock.wall(), old_s)
    pause_s = max(SECOND_LOOK_S, commit_s(seen.report) + 1)
    if pause_s > SECOND_LOOK_MAX_S:
        stuck = set()
    if stuck:
        await asyncio.sleep(pause_s)
        before = found
        again = await look(cluster, app)
        seen = again if again.report.settled else seen
        found = await input_of(cluster, app, seen.report)
        stuck = {
            task
            for task in stuck & quiet_tasks(found, clock.wall(), old_s)
            if found.tasks[task].places == before.tasks[task].places
        }
    return as_data(app, seen, found, clock.wall(), stuck)


async def watch(options: argparse.Namespace, clock: Clock) -> None:
    """Print the status after every change until interrupted; redraw it on a terminal.

    A broker that is away, and an app that is not there yet, are waited for. A rebalancing group
    reveals only that it is rebalancing: the earlier details stay on the screen meanwhile.
    """
    shown: object = None
    with painter(options.people, live=True) as paint, without_warnings():
        looks = Looks(options, clock)
        if paint.redraws:
            paint(f"looking at the group of {options.app}")
        try:
            while True:
                data, trouble = await looks.look()
                news = trouble, data and lasting(data)
                if news != shown or paint.redraws:
                    paint(*pictures(options, clock, data, trouble))
                if news != shown and data is not None and not trouble:
                    tell(options, data)
                shown = news
                await asyncio.sleep(WATCH_EVERY_S)
        finally:
            await looks.stop()


@contextmanager
def without_warnings() -> Iterator[None]:
    """Keep warnings of the client off the screen: they would stay there after an outage."""
    log = logging.getLogger("streamsx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


class Looks:
    """Looks at the group of an app, one after another, on one connection as long as it lasts."""

    def __init__(self, options: argparse.Namespace, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._cluster: Cluster | None = None
        self._data: dict[str, Any] | None = None
        self._away_since = 0.0

    async def look(self) -> tuple[dict[str, Any] | None, str]:
        """Return the newest status that is known, and why there is no newer one; "" if new."""
        began = self._clock.wall()
        try:
            self._data = await self._newest()
        except NotFound as error:
            self._data = None
            return None, f"{error}; waiting for the app to start"
        except WorldError as error:
            self._away_since = self._away_since or began
            away = isinstance(error, BrokerUnreachable)
            why = f"no broker at {self._options.bootstrap}" if away else str(error)
            since = f"no answer since {utc(self._away_since)}: {why}; trying again"
            old = f"; the figures are of {utc(self._data['at'])}" if self._data else ""
            return self._data, f"{since}{old}"
        self._away_since = 0.0
        return self._data, ""

    async def _newest(self) -> dict[str, Any]:
        from streamsx.client.cluster import Cluster
        from streamsx.group.admin.describe import look

        app = self._options.app
        if self._cluster is None:
            cluster = Cluster(
                self._options.bootstrap, self._options.security, tries_for_s=TRIES_FOR_S
            )
            await cluster.start()
            self._cluster = cluster
        seen = await look(self._cluster, app)
        if self._data is None or seen.report.settled:
            return await known(self._cluster, app, self._clock, seen)
        return {**self._data, "state": seen.state}

    async def stop(self) -> None:
        if self._cluster is not None:
            await self._cluster.stop()


def lasting(data: dict[str, Any]) -> dict[str, Any]:
    """Return a status without what changes with each commit."""
    instances = {
        name: {key: each for key, each in here.items() if key not in MOVING}
        for name, here in data["instances"].items()
    }
    rest = {key: each for key, each in data.items() if key not in (*MOVING, *TOLD_ANEW)}
    return {**rest, "instances": instances}


def pictures(
    options: argparse.Namespace, clock: Clock, data: dict[str, Any] | None, trouble: str
) -> Iterator[RenderableType]:
    """Yield what `--watch` shows; the trouble first, since a low terminal cuts off the end."""
    if trouble:
        yield trouble
    if data is not None:
        yield drawn(data, data["at"] if trouble else clock.wall(), times=options.time)


class Painter:
    """Function that draws. `redraws`: each drawing replaces the last one."""

    def __init__(self, draw: Callable[..., None], *, redraws: bool) -> None:
        self._draw = draw
        self.redraws = redraws

    def __call__(self, *what: RenderableType) -> None:
        self._draw(*what)


@contextmanager
def painter(stream: TextIO, *, live: bool) -> Iterator[Painter]:
    """Give a painter; with `live` on a terminal each drawing replaces the last one."""
    from rich.console import Group

    console = console_on(stream)
    if not (live and console.is_terminal):
        yield Painter(lambda *what: console.print(*what, sep="\n"), redraws=False)
        return
    with Live(console=console, auto_refresh=False) as screen:
        yield Painter(
            lambda *what: screen.update(Group(*what), refresh=True),
            redraws=True,
        )
