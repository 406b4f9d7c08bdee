"""app/agent.py and discovery.py: stages, sinks, and the tables and topics found in a body."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from streamsx import App, Table
from streamsx.errors import NameClash, TopologyError
from streamsx.testing import TestDriver

Drive = Callable[..., TestDriver]


def touched(app: App, agent: str = "") -> dict[str, list[str]]:
    """Return the tables by the topic that their task reads."""
    return {
        each.topics[0]: [store.name for store in each.stores]
        for each in app.topology().subtopologies
    }


def outputs(app: App) -> set[str]:
    return {topic for each in app.topology().subtopologies for topic in each.outputs}


async def reading(stream: Any) -> None:
    async for _ in stream:
        pass


class Counter:
    def __init__(self, table: Table[Any, int]) -> None:
        self.table = table

    def add(self, key: Any) -> None:
        self.table[key] += 1


def add_to(table: Table[Any, int], key: Any) -> None:
    table[key] += 1


PLACES: dict[str, Any] = {}


def global_function(key: Any) -> None:
    PLACES["holder"].counts[key] += 1


def ways_to_a_table(counts: Table[Any, int]) -> dict[str, Callable[[Any], object]]:
    """Make agents that each count a key in another way."""
    PLACES["holder"] = SimpleNamespace(counts=counts)
    counter, tables = Counter(counts), {"a": [counts]}
    by_lambda = lambda key: add_to(counts, key)  # noqa: E731

    def closure(key: Any) -> None:
        counts[key] += 1

    def default(key: Any, table: Table[Any, int] = counts) -> None:
        table[key] += 1

    def container(key: Any) -> None:
        tables["a"][0][key] += 1

    @functools.wraps(closure)
    def wrapper(key: Any) -> None:
        wrapper.__wrapped__(key)

    return {
        "closure": closure,
        "default": default,
        "container": container,
        "lambda": by_lambda,
        "partial": functools.partial(add_to, counts),
        "method": counter.add,
        "object": lambda key: counter.add(key or ""),
        "wrapper": wrapper,
        "nested": lambda key: [*map(lambda each: add_to(counts, each), [key])],  # noqa: C417
    }


@pytest.mark.parametrize("way", ways_to_a_table(Table(App("x"), "t")))
def test_agent_table_found_through_every_reference(app: App, drive: Drive, way: str) -> None:
    counts = app.Table("counts", default=int)
    count = ways_to_a_table(counts)[way]

    @app.agent("words")
    async def body(stream: Any) -> None:
        async for word in stream:
            count(word)

    assert touched(app) == {"words": ["counts"]}
    driver = drive(app)
    driver.pipe("words", [("a", "a")] * 2)
    assert driver.table("counts") == {"a": 2}


def test_attribute_named_like_a_table_is_not_taken_for_the_table(app: App) -> None:
    scope: dict[str, Any] = {"counts": app.Table("counts"), "__name__": "some_module"}
    exec("async def body(stream):\n    async for word in stream:\n        word.counts()", scope)
    app.agent("words")(scope["body"])
    assert touched(app) == {"words": []}
    (note,) = app.topology().notes
    assert note == (
        "table that no agent uses: counts: nothing writes to it: use it in an agent, or leave it "
        "out"
    )


def test_tables_of_a_module_found_in_body_and_helper_alike(app: App) -> None:
    """The body names the first table of the module; its helper names the second one."""
    shop = ModuleType(__name__)
    shop.first, shop.second = app.Table("first"), app.Table("second")  # type: ignore[attr-defined]

    def helper(word: Any) -> None:
        shop.second[word] = 1

    @app.agent("words")
    async def body(stream: Any) -> None:
        async for word in stream:
            shop.first[word] = 1
            helper(word)

    assert touched(app) == {"words": ["first", "second"]}


def test_tables_behind_a_class_found_in_body_and_helper_alike(app: App) -> None:
    counter = Counter(app.Table("counts", default=int))
    other = app.Table("other", default=int)

    class Both:
        def one(self, key: Any) -> None:
            counter.add(key)

        def two(self, key: Any) -> None:
            other[key] += 1

    both = Both()

    def helper(key: Any) -> None:
        both.two(key)

    @app.agent("words")
    async def body(stream: Any) -> None:
        async for word in stream:
            both.one(word)
            helper(word)

    assert touched(app) == {"words": ["counts", "other"]}


def test_agent_using_app_tables_gets_all_tables(app: App) -> None:
    app.Table("one")
    app.Table("two")

    @app.agent("words")
    async def body(stream: Any) -> None:
        async for word in stream:
            app.tables["o" + "ne"][word] = 1

    assert touched(app) == {"words": ["one", "two"]}


def test_agent_with_named_tables_gets_exactly_these(app: App) -> None:
    one, two = app.Table("one"), app.Table("two")

    @app.agent("words", tables=[one, "two"])
    async def body(stream: Any) -> None:
        async for _ in stream:
            pass

    @app.agent("lines", tables=[])
    async def other(stream: Any) -> None:
        async for _ in stream:
            two.clear()

    assert touched(app) == {"lines": [], "words": ["one", "two"]}


def test_agent_naming_an_unknown_table_is_an_error(app: App) -> None:
    app.agent("words", tables=["nope"])(reading)
    with pytest.raises(TopologyError, match="no such table: nope: agent"):
        app.topology()


def test_topics_and_agents_sent_to_in_a_body_are_outputs(app: App) -> None:
    out = app.topic("out")
    other = app.agent("asked")(reading)

    @app.agent("words", sink=[app.topic("sunk"), print])
    async def body(stream: Any) -> Any:
        async for word in stream:
            await out.send(value=word)
            await other.send(value=word)
            yield word

    assert outputs(app) == {"out", "asked", "sunk"}


def test_yielded_value_goes_to_every_sink(app: App, drive: Drive) -> None:
    heard: list[Any] = []

    async def listen(value: Any) -> None:
        heard.append(value)

    @app.agent()
    async def doubled(stream: Any) -> None:
        async for value in stream:
            heard.append(("agent", value))

    @app.agent("words", sink=[app.topic("sunk"), heard.append, listen])
    async def body(stream: Any) -> Any:
        async for word in stream:
            yield word * 2

    body.add_sink(doubled)
    body.add_sink(doubled)
    driver = drive(app)
    driver.pipe("words", ["a"])
    assert [record.value for record in driver.read("sunk")] == ["aa"]
    assert heard == ["aa", "aa", ("agent", "aa")]


def test_table_written_by_a_sink_belongs_to_the_agent_of_the_sink(app: App, drive: Drive) -> None:
    counts = app.Table("counts", default=int)

    def count(value: Any) -> None:
        counts[value] += 1

    @app.agent("words", sink=[count])
    async def body(stream: Any) -> Any:
        async for word in stream:
            yield word

    driver = drive(app)
    driver.pipe("words", ["a"])
    assert driver.table("counts") == {"a": 1}


def test_sinks_on_an_agent_without_yield_are_an_error(app: App) -> None:
    app.agent("words", sink=[print])(reading)
    with pytest.raises(TopologyError, match="sinks of an agent that yields nothing"):
        app.topology()


def test_agent_without_a_topic_reads_a_topic_named_after_the_agent(app: App, drive: Drive) -> None:
    heard: list[Any] = []

    @app.agent(name="ears", value_type=str, value_serializer="raw", partitions=3)
    async def ears(stream: Any) -> None:
        async for word in stream:
            heard.append(word)

    assert ears.channel.get_topic_name() == "shop-ears"
    driver = drive(app)
    driver.pipe(ears.channel, ["a"])
    assert ears.send(value="b", key="k").done()
    with pytest.raises(StopIteration):
        ears.cast("c").send(None)
    driver.advance(0)
    assert sorted(heard) == ["a", "b", "c"]
    assert {spec.name: spec.partitions for spec in driver.topology.topics} == {"shop-ears": 3}


def test_agent_on_several_topics_reads_all_of_them(app: App, drive: Drive) -> None:
    heard: list[Any] = []

    @app.agent(app.topic("one", "two"))
    async def body(stream: Any) -> None:
        async for value in stream:
            heard.append(value)

    driver = drive(app)
    driver.pipe("one", [1])
    driver.pipe("two", [2])
    assert heard == [1, 2]


def test_agent_must_be_an_async_function(app: App) -> None:
    with pytest.raises(TypeError, match="not an async function"):
        app.agent("words")(lambda stream: None)


def test_topic_options_on_an_agent_with_a_topic_are_refused(app: App) -> None:
    with pytest.raises(TypeError, match="for a topic, not for an agent: value_type"):
        app.agent(app.topic("words"), value_type=str)(reading)


def test_two_agents_of_one_name_are_an_error(app: App) -> None:
    app.agent("words", name="same")(reading)
    with pytest.raises(NameClash, match="agent same, app shop"):
        app.agent("lines", name="same")(reading)


# -- a body that is looked into


def test_body_failing_before_the_first_record_is_a_topology_error(app: App) -> None:
    @app.agent("words")
    async def body(stream: Any) -> None:
        raise ZeroDivisionError("early")

    with pytest.raises(TopologyError, match=r"before its first record: .*body: ZeroDivisionError"):
        app.topology()


def test_body_that_returns_is_a_topology_error(app: App) -> None:
    @app.agent("words")
    async def body(stream: Any) -> None:
        pass

    with pytest.raises(TopologyError, match="its body returned"):
        app.topology()


@pytest.mark.parametrize("wait", ["sleep(0)", "sleep(1)"])
def test_body_awaiting_before_the_stream_is_noted_and_derives_nothing(app: App, wait: str) -> None:
    scope: dict[str, Any] = {"__name__": "some_module"}
    text = f"""
        import asyncio
        async def body(stream):
            await asyncio.{wait}
            async for _ in stream.group_by(str, name="n"): pass
        """
    exec("\n".join(line[8:] for line in text.splitlines()), scope)
    app.agent("words")(scope["body"])
    topology = app.topology()
    assert [spec.name for spec in topology.topics] == ["words"]
    assert "some_module.body: its body waits for something" in topology.notes[0]


def test_body_awaiting_at_the_end_is_still_discovered(app: App, drive: Drive) -> None:
    """The body closes a client after its loop."""
    counts, ended = app.Table("counts", default=int), list[str]()

    @asynccontextmanager
    async def client() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ended.append("client")

    @app.agent("words")
    async def body(stream: Any) -> None:
        async with client():
            async for word in stream.group_by(str, name="word"):
                counts[word] += 1

    driver = drive(app)
    driver.pipe("words", ["a"])
    assert driver.table("counts") == {"a": 1}
    driver.close()
    assert ended == ["client", "client"], "of each task"


def test_body_code_before_the_first_record_runs_again_in_the_task(app: App, drive: Drive) -> None:
    out, counts = app.topic("out"), app.Table("counts", default=int)

    @app.agent("words")
    async def body(stream: Any) -> None:
        counts["starts"] += 1
        await out.send(value="hello")
        async for _ in stream:
            pass

    driver = drive(app, partitions={"words": 1, "out": 1})
    driver.pipe("words", ["a"])
    assert driver.table("counts") == {"starts": 1}
    assert [record.value for record in driver.read("out")] == ["hello"]
    assert driver.read("out")[0].timestamp == 1_700_000_000.0
