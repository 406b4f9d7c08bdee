"""What a worker has processed, now and then in one line: who looks at its log sees that it works.

Not here: counting, and what is left to do (the data loop's).
"""

from collections.abc import Callable

from streamsx.journal import Journal

EVERY_S = 30.0


class ThroughputLog:
    """One per data loop. A stretch without records is told once, until there are some again."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._records, self._quiet = 0, False
        self._since: float | None = None

    def processed(self, records: int) -> None:
        self._records += records

    def regularly(self, now: float, behind: Callable[[], int]) -> None:
        """Called often enough. `behind`: records that wait, as far as is known."""
        if self._since is None:
            self._since = now
        took_s = now - self._since
        if took_s < EVERY_S:
            return
        records, self._records, self._since = self._records, 0, now
        if records or not self._quiet:
            rate = round(records / took_s, 1)
            self._journal("processed", records=records, per_second=rate, lag=behind())
        self._quiet = not records
