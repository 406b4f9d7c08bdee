"""requirements.md: each number of the five specifications is there once, and so is each test."""

import re
from collections import Counter

import pytest

from tests.support.listed_tests import NAMED, TESTS, missing

LAST = {"R001": 15, "R1251": 11, "R003": 39, "R429": 44, "R983": 9}
PROVEN, UNPROVEN = {"done", "decided", "part"}, {"open", "explains"}
ROW = re.compile(r"\| (R\d{3,4}-\d\d) \| [^|]+ \| (\w+) \| ([^|]*) \| ([^|]*)\|")
ROWS = ROW.findall((TESTS / "requirements.md").read_text())


def test_each_requirement_number_is_listed_once() -> None:
    wanted = [f"{group}-{n:02}" for group, last in LAST.items() for n in range(1, last + 1)]
    assert Counter(number for number, *_ in ROWS) == Counter(wanted)


@pytest.mark.parametrize(("number", "state", "why", "tests"), ROWS)
def test_done_requirements_name_existing_tests(
    number: str, state: str, why: str, tests: str
) -> None:
    assert state in PROVEN | UNPROVEN, number
    assert bool(NAMED.search(tests)) == (state in PROVEN), number
    assert why.strip() or state == "done", number
    assert missing(tests) == [], number
