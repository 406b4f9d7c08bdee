"""Wait of a member for its round: when the log has a line about a rebalance that takes long.

A round waits for all members of the group, for up to a session timeout if one of them has died.
"""

FIRST_S = 5.0
"""Wait until the first line."""
EVERY_S = 10.0
"""Time between two lines."""


class RoundWait:
    """Request of one round that is not answered yet.

    Attributes:
        due_at: time of the next line; None while nothing is awaited.
        syncs: whether the member waits for the plan, and no more for other members to join.
    """

    def __init__(self) -> None:
        self.due_at: float | None = None
        self.syncs = False
        self._since = 0.0

    def sent(self, now: float, *, syncs: bool) -> None:
        """Note that a JoinGroup or, with `syncs`, a SyncGroup is sent."""
        if self.due_at is None or syncs != self.syncs:
            self._since = now
            self.due_at = now + FIRST_S
        self.syncs = syncs

    def over(self) -> None:
        """Note that nothing is awaited any more."""
        self.due_at = None

    def waited_s(self, now: float) -> float | None:
        """Return the seconds of the wait if a line is due, and when the next one is."""
        if self.due_at is None or now < self.due_at:
            return None
        self.due_at += EVERY_S
        return now - self._since
