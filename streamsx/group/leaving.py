"""Departure of a member, and removal of other members by the leader.

A *drain* lets other members take all tasks first, until the deadline. A *halt* releases all tasks
now. The deadline of either only moves closer: a signal that gives 25 s is not undone by a mark that
gives 60 s. Marks arrive with every assignment, so only a mark newer than the last one counts.

A mark takes back only a request that came by a mark. The reason: a pod is ending; a tool asks its
worker to stay; the worker would receive tasks and be killed with them.

The deadline of another leaving member counts only while the memory that contains the deadline is
the newest. The race: `a` must leave by 60 s, and the leader's plan contains this deadline; at 10 s
a tool takes the request back; the next plan, from any leader, does not mention `a`. The timer of
the older plan must be void, or `a` is removed at 65 s although `a` stays.

Not here: the releases of a leaving member, and the moment when the member is gone.
"""

from streamsx.assignor.model import Mark, MarkState
from streamsx.group import member_events as e
from streamsx.group.step_effects import Effects


class Leaving:
    """State of a member's departure; `draining`, `halting` and `deadline` are public to read."""

    def __init__(self, box: Effects) -> None:
        self.draining = self.halting = False
        self.deadline: float | None = None
        self._requested = False
        """The member's own process asked for the departure."""
        self._marked_ms = -1
        self._box = box

    def __bool__(self) -> bool:
        return self.draining or self.halting

    def drain(self, event: e.Leave) -> None:
        self._requested = True
        self._drain(event.deadline)

    def _drain(self, deadline: float | None) -> None:
        if self.halting:
            return
        first = not self.draining
        self.draining = True
        before = self.deadline
        deadlines = [at for at in (self.deadline, deadline) if at is not None]
        if deadlines:
            self.deadline = min(deadlines)
            self._box.arm(e.Timer.DRAIN, self.deadline)
        if first or self.deadline != before:
            self._box.emit(e.IsLeaving(self.deadline))
        if first:
            self._box.want("leaving")

    def heed(self, mark: Mark | None, deadline: float | None) -> None:
        """Follow the mark from an assignment, if the mark is newer than the last one.

        `deadline`: the mark's deadline, in monotonic seconds.
        """
        if mark is None or mark.epoch_ms <= self._marked_ms:
            return
        self._marked_ms = mark.epoch_ms
        if mark.state is MarkState.LEAVING:
            self._drain(deadline)
        elif self.draining and self._requested:
            self._box.want("leaving")  # the leader of this round planned with a staying member
        elif self.draining:
            self.draining = False
            self.deadline = None
            self._box.disarm(e.Timer.DRAIN)
            self._box.emit(e.Stays())
            self._box.want("stays")

    def halt(self, deadline: float, *, stays: bool = False) -> None:
        if self.halting and self.deadline is not None:
            deadline = min(self.deadline, deadline)
        if not self or deadline != self.deadline:
            self._box.emit(e.IsLeaving(deadline, stays=stays, at_once=not stays))
        self.draining = False
        self.halting = True
        self.deadline = deadline
        self._box.disarm(e.Timer.DRAIN)
        self._box.arm(e.Timer.STOP, deadline)

    def wait(self, until: float) -> None:
        """Arm the STOP timer for an answer that is awaited, at most until the deadline."""
        at = until if self.deadline is None else min(until, self.deadline)
        self._box.arm(e.Timer.STOP, at)


class Evictions:
    """Deadlines of leaving members, from the newest plan."""

    def __init__(self, box: Effects) -> None:
        self.ends: dict[str, float] = {}
        self._box = box

    def late(self) -> tuple[str, ...]:
        """Return the members whose deadline has passed, and forget them: each is returned once."""
        late = tuple(sorted(member for member, at in self.ends.items() if at <= self._box.now))
        for member in late:
            del self.ends[member]
        return late

    def watch(self) -> None:
        self._box.first(e.Timer.EVICT, (at for at in self.ends.values() if at > self._box.now))
