"""`streamsx explain`: why a rebalance did what it did, for one task or all.

The newest plan comes from the group, which keeps no older one. Older plans are in the files that
workers write with `--events`. Each plan is in the file of the worker that was the leader at the
time, so give the files of all workers.
"""

import argparse
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Group

from streamsx.clock import Clock
from streamsx.errors import NotFound, UsageError
from streamsx.model import TaskId
from streamsx.tools.cli.cluster import ClusterCommand, connected
from streamsx.tools.cli.command import tell, value
from streamsx.tools.cli.progress import console_on, progress
from streamsx.tools.status import NOBODY

PLAN = "plan"
FIELDS = ("task", "decision", "why", "owner", "to", "lag")
"""Fields of a decision."""
STAYS = "each task stays where it is, and nothing is learned"
SETTLE_S = 10.0


def main() -> None:
    """Run the command: exit with 3 if the cluster does not know the app, or no worker runs."""
    command = ClusterCommand("explain", "Say why a rebalance did what it did.")
    command.add_app(required=False)
    add = command.add_argument
    add("--task", type=value(task), metavar="0_3", help="of this task alone")
    add("--events", nargs="+", type=Path, metavar="FILE", help="what workers wrote with --events")
    add("--generation", type=int, metavar="N", help="this rebalance alone, with --events")
    command.ask(explain)


def task(text: object) -> TaskId:
    return TaskId.parse(str(text))


async def explain(options: argparse.Namespace, clock: Clock) -> None:
    """Print the decisions of the newest plan, or of the plans in the given files.

    Raises:
        UsageError: the options contradict each other, or the files hold no plan.
        NotFound: the app is unknown, or no worker runs.
        StreamsxError: any other error of `status`.
    """
    if bool(options.events) == bool(options.app):
        forms = "--app ID for the newest rebalance, or --events FILE"
        raise UsageError(f"explain what? give {forms}{', not both' * bool(options.events)}")
    if options.events:
        plans = in_files(options.events, options.generation)
    elif options.generation is not None:
        raise UsageError("--generation is for --events: a group keeps the newest plan alone")
    else:
        plans = [await newest(options, clock)]
    for plan in plans:
        told = plan["decisions"]
        plan["decisions"] = [d for d in told if options.task in (None, TaskId.parse(d["task"]))]
    console_on(options.people).print(Group(*lines(plans, options.task)), soft_wrap=True)
    for plan in plans:
        of_all = {name: plan[name] for name in ("generation", "at", "leader")}
        for decision in plan["decisions"]:
            tell(options, {**of_all, **decision})


async def newest(options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """Return the newest plan of the group, as its leader has published the plan.

    Raises:
        NotFound: the app is unknown, or no worker runs.
    """
    from streamsx.assignor.document import decision_of
    from streamsx.group.admin.describe import settled

    async with (
        connected(options) as cluster,
        progress(sys.stderr, f"looking at the group of {options.app}") as say,
    ):
        again = f"the group of {options.app} is rebalancing: asking again"
        report = (await settled(cluster, clock, options.app, SETTLE_S, lambda _: say(again))).report
    if not report.instances:
        raise NotFound(f"no rebalance to explain: {options.app}: {NOBODY}")
    return {
        "generation": report.generation,
        "leader": report.labels.get(report.leader or ""),
        "at": None,
        "decisions": [decision_of(each) for each in report.decisions],
    }


def in_files(paths: Iterable[Path], generation: int | None) -> list[dict[str, Any]]:
    """Return the plans of the files, the newest first.

    Lines that a kill of their worker has cut off are skipped.

    Raises:
        UsageError: a file is missing, or there is no plan, or none of `generation`.
    """
    from streamsx.tools.demonstration.group import EventsFile

    told = []
    for path in paths:
        if not path.is_file():
            raise UsageError(f"no such file: {path}: give what a worker wrote with --events")
        told += [plan for event in EventsFile(path).more() if (plan := plan_of(event))]
    if not told:
        raise UsageError(f"no plan in {', '.join(map(str, paths))}: give the leader's file too")
    if generation is not None and all(plan["generation"] != generation for plan in told):
        known = sorted({plan["generation"] for plan in told})
        raise UsageError(f"no plan of generation {generation}: there are {known[0]} to {known[-1]}")
    told.sort(key=lambda plan: plan["at"], reverse=True)
    return [plan for plan in told if generation in (None, plan["generation"])]


def plan_of(event: Any) -> dict[str, Any] | None:
    """Return the plan in an event; None if the event holds no plan.

    A file may hold lines of other programs, so any field may be missing or have another type.
    """
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        if event["event"] == PLAN:
            decisions = [{name: told[name] for name in FIELDS} for told in event["decisions"]]
            told = {"generation": int(event["generation"]), "leader": str(event["instance"])}
            for decision in decisions:
                TaskId.parse(decision["task"])
            datetime.fromtimestamp(event["t"], UTC)
            return {**told, "at": event["t"], "decisions": decisions}
    return None


def lines(plans: Iterable[dict[str, Any]], task: TaskId | None) -> Iterable[str]:
    for plan in plans:
        at = "" if plan["at"] is None else f"{datetime.fromtimestamp(plan['at'], UTC):%F %T}Z, "
        if task is not None and not plan["decisions"]:
            continue
        yield f"{at}generation {plan['generation']}, led by {plan['leader'] or 'nobody known'}:"
        yield from (f"  {d['task']} {d['decision']}: {d['why']}" for d in plan["decisions"])
        if not plan["decisions"]:
            yield f"  {STAYS}"
    if task is not None and not any(plan["decisions"] for plan in plans):
        yield f"{task} is in no such plan: it stays where it is, if there is one (streamsx status)"
