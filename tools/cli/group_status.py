"""Status of an app's group as the object that `status --json` prints, with notes for people. Pure.

Not here: asking the brokers (`lags`, `group.admin.describe`), the drawing for people.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from streamsx.model import TaskId, brief
from streamsx.tools.cli.app_input import AppInput, TaskInput
from streamsx.tools.cli.event_times import EventTime, event_times, holds
from streamsx.tools.cli.times import age

if TYPE_CHECKING:
    from streamsx.assignor.observer import GroupReport, Instance
    from streamsx.group.admin.describe import GroupDescription

STALE_S = 10.0
"""Least age from which on the last commit of a task is old, if records wait."""
INTERVALS = 3
"""Intervals of commits after which the last commit is old, if that is longer."""
SESSION_SLACK_S = 15.0
"""Time after the end of a session by which the group surely has noticed it."""
STOPPED = "task stopped: {}: the log of this worker says why, and what to do"
STALLED = "learner {} has not come nearer for a minute: its worker or the broker may be too busy"
NO_WORKER = "no worker runs, and the app's tasks stand still: streamsx worker MODULE starts one"
OTHER_CODE = (
    "its code is not that of the leader {}, so it gets no tasks while a worker with that code "
    "runs: deploy the same code to all workers"
)
PART_CODE = (
    "its code differs from that of the leader {}: each part runs only where both are the same: "
    "deploy the same code to all workers"
)
ABSENT = "topic {} is not there: its tasks wait until it is created again"
UNREAD = "this worker cannot be read: use the streamsx version that it has; no action needed else"


def as_data(
    app: str,
    seen: "GroupDescription",
    known: AppInput,
    now_s: float,
    stuck: Collection[TaskId] = (),
) -> dict[str, Any]:
    """Return the object that `--json` prints.

    Instances appear under their member ids while their names are not known.

    Args:
        app: id of the app.
        seen: group, as the coordinator describes it.
        known: progress through the input.
        now_s: Unix time.
        stuck: tasks with records that wait and a last commit that is old.
    """
    report = seen.report
    named = report.labels
    active = sum(len(here.active) for here in report.instances)
    tasks = active + len(report.withheld)
    times = event_times(report.topics, known.tasks)
    held = list(holds(times, known, report.topics, now_s, planned_s(report)))
    instances = {
        named[here.member.id]: instance_data(here, known.tasks)
        | ({"ambiguous": True} if here.member.instance in report.shared else {})
        | {"note": note(here, report, tasks)}
        for here in report.instances
    }
    notes = [
        *map(ABSENT.format, known.absent),
        *_of_versions(report),
        *(f"{named[here.member.id]}: {why}" for here in report.instances
          if (why := _of_stuck(here, known.tasks, now_s, stuck, stale_s(report)))),
        *(hold.text for hold in held if hold.matters),
    ]  # fmt: skip
    return {
        "app": app,
        "at": now_s,
        "state": seen.state,
        "generation": report.generation,
        "leader": named.get(report.leader or ""),
        "instances": dict(sorted(instances.items())),
        "tasks": tasks,
        "unassigned": [str(task) for task in report.withheld],
        "absent_topics": list(known.absent),
        "lag": known.lag,
        "committed": known.committed_s,
        "time": {str(task): _time_data(each) for task, each in sorted(times.items())},
        "note": "" if instances else NO_WORKER,
        "notes": notes,
        "time_notes": [hold.text for hold in held],
    }


def instance_data(here: "Instance", tasks: Mapping[TaskId, TaskInput]) -> dict[str, Any]:
    member = here.member
    state = "leaving" if member.leaving else "running"
    nothing = TaskInput(None, {})
    inputs = {task: tasks.get(task, nothing) for task in here.active}
    stopped = ((t, "stopped", _of_stop(t, why, inputs)) for t, why in here.failures.items())
    stalled = ((t, "stalled", STALLED.format(t)) for t in here.stalled)
    return {
        "state": "unknown" if member.opaque else state,
        "active": [str(task) for task in here.active],
        "lag": {str(task): known.lag for task, known in inputs.items()},
        "committed": {str(task): known.committed_s for task, known in inputs.items()},
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


def _time_data(each: EventTime) -> dict[str, Any]:
    holder = None if each.holder is None else str(each.holder)
    at = each.at if each.at >= 0 else None
    return {"at": at, "closed": each.closed, "held_back_by": holder, "late": each.late}


def _of_stop(task: TaskId, why: str, inputs: Mapping[TaskId, TaskInput]) -> str:
    """Return why a task has stopped, and where it stands if the reason does not name the place."""
    told = why or STOPPED.format(task)
    places = inputs[task].places.items()
    stands = [f"{tp} offset {place.offset}" for tp, place in sorted(places)]
    if not stands or any(str(tp) in told for tp, _ in places):
        return told
    return f"{told} (it stands at {', '.join(stands)})"


def note(here: "Instance", report: "GroupReport", tasks: int) -> str:
    """Return a note on an instance: its name or code is at odds, or why the row is empty."""
    member = here.member
    if bearers := report.shared.get(member.instance or ""):
        return (
            f"{len(bearers)} workers have the name {member.instance}: start all but one of them "
            "again, each with an --instance-id of its own"
        )
    if member.opaque and report.settled:
        return UNREAD
    if not here.alike:
        return OTHER_CODE.format(report.labels.get(report.leader or "", ""))
    if not here.same_code:
        return PART_CODE.format(report.labels.get(report.leader or "", ""))
    if here.active or here.learners or here.standbys or member.leaving or member.opaque:
        return ""
    if not tasks:
        return "there are no tasks: the app reads no topic, or none that is there"
    return "there are more workers than tasks" if tasks < len(report.instances) else ""


def commit_s(report: "GroupReport") -> float:
    """Return the longest commit interval of the workers in seconds, 0 if none is known."""
    return max((here.member.commit_ms for here in report.instances), default=0) / 1000


def stale_s(report: "GroupReport") -> float:
    """Return the age from which on a commit is old: workers may commit seldom."""
    return max(STALE_S, INTERVALS * commit_s(report))


def planned_s(report: "GroupReport") -> float:
    """Return the Unix time of the last rebalance, 0 if it is not known."""
    return report.plans[0].at_ms / 1000 if report.plans else 0.0


def quiet_tasks(known: AppInput, now_s: float, stale_s: float = STALE_S) -> set[TaskId]:
    """Return the tasks with records that wait and a last commit that is older than `stale_s`.

    One look does not tell a stuck task from one whose first record in a while has just come.
    """
    return {
        task
        for task, each in known.tasks.items()
        if each.lag and each.committed_s is not None and now_s - each.committed_s > stale_s
    }


def _of_versions(report: "GroupReport") -> Iterator[str]:
    """Yield a note on workers that run another version of streamsx than most."""
    members = [here.member for here in report.instances if here.member.version]
    counts = Counter(member.version for member in members)
    if len(counts) > 1:
        most, _ = counts.most_common(1)[0]
        others = [f"{report.labels[m.id]} {m.version}" for m in members if m.version != most]
        yield (
            f"other versions of streamsx than {most}: {', '.join(sorted(others))}: no action "
            "needed while you deploy; else start these workers with one version"
        )


def _of_stuck(
    here: "Instance",
    tasks: Mapping[TaskId, TaskInput],
    now_s: float,
    stuck: Collection[TaskId],
    stale_s: float,
) -> str:
    """Return a note on an instance whose tasks have records and commit nothing; "" if all do."""
    ours = [task for task in here.active if task in stuck and task not in here.failures]
    if not ours:
        return ""
    newest = max((tasks[t].committed_s or 0 for t in here.active if t in tasks), default=0)
    if now_s - newest <= stale_s:
        oldest = min(tasks[task].committed_s or 0 for task in ours)
        return (
            f"{brief(ours)}: records are waiting and the last commit is {age(now_s - oldest)} old, "
            "while other tasks of this worker commit: the task restores, or a record takes long: "
            "see the log of this worker"
        )
    session_s = here.member.session_ms / 1000
    waiting = f"records are waiting and its last commit is {age(now_s - newest)} old"
    if session_s and now_s - newest > session_s + SESSION_SLACK_S:
        return (
            f"{waiting}, but it is in the group: its tasks restore, or a record takes long: see "
            "the log of this worker"
        )
    limit = f" ({session_s:g} s)" if session_s else ""
    return (
        f"{waiting}: it may be dead; its session ends after session_timeout{limit}, then others "
        "take over"
    )


def failed_check(data: Mapping[str, Any], lag_max: int | None) -> str:
    """Return what `--check` finds wrong; "" if nothing is."""
    instances = data["instances"]
    if not instances:
        return str(data["note"])
    if absent := data["absent_topics"]:
        return "; ".join(map(ABSENT.format, absent))
    if data["leader"] is None:
        return "the group is rebalancing, so nothing is known about its tasks: check again"
    stopped = {name: here["stopped"] for name, here in instances.items() if here["stopped"]}
    if stopped:
        where = ", ".join(f"{brief(tasks)} on {name}" for name, tasks in stopped.items())
        return f"tasks have stopped: {where}: streamsx status and the worker's log say why"
    if lag_max is None:
        return ""
    lags = {task: lag for here in instances.values() for task, lag in here["lag"].items()}
    if unknown := [task for task, lag in lags.items() if lag is None]:
        return (
            f"the lag of {brief(sorted(map(TaskId.parse, unknown)))} is not known now: check again"
        )
    far = {task: lag for task, lag in lags.items() if lag > lag_max}
    if not far:
        return ""
    task = max(far, key=lambda each: far[each])
    more = f", and {len(far) - 1} more tasks" * (len(far) > 1)
    return f"{task} is {far[task]} records behind{more}, over --max-lag {lag_max}"
