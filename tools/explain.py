"""`streamsx explain`: why the last rebalances did what they did, for one task or all.

The group knows the last rebalances of its leader. Older ones are in the files that workers write
with `--events`. Each rebalance is in the file of the worker that led at the time, so give the files
of all workers.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group

from streamsx.clock import Clock
from streamsx.errors import NotFound, UsageError
from streamsx.log_sentences import counted
from streamsx.model import TaskId, brief
from streamsx.tools.cli.cluster import ClusterCommand, connected
from streamsx.tools.cli.command import tell, value
from streamsx.tools.cli.progress import console_on, progress
from streamsx.tools.cli.times import age, utc
from streamsx.tools.status import NO_WORKER

if TYPE_CHECKING:
    from streamsx.assignor.observer import GroupReport
    from streamsx.tools.cli.app_input import AppInput

PLAN = "plan"
FIELDS = ("task", "decision", "why", "owner", "to", "lag")
"""Fields of a decision."""
STAYS = "each task stays where it is, and no worker learns one"
CHANGES = {
    "joined": ("joined", "joined"), "left": ("left", "left"), "gone": ("is gone", "are gone"),
}  # fmt: skip
"""Words for changes of the group's workers: for one worker, and for more."""
SETTLE_S = 10.0
MOVES = "moves to {to}: {why}"
SENTENCES: Mapping[str, str] = {
    "wait": "stays on {owner}: {why}",
    "stateless": MOVES,
    "promote": MOVES,
    "failover": "moves: {why}",
    "least-lag": MOVES,
    "cold": MOVES,
    "hand-over": MOVES,
    "unstaged": MOVES,
    "stage": "will move to {to}, which learns it first: {why}",
    "overtake": MOVES,
    "keep-restoring": "stays on {owner}, which restores it: {why}",
    "withheld": "moves to {to} as soon as {owner} has released it",
    "parked": "will move to {to} later: {why}",
    "standby-new": "gets a standby on {to}: {why}",
    "standby-move": "gets a standby on {to}: {why}",
    "standby-spare": "keeps a standby on {to} for a while: {why}",
    "standby-drop": "loses its standby on {to}: {why}",
}
"""Sentences for people, by decision; each begins with the task. JSON keeps the decision's word."""
EXAMPLE = """\
examples:
  streamsx explain --app shop                  the last rebalances, the newest first
  streamsx explain --app shop --task 1_0       what they did with this task
  streamsx explain --events a.jsonl b.jsonl    all rebalances in the files of these workers
"""


def main() -> None:
    """Run the command: exit with 3 if the cluster does not know the app, or no worker runs."""
    purpose = "Say why the last rebalances moved tasks, or left them where they are."
    command = ClusterCommand("explain", purpose, epilog=EXAMPLE)
    command.add_app(required=False)
    add = command.add_argument
    add("--task", type=value(task), metavar="1_0", help="show this task only")
    add(
        "--events", nargs="+", type=Path, metavar="FILE",
        help="read files that workers wrote with --events, instead of asking the group",
    )  # fmt: skip
    add("--generation", type=int, metavar="N", help="show the rebalance of this number only")
    command.ask(explain)


def task(text: object) -> TaskId:
    return TaskId.parse(str(text))


async def explain(options: argparse.Namespace, clock: Clock) -> None:
    """Print the decisions of the last plans of the group, or of the plans in the given files.

    Raises:
        UsageError: the options contradict each other, or no plan is known.
        NotFound: the app is unknown, or no worker runs.
        StreamsxError: any other error of `status`.
    """
    if bool(options.events) == bool(options.app):
        forms = "--app ID for the last rebalances, or --events FILE for all"
        raise UsageError(f"explain what? give {forms}{', not both' * bool(options.events)}")
    found, now = (in_files(options.events), "") if options.events else await known(options, clock)
    plans = of_generation(found, options.generation)
    for plan in plans:
        told = plan["decisions"]
        plan["decisions"] = [d for d in told if options.task in (None, TaskId.parse(d["task"]))]
    people = [*lines(plans, options.task), *filter(None, [now])]
    console = console_on(options.people)
    console.print(Group(*people), soft_wrap=not console.is_terminal)
    for plan in plans:
        for decision in plan["decisions"]:
            tell(options, {**of_all(plan), **decision})


