"""What a leader has under way: the plan of its round, and whom it is to remove from the group.

A deadline of somebody who was told to leave counts as long as the memory that has it is the newest.
"a is to leave by 60 s, and the leader's plan says so; at 10 s a tool takes it back; the next plan,
whoever makes it, says nothing of a": what the older plan has armed is void, or a is removed at
65 s although it stays.

Not here: what a plan says (the assignor's), making it (`leading`).
"""

from streamsx.assignor.claims import Metadata
from streamsx.membership import events as e
from streamsx.membership.effects import Effects

PAUSE_S = 1.0


class Plans:
    """Of one member, for as long as it leads."""

    def __init__(self, box: Effects) -> None:
        self._box = box
        self._asked: int | None = None
        self._evictions: dict[str, float] = {}

    def ask(self, member_id: str, generation: int, members: Metadata) -> None:
        self._asked = self._box.number()
        self._box.emit(e.Assign(self._asked, member_id, generation, members))

    def take(self, event: e.Planned) -> bool:
        """Whether it is the plan of the round under way; one that failed is tried again."""
        if event.request != self._asked:
            return False
        self._asked, self._evictions = None, dict(event.evictions)
        self._arm()
        if event.error is not None:
            self._box.emit(e.Count("failed-rebalance-total"))
            self._box.after(e.Timer.REPLAN, PAUSE_S)
        return True

    def failed(self) -> e.Want:
        return e.Want("the assignment failed")

    def evict(self) -> None:
        """Who may still be there behind its deadline."""
        due = [member for member, at in self._evictions.items() if at <= self._box.now]
        for member in due:
            del self._evictions[member]
            self._box.emit(e.Evict(member))
        self._arm()

    def end(self) -> None:
        """Another generation: what was planned before says nothing any more."""
        self._asked, self._evictions = None, {}
        self._box.disarm(e.Timer.EVICT)

    def _arm(self) -> None:
        if self._evictions:
            self._box.arm(e.Timer.EVICT, min(self._evictions.values()))
