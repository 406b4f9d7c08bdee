"""Whether and how a member is on its way out.

A *drain* lets others take everything first, until its deadline; a *halt* releases everything now. A
drain's deadline only ever moves closer: a signal that gives 25 s is not undone by a mark that gives
60. Marks come with every assignment, so only one newer than the last counts.

Not here: what a leaving member releases, and when it is gone.
"""

from streamsx.membership import events as e
from streamsx.membership.outbox import Outbox


class Leaving:
    """What returns a text returns what the leader must hear, if anything."""

    def __init__(self, box: Outbox) -> None:
        self.draining = self.halting = False
        self.deadline: float | None = None
        self._marked_ms = -1
        self._box = box

    def __bool__(self) -> bool:
        return self.draining or self.halting

    def drain(self, event: e.Leave) -> str | None:
        if self.halting:
            return None
        first, self.draining = not self.draining, True
        deadlines = [at for at in (self.deadline, event.deadline) if at is not None]
        if deadlines:
            self.deadline = min(deadlines)
            self._box.arm(e.Timer.DRAIN, self.deadline)
        return "leaving" if first else None

    def cancel(self, _: e.Cancel) -> str | None:
        if not self.draining:
            return None
        self.draining, self.deadline = False, None
        self._box.disarm(e.Timer.DRAIN, e.Timer.STOP)
        return "stays"

    def heed(self, mark: e.Mark | None) -> str | None:
        if mark is None or mark.epoch_ms <= self._marked_ms:
            return None
        self._marked_ms = mark.epoch_ms
        return self.drain(e.Leave(mark.deadline)) if mark.leaving else self.cancel(e.Cancel())

    def halt(self, deadline: float) -> None:
        self.draining, self.halting, self.deadline = False, True, deadline
        self._box.disarm(e.Timer.DRAIN)
        self._box.arm(e.Timer.STOP, deadline)

    def wait(self, until: float) -> None:
        """For an answer, before it goes; no longer than it may stay."""
        at = until if self.deadline is None else min(until, self.deadline)
        self._box.arm(e.Timer.STOP, at)
