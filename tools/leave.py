"""`streamsx leave`: tells workers of an app to leave, as soon as others have learned their tasks.

The command needs the broker and no connection to the workers. An interrupted command withdraws
nothing; `--cancel` withdraws the request. A leave of all workers ends an app: the command says so
first, and asks a person at a terminal. Scripts go on as if they had said yes.
"""

import argparse
import asyncio
import sys
from collections.abc import Container, Mapping
from random import Random
from typing import TYPE_CHECKING

from streamsx.clock import Clock
from streamsx.config import seconds
from streamsx.errors import NotFound
from streamsx.group.admin.leave_progress import LeaveProgress, LeaveState
from streamsx.tools.cli.cluster import ClusterCommand, connected
from streamsx.tools.cli.command import tell, value
from streamsx.tools.cli.progress import progress

if TYPE_CHECKING:
    from streamsx.assignor.observer import GroupReport
    from streamsx.group.admin.leave import Going

YES = ("y", "yes")
EXAMPLES = """\
examples:
  streamsx leave --app shop --instances a          a leaves when others have learned its tasks
  streamsx leave --app shop --instances a --cancel  a stays after all"""
TIMEOUT_MAX_S = 7 * 86_400.0
"""Longest accepted deadline. The group remembers a mark until the deadline, even if its author has
forgotten the mark. A deadline must also fit into the number that carries it on the wire."""


def main() -> None:
    """Run the command: exit with 0 if all have left, 1 if one was too late, 3 if one is missing."""
    purpose = "Tell workers to leave, once others have learned their tasks."
    command = ClusterCommand("leave", purpose, EXAMPLES)
    command.add_app(required=True)
    add = command.add_argument
    add(
        "--instances", required=True, type=names, metavar="A,B",
        help="names of workers, as `streamsx status` shows them; a name that is not there is "
        "reported, and the others leave; of workers that share one name (NAME@ID in `status`) "
        "none can leave alone: end one with SIGTERM; its state directory has ID in process.json",
    )  # fmt: skip
    add(
        "--timeout", type=value(limit), default=60.0, metavar="60s",
        help="after this time they leave, whatever others have learned (60s)",
    )  # fmt: skip
    add(
        "--no-wait",
        action="store_true",
        help="end as soon as the workers know; they continue to leave",
    )
    add("--cancel", action="store_true", help="take an earlier leave back: the workers stay")
    add("--yes", action="store_true", help="do not ask before the last workers of an app leave")
    command.ask(ask)


def names(text: str) -> list[str]:
    """Parse names of instances, separated by commas; return each name once.

    Raises:
        argparse.ArgumentTypeError: there is no name.
    """
    found = sorted({name.strip() for name in text.split(",")} - {""})
    if not found:
        raise argparse.ArgumentTypeError("no name: write --instances a,b")
    return found


def limit(text: object) -> float:
    found = seconds(text)
    if not 0 < found <= TIMEOUT_MAX_S:
        raise ValueError(f"{text!r}: a leave ends within 7d: write 60s or 10m")
    return found


