"""Log lines about the number of processed records."""

from streamsx.clock import SystemClock
from streamsx.journal import Journal
from streamsx.metrics import MetricRegistry
from streamsx.worker.throughput_log import EVERY_S, ThroughputLog


class Heard(Journal):
    """Journal that keeps its events."""

    def __init__(self) -> None:
        super().__init__("a", SystemClock())
        self.told: list[dict[str, object]] = []

    def __call__(self, event: str, **fields: object) -> None:
        assert event == "processed"
        self.told.append(fields)


def test_processed_records_are_reported_in_sums_and_their_end_once() -> None:
    heard = Heard()
    tally = ThroughputLog(heard, MetricRegistry())

    def after(seconds: float, *records: int) -> list[dict[str, object]]:
        for some in records:
            tally.processed(some)
        tally.regularly(seconds, lambda: 7)
        told, heard.told = heard.told, []
        return told

    assert after(100.0, 20) == []
    assert after(100.0 + EVERY_S - 1, 300) == []
    assert after(100.0 + EVERY_S, 100) == [{"records": 420, "per_second": 14.0, "lag": 7}]
    assert after(100.0 + EVERY_S + 1, 3) == []
    late = 100.0 + 3 * EVERY_S
    assert after(late) == [{"records": 3, "per_second": 0.1, "lag": 7}], "in 60 s"
    assert after(late + EVERY_S) == [{"records": 0, "per_second": 0.0, "lag": 7}]
    assert after(late + 2 * EVERY_S) == after(late + 99 * EVERY_S) == [], "said once"
    assert after(late + 100 * EVERY_S, 30)[0]["records"] == 30
    assert after(late + 101 * EVERY_S)[0]["records"] == 0
