"""faults.md: each situation is there once, and so is each test that holds it."""

import re
from collections import Counter

import pytest

from tests.support.listed_tests import NAMED, TESTS, missing

ROW = re.compile(r"^\| ([a-z]+[0-9]*[a-z]?) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)
ROWS = ROW.findall((TESTS / "faults.md").read_text())[1:]  # behind the head
OPEN = "-"
"""For the test of a situation that none holds yet."""


def test_each_situation_is_listed_once() -> None:
    lines = [line for line in (TESTS / "faults.md").read_text().splitlines() if "|" in line]
    assert len(ROWS) == len(lines) - 2  # its head
    assert [name for name, count in Counter(name for name, *_ in ROWS).items() if count > 1] == []


@pytest.mark.parametrize(("name", "situation", "tests"), ROWS)
def test_tests_named_for_each_situation_exist(name: str, situation: str, tests: str) -> None:
    assert situation.strip(), name
    assert bool(NAMED.search(tests)) != (tests.strip() == OPEN), name
    assert missing(tests) == [], name