async def agreed(options: argparse.Namespace, clock: Clock, rng: Random | None) -> bool:
    """Ask the person at the terminal if no worker of the app would stay.

    Returns:
        Whether the workers are to leave.
    """
    from streamsx.group.admin.describe import settled

    async with connected(options, rng) as cluster:
        found = await settled(cluster, clock, options.app, options.timeout)
    warning = nobody_stays(options.instances, found.report)
    if not warning:
        return True
    print(f"warning: {warning}", file=sys.stderr)
    print("let them leave? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in YES


async def ask(
    options: argparse.Namespace,
    clock: Clock,
    rng: Random | None = None,
    swap_to: str | None = None,
) -> int:
    """Ask the instances to leave, or to stay after all, and return the exit code.

    Raises:
        NotFound: the cluster does not know the app.
        StreamsxError: any other error, such as BrokerUnreachable.
    """
    from streamsx.group.admin.leave import leave

    first: list[Going] = []
    asks = not (vars(options).get("yes", True) or options.cancel or options.json) and at_terminal()
    if asks and not await agreed(options, clock, rng):
        print("no worker was asked to leave", file=options.people)
        return 1
    async with (
        connected(options, rng) as cluster,
        progress(options.people, f"looking at the group of {options.app}") as say,
    ):

        def show(going: "Going", report: "GroupReport") -> None:
            if not first:
                first.append(going)
                if not (options.cancel or asks) and (warning := nobody_stays(going, report)):
                    print(f"warning: {warning}", file=sys.stderr)
            say(line_of(going, report))

        try:
            departures = await leave(
                cluster,
                clock,
                options.app,
                options.instances,
                timeout_s=options.timeout,
                wait=not options.no_wait,
                cancel=options.cancel,
                swap_to=swap_to,
                on_report=show,
            )
        except asyncio.CancelledError:
            print(
                "interrupted: the workers that were asked to leave still do: "
                f"{'leave --cancel' if swap_to else '--cancel'} takes it back",
                file=sys.stderr,
            )
            raise
    tell_outcomes(options, departures, first[0])
    tell(options, as_data(options.app, departures))
    return exit_code(departures, cancel=options.cancel)


def tell_outcomes(
    options: argparse.Namespace, departures: Mapping[str, LeaveProgress], first: "Going"
) -> None:
    """Print a line about each worker. `first` is the progress before anything was asked."""
    for name, departure in departures.items():
        if departure.state is LeaveState.UNKNOWN:
            print(
                f"error: no such worker: {name}: not in the group of {options.app}: "
                f"streamsx status --app {options.app} shows all workers",
                file=sys.stderr,
            )
        elif options.cancel and first[name].ended:
            print(f"{name}: nothing to cancel: it was not asked to leave", file=options.people)
        else:
            print(result_of(name, departure), file=options.people)


def as_data(app: str, departures: Mapping[str, LeaveProgress]) -> dict[str, object]:
    """Return the object that `--json` prints."""
    instances = {
        name: {
            "state": departure.state.value,
            "tasks_moved": departure.tasks_moved,
            "tasks_left": len(departure.left),
            "ms": departure.ms,
        }
        for name, departure in departures.items()
    }
    return {"app": app, "instances": instances}


def exit_code(departures: Mapping[str, LeaveProgress], *, cancel: bool) -> int:
    found = {departure.state for departure in departures.values()}
    good = {LeaveState.CANCELLED} if cancel else {LeaveState.LEFT, LeaveState.LEAVING}
    if found - good - {LeaveState.UNKNOWN}:
        return 1
    return NotFound.exit_code if LeaveState.UNKNOWN in found else 0


def line_of(going: "Going", report: "GroupReport") -> str:
    """Return a line of progress: tasks still to move, by instance, and the learners of these tasks.

    A learner stands there with its lag in records.
    """
    waits = [departure for departure in going.values() if not departure.ended]
    moves = [f"{d.instance}: {len(d.left)} of {len(d.tasks)} tasks still to move" for d in waits]
    wanted = frozenset[object]().union(*(departure.left for departure in waits))
    learns = [
        f"{here.member.instance} learns {task} ({'?' if lag is None else lag} behind)"
        for here in report.instances
        for task, lag in here.learners.items()
        if task in wanted
    ]
    state = [] if report.settled else ["the group is rebalancing"]
    return "; ".join([*moves, *learns, *state])


def at_terminal() -> bool:
    """Return whether a person can be asked, and sees the question."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def nobody_stays(going: Container[str], report: "GroupReport") -> str:
    """Return a warning if all workers of the group are going to leave; else an empty text."""
    tasks = [task for here in report.instances for task in here.active]
    here = [each.member for each in report.instances]
    if not tasks or any(not (m.leaving or m.instance in going) for m in here):
        return ""
    return (
        f"no worker of the app stays: its {len(tasks)} tasks stand still until a worker is started"
    )


def result_of(name: str, departure: LeaveProgress) -> str:
    """Return the line that people read about the outcome for one instance."""
    moved = f"{departure.tasks_moved} of {len(departure.tasks)} tasks moved"
    return f"{name}: {departure.state.value}: {moved}, {departure.ms / 1000:.1f} s"
