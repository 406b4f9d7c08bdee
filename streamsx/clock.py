"""The only module that reads the time; everything else is handed a Clock, or the time itself."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds."""

    def now(self) -> float:
        """Monotonic; its zero means nothing."""

    def wall(self) -> float:
        """Since 1970."""


class SystemClock:
    """The machine's."""

    def now(self) -> float:
        """Monotonic seconds; equal for all processes of a Linux machine."""
        return time.monotonic()

    def wall(self) -> float:
        """Unix seconds."""
        return time.time()  # noqa: TID251  # here and nowhere else
