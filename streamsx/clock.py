"""Clock of the process: the only module that reads the time.

All other modules receive a Clock, or the time itself.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time, in seconds."""

    def now(self) -> float:
        """Return monotonic seconds; the zero point is arbitrary."""

    def wall(self) -> float:
        """Return seconds since 1970."""


class SystemClock:
    """Clock of the machine."""

    def now(self) -> float:
        """Return monotonic seconds; equal for all processes of a Linux machine."""
        return time.monotonic()

    def wall(self) -> float:
        """Return Unix seconds."""
        return time.time()  # noqa: TID251  # the only allowed call
