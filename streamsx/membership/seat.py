"""A member's seat at the group: what it says when it joins, what it is told.

Bytes and unix time are the group's, values and monotonic seconds the member's. Whose seat it is,
its assignor says: a worker has the tasks of a topology, a tool has marks and nothing to run.

Not here: when anything is said, asked or sent (member.py, session.py).
"""

from dataclasses import replace

from streamsx.assignor.model import MemberAtJoin, WayOut
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor
from streamsx.kafka.consumer_protocol import Assignment, Subscription
from streamsx.membership import events as e


class Seat:
    """`topics`: those it subscribes to. `report`: what the worker last published of its tasks; any
    thread may set it. `zero` is the unix second at which the monotonic clock shows 0.
    """

    def __init__(self, assignor: StreamsPartitionAssignor, topics: tuple[str, ...]) -> None:
        self.assignor, self.topics = assignor, topics
        self.report = MemberAtJoin("")
        self._fresh = True
        self._said = 0, b""
        """The nonce of the last round, and what was said in it."""

    def word(self, join: e.JoinGroup, zero: float) -> bytes:
        """Its Subscription, as of now; of a round that was asked before, the same bytes."""
        if self._said[0] != join.nonce:
            ends = None if join.deadline is None else int((join.deadline + zero) * 1000)
            report = replace(
                self.report,
                nonce=join.nonce,
                claims=frozenset(join.claims),
                leaving=WayOut(ends) if join.leaving else None,
                fresh=self._fresh,
            )
            said = self.assignor.user_data(report)
            word = Subscription(self.topics, said, join.claims, join.owned_generation)
            self._said = join.nonce, word.write()
        return self._said[1]

    def given(self, data: bytes, zero: float) -> e.Synced:
        """What an Assignment says. Raises DataError."""
        assignment = Assignment.read(data)
        view = self.assignor.on_assignment(assignment.user_data)
        self._fresh = False
        ends_ms = None if view.mark is None else view.mark.deadline_ms
        deadline = None if ends_ms is None else ends_ms / 1000 - zero
        return e.Synced(frozenset(assignment.partitions), view, deadline)
