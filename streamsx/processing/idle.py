"""Idle input: nothing has come for so long, by the clock on the wall. Pure.

Time counts anew after each record, and after a pause of the task. A source is idle only at its end.
"""


class QuietTime:
    """Time for which one source has been quiet. The driver looks at it regularly."""

    def __init__(self) -> None:
        self._mark: object = None
        self._since: float | None = None

    def pause(self) -> None:
        """Count anew from the next look on, because the source is not read."""
        self._since = None

    def ms(self, now: float, mark: object, *, at_end: bool) -> float:
        """Return the ms without input, up to `now` in seconds; 0 if there is some to read.

        `mark` changes with each record.
        """
        if mark != self._mark or self._since is None:
            self._mark = mark
            self._since = now
        return (now - self._since) * 1000 if at_end else 0.0
