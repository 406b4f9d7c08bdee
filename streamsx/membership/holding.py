"""What the worker hears of its partitions: begin, let go, lost.

The other side of a member, which faces the group, is member.py. What returns a Want returns what
the leader must hear, if anything.

Not here: the algebra (claims.py), the life of a commit (commits.py), when anything is sent.
"""

from dataclasses import replace

from streamsx.membership import events as e
from streamsx.membership.claims import NONE, Claims
from streamsx.membership.commits import Commits
from streamsx.membership.effects import Effects


class Holding:
    """`claims` is there to be read; `commits` are of what is held."""

    def __init__(self, box: Effects, revoke_timeout_s: float) -> None:
        self.claims = Claims()
        self.commits = Commits(box, self.claims)
        self._box, self._revoke_timeout_s = box, revoke_timeout_s

    def apply(self, generation: int, synced: e.Synced, *, leader: bool, halting: bool) -> None:
        """An assignment. What must go is asked for first, and nobody waits for it. Who is `halting`
        begins nothing more, and learns nothing."""
        partitions, view = synced.partitions, synced.view
        if halting:
            partitions, view = NONE, replace(view, learners=frozenset(), promises=frozenset())
        begin = self.claims.apply(partitions, generation)
        self._revoke()
        whole = e.OnAssignment(generation, tuple(sorted(partitions)), view, leader)
        self._box.emit(whole, e.Assigned(begin))

    def release_all(self) -> None:
        self.claims.forget()
        self._revoke()

    def lose_all(self, why: e.Refusal) -> None:
        self.claims.forget()
        self._drop(self.claims.owned, why.value)
        self.commits.fail(why)

    def released(self, event: e.Released) -> e.Want | None:
        gone, back = self.claims.release(event.tps, event.number)
        if back:
            self._box.emit(e.Assigned(back))
        if not gone:
            return None
        if self.claims.revoking:
            return e.Want("released some partitions", soon=True)
        return e.Want("released all partitions asked for")

    def expired(self) -> e.Want | None:
        late = self._drop(self.claims.late(self._box.now), "not released within revoke_timeout")
        return e.Want("some partitions were not released in time") if late else None

    @property
    def nothing(self) -> bool:
        """Nothing is owned, and no commit is under way; one that waits has nothing to commit."""
        return not self.claims.owned and not self.commits.flying

    def watch(self) -> None:
        """The timer of what is asked for."""
        if self.claims.revoking:
            due = min(asked.until for asked in self.claims.revoking.values())
            self._box.arm(e.Timer.REVOKE, due)
        else:
            self._box.disarm(e.Timer.REVOKE)

    def _revoke(self) -> None:
        number = self._box.number()
        asked = self.claims.revoke(number, self._box.now + self._revoke_timeout_s)
        if asked:
            self._box.emit(e.Revoke(asked, number))

    def _drop(self, tps: e.AnyPartitions, why: str) -> e.Partitions:
        gone = self.claims.drop(tps)
        if gone:
            self._box.emit(e.Lost(gone, why))
        return gone
