"""testing/driver.py: partitions, commits and restarts of an app in memory."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsx import App
from streamsx.errors import (
    NotFound,
    PartitionMismatch,
    RecordRefused,
    RecordTooLarge,
    TaskStopped,
    UsageError,
    ValueRefused,
)
from streamsx.protocol.partitioner import partition_of
from streamsx.testing import TestDriver


def counting(**settings: Any) -> App:
    """Return an app that counts words, with the word as key."""
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


def test_record_goes_to_the_partition_of_the_key(drive: Drive) -> None:
    driver = drive(counting(), partitions={"words": 4})
    driver.pipe("words", keyed("a b c d e a"))
    for word, count in {"a": 2, "b": 1, "e": 1}.items():
        assert driver.store("counts", partition_of(word.encode(), 4)).get(word) == count
    assert {each.partition for each in driver.read("words")} == {
        partition_of(word.encode(), 4) for word in "abcde"
    }


def test_keyless_records_go_round_robin_and_a_partition_can_be_given(drive: Drive) -> None:
    driver = drive(counting(topic_partitions=3))
    driver.pipe("words", ["a", "b", "c"])
    assert {each.partition for each in driver.read("words")} == {0, 1, 2}
    driver.pipe("words", ["d"], partition=1)
    assert driver.store("counts", 1).get("d") == 1


def test_uncommitted_records_are_processed_again_after_a_restart(drive: Drive) -> None:
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


def test_key_in_two_partitions_is_not_merged(drive: Drive) -> None:
    driver = drive(counting(topic_partitions=2))
    driver.pipe("words", ["a", "a"])
    with pytest.raises(UsageError, match="a key in several partitions: table counts"):
        driver.table("counts")


def test_missing_table_store_or_topic_is_reported(drive: Drive) -> None:
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
def test_unknown_partition_is_refused(drive: Drive, partition: int) -> None:
    with pytest.raises(UsageError, match=f"no such partition: words-{partition}: it has 8"):
        drive(counting()).pipe("words", ["a"], partition=partition)


def setting(values: list[Any]) -> App:
    app = App("shop")
    seen = app.Table("seen")

    @app.agent("words")
    async def put(stream: Any) -> None:
        async for number in stream:
            seen[number] = values[number]

    return app


def test_unencodable_value_fails_only_one_record(drive: Drive) -> None:
    driver = drive(setting(["a", 2**70, "c"]), partitions={"words": 1}, raises=False)
    driver.pipe("words", range(3))
    assert driver.table("seen") == {0: "a", 2: "c"}
    (failure,) = driver.failures
    assert (failure.offset, type(failure.error)) == (1, ValueRefused)
    driver.restart()
    assert driver.table("seen") == {0: "a", 2: "c"}


def test_values_put_back_before_and_after_going_back_count_as_put_back(drive: Drive) -> None:
    """A later pipe reported them as changed in place: the stores of that run did not know them."""
    app = App("shop")
    seen: Any = app.Table("seen", default=list)

    @app.agent("words")
    async def put(stream: Any) -> None:
        async for number in stream:
            if number < 3:
                everything = seen["all"]
                everything.append(number)
                seen["all"] = everything
            if number == 2:
                seen["bad"] = object()

    driver = drive(app, partitions={"words": 1})
    driver.pipe("words", [0])
    with pytest.raises(ValueRefused):
        driver.pipe("words", [1, 2])
    driver.pipe("words", [3])
    assert driver.table("seen") == {"all": [0, 1]}, "2 has failed"


def test_unencodable_value_raises_at_the_put(drive: Drive) -> None:
    with pytest.raises(ValueRefused, match="store seen, key 1, type int") as caught:
        drive(setting(["a", 2**70]), partitions={"words": 1}).pipe("words", range(2))
    assert any("words-0 offset 1" in note for note in caught.value.__notes__)
    assert "put" in [frame.name for frame in caught.traceback]


def test_unencodable_value_raises_at_an_explicit_commit(drive: Drive) -> None:
    driver = drive(setting([2**70]), partitions={"words": 1}, commit=False)
    driver.pipe("words", [0])
    with pytest.raises(ValueRefused):
        driver.commit()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ({"value": "x" * 2_000_000}, RecordTooLarge),
        ({"value": 1, "headers": {"h": 5}}, TypeError),
        ({"value": 1, "timestamp": 1e30}, RecordRefused),
    ],
)
def test_unsendable_arguments_are_refused(
    drive: Drive, sent: dict[str, Any], error: type[Exception]
) -> None:
    app = App("shop")
    out = app.topic("out")

    @app.agent("words")
    async def send(stream: Any) -> None:
        async for _ in stream:
            await out.send(**sent)

    with pytest.raises(error):
        drive(app).pipe("words", [1])


def test_partitions_of_an_unknown_topic_are_refused(drive: Drive) -> None:
    with pytest.raises(NotFound, match="no such topics: partitions of wrods"):
        drive(counting(), partitions={"wrods": 2})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"word": "axe"}, "not a list of values: {'word': 'axe'}"),
        ("axe", "not a list of values: 'axe'"),
        ([("axe",)], r"not a record: \('axe',\)"),
        ([("axe", "axe", 1.0, {}, 0)], "not a record: .*write .key, value., .key, value, time."),
        ([("axe", "axe", {"h": b"1"})], "not a time: {'h': b'1'}: .* .key, value, None, headers."),
    ],
)
def test_pipe_refuses_values_that_are_no_list_of_records(
    drive: Drive, values: Any, says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        drive(counting()).pipe("words", values)


class Five:
    """A number of another library, such as numpy.int64."""

    def __float__(self) -> float:
        return 5.0


@pytest.mark.parametrize("at", [5, 5.0, Decimal("5.0"), Fraction(5), Five()])
def test_piped_time_may_be_any_number(drive: Drive, at: object) -> None:
    app = App("times")
    app.topic("words")
    driver = drive(app)
    driver.pipe("words", [(None, "axe", at)])
    assert driver.read("words")[0].timestamp == 5


def test_piped_headers_of_an_iterator_reach_all_records(drive: Drive) -> None:
    app = App("pairs")
    app.topic("words")
    driver = drive(app)
    driver.pipe("words", ["axe", "bow"], headers=zip(["h"], ["1"], strict=True))
    assert [each.headers for each in driver.read("words")] == [{"h": b"1"}] * 2


@pytest.mark.parametrize("headers", [[("a",)], [("a", "b", "c")], "ab", 5, [5]])
def test_piped_headers_that_are_no_pairs_are_refused(drive: Drive, headers: Any) -> None:
    app = App("pairs")
    app.topic("words")
    driver = drive(app)
    with pytest.raises(TypeError, match=r"headers refused: topic words: .*: give a dict"):
        driver.pipe("words", ["axe"], headers=headers)
    with pytest.raises(TypeError, match=r"headers refused: topic words: .*: give a dict"):
        driver.pipe("words", [(None, "axe", None, headers)])


def test_piped_records_have_their_own_headers_or_those_of_all(drive: Drive) -> None:
    app = App("shop")
    seen = []

    @app.agent("words")
    async def note(stream: Any) -> None:
        async for event in stream.events():
            seen.append((event.value, dict(event.headers)))

    driver = drive(app)
    rows = [1, ("k", 2, None, {"own": b"o"}), ("k", 3, 0.5, [("x", "1"), ("y", None)])]
    driver.pipe("words", rows, headers={"all": "a"}, partition=0)
    driver.pipe("words", [("k", 4)], partition=0)

    assert seen == [
        (1, {"all": b"a"}), (2, {"own": b"o"}), (3, {"x": b"1", "y": None}), (4, {}),
    ]  # fmt: skip
    assert [record.headers for record in driver.read("words")] == [given for _, given in seen]
    with pytest.raises(TypeError, match="header refused: topic words: 'h' is a int"):
        driver.pipe("words", [5], headers={"h": 5})  # type: ignore[arg-type]  # the mistake


def test_error_in_app_task_cleanup_is_raised_on_close() -> None:
    app = counting()

    @app.task
    async def serving() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            raise KeyError("last words")

    with pytest.raises(KeyError, match="last words"), TestDriver(app):
        pass
    with pytest.raises(ValueError, match="the test's own"), TestDriver(app):
        raise ValueError("the test's own")
    assert app.host is None


def test_topic_named_at_send_time_is_created(drive: Drive) -> None:
    app = App("shop", topic_partitions=2)

    @app.agent("words")
    async def route(stream: Any) -> None:
        async for word in stream:
            told = await (await app.topic(f"{word}s").send(value=word))
            assert (told.topic, told.offset) == (f"{word}s", 0)

    driver = drive(app)
    driver.pipe("words", ["a", "b"])
    assert [each.value for each in driver.read("as")] == ["a"]
    assert [each.value for each in driver.read("bs")] == ["b"]


def test_topic_named_at_send_time_is_refused_without_declare(drive: Drive) -> None:
    app = App("shop", topic_allow_declare=False)

    @app.agent("words")
    async def route(stream: Any) -> None:
        async for word in stream:
            await app.topic(f"{word}s").send(value=word)

    driver = drive(app, partitions={"words": 1})
    with pytest.raises(
        UsageError, match=r"unknown topic: as: it does not exist, and the app may not"
    ):
        driver.pipe("words", ["a"])
    with pytest.raises(NotFound):
        driver.read("as")


def test_app_sends_to_a_topic_by_name(drive: Drive) -> None:
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


def test_endless_agent_cycle_is_refused_as_never_settling(
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
def test_any_sequence_of_steps_counts_as_plain_python_does(
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


# -- what goes wrong


def failing(**settings: Any) -> App:
    """Return an app that sums prices; an order without one fails."""
    app = App("shop", topic_partitions=1, **settings)
    totals = app.Table("totals", default=float)

    @app.agent("orders")
    async def add(stream: Any) -> None:
        async for order in stream:
            totals[order["user"]] += order["price"]

    return app


def test_agent_error_is_raised_unchanged_after_all_other_records(drive: Drive) -> None:
    driver = drive(failing())
    with pytest.raises(KeyError, match="price") as caught:
        driver.pipe("orders", [{"user": "ann"}, {"user": "bob", "price": 1.0}])
    assert caught.value.__notes__[0].startswith("record failed: orders-0 offset 0, task 0_0")
    assert caught.traceback[-1].name == "add"
    assert driver.table("totals") == {"bob": 1.0}
    driver.pipe("orders", [{"user": "bob", "price": 1.0}])
    assert driver.table("totals") == {"bob": 2.0}


def test_raises_false_collects_failures_of_bad_records(drive: Drive) -> None:
    driver = drive(failing(), raises=False)
    driver.pipe("orders", [{"user": "ann"}, {"user": "bob", "price": 1.0}])
    assert [type(each.error) for each in driver.failures] == [KeyError]
    assert driver.table("totals") == {"bob": 1.0}


def test_record_error_is_raised_in_preference_to_task_stopped(drive: Drive) -> None:
    bad = [{"user": "ann"}] * 20
    with pytest.raises(KeyError):
        drive(failing()).pipe("orders", bad)
    with pytest.raises(TaskStopped, match="10 records in a row failed"):
        drive(failing(), raises=False).pipe("orders", bad)


def test_error_the_event_loop_would_only_log_is_raised(drive: Drive) -> None:
    app = App("shop")

    @app.task
    async def calls() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        drive(app)


# -- dead letters


def burying() -> App:
    """Return an app with two dead letters after `pipe` of a text and an empty object."""
    app = App("shop", on_error="dlq", on_decode_error="dlq")

    @app.agent(app.topic("orders", key_type=str, value_type=dict[str, float]))
    async def add(stream: Any) -> None:
        async for order in stream:
            order["price"]

    return app


RAW = {"value_serializer": "raw", "key_serializer": "raw"}


def bury(driver: TestDriver, app: App) -> None:
    broken = app.topic("orders", **RAW)
    driver.pipe(broken, [(b"{ann", b"{price")])
    driver.pipe("orders", [("bob", {"amount": 1.0})])


def test_dead_letter_that_cannot_be_decoded_is_read_as_bytes(drive: Drive) -> None:
    app = burying()
    driver = drive(app, raises=False)
    bury(driver, app)
    letters = sorted(driver.read("shop-dlq"), key=lambda letter: letter.timestamp)
    assert {(letter.key, str(letter.value)) for letter in letters} == {
        (b"{ann", str(b"{price")), (b"bob", "{'amount': 1.0}"),
    }  # fmt: skip


def test_record_that_cannot_be_decoded_is_raised_by_reads_of_other_topics(drive: Drive) -> None:
    app = burying()
    driver = drive(app, raises=False)
    bury(driver, app)
    with pytest.raises(Exception, match="JSON is malformed"):
        driver.read("orders")


def test_dead_letter_of_a_topic_object_is_decoded_or_raised(drive: Drive) -> None:
    app = burying()
    letters = app.topic("shop-dlq", value_type=dict[str, float])
    driver = drive(app, raises=False)
    bury(driver, app)
    for topic in ("shop-dlq", letters):
        with pytest.raises(Exception, match="JSON is malformed"):
            driver.read(topic)


# -- values that are changed in place


def listing(change: Callable[[Any, str], None]) -> App:
    app = App("shop", topic_partitions=1)
    seen: Any = app.Table("seen", default=list)

    @app.agent("words")
    async def note(stream: Any) -> None:
        async for word in stream:
            change(seen, word)

    return app


def appends(table: Any, word: str) -> None:
    table[word[0]].append(word)


def test_default_changed_and_not_put_back_is_reported(drive: Drive) -> None:
    driver = drive(listing(appends))
    with pytest.raises(UsageError, match=r"not put back: table seen, key 'a', partition 0: "):
        driver.pipe("words", ["axe"])
    assert driver.table("seen") == {}


def test_shared_default_changed_is_reported_for_the_key_not_put_back(drive: Drive) -> None:
    shared: list[str] = []

    def change(table: Any, word: str) -> None:
        ours, other = table["a"], table["b"]
        ours.append(word)
        table["b"] = other

    app = listing(change)
    app.tables["seen"].default = lambda: shared
    with pytest.raises(UsageError, match="not put back: table seen, key 'a', partition 0: "):
        drive(app).pipe("words", ["axe"])


def test_value_changed_and_not_put_back_is_reported_each_time(drive: Drive) -> None:
    def change(table: Any, word: str) -> None:
        if "a" not in table:
            table["a"] = []
        appends(table, word)

    driver = drive(listing(change))
    driver.pipe("words", ["axe"])  # what was put just before is as good as put back
    for word in "art", "ant":
        with pytest.raises(UsageError, match="changed in place and not put back: table seen"):
            driver.pipe("words", [word])
    driver.restart()
    assert driver.table("seen") == {"a": ["axe"]}


def sleeping() -> App:
    """Return an app that counts words, then sleeps or fails."""
    app = App("shop", topic_partitions=1)
    counts = app.Table("counts", default=int)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def count(stream: Any) -> None:
        async for word in stream:
            counts[word] += 1
            if word == "bad":
                raise ValueError(word)
            await asyncio.sleep(5 if word == "slow" else 0)

    return app


def test_commit_waits_for_the_end_of_a_record(drive: Drive) -> None:
    driver = drive(sleeping())
    driver.pipe("words", ["a", "slow", "b"])
    driver.restart()
    assert driver.read("shop-counts-changelog") == []
    driver.advance("5s")
    driver.restart()
    assert driver.table("counts") == {"a": 1, "slow": 1, "b": 1}


def test_commit_has_a_part_of_a_record_that_takes_more_than_30_s(drive: Drive) -> None:
    """A body may loop within one record for as long as the worker runs."""
    app = App("shop", topic_partitions=1)
    counts = app.Table("counts", default=int)
    words = app.topic("words", value_type=str, value_serializer="raw")

    @app.agent(words)
    async def waits(stream: Any) -> None:
        async for _ in stream:
            counts["waits"] += 1
            await asyncio.sleep(1e9)

    @app.agent(words)
    async def count(stream: Any) -> None:
        async for word in stream:
            await asyncio.sleep(1)
            counts[word] += 1

    driver = drive(app)
    driver.pipe("words", ["a", "b"])
    driver.advance("29s")
    assert driver.read("shop-counts-changelog") == []
    for _ in range(8):
        driver.advance("5s")
    assert driver.table("counts") == {"waits": 1, "a": 1, "b": 1}
    assert [each.key for each in driver.read("shop-counts-changelog")][:2] == [b'"waits"', b'"a"']


def test_record_that_sleeps_over_a_commit_counts_once_when_another_fails(drive: Drive) -> None:
    driver = drive(sleeping(), raises=False)
    driver.pipe("words", ["a", "slow", "b", "bad"])
    driver.advance("20s")
    assert driver.table("counts") == {"a": 1, "slow": 1, "b": 1}


@pytest.mark.parametrize("bad", [object(), float("nan"), {7: 1}], ids=["object", "nan", "key"])
def test_uncommittable_task_raises_at_each_commit(drive: Drive, bad: Any) -> None:
    def change(table: Any, word: str) -> None:
        table[word] = value = {"n": 1}
        value["bad"] = bad

    driver = drive(listing(change), commit=False, raises=False)
    driver.pipe("words", ["axe"])
    for _ in range(3):
        with pytest.raises(
            TaskStopped,
            match="after it had been set: fix the code and start the workers again",
        ):
            driver.commit()


@pytest.mark.parametrize("default", [list, None])
def test_value_put_back_or_only_read_is_accepted(drive: Drive, default: Any) -> None:
    def change(table: Any, word: str) -> None:
        if word == "look":
            assert table["a"] == ["axe", "ant"]
            assert table.get("b", []) == []
            return
        words = table.setdefault("a", [])
        words.append(word)
        table["a"] = words

    app = listing(change)
    app.tables["seen"].default = default
    with TestDriver(app) as driver:
        driver.pipe("words", ["axe"])
        driver.pipe("words", ["ant"])
        driver.pipe("words", ["look"])
        assert driver.table("seen") == {"a": ["axe", "ant"]}
    assert app.tables["seen"].default is default


def test_changed_value_is_not_reported_with_raises_false(drive: Drive) -> None:
    drive(listing(appends), raises=False).pipe("words", ["axe"])


# -- agents that wait


def waiting(wait: Callable[[Any], Any]) -> App:
    app = App("shop", topic_partitions=1)
    done = app.Table("done", default=int)

    @app.agent("orders")
    async def work(stream: Any) -> None:
        async for order in stream:
            await wait(order)
            done[order] += 1

    return app


def test_sleeping_agent_wakes_when_virtual_time_advances(drive: Drive) -> None:
    driver = drive(waiting(lambda _: asyncio.sleep(5)))
    driver.pipe("orders", ["a", "b"])
    assert driver.table("done") == {}
    driver.advance("5s")
    assert driver.table("done") == {"a": 1}
    driver.advance("1h")
    assert driver.table("done") == {"a": 1, "b": 1}


def test_record_awaited_by_an_agent_is_not_committed(drive: Drive) -> None:
    slept: list[str] = []

    async def wait(order: str) -> None:
        slept.append(order)
        await asyncio.sleep(len(slept))

    driver = drive(waiting(wait))
    driver.pipe("orders", ["a"])
    driver.restart()
    driver.advance("1m")
    assert slept == ["a", "a"]
    assert driver.table("done") == {"a": 1}


def two_agents(fails: Callable[[str], Any]) -> App:
    """Return an app with two agents: one counts, the other one does what `fails` does."""
    app = App("two", topic_partitions=1)
    topic = app.topic("in")
    counts = app.Table("counts", default=int)

    @app.agent(topic, name="other")
    async def other(stream: Any) -> None:
        async for word in stream:
            if (waits := fails(word)) is not None:
                await waits

    @app.agent(topic, name="healthy")
    async def healthy(stream: Any) -> None:
        async for word in stream:
            counts[word] += 1

    return app


def poison(word: str) -> None:
    if word == "bad":
        raise ValueError(word)


def test_agent_beside_a_failing_agent_counts_once_over_restarts(
    drive: Drive,
) -> None:
    driver = drive(two_agents(poison), raises=False)
    driver.pipe("in", ["a", "b", "bad"])
    for restarts in range(1, 4):
        driver.restart()
        assert driver.table("counts") == {"a": 1, "b": 1, "bad": 1}
        assert len(driver.failures) == 1 + restarts, "the row is held, and its agent sees it again"
    driver.advance("5s")
    driver.restart()
    assert len(driver.failures) == 4, "committed past, and told no more"
    driver.pipe("in", ["bad"] * 9)
    driver.restart()
    assert driver.table("counts")["bad"] == 10


def test_agent_beside_a_waiting_agent_counts_once_over_restarts(drive: Drive) -> None:
    driver = drive(two_agents(lambda _: asyncio.sleep(10)))
    driver.pipe("in", ["a"] * 100)
    for _ in range(3):
        driver.restart()
    driver.advance("1h")
    assert driver.table("counts") == {"a": 100}


def test_group_by_beside_a_failing_group_by_sends_once_over_restarts(
    drive: Drive,
) -> None:
    app = App("g", topic_partitions=1)
    topic, counts = app.topic("in"), app.Table("counts", default=int)

    @app.agent(topic, name="a")
    async def by_a(stream: Any) -> None:
        async for _ in stream.group_by(lambda v: v["a"], name="a"):
            pass

    @app.agent(topic, name="b")
    async def by_b(stream: Any) -> None:
        async for value in stream.group_by(lambda v: v["b"], name="b"):
            counts[value["b"]] += 1

    driver = drive(app, raises=False)
    driver.pipe("in", [{"a": 1, "b": "x"}, {"b": "x"}])
    for _ in range(3):
        driver.restart()
        assert driver.table("counts") == {"x": 2}


def test_driver_waits_for_a_thread_in_real_time(drive: Drive) -> None:
    driver = drive(waiting(lambda order: asyncio.to_thread(str.upper, order)))
    driver.pipe("orders", ["a"])
    assert driver.table("done") == {"a": 1}


def test_driver_waits_for_a_socket_in_real_time(drive: Drive) -> None:
    """The other side answers from a thread that the driver does not know."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as peer:
                peer.sendall(peer.recv(100))

        thread = threading.Thread(target=answer)
        thread.start()

        async def ask(order: str) -> None:
            reader, writer = await asyncio.open_connection(*server.getsockname())
            writer.write(order.encode())
            assert await reader.read() == order.encode()
            writer.close()
            await writer.wait_closed()

        driver = drive(waiting(ask))
        driver.pipe("orders", ["a"])
        thread.join()
    assert driver.table("done") == {"a": 1}


