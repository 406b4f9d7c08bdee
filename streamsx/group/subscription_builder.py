"""Builder of a member's Subscription, and reader of its Assignment.

Bytes and unix time belong to the group, values and monotonic seconds to the member. The assignor
decides on the kind of member: a worker runs the tasks of a topology, a tool has marks and runs no
tasks.

Not here: the moment when a request is sent (`member`, `session`).
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
    """Subscriptions and assignments of one member.

    `topics`: the subscribed topics. `scale_down_s`: the time to leave, in seconds, for a mark
    without a deadline. `report`: the newest state of the worker's tasks; any thread may set it.
    `zero` in the methods is the unix second at which the monotonic clock shows 0.
    """

    def __init__(
        self, assignor: StreamsPartitionAssignor, topics: tuple[str, ...],
        scale_down_s: float = math.inf,
    ) -> None:  # fmt: skip
        self.assignor = assignor
        self.topics = topics
        self._scale_down_s = scale_down_s
        self.report = MemberMetadata("")
        self._fresh = True
        self._newest = 0, b""
        """Nonce and Subscription bytes of the newest round."""

    def subscription(
        self, join: e.JoinGroup, zero: float, metrics: Mapping[str, float] = NO_METRICS
    ) -> bytes:
        """Return the Subscription as of now; the same bytes for a repeated join of one round."""
        if self._newest[0] != join.nonce:
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
            user_data = self.assignor.user_data(report)
            subscription = Subscription(self.topics, user_data, join.claims, join.owned_generation)
            self._newest = join.nonce, subscription.write()
        return self._newest[1]

    def _copies(self, join: e.JoinGroup) -> dict[TaskId, Copy]:
        """Return the copies to report, with the tasks of `join.ran` as running.

        An eager member still reports these tasks as running during the round, even if the worker
        has changed their role since, unless a task was being restored.
        """
        ran = self.assignor.tasks_of(join.ran)
        copies = self.report.copies.items()
        rest = {t: c for t, c in copies if t not in ran or c.role is CopyRole.RESTORING}
        return dict.fromkeys(ran, RUNNING) | rest

    def given(self, data: bytes, zero: float) -> e.Synced:
        """Return the content of an Assignment.

        Raises:
            DataError: the bytes cannot be read.
        """
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
