"""The pace of the demo's lines."""

from hypothesis import given
from hypothesis import strategies as st

from streamsx.tools.demonstration.traffic import PACE_MAX, pace


def test_by_default_lines_come_as_fast_as_they_may() -> None:
    assert pace(200_000, 200_000, shown=False) == PACE_MAX == 5_000


def test_few_lines_last_as_long_as_many() -> None:
    assert pace(4_000, 4_000, shown=False) == 100


@given(st.integers(1, 10**7), st.floats(0, 1), st.booleans())
def test_lines_never_come_faster_and_never_run_out(records: int, left: float, shown: bool) -> None:
    found = pace(records, max(1, int(records * left)), shown=shown)
    assert 0 < found <= PACE_MAX


def test_the_last_lines_wait_until_all_was_shown() -> None:
    assert pace(200_000, 10_000, shown=False) == 1_000
    assert pace(200_000, 10_000, shown=True) == PACE_MAX
