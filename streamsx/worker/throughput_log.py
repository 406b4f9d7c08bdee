"""Log of a worker's throughput, one line now and then, so that the log shows a working worker.

Not here: the lag (`data_loop`).
"""

from collections.abc import Callable

from streamsx.journal import Journal
from streamsx.metrics import MetricRegistry

EVERY_S = 30.0


class ThroughputLog:
    """Throughput of one data loop; a stretch without records is logged once."""

    def __init__(self, journal: Journal, registry: MetricRegistry) -> None:
        self._journal = journal
        self._processed = registry.counter(
            "records_processed_total", "Records that tasks have processed."
        )
        self._logged = 0
        """Records that earlier lines have counted."""
        self._quiet = False
        self._since: float | None = None

    def processed(self, records: int) -> None:
        """Count the records of a turn."""
        self._processed.add(records)

    def regularly(self, now: float, behind: Callable[[], float]) -> None:
        """Log the throughput every `EVERY_S`; called more often than that.

        `behind`: returns the number of records that wait, as far as known.
        """
        if self._since is None:
            self._since = now
        took_s = now - self._since
        if took_s < EVERY_S:
            return
        processed = self._processed.value()
        records = processed - self._logged
        self._logged = processed
        self._since = now
        if records or not self._quiet:
            rate = round(records / took_s, 1)
            self._journal("processed", records=records, per_second=rate, lag=behind())
        self._quiet = not records
