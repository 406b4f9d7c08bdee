"""Times and ages as commands show them."""

import pytest

from streamsx.tools.cli.times import age, utc


def test_time_is_shown_in_utc() -> None:
    assert utc(1_700_000_000.9) == "2023-11-14T22:13:20Z"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-3, "0 s"),
        (0.9, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (7300, "2 h"),
        (200_000, "2 d"),
    ],
)
def test_age_is_shown_in_its_largest_unit(seconds: float, shown: str) -> None:
    assert age(seconds) == shown