def test_timeout_expires_in_virtual_time(drive: Drive) -> None:
    async def wait(_: object) -> None:
        async with asyncio.timeout(30):
            await asyncio.Event().wait()

    driver = drive(waiting(wait))
    driver.pipe("orders", ["a"])
    driver.advance("29s")
    assert driver.failures == []
    with pytest.raises(TimeoutError):
        driver.advance("1s")


def test_driver_works_within_the_loop_of_an_async_test() -> None:
    async def story() -> None:
        with TestDriver(waiting(lambda _: asyncio.sleep(5))) as driver:
            driver.pipe("orders", ["a"])
            driver.advance("5s")
            await asyncio.sleep(0)
            driver.pipe("orders", ["a"])
            driver.advance("5s")
            assert driver.table("done") == {"a": 2}
        assert asyncio.current_task() is not None

    asyncio.run(story())


def test_body_reaches_tables_and_sends_of_the_same_task_after_any_wake(drive: Any) -> None:
    """Bodies of two tasks wake in turn, and again from outside while the other one runs."""
    app = App("shop")
    words = app.topic("words", value_type=str, key_type=str, value_serializer="raw")
    echoed = app.topic("echoed", value_type=str, value_serializer="raw")
    counts = app.Table("counts", default=int, key_type=str, value_type=int)

    @app.agent(words)
    async def count(stream: Any) -> None:
        async for word in stream:
            counts[word] += 1
            await echoed.send(value=f"{word} before")
            if word.endswith("slow"):
                await asyncio.sleep(1)
            counts[word] = (counts.get(word) or 0) + 10
            await echoed.send(value=f"{word} after")

    driver = drive(app, partitions={"words": 2}, raises=True)
    for partition, some in ((0, ["a slow", "a"]), (1, ["b", "b slow"])):
        driver.pipe("words", [("k", word) for word in some], partition=partition)
    driver.advance("5s")
    found = [dict(driver.store("counts", partition).items()) for partition in (0, 1)]
    assert found == [{"a slow": 11, "a": 11}, {"b": 11, "b slow": 11}]
    assert Counter(record.value for record in driver.read("echoed")) == Counter(
        f"{word} {when}" for word in ("a", "a slow", "b", "b slow") for when in ("before", "after")
    )


