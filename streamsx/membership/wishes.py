"""What the leader must hear, which is a reason to join again: now, or soon with others that come.

Not here: when a member may join.
"""

from streamsx.membership import events as e
from streamsx.membership.effects import Effects

COLLECT_S = 0.05
"""Several releases, or several ready learners, make one round."""


class Wishes:
    """`reason`: the first that has not been taken to the leader yet."""

    def __init__(self, box: Effects) -> None:
        self.reason: str | None = None
        self._soon = ""
        self._box = box

    def add(self, want: e.Want | None) -> None:
        if want is not None and not want.soon:
            self.reason = self.reason or want.reason
        elif want is not None and not self._box.armed(e.Timer.COLLECT):
            self._soon = want.reason
            self._box.after(e.Timer.COLLECT, COLLECT_S)

    def collected(self) -> e.Want:
        return e.Want(self._soon)

    def taken(self) -> str:
        """By a join, which tells of everything."""
        reason, self.reason = self.reason or "", None
        self._box.disarm(e.Timer.COLLECT, e.Timer.REPLAN)
        return reason
