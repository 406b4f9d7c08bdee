"""The algebra of ownership of one member (KIP-429): what is held, what the leader's last word is.

owned      held: fetched, processed, committed; what the next JoinGroup claims
assigned   the leader's last word; owned - assigned is what KIP-983 calls to_be_revoked
revoking   asked to be given up and not yet released; within owned
since      per owned partition, the generation from which on it has been ours (KIP-1251)

A partition that is assigned again while it is being revoked stays in `revoking`, because the worker
may be anywhere on its way to letting go: "p is asked for; the worker commits and closes p; an
assignment names p again; the word of the release arrives". The release ends it: p stays ours,
without interruption, and the worker is told to begin again. Each revoke has a number that its
release repeats: "p is asked for (1); lost by a fence; ours again; asked for (2); the answer to 1
arrives": p still runs.

Not here: whom one has to tell. Methods return what changed hands, sorted.
"""

from typing import NamedTuple

from streamsx.membership.events import AnyPartitions, Partitions
from streamsx.model import TopicPartition

NONE: frozenset[TopicPartition] = frozenset()


class RevokeAsked(NamedTuple):
    """`until`: when it is taken as lost."""

    number: int
    until: float


class Claims:
    """`to_be_revoked` is within `revoking`, that within `owned`, which `since` names exactly."""

    def __init__(self) -> None:
        self.owned, self.assigned = NONE, NONE
        self.revoking: dict[TopicPartition, RevokeAsked] = {}
        self.since: dict[TopicPartition, int] = {}

    @property
    def to_be_revoked(self) -> frozenset[TopicPartition]:
        return self.owned - self.assigned

    def apply(self, assigned: AnyPartitions, generation: int) -> Partitions:
        """Takes what is new, and returns it."""
        self.assigned = frozenset(assigned)
        new = sorted(self.assigned - self.owned)
        self.owned = self.owned.union(new)
        self.since |= dict.fromkeys(new, generation)
        return tuple(new)

    def revoke(self, number: int, until: float) -> Partitions:
        """Asks for all that is to be revoked; returns what was not asked for before."""
        asked = sorted(self.to_be_revoked - self.revoking.keys())
        self.revoking |= dict.fromkeys(asked, RevokeAsked(number, until))
        return tuple(asked)

    def release(self, tps: AnyPartitions, number: int) -> tuple[Partitions, Partitions]:
        """Returns what is gone, and what was given back meanwhile."""
        over = {tp for tp in self.revoking.keys() & tps if self.revoking[tp].number == number}
        back = sorted(over & self.assigned)
        for tp in back:
            del self.revoking[tp]
        return self.drop(over.difference(back)), tuple(back)

    def late(self, now: float) -> AnyPartitions:
        """What should be released by now."""
        return {tp for tp, asked in self.revoking.items() if asked.until <= now}

    def drop(self, tps: AnyPartitions) -> Partitions:
        gone = sorted(self.owned & tps)
        self.owned = self.owned.difference(gone)
        for tp in gone:
            del self.since[tp]
            self.revoking.pop(tp, None)
        return tuple(gone)

    def forget(self) -> None:
        """The leader's word does not count any more."""
        self.assigned = NONE
