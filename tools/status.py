"""`streamsx status`: who is in the group of an app, and what each runs and learns.

The command needs the broker and no connection to the workers. The lag of a learner dates from the
last rebalance. The lag of a task counts the records that the group has not committed by now.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Group
from rich.live import Live
from rich.table import Table

from streamsx.clock import Clock
from streamsx.model import TaskId, brief
from streamsx.tools.cli.cluster import ClusterCommand, connected
from streamsx.tools.cli.command import tell
from streamsx.tools.cli.progress import console_on, progress

if TYPE_CHECKING:
    from streamsx.assignor.observer import GroupReport, Instance
    from streamsx.group.admin.describe import GroupDescription

SETTLE_S = 10.0
"""Longest time to wait, by asking again, while the group rebalances."""
WATCH_EVERY_S = 2.0
WORST_MAX = 3
"""Most tasks that are shown with their lag; `--json` has all of them."""
STOPPED = "task stopped: {}: the log of this worker says why, and what to do"
STALLED = "learner {} has not come nearer for a minute: its worker or the broker may be too busy"
NOBODY = "no worker runs, and the app's tasks stand still: streamsx worker MODULE starts one"


def main() -> None:
    """Run the command: exit with 3 if the cluster does not know the app."""
    purpose = "Show who is in the group of an app, and what each runs."
    command = ClusterCommand("status", purpose)
    command.add_app(required=True)
    command.add_argument("--watch", action="store_true", help="show it again when it changes")
    command.ask(show)


async def show(options: argparse.Namespace, clock: Clock) -> None:
    """Print the status once, or with `--watch` after every change.

    A rebalancing group reveals only that it is rebalancing. With `--watch` the earlier details
    stay on the screen meanwhile.

    Raises:
        NotFound: the cluster does not know the app.
        StreamsxError: any other error, such as BrokerUnreachable.
    """
    from streamsx.group.admin.describe import look, settled
    from streamsx.tools.cli.lags import lags

    async def known(seen: "GroupDescription") -> dict[str, Any]:
        return as_data(options.app, seen, await lags(cluster, options.app, seen.report))

    async with connected(options) as cluster:
        async with progress(sys.stderr, f"looking at the group of {options.app}") as say:
            again = f"the group of {options.app} is rebalancing: asking again"
            seen = await settled(cluster, clock, options.app, SETTLE_S, lambda _: say(again))
            data = await known(seen)
        with painter(options.people, live=options.watch) as paint:
            shown = None
            while True:
                if data != shown:
                    paint(drawn(data))
                    tell(options, data)
                if not options.watch:
                    return
                shown = data
                await asyncio.sleep(WATCH_EVERY_S)
                seen = await look(cluster, options.app)
                data = await known(seen) if seen.report.settled else {**data, "state": seen.state}


@contextmanager
def painter(stream: TextIO, *, live: bool) -> Iterator[Callable[[Group], None]]:
    """Give a function that draws; with `live` on a terminal each drawing replaces the last one."""
    console = console_on(stream)
    if not (live and console.is_terminal):
        yield console.print
        return
    with Live(console=console, auto_refresh=False) as screen:
        yield lambda what: screen.update(what, refresh=True)


def as_data(
    app: str, seen: "GroupDescription", lags: Mapping[TaskId, int | None]
) -> dict[str, Any]:
    """Return the object that `--json` prints.

    Instances appear under their member ids while their names are not known.
    """
    report = seen.report
    named = report.labels
    active = sum(len(here.active) for here in report.instances)
    tasks = active + len(report.withheld)
    instances = {
        named[here.member.id]: instance_data(here, lags)
        | ({"ambiguous": True} if here.member.instance in report.shared else {})
        | {"note": note(here, report, tasks)}
        for here in report.instances
    }
    return {
        "app": app,
        "state": seen.state,
        "generation": report.generation,
        "leader": named.get(report.leader or ""),
        "instances": dict(sorted(instances.items())),
        "tasks": tasks,
        "unassigned": [str(task) for task in report.withheld],
        "note": "" if instances else NOBODY,
    }


def instance_data(here: "Instance", lags: Mapping[TaskId, int | None]) -> dict[str, Any]:
    member = here.member
    state = "leaving" if member.leaving else "running"
    stopped = ((t, "stopped", why or STOPPED.format(t)) for t, why in here.failures.items())
    stalled = ((t, "stalled", STALLED.format(t)) for t in here.stalled)
    return {
        "state": "unknown" if member.opaque else state,
        "active": [str(task) for task in here.active],
        "lag": {str(task): lags.get(task) for task in here.active},
        "stopped": [str(task) for task in here.failures],
        "failures": [
            {"task": str(task), "what": what, "why": why}
            for task, what, why in (*stopped, *stalled)
        ],
        "standby": [str(task) for task in here.standbys],
        "learner": [{"task": str(task), "lag": lag} for task, lag in here.learners.items()],
        "version": member.version,
        "metrics": {name: round(value, 3) for name, value in member.metrics.items()},
        "member": member.id,
        "process": member.process,
    }


def note(here: "Instance", report: "GroupReport", tasks: int) -> str:
    """Return a note on an instance: several workers share the name, or why the row is empty."""
    member = here.member
    if bearers := report.shared.get(member.instance or ""):
        return (
            f"{len(bearers)} workers have the name {member.instance}: start all but one of them "
            "again, each with an --instance-id of its own"
        )
    if here.active or here.learners or here.standbys or member.leaving or member.opaque:
        return ""
    if not here.alike:
        return "its code is not the leader's: it gets tasks when nobody with that code stays"
    if not tasks:
        return "there are no tasks: the app reads no topic, or none that is there"
    return "there are more workers than tasks" if tasks < len(report.instances) else ""


def drawn(data: dict[str, Any]) -> Group:
    """Return the drawing for people: a line, and one row per instance."""
    if data["note"]:
        return Group(f"{data['app']}: {data['state']}: {data['note']}")
    where = f"generation {data['generation']}, leader {data['leader'] or 'not known'}"
    tasks = f"{data['tasks']} tasks, unassigned: {brief(data['unassigned']) or 'none'}"
    table = Table(box=None)
    instances = data["instances"].values()
    standbys = ("standby",) * any(here["standby"] for here in instances)
    for column in (
        "instance",
        "state",
        "active",
        "behind",
        "learner (behind)",
        *standbys,
        "version",
    ):
        table.add_column(column, overflow="fold")
    for name, here in data["instances"].items():
        state = here["state"] + f", {len(here['stopped'])} stopped" * bool(here["stopped"])
        lags = ((each["task"], each["lag"]) for each in here["learner"])
        learns = ", ".join(f"{task} ({'?' if lag is None else lag})" for task, lag in lags)
        active = brief(here["active"])
        far = far_of(here["lag"])
        follows = (brief(here["standby"]),) * len(standbys)
        table.add_row(name, state, active, far, learns, *follows, here["version"])
    notes = [
        f"{name}: {told}"
        for name, here in data["instances"].items()
        for told in (here["note"], *(each["why"] for each in here["failures"]))
        if told
    ]
    return Group(f"{data['app']}: {data['state']}, {where}, {tasks}", table, *notes)


def far_of(lags: Mapping[str, int | None]) -> str:
    """Return the lag of all tasks in records, and the tasks that lag most, the farthest first."""
    known = {task: lag for task, lag in lags.items() if lag}
    worst = sorted(known, key=lambda task: -known[task])
    words = [f"{task} {known[task]}" for task in worst[:WORST_MAX]]
    words += [f"{task} ?" for task, lag in lags.items() if lag is None][:WORST_MAX]
    rest = ", ..." * (len(worst) > WORST_MAX)
    return f"{sum(known.values())} ({', '.join(words)}{rest})" if words else "0" * bool(lags)
