"""A member's seat at the group: what it says when it joins, what it is told.

Bytes and unix time are the group's, values and monotonic seconds the member's. Whose seat it is,
its assignor says: a worker has the tasks of a topology, a tool has marks and nothing to run.

Not here: when anything is said, asked or sent (member.py, session.py).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from streamsx.assignor.model import RUNNING, Copy, CopyRole, LeaveRequest, Mark, MemberMetadata
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor
from streamsx.group import member_events as e
from streamsx.model import TaskId
from streamsx.protocol.consumer_protocol import Assignment, Subscription

NO_METRICS: Final[Mapping[str, float]] = {}


class SubscriptionBuilder:
    """`topics`: those it subscribes to; `scale_down_s`: for how long it leaves, where a mark does
    not say until when. `report`: what the worker last published of its tasks; any thread may set
    it. `zero` is the unix second at which the monotonic clock shows 0.
    """

    def __init__(
        self, assignor: StreamsPartitionAssignor, topics: tuple[str, ...],
        scale_down_s: float = math.inf,
    ) -> None:  # fmt: skip
        self.assignor, self.topics = assignor, topics
        self._scale_down_s = scale_down_s
        self.report = MemberMetadata("")
        self._fresh = True
        self._said = 0, b""
        """The nonce of the last round, and what was said in it."""

    def word(
        self, join: e.JoinGroup, zero: float, metrics: Mapping[str, float] = NO_METRICS
    ) -> bytes:
        """Its Subscription, as of now; of a round that was asked before, the same bytes."""
        if self._said[0] != join.nonce:
            ends = None if join.deadline is None else int((join.deadline + zero) * 1000)
            report = replace(
                self.report,
                copies=self._copies(join),
                nonce=join.nonce,
                claims=frozenset(join.claims),
                leaving=LeaveRequest(ends) if join.leaving else None,
                fresh=self._fresh,
                metrics=metrics,
            )
            said = self.assignor.user_data(report)
            word = Subscription(self.topics, said, join.claims, join.owned_generation)
            self._said = join.nonce, word.write()
        return self._said[1]

    def _copies(self, join: e.JoinGroup) -> dict[TaskId, Copy]:
        """What it ran until this round runs, whatever its worker has made of it since, unless it
        was being restored."""
        ran = self.assignor.tasks_of(join.ran)
        told = self.report.copies.items()
        rest = {t: c for t, c in told if t not in ran or c.role is CopyRole.RESTORING}
        return dict.fromkeys(ran, RUNNING) | rest

    def given(self, data: bytes, zero: float) -> e.Synced:
        """What an Assignment says. Raises DataError."""
        assignment = Assignment.read(data)
        view = self.assignor.on_assignment(assignment.user_data)
        self._fresh = False
        ends_s = math.inf if view.mark is None else self._ends_s(view.mark)
        deadline = ends_s - zero if ends_s < math.inf else None
        return e.Synced(frozenset(assignment.partitions), view, deadline)

    def _ends_s(self, mark: Mark) -> float:
        if mark.deadline_ms is None:
            return mark.epoch_ms / 1000 + self._scale_down_s
        return mark.deadline_ms / 1000
