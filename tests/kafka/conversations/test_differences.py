"""Table of intended differences: it is short, and each entry is seen in a conversation."""

from pathlib import Path

from tests.support.conversation import DIFFERENCES

DIFFERENCES_MAX = 5


def test_every_listed_difference_is_checked_and_the_list_is_short() -> None:
    told = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [label for label in DIFFERENCES if f'"{label}"' not in told] == []
    assert len(DIFFERENCES) <= DIFFERENCES_MAX
