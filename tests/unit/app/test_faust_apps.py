"""Apps written for Faust: with nothing but the import changed they run, with the same names."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from streamsx.testing import TestDriver

WORD_COUNT = '''
import faust

app = faust.App(
    "word-counts",
    broker="kafka://localhost:9092",
    store="rocksdb://",
    version=1,
    topic_partitions=3,
)

posts_topic = app.topic("posts", value_type=str)
word_counts = app.Table("word_counts", default=int, help="Keep count of words (str to int).")

@app.agent(posts_topic)
async def shuffle_words(posts):
    async for post in posts:
        for word in post.split():
            await count_words.send(key=word, value=word)

last_count = {w: 0 for w in ("the", "quick", "brown")}

@app.agent(value_type=str)
async def count_words(words):
    """Count words from blog post article body."""
    async for word in words:
        word_counts[word] += 1
        last_count[word] = word_counts[word]

if __name__ == "__main__":
    app.main()
'''

ORDERS = """
import faust

class Order(faust.Record, serializer="json"):
    account_id: str
    product_id: str
    amount: int
    price: float

app = faust.App("orders-app", broker="kafka://localhost", store="rocksdb://", version=2)
orders_topic = app.topic("orders", key_type=str, value_type=Order)
orders_by_account = app.Table("order-count-by-account", default=int)
latest = app.Table("latest", key_type=str, value_type=Order, partitions=8)

@app.agent(orders_topic)
async def process_order(orders):
    async for order in orders.group_by(Order.account_id):
        orders_by_account[order.account_id] += order.amount
        latest[order.account_id] = order

@app.agent(orders_topic, name="watch", sink=[app.topic("alerts")])
async def big_orders(orders):
    async for order in orders:
        if order.price > 1000.0:
            yield {"account": order.account_id}

@app.agent()
async def audits(audited):
    async for key, value in audited.group_by(lambda v: v["who"], name="who").items():
        print(key, value)
"""

PAGE_VIEWS = """
import faust

app = faust.App("page_views", broker="kafka://localhost:9092", topic_partitions=4)

class PageView(faust.Record):
    id: str
    user: str

page_view_topic = app.topic("page_views", value_type=PageView)
hello_world_topic = app.topic("hello_world")
page_views = app.Table("page_views", default=int)

@app.agent(page_view_topic)
async def count_page_views(views):
    async for view in views.group_by(PageView.id):
        page_views[view.id] += 1

@app.timer(interval=3.0)
async def produce():
    await hello_world_topic.send(value={"id": "1", "user": "x"})

@app.task
async def on_started(app):
    print("APP STARTED", app)
"""
APPS = {"word_count": WORD_COUNT, "orders": ORDERS, "page_views": PAGE_VIEWS}
Load = Callable[..., Any]


@pytest.fixture
def load() -> Iterator[Load]:
    """Return the app of a module made from a text; `ours`: with the import changed."""
    made: list[str] = []

    def loaded(name: str, *, ours: bool) -> Any:
        module = sys.modules[name] = ModuleType(name)
        made.append(name)
        text = (
            APPS[name].replace("import faust", "import streamsx as faust") if ours else APPS[name]
        )
        exec(compile(text, name, "exec"), vars(module))
        return module

    yield loaded
    for name in made:
        sys.modules.pop(name, None)


class Found(Exception):
    """Exception that ends a body of Faust's where it derives a topic."""


def names_by_faust(app: Any) -> dict[str, Any]:
    """Return the topic names that Faust itself gives, without a broker, from its own streams."""

    class Probe:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def group_by(self, *args: Any, **kwargs: Any) -> Any:
            raise Found(self.stream.group_by(*args, **kwargs).channel.get_topic_name())

        def __aiter__(self) -> Any:
            raise Found(None)

    async def derived(agent: Any) -> str | None:
        body = agent.fun(Probe(agent.stream(channel=agent.channel)))
        try:
            await (body if hasattr(body, "__await__") else anext(body))
        except Found as found:
            return found.args[0]  # type: ignore[no-any-return]
        raise AssertionError(agent.name)

    async def all_derived() -> dict[str, str | None]:
        return {name: await derived(agent) for name, agent in app.agents.items()}

    return {
        "agents": {name: agent.channel.get_topic_name() for name, agent in app.agents.items()},
        "changelogs": {name: t.changelog_topic.get_topic_name() for name, t in app.tables.items()},
        "derived": asyncio.run(all_derived()),
    }


