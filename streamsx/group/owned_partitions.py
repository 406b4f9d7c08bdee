"""What a member holds (KIP-429), and what its worker hears of that: begin, let go, lost.

owned      held: fetched, processed, committed; what the next JoinGroup claims
assigned   the leader's last word; owned - assigned is what KIP-983 calls to_be_revoked
revoking   asked to be given up and not yet released; within owned
ran        let go of for a round by an eager member, until that round ends: some may come back
since      per owned partition, the generation from which on it has been ours (KIP-1251)

A partition that is assigned again while it is being revoked stays in `revoking`, because the worker
may be anywhere on its way to letting go: "p is asked for; the worker commits and closes p; an
assignment names p again; the word of the release arrives". The release ends it: p stays ours,
without interruption, and the worker is told to begin again. Each revoke has a number that its
release repeats: "p is asked for (1); lost by a fence; ours again; asked for (2); the answer to 1
arrives": p still runs.

The other side of a member, which faces the group, is member.py. Not here: the life of a commit
(commits.py), when anything is sent.
"""

from dataclasses import replace
from typing import NamedTuple

from streamsx.group import member_events as e
from streamsx.group.offset_commits import OffsetCommits
from streamsx.group.step_effects import Effects
from streamsx.model import TopicPartition

COLLECT_S = 0.05
"""Several releases, or several ready learners, make one round."""
NONE: frozenset[TopicPartition] = frozenset()


class RevokeAsked(NamedTuple):
    """`until`: when it is taken as lost."""

    number: int
    until: float


class OwnedPartitions:
    """`to_be_revoked` is within `revoking`, that within `owned`; `commits` are of what is owned."""

    def __init__(self, box: Effects, revoke_timeout_s: float, *, eager: bool = False) -> None:
        self.assigned = self.ran = NONE
        self.revoking: dict[TopicPartition, RevokeAsked] = {}
        self.since: dict[TopicPartition, int] = {}
        self.commits = OffsetCommits(box, self.since)
        self._box, self._revoke_timeout_s, self._eager = box, revoke_timeout_s, eager

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return frozenset(self.since)

    @property
    def to_be_revoked(self) -> frozenset[TopicPartition]:
        return self.owned - self.assigned

    def apply(self, generation: int, synced: e.Synced, *, leader: bool, halting: bool) -> None:
        """An assignment. What must go is asked for first, and nobody waits for it. Who is `halting`
        begins nothing more, and learns nothing."""
        self.assigned, self.ran, view = synced.partitions, NONE, synced.view
        if halting:
            self.assigned, view = NONE, replace(view, learners=frozenset(), promises=frozenset())
        begin = tuple(sorted(self.assigned - self.owned))
        self.since.update(dict.fromkeys(begin, generation))
        self._revoke()
        whole = e.OnAssignment(generation, tuple(sorted(self.assigned)), view, leader)
        self._box.emit(whole, e.Assigned(begin))

    def release_all(self) -> None:
        self.assigned = self.ran = NONE
        self._revoke()

    def may_join(self) -> bool:
        """An eager member lets go of everything first."""
        if self._eager and self.owned:
            ran = self.ran | self.owned
            self.release_all()
            self.ran = ran
        return not (self._eager and self.owned)

    def lose_all(self, why: e.Refusal) -> None:
        self.assigned = self.ran = NONE
        self._drop(self.owned, why.value)
        self.commits.fail(why)

    def released(self, event: e.Released) -> None:
        asked = self.revoking
        over = {tp for tp in asked.keys() & event.tps if asked[tp].number == event.number}
        if back := tuple(sorted(over & self.assigned)):
            for tp in back:
                del asked[tp]
            self._box.emit(e.Assigned(back))
        if self._drop(over.difference(back)):
            if asked:
                self._box.want("released some partitions", COLLECT_S)
            else:
                self._box.want("released all partitions asked for")

    def expired(self) -> None:
        late = {tp for tp, asked in self.revoking.items() if asked.until <= self._box.now}
        if self._drop(late, "not released within revoke_timeout"):
            self._box.want("some partitions were not released in time")

    def watch(self) -> None:
        """The timer of what is asked for."""
        self._box.first(e.Timer.REVOKE, (asked.until for asked in self.revoking.values()))

    def _revoke(self) -> None:
        """Asks for all that is to be revoked and was not asked for before."""
        number, until = self._box.number(), self._box.now + self._revoke_timeout_s
        asked = tuple(sorted(self.to_be_revoked - self.revoking.keys()))
        self.revoking.update(dict.fromkeys(asked, RevokeAsked(number, until)))
        if asked:
            self._box.emit(e.Revoke(asked, number))

    def _drop(self, tps: e.AnyPartitions, lost: str = "") -> bool:
        """Whether there was any. `lost`: why the worker must let go of it."""
        gone = tuple(sorted(self.owned & tps))
        for tp in gone:
            del self.since[tp]
            self.revoking.pop(tp, None)
        if gone and lost:
            self._box.emit(e.Lost(gone, lost))
        return bool(gone)
