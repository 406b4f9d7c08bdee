"""Records per CPU-second: what is subtracted, what is compared."""

import pytest

from streamsx.errors import UsageError
from tests.support.throughput.measuring import MeasuredRun, rate, summary


def test_rate_excludes_the_cost_of_startup() -> None:
    for start_s in (0.0, 3.0):
        some, whole = (
            MeasuredRun(100, start_s + 1.0, 9.0, 99.0),
            MeasuredRun(1000, start_s + 10.0, 9.0, 99.0),
        )
        assert rate(whole, some) == 100.0


@pytest.mark.parametrize(
    "start", [MeasuredRun(100, 2.0, 1.0, 99.0), MeasuredRun(1000, 1.0, 1.0, 99.0)]
)
def test_run_too_short_to_separate_from_startup_is_refused(start: MeasuredRun) -> None:
    with pytest.raises(UsageError, match="too few lines to measure: 1000: give more --records"):
        rate(MeasuredRun(1000, 2.0, 1.0, 99.0), start)


def test_summary_gives_a_ratio_for_each_pair_of_runs() -> None:
    told = summary({"streamsx": [50.4, 30.0], "peer": [100.8, 120.0]})
    assert told == {"streamsx": [50, 30], "peer": [101, 120], "ratios": [0.5, 0.25]}


def test_summary_without_a_peer_has_no_ratio() -> None:
    assert summary({"streamsx": [50.0]}) == {"streamsx": [50]}
