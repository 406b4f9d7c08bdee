"""testing/driver.py: partitions, commits and restarts of an app in memory."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsx import App
from streamsx.errors import NotFound, PartitionMismatch, UsageError
from streamsx.kafka.partitioner import partition_of
from streamsx.testing import TestDriver


def counting(**settings: Any) -> App:
    """Words by themselves as key."""
    app = App("shop", **settings)
    counts = app.Table("counts", default=int)
    words = app.topic("words", value_type=str, value_serializer="raw")

    @app.agent(words)
    async def count(stream: Any) -> None:
        async for word in stream:
            counts[word] += 1

    return app


@pytest.fixture
def drive() -> Iterator[Callable[..., TestDriver]]:
    made: list[TestDriver] = []

    def start(app: App, **options: Any) -> TestDriver:
        made.append(TestDriver(app, **options))
        return made[-1]

    yield start
    for driver in made:
        driver.close()


Drive = Callable[..., TestDriver]


def keyed(words: str) -> list[tuple[str, str]]:
    return [(word, word) for word in words.split()]


def test_a_record_goes_where_its_key_belongs(drive: Drive) -> None:
    driver = drive(counting(), partitions={"words": 4})
    driver.pipe("words", keyed("a b c d e a"))
    for word, count in {"a": 2, "b": 1, "e": 1}.items():
        assert driver.store("counts", partition_of(word.encode(), 4)).get(word) == count
    assert {each.partition for each in driver.read("words")} == {
        partition_of(word.encode(), 4) for word in "abcde"
    }


def test_a_record_without_a_key_goes_round_and_a_partition_can_be_given(drive: Drive) -> None:
    driver = drive(counting(topic_partitions=3))
    driver.pipe("words", ["a", "b", "c"])
    assert {each.partition for each in driver.read("words")} == {0, 1, 2}
    driver.pipe("words", ["d"], partition=1)
    assert driver.store("counts", 1).get("d") == 1


def test_what_was_not_committed_is_done_again_behind_a_restart(drive: Drive) -> None:
    driver = drive(counting(), commit=False)
    driver.pipe("words", keyed("a a"))
    driver.commit()
    driver.pipe("words", keyed("a b"))
    assert driver.table("counts") == {"a": 3, "b": 1}
    driver.restart()
    assert driver.table("counts") == {"a": 3, "b": 1}
    assert driver.read("shop-counts-changelog")[0].value == 2


def test_a_commit_writes_each_changed_key_once(drive: Drive) -> None:
    driver = drive(counting())
    driver.pipe("words", keyed("a a a"))
    driver.pipe("words", keyed("a"))
    rows = [(each.key, each.value) for each in driver.read("shop-counts-changelog")]
    assert rows == [(b'"a"', 3), (b'"a"', 4)]


def test_a_key_in_two_partitions_is_not_merged(drive: Drive) -> None:
    driver = drive(counting(topic_partitions=2))
    driver.pipe("words", ["a", "a"])
    with pytest.raises(UsageError, match="a key in several partitions: table counts"):
        driver.table("counts")


def test_what_is_not_there_is_said(drive: Drive) -> None:
    driver = drive(counting())
    for ask in (
        lambda: driver.table("nope"),
        lambda: driver.store("counts", 99),
        lambda: driver.read("nope"),
    ):
        with pytest.raises(NotFound, match=r"no such|unknown topic: nope"):
            ask()


def test_an_app_has_one_driver_at_a_time(drive: Drive) -> None:
    app = counting()
    with TestDriver(app) as first:
        with pytest.raises(UsageError, match="app runs already"):
            TestDriver(app)
        first.pipe("words", ["a"])
    drive(app).pipe("words", ["b"])


@pytest.mark.parametrize("partition", [8, -1])
def test_a_partition_that_is_not_there_is_refused(drive: Drive, partition: int) -> None:
    with pytest.raises(UsageError, match=f"no such partition: words-{partition}: it has 8"):
        drive(counting()).pipe("words", ["a"], partition=partition)


def test_a_topic_that_a_worker_would_not_know_is_refused(drive: Drive) -> None:
    """Its name is made when the record is there, and a worker has looked its topics up before."""
    app = App("shop")

    @app.agent("words")
    async def route(stream: Any) -> None:
        async for word in stream:
            await app.topic(f"{word}s").send(value=word)

    driver = drive(app)
    with pytest.raises(UsageError, match=r"unknown topic: as: make it with app\.topic"):
        driver.pipe("words", ["a"])
    with pytest.raises(NotFound):
        driver.read("as")


def test_a_topic_can_be_sent_to_by_its_name_alone(drive: Drive) -> None:
    app = App("shop")
    for name in "as", "bs":
        app.topic(name)

    @app.agent("words")
    async def route(stream: Any) -> None:
        async for word in stream:
            await app.send(f"{word}s", value=word)

    driver = drive(app)
    driver.pipe("words", ["a", "b"])
    assert [each.value for each in driver.read("bs")] == ["b"]


def test_agents_that_feed_each_other_without_end_are_stopped(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamsx.testing.driver.ROUNDS_MAX", 10)
    app = App("shop")
    words = app.topic("words")

    @app.agent(words)
    async def again(stream: Any) -> None:
        async for word in stream:
            await words.send(value=word)

    with pytest.raises(UsageError, match="never settles"):
        drive(app).pipe("words", ["a"])


def test_partitions_follow_the_rules_of_a_worker() -> None:
    app = App("shop")
    table = app.Table("t")

    @app.agent(app.topic("one", "two"), tables=[table])
    async def body(stream: Any) -> None:
        async for _ in stream:
            pass

    with pytest.raises(PartitionMismatch):
        TestDriver(app, partitions={"one": 1, "two": 2})
    assert app.host is None


@given(
    st.lists(
        st.lists(st.sampled_from("abcdefg"), max_size=20) | st.sampled_from(["restart", "commit"]),
        max_size=12,
    ),
    st.integers(1, 4),
    st.booleans(),
)
def test_any_run_counts_as_plain_python_does(
    steps: list[Any], partitions: int, commits: bool
) -> None:
    with TestDriver(counting(), partitions={"words": partitions}, commit=commits) as driver:
        expected: Counter[str] = Counter()
        for step in steps:
            if isinstance(step, str):
                getattr(driver, step)()
            else:
                driver.pipe("words", [(word, word) for word in step])
                expected.update(step)
        assert driver.table("counts") == expected
        driver.commit()
        changelog = {each.key: each.value for each in driver.read("shop-counts-changelog")}
        assert changelog == {f'"{word}"'.encode(): count for word, count in expected.items()}
