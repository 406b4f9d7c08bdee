"""Requests to instances of an app to leave, or to stay after all, and the progress of each.

Only the broker is needed: an observer brings marks into the group, and DescribeGroups shows the
effect. Two requests count as one: an instance that leaves by then anyway is only watched. A lost
mark is noticed and sent again. The race: b joins; b receives 27 (REBALANCE_IN_PROGRESS) instead of
an assignment; b joins again as a newcomer, as if the mark had done its work.

Not here: the progress of one instance (`leave_progress`), the observer (`observer`).
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from streamsx.assignor.memory import MARKS_MAX
from streamsx.assignor.observer import GroupReport
from streamsx.client.cluster import Cluster
from streamsx.clock import Clock
from streamsx.errors import GroupError, UsageError
from streamsx.group.admin import leave_progress
from streamsx.group.admin.describe import LOOK_EVERY_S, look, settled
from streamsx.group.admin.leave_progress import LeaveProgress, LeaveState
from streamsx.group.admin.observer import not_taken, send_marks

LEAVE_TIMEOUT_S = 60.0
"""Deadline of a mark, unless the caller gives another one."""


Going = Mapping[str, LeaveProgress]
"""Progress of all instances, by name."""


async def leave(
    cluster: Cluster,
    clock: Clock,
    app: str,
    instances: Iterable[str],
    *,
    timeout_s: float = LEAVE_TIMEOUT_S,
    wait: bool = True,
    cancel: bool = False,
    swap_to: str | None = None,
    on_report: Callable[[Going, GroupReport], None] = lambda *_: None,
) -> Going:
    """Mark instances as leaving, or as staying (`cancel`), and follow them to the end.

    The end of an instance: it has left, stays, or is out of time. Without `wait` the group only has
    to know the marks. `on_report` gets each description, settled or not. A cancelled tool leaves
    the group; the marks stay. Returns the progress by instance.

    Raises:
        NotFound: no such app, or the successor is not in the group.
        UsageError: more instances than a group remembers marks (64), or a name of several workers.
        GroupError: the group has not settled, or not taken the marks, in time.
        ForeignProtocol, WorldError: the group is of another program; the cluster does not answer.
    """
    names = sorted(set(instances))
    if len(names) > MARKS_MAX:
        raise UsageError(f"too many workers at once: {len(names)}: name {MARKS_MAX} at most")
    asked_ms = _now_ms(clock)
    deadline_ms = round(asked_ms + timeout_s * 1000) if timeout_s < math.inf else math.inf
    patience_s = timeout_s if timeout_s < math.inf else LEAVE_TIMEOUT_S
    report = (await settled(cluster, clock, app, patience_s)).report
    if not report.settled:
        raise GroupError(
            f"the group is still rebalancing: {app}: after {patience_s:g} s: wait, then try again"
        )
    if not cancel:
        leave_progress.refuse_shared([*names, *([swap_to] if swap_to else ())], report)
    if swap_to:
        leave_progress.refuse_absent(swap_to, report)
    about: dict[str, Any] = {"now_ms": asked_ms, "deadline_ms": deadline_ms, "swap_to": swap_to}
    going = {name: leave_progress.begun(name, report, cancels=cancel, **about) for name in names}
    while True:
        on_report(going, report)
        taken = await _ask(cluster, clock, app, going, report)
        if not wait:
            if not taken:
                raise not_taken(app, patience_s)
            # The group knows the marks; the caller does not wait for the outcome.
            state = LeaveState.CANCELLED if cancel else LeaveState.LEAVING
            asked = {n: d for n, d in going.items() if not d.ended}
            now_ms = _now_ms(clock)
            return going | {n: replace(d, state=state, seen_ms=now_ms) for n, d in asked.items()}
        if all(departure.ended for departure in going.values()):
            return going
        now_ms = _now_ms(clock)
        due_s = [(d.deadline_ms - now_ms) / 1000 for d in going.values() if not d.ended]
        await asyncio.sleep(min(s for s in (LOOK_EVERY_S, *due_s) if s > 0))
        report = (await look(cluster, app)).report
        going = {name: leave_progress.after(d, report, _now_ms(clock)) for name, d in going.items()}


async def _ask(
    cluster: Cluster, clock: Clock, app: str, going: dict[str, LeaveProgress], report: GroupReport
) -> bool:
    """Send the marks that the group does not know yet; return whether it knows all marks now."""
    now_ms = _now_ms(clock)
    found = {
        name: leave_progress.mark_to_send(departure, report, now_ms)
        for name, departure in going.items()
    }
    marks = {name: mark for name, mark in found.items() if mark is not None}
    if not marks:
        return True
    limit_s = (max(going[name].deadline_ms for name in marks) - now_ms) / 1000
    limit_s = limit_s if limit_s < math.inf else LEAVE_TIMEOUT_S
    going |= {name: replace(going[name], epoch_ms=mark.epoch_ms) for name, mark in marks.items()}
    of_type = report.protocol_type
    limit_s = max(limit_s, LOOK_EVERY_S)
    return await send_marks(cluster, clock, app, marks, limit_s, of_type)


def _now_ms(clock: Clock) -> int:
    return round(clock.wall() * 1000)
