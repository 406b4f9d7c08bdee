"""Whether and how a member is on its way out; and whom it removes as the leader.

A *drain* lets others take everything first, until its deadline; a *halt* releases everything now.
Either's deadline only ever moves closer: a signal that gives 25 s is not undone by a mark that
gives 60. Marks come with every assignment, so only one newer than the last counts. A mark takes
back what a mark has asked for: "a pod is ending; a tool says that its worker stays": it would be
given tasks, and be killed with them.

A deadline of somebody else who was told to leave counts as long as the memory that has it is the
newest. "a is to leave by 60 s, and the leader's plan says so; at 10 s a tool takes it back; the
next plan, whoever makes it, says nothing of a": what the older plan has armed is void, or a is
removed at 65 s although it stays.

Not here: what a leaving member releases, and when it is gone.
"""

from streamsx.assignor.model import Mark, MarkState
from streamsx.group import member_events as e
from streamsx.group.step_effects import Effects


class Leaving:
    """`draining`, `halting`, `deadline` are there to be read."""

    def __init__(self, box: Effects) -> None:
        self.draining = self.halting = False
        self.deadline: float | None = None
        self._told = False
        """To leave, by its own process."""
        self._marked_ms = -1
        self._box = box

    def __bool__(self) -> bool:
        return self.draining or self.halting

    def drain(self, event: e.Leave) -> None:
        self._told = True
        self._drain(event.deadline)

    def _drain(self, deadline: float | None) -> None:
        if self.halting:
            return
        first, self.draining, before = not self.draining, True, self.deadline
        deadlines = [at for at in (self.deadline, deadline) if at is not None]
        if deadlines:
            self.deadline = min(deadlines)
            self._box.arm(e.Timer.DRAIN, self.deadline)
        if first or self.deadline != before:
            self._box.emit(e.IsLeaving(self.deadline))
        if first:
            self._box.want("leaving")

    def heed(self, mark: Mark | None, deadline: float | None) -> None:
        """`deadline`: the mark's, in the member's time."""
        if mark is None or mark.epoch_ms <= self._marked_ms:
            return
        self._marked_ms = mark.epoch_ms
        if mark.state is MarkState.LEAVING:
            self._drain(deadline)
        elif self.draining and self._told:
            self._box.want("leaving")  # whoever planned this round has not expected it
        elif self.draining:
            self.draining, self.deadline = False, None
            self._box.disarm(e.Timer.DRAIN)
            self._box.emit(e.Stays())
            self._box.want("stays")

    def halt(self, deadline: float) -> None:
        if self.halting and self.deadline is not None:
            deadline = min(self.deadline, deadline)
        if not self or deadline != self.deadline:
            self._box.emit(e.IsLeaving(deadline))
        self.draining, self.halting, self.deadline = False, True, deadline
        self._box.disarm(e.Timer.DRAIN)
        self._box.arm(e.Timer.STOP, deadline)

    def wait(self, until: float) -> None:
        """For an answer, before it goes; no longer than it may stay."""
        at = until if self.deadline is None else min(until, self.deadline)
        self._box.arm(e.Timer.STOP, at)


class Evictions:
    """Who is to be out by when, by the newest plan."""

    def __init__(self, box: Effects) -> None:
        self.ends: dict[str, float] = {}
        self._box = box

    def late(self) -> tuple[str, ...]:
        """Whoever may still be there behind its deadline; each is told once."""
        late = tuple(sorted(member for member, at in self.ends.items() if at <= self._box.now))
        for member in late:
            del self.ends[member]
        return late

    def watch(self) -> None:
        self._box.first(e.Timer.EVICT, (at for at in self.ends.values() if at > self._box.now))
