"""Partitions that a member owns (KIP-429), and the messages about them: begin, revoke, lost.

owned      fetched, processed and committed here; claimed by the next JoinGroup assigned   newest
assignment of the leader; owned - assigned is KIP-983's to_be_revoked revoking   revoke sent and not
yet released; a subset of owned ran        released for a round by an eager member, until that round
ends: some may come back since      per owned partition, the generation since which this member owns
it (KIP-1251)

A partition that is assigned again during its revoke stays in `revoking`, because the worker may be
at any point of the release. The race: p is revoked; the worker commits and closes p; an assignment
names p again; the message about the release arrives. The release ends the revoke: p stays owned
without interruption, and the worker must begin p again.

Each revoke has a number that its release repeats. The race: p is revoked (1); p is lost by a fence;
p is owned again; p is revoked (2); the answer to 1 arrives. p still runs.

`member` faces the group. Not here: the life of a commit (`offset_commits`), and the moment when a
request is sent.
"""

from dataclasses import replace
from typing import NamedTuple

from streamsx.group import member_events as e
from streamsx.group.offset_commits import OffsetCommits
from streamsx.group.step_effects import Effects
from streamsx.model import TopicPartition

COLLECT_S = 0.05
"""Window in which several releases, or several ready learners, are collected into one round."""
NONE: frozenset[TopicPartition] = frozenset()


class RevokeAsked(NamedTuple):
    """Revoke in progress; the partition is lost at `until`, in monotonic seconds."""

    number: int
    until: float


class OwnedPartitions:
    """Partitions of one member.

    `to_be_revoked` is a subset of `revoking`, and `revoking` of `owned`. `commits` holds the
    commits of owned partitions.
    """

    def __init__(self, box: Effects, revoke_timeout_s: float, *, eager: bool = False) -> None:
        self.assigned = self.ran = NONE
        self.revoking: dict[TopicPartition, RevokeAsked] = {}
        self.since: dict[TopicPartition, int] = {}
        self.commits = OffsetCommits(box, self.since)
        self._box = box
        self._revoke_timeout_s = revoke_timeout_s
        self._eager = eager

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return frozenset(self.since)

    @property
    def to_be_revoked(self) -> frozenset[TopicPartition]:
        return self.owned - self.assigned

    def apply(self, generation: int, synced: e.Synced, *, leader: bool, halting: bool) -> None:
        """Take in an assignment.

        Revokes are sent before the new partitions, and the round does not wait for them. A
        `halting` member begins no partitions and no learners.
        """
        self.assigned = synced.partitions
        self.ran = NONE
        view = synced.view
        if halting:
            self.assigned = NONE
            view = replace(view, learners=frozenset(), promises=frozenset())
        begin = tuple(sorted(self.assigned - self.owned))
        self.since.update(dict.fromkeys(begin, generation))
        self._revoke()
        whole = e.OnAssignment(generation, tuple(sorted(self.assigned)), view, leader)
        self._box.emit(whole, e.Assigned(begin))

    def release_all(self) -> None:
        self.assigned = self.ran = NONE
        self._revoke()

    def may_join(self) -> bool:
        """Return whether the member may join; an eager member releases all partitions first."""
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
        """Arm the timer of the revoke that expires first."""
        self._box.first(e.Timer.REVOKE, (asked.until for asked in self.revoking.values()))

    def _revoke(self) -> None:
        """Revoke all partitions that are to be revoked and are not being revoked yet."""
        number = self._box.number()
        until = self._box.now + self._revoke_timeout_s
        asked = tuple(sorted(self.to_be_revoked - self.revoking.keys()))
        self.revoking.update(dict.fromkeys(asked, RevokeAsked(number, until)))
        if asked:
            self._box.emit(e.Revoke(asked, number))

    def _drop(self, tps: e.AnyPartitions, lost: str = "") -> bool:
        """Drop the owned ones of these partitions.

        `lost`: the reason why the worker must drop them too; empty after a release.

        Returns:
            Whether there was any.
        """
        gone = tuple(sorted(self.owned & tps))
        for tp in gone:
            del self.since[tp]
            self.revoking.pop(tp, None)
        if gone and lost:
            self._box.emit(e.Lost(gone, lost))
        return bool(gone)