def our_names(app: Any) -> dict[str, Any]:
    topology = app.topology()
    steps = {
        source.topic: [step.topic for step in source.operators if step.topic]
        for each in topology.subtopologies
        for source in each.sources
    }
    reads = {
        agent.name: source.topic
        for each in topology.subtopologies
        for source in each.sources
        for agent in source.agents
    }
    topics = {name: agent.channel.get_topic_name() for name, agent in app.agents.items()}
    return {
        "agents": topics,
        "changelogs": {
            store.name: store.changelog for each in topology.subtopologies for store in each.stores
        },
        "derived": {
            name: reads[name] if reads[name] in steps[topic] else None
            for name, topic in topics.items()
        },
    }


@pytest.mark.parametrize("name", APPS)
def test_topics_are_named_as_faust_names_them(load: Load, name: str) -> None:
    """Repartition topics too, with `repartition_names=faust`."""
    expected = names_by_faust(load(name, ours=False).app)
    app = load(name, ours=True).app
    app.override(repartition_names="faust")
    assert our_names(app) == expected


def test_repartition_topics_carry_app_id_and_version(load: Load) -> None:
    app = load("orders", ours=True).app
    assert our_names(app)["derived"] == {
        "orders.process_order": (
            "orders-app-v2-orders.process_order-orders-Order.account_id-repartition"
        ),
        "watch": None,
        "orders.audits": "orders-app-v2-orders.audits-who-repartition",
    }
    topology = app.topology()
    faust_s = "orders.process_order-orders-Order.account_id-repartition"
    assert (topology.otherwise, topology.notes) == ({faust_s}, ())
    app.override(repartition_names="faust")
    topology = app.topology()
    assert topology.otherwise == {f"orders-app-v2-{faust_s}"}
    assert topology.notes[0].startswith(f"topics without the app's id: {faust_s}: every app")


def test_faust_topic_names_of_the_orders_app(load: Load) -> None:
    """Names written out, so that a mistake in asking Faust for them cannot hide."""
    assert names_by_faust(load("orders", ours=False).app) == {
        "agents": {
            "orders.process_order": "orders",
            "watch": "orders",
            "orders.audits": "orders-app-v2-orders.audits",
        },
        "changelogs": {
            "order-count-by-account": "orders-app-v2-order-count-by-account-changelog",
            "latest": "orders-app-v2-latest-changelog",
        },
        "derived": {
            "orders.process_order": "orders.process_order-orders-Order.account_id-repartition",
            "watch": None,
            "orders.audits": "orders-app-v2-orders.audits-who-repartition",
        },
    }


def test_word_count_app_counts_words(load: Load) -> None:
    module = load("word_count", ours=True)
    with TestDriver(module.app) as driver:
        driver.pipe("posts", ["the quick brown the", "the end"])
        assert driver.table("word_counts") == {"the": 3, "quick": 1, "brown": 1, "end": 1}
    assert module.last_count["the"] == 3


def test_orders_are_grouped_by_a_record_field(load: Load) -> None:
    module = load("orders", ours=True)
    with TestDriver(module.app, partitions={"orders": 3}) as driver:
        order = module.Order("ann", "p1", 2, 1500.0)
        driver.pipe("orders", [order, order.derive(account_id="bob", price=1.0), order])
        assert driver.table("order-count-by-account") == {"ann": 4, "bob": 2}
        assert driver.table("latest") == {"ann": order, "bob": module.Order("bob", "p1", 2, 1.0)}
        assert [each.value for each in driver.read("alerts")] == [{"account": "ann"}] * 2
        assert driver.failures == []


def test_timer_sends_as_time_advances(load: Load) -> None:
    module = load("page_views", ours=True)
    with TestDriver(module.app) as driver:
        driver.advance("10s")
        sent = sorted(driver.read("hello_world"), key=lambda each: each.timestamp)
        assert [each.timestamp for each in sent] == [1_700_000_000.0 + n for n in (3, 6, 9)]
        driver.pipe("page_views", [module.PageView("1", "x")] * 3)
        assert driver.table("page_views") == {"1": 3}