def of_all(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan that stand beside each of its decisions."""
    return {name: plan[name] for name in ("generation", "at", "leader", *CHANGES)}


async def known(options: argparse.Namespace, clock: Clock) -> tuple[list[dict[str, Any]], str]:
    """Return the last plans of the group, the newest first, and what `--task` does now.

    Raises:
        NotFound: the app is unknown, or no worker runs.
    """
    from streamsx.assignor.document import decision_of
    from streamsx.group.admin.describe import settled
    from streamsx.tools.cli.lags import input_of

    async with (
        connected(options) as cluster,
        progress(sys.stderr, f"looking at the group of {options.app}") as say,
    ):
        again = f"the group of {options.app} is rebalancing: asking again"
        report = (await settled(cluster, clock, options.app, SETTLE_S, lambda _: say(again))).report
        if not report.instances:
            raise NotFound(f"no rebalance to explain: {options.app}: {NO_WORKER}")
        now = ""
        if options.task is not None:
            found = await input_of(cluster, options.app, report)
            now = " ".join(task_now(options.task, report, found, clock.wall()))
    plans = [
        {
            "generation": plan.generation,
            "leader": plan.leader or report.labels.get(report.leader or ""),
            "at": plan.at_ms / 1000 if plan.at_ms else None,
            "joined": plan.joined,
            "left": plan.left,
            "gone": plan.gone,
            "decisions": [decision_of(each) for each in plan.decisions],
        }
        for plan in report.plans
    ]
    return plans, now


def task_now(task: TaskId, report: "GroupReport", found: "AppInput", now_s: float) -> Iterator[str]:
    """Yield sentences on a task: where it runs, how far it is, what holds its event time back."""
    from streamsx.tools.cli.event_times import event_times, holds, moment
    from streamsx.tools.cli.group_status import ABSENT, STOPPED, planned_s
    from streamsx.tools.cli.group_table import WINDOWS_AT

    absent = sorted(set(report.topics.get(task.subtopology, ())) & set(found.absent))
    missing = [f"{ABSENT.format(topic)}." for topic in absent]
    if task not in found.tasks:
        yield f"{task} is no task of this app now."
        yield from missing
        return
    owner = next((each for each in report.instances if task in each.active), None)
    here = found.tasks[task]
    far = "" if here.lag is None else f", {counted(here.lag, 'record')} behind"
    last = here.committed_s
    since = f", last commit {age(now_s - last)} ago" if last else ""
    where = "moves" if owner is None else f"runs on {report.labels[owner.member.id]}"
    stop = None if owner is None else owner.failures.get(task)
    if owner is not None and stop is not None:
        where = f"is stopped on {report.labels[owner.member.id]}"
    yield f"Now: {task} {where}{far}{since}."
    yield from missing
    if stop is not None:
        yield f"{(stop or STOPPED.format(task)).removesuffix('.')}."
    times = event_times(report.topics, found.tasks)
    if task in times and (at := times[task]).closed is not None:
        yield f"Event time {moment(at.at)}, windows at {moment(at.closed)} ({WINDOWS_AT})."
    held = holds(times, found, report.topics, now_s, planned_s(report), task)
    yield from (f"{hold.text}." for hold in held)


def in_files(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the plans of the files, the newest first.

    Lines that a kill of their worker has cut off are skipped.

    Raises:
        UsageError: a file is missing, or there is no plan.
    """
    from streamsx.tools.demonstration.group import EventsFile

    told = []
    for path in paths:
        if not path.is_file():
            raise UsageError(f"no such file: {path}: give what a worker wrote with --events")
        told += [plan for event in EventsFile(path).more() if (plan := plan_of(event))]
    if not told:
        raise UsageError(f"no plan in {', '.join(map(str, paths))}: give the leader's file too")
    return sorted(told, key=lambda plan: plan["at"], reverse=True)


def of_generation(plans: list[dict[str, Any]], generation: int | None) -> list[dict[str, Any]]:
    """Return the plans of a generation, all for None.

    Raises:
        UsageError: there is none of this generation.
    """
    found = [plan for plan in plans if generation in (None, plan["generation"])]
    if plans and not found:
        numbers = sorted({plan["generation"] for plan in plans})
        there = f"there are {numbers[0]} to {numbers[-1]}"
        raise UsageError(f"no plan of generation {generation}: {there}")
    return found


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
            nobody = dict.fromkeys(CHANGES, ())
            return {**told, "at": event["t"], **nobody, "decisions": decisions}
    return None


def lines(plans: Iterable[dict[str, Any]], task: TaskId | None) -> Iterable[str]:
    """Yield the lines for people: a heading for each plan, and its decisions below."""
    for plan in plans:
        if task is not None and not plan["decisions"]:
            continue
        yield heading(plan)
        yield from (f"  {sentence}" for sentence in sentences(plan["decisions"]))
        if not plan["decisions"]:
            yield f"  {STAYS}"
    if task is not None and not any(plan["decisions"] for plan in plans):
        yield f"{task} is in none of these: it stays where it is, if there is one (streamsx status)"


def heading(plan: Mapping[str, Any]) -> str:
    at = "" if plan["at"] is None else f"{utc(plan['at'])}, "
    leader = f", led by {plan['leader']}" * bool(plan["leader"])
    changes = [
        f"; {', '.join(plan[change])} {verb if len(plan[change]) == 1 else verbs}"
        for change, (verb, verbs) in CHANGES.items()
        if plan[change]
    ]
    return f"{at}generation {plan['generation']}{leader}{''.join(changes)}:"


def sentences(decisions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield one sentence for the tasks of which the same is true, in the order of the first one."""
    same: dict[str, list[str]] = {}
    for each in decisions:
        sentence = SENTENCES.get(each["decision"], "{why}").format(
            owner=each["owner"] or "its worker", to=each["to"] or "another worker", why=each["why"]
        )
        same.setdefault(sentence, []).append(each["task"])
    for sentence, tasks in same.items():
        many = ": each" * (len(tasks) > 1)
        yield f"{brief(tasks)}{many} {sentence}"
