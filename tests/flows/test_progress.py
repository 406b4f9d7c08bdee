"""Event time after repartition topics: no record in order is late, whichever task reads first."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from streamsx import App
from streamsx.app.window import tumbling
from streamsx.processing.progress import HEADER
from streamsx.testing import TestDriver

HOUR = 3600
PARTITIONS = 4


def app_of(emit: str = "final", idle: str | None = None, **settings: Any) -> App:
    app = App("catch-up", topic_partitions=PARTITIONS, store="memory://", **settings)
    groups = app.flow("in").group_by(lambda value: value["user"])
    groups.window(tumbling("10s", grace=0, idle=idle)).count("counts", emit=emit).to("out")
    return app


def ordered(seed: int, count: int = 4000) -> list[tuple[str, dict[str, Any], float]]:
    """Return records of an hour in the order of their times: key, value, seconds."""
    rng = random.Random(seed)
    return [
        (f"k{rng.randrange(40)}", {"user": f"u{rng.randrange(20)}"}, n * HOUR / count)
        for n in range(count)
    ]


def late(driver: TestDriver) -> int:
    return sum(counts.late for task in driver._tasks.values() for counts in task.counts.values())


def ends(count: int) -> list[tuple[str, dict[str, Any], float]]:
    """Return records that move the time of each partition beyond an hour."""
    return [(f"k{n}", {"user": "end"}, HOUR + 100.0) for n in range(count)]


def finals(driver: TestDriver) -> Counter[tuple[bytes, int]]:
    return Counter((each.key, each.value) for each in driver.read("out") if b"end" not in each.key)


def wanted(records: list[tuple[str, dict[str, Any], float]]) -> Counter[tuple[bytes, int]]:
    counts = Counter((value["user"], int(at // 10) * 10_000) for _, value, at in records)
    return Counter(
        (f'["{user}",{start},{start + 10_000}]'.encode(), n) for (user, start), n in counts.items()
    )


@pytest.mark.parametrize("seed", range(3))
def test_catch_up_of_ordered_records_loses_none_at_grace_0(seed: int) -> None:
    records = ordered(seed)
    with TestDriver(app_of()) as driver:
        driver.pipe("in", [*records, *ends(40)])
        assert late(driver) == 0
        assert finals(driver) == wanted(records)


def cuts(records: list[Any], rng: random.Random) -> Iterator[list[Any]]:
    at = 0
    while at < len(records):
        size = rng.choice((1, 7, 60, 400))
        yield records[at : at + size]
        at += size


@pytest.mark.parametrize("seed", range(3))
def test_restarts_in_a_catch_up_lose_no_record(seed: int) -> None:
    records = ordered(seed, 1500)
    rng = random.Random(seed)
    with TestDriver(app_of()) as driver:
        for part in cuts([*records, *ends(40)], rng):
            driver.pipe("in", part)
            driver.restart()
        assert late(driver) == 0
        assert finals(driver) == wanted(records)


def test_writer_that_has_told_nothing_holds_the_time() -> None:
    with TestDriver(app_of()) as driver:
        for partition in range(PARTITIONS - 1):
            driver.pipe(
                "in", [(None, {"user": "a"}, 1.0), (None, {"user": "a"}, 99.0)], partition=partition
            )
        assert finals(driver) == Counter()
        driver.pipe("in", [(None, {"user": "b"}, 50.0)], partition=PARTITIONS - 1)
        assert finals(driver) == Counter({(b'["a",0,10000]', 3): 1})


def test_time_of_a_filtered_record_passes_a_repartition_topic() -> None:
    app = App("filtered", topic_partitions=1, store="memory://")
    kept = app.flow("in").filter(lambda value: value > 0).group_by(str)
    kept.window(tumbling("10s", grace=0)).count("counts", emit="final").to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", [(None, 1, 1.0), (None, 0, 12.0)])
        assert [each.value for each in driver.read("out")] == [1]


def test_time_passes_two_repartition_topics() -> None:
    app = App("twice", topic_partitions=2, store="memory://")
    first = app.flow("in").group_by(lambda value: value["user"])
    table = first.window(tumbling("10s", grace=0)).count("first", emit="final")
    again = table.to_flow().group_by(lambda count: str(count % 2), name="again")
    again.window(tumbling("20s", grace=0)).sum(lambda count: count, "second", emit="final").to(
        "out"
    )
    records = ordered(1, 600)
    with TestDriver(app) as driver:
        driver.pipe("in", [*records, *ends(40)])
        driver.pipe("in", [(key, value, at + 100) for key, value, at in ends(40)])
        assert late(driver) == 0
        assert sum(each.value for each in driver.read("out")) >= len(records)


def test_topics_without_time_below_carry_none() -> None:
    app = App("plain", topic_partitions=2, store="memory://")
    app.flow("in").group_by(lambda value: value["user"]).count("counts").to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", ordered(0, 30))
        headers = [each.headers for each in driver.read("plain-counts-repartition")]
    assert len(headers) == 30
    assert not any(HEADER in each for each in headers)


def test_record_whose_timestamp_function_raises_fails_alone() -> None:
    app = App("times", topic_partitions=1, store="memory://")
    flow = app.flow("in", timestamp=lambda value: value["at"])
    groups = flow.group_by_key().window(tumbling("10s", grace=0))
    groups.count("counts", emit="final").to("out")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("in", [("a", {"at": 1}), ("a", {}), ("a", {"at": "x"}), ("a", {"at": 2})])
        driver.pipe("in", [("a", {"at": 12})])
        assert [each.value for each in driver.read("out")] == [2]
        assert [type(each.error) for each in driver.failures] == [KeyError, TypeError]


def test_told_times_outlive_a_restart_of_the_reader() -> None:
    with TestDriver(app_of()) as driver:
        for partition in range(PARTITIONS):
            driver.pipe("in", [(None, {"user": "a"}, 1.0)], partition=partition)
        for partition in range(1, PARTITIONS):
            driver.pipe("in", [(None, {"user": "a"}, 50.0)], partition=partition)
            driver.restart()
        assert finals(driver) == Counter()
        driver.pipe("in", [(None, {"user": "a"}, 20.0)], partition=0)
        assert finals(driver) == Counter({(b'["a",0,10000]', 4): 1})