def test_user_test_may_replace_send_of_a_topic(drive: Drive, monkeypatch: Any) -> None:
    """A body keeps what it uses in attributes of the topic while it runs."""
    app = App("shop")
    words = app.topic("words", value_type=str, value_serializer="raw")
    echoed = app.topic("echoed", value_type=str, value_serializer="raw")
    heard: list[str] = []

    @app.agent(words)
    async def echo(stream: Any) -> None:
        async for word in stream:
            await echoed.send(value=word)

    def spy(*, value: str) -> Any:
        heard.append(value)
        return send(value=value)

    driver, send = drive(app), echoed.send
    driver.pipe("words", ["a"])
    with monkeypatch.context() as patch:
        patch.setattr(echoed, "send", spy)
        driver.pipe("words", ["b", "c"])
        driver.pipe("words", ["d"])
    driver.pipe("words", ["e"])
    assert heard == ["b", "c", "d"]
    assert sorted(record.value for record in driver.read("echoed")) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_outputs_of_a_record_leave_all_or_none(guarantee: str) -> None:
    """The second output of a record is too large, and the record fails."""
    app = App("shop", processing_guarantee=guarantee, topic_partitions=1)
    orders, out = app.topic("orders"), app.topic("out")
    totals = app.Table("totals", default=int)

    @app.agent(orders)
    async def total(stream: Any) -> None:
        async for order in stream:
            totals["all"] += 1
            await out.send(value=order["n"])
            await out.send(value="x" * order["size"])

    with TestDriver(app, raises=False) as driver:
        sizes = (1, 2_000_000, 1, 2_000_000, 1)
        driver.pipe("orders", [{"n": n, "size": size} for n, size in enumerate(sizes)])
        sent = [each.value for each in driver.read("out")]
        assert driver.table("totals") == {"all": 3}
    numbers = [value for value in sent if value != "x"]
    again = [1] if guarantee == "at_least_once" else []  # it had left when its task went back
    assert sorted(numbers) == sorted([0, 2, 4, *again])


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_task_that_bytes_have_stopped_commits_no_part_of_a_record(guarantee: str) -> None:
    """One agent of the topic stops the task while the other one is in the middle of a record."""
    app = App("shop", processing_guarantee=guarantee, topic_partitions=1)
    numbers, out = app.topic("numbers"), app.topic("out")

    @app.agent(numbers, name="slow")
    async def slow(stream: Any) -> None:
        async for number in stream:
            await out.send(value=number)
            await asyncio.sleep(1)

    @app.agent(numbers, name="strict", on_decode_error="stop_task")
    async def strict(stream: Any) -> None:
        async for _ in stream:
            pass

    driver = TestDriver(app, commit=False, raises=False)
    try:
        with pytest.raises(TaskStopped):
            driver.pipe("numbers", [7, b"{"])
        driver.commit()
        sent = [record.value for record in driver.read("out")]
        assert sent == ([] if guarantee == "exactly_once" else [7])
    finally:
        with suppress(TaskStopped):
            driver.close()
