"""Flows: each case on which Kafka Streams and this project's rules agree."""

import pytest

from streamsx.testing import TestDriver
from tests.flows.cases import Case, app_of, by_key, cases, expected, run

GROUPS = {
    "event-time",
    "stateless",
    "aggregate",
    "stream-table",
    "tumbling",
    "hopping",
    "session",
    "sliding",
    "deduplicate",
    "join-inner",
    "join-left",
    "join-outer",
}
MORE = {
    "compose/7-4",
    "compose/7-6",
    "deduplicate-no-id-passes",
    "filtered-records-close-sliding-windows",
    "finals-over-gaps-sliding",
    "sliding-closes-after-its-last-ms",
    "sliding-early",
    "sliding-late-but-in-an-open-window",
    "sliding-late-for-its-own-final",
}
CASES = [case for case in cases() if case["group"] in GROUPS or case["id"] in MORE]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_gives_the_results_of_kafka_streams(case: Case) -> None:
    with TestDriver(app_of(case)) as driver:
        assert by_key(case, run(case, driver)) == expected(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_gives_the_same_results_over_restarts(case: Case) -> None:
    with TestDriver(app_of(case)) as driver:
        assert by_key(case, run(case, driver, driver.restart)) == expected(case)
