"""Flows on workers that are killed: each window and each joined record has its result.

Under at-least-once a killed worker's records since its last commit are processed again. So a window
may count too high by these, and a result may come twice. No result is missing or too low.
"""

import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamsx.model import TopicPartition
from streamsx.protocol.partitioner import partition_of
from tests.process.conftest import SLOW_ON_KAFKA, code_of
from tests.support.apache_kafka import ApacheKafka
from tests.support.client import Client
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.workers import Workers

APP = """
import os
import streamsx
from streamsx.app.window import tumbling

name = os.environ["NAME"]
app = streamsx.App(name, topic_partitions=2, commit_interval="200ms")
orders = app.flow(name + "-orders")
windows = orders.rekey(lambda order: order["user"]).group_by_key()
windows.window(tumbling("10s", grace="600s")).count("per-10s", emit="final").to(name + "-counts")
payments = app.flow(name + "-payments")
paid = orders.join(
    payments, lambda order, payment: [order["n"], payment], kind="left", within="5s", grace="60s",
    name="paid",
)
paid.to(name + "-paid")
"""
PARTITIONS = 2
TASKS = 2 * PARTITIONS
BEGIN_MS = 1_700_000_000_000
STEP_MS = 100
SIZE_MS = 10_000
CHUNK = 100
KILLS = 3
OLDER = "9b88e86"
"""A commit that has flows."""
CHUNKS_PER_LIFE = 12
USERS = 20
CLOSING_MS = 3_600_000
SECOND = 2


class Shop:
    """Orders, of which two in three are paid for, and the results of the app that joins them."""

    def __init__(self, bootstrap: str) -> None:
        self.name = f"shop-{uuid.uuid4().hex[:8]}"
        self.client = Client(bootstrap)
        self.orders = 0
        self.windows: Counter[tuple[str, int]] = Counter()
        for topic in ("orders", "payments", "counts", "paid"):
            self.client.create(f"{self.name}-{topic}", PARTITIONS, {"retention.ms": "-1"})

    def of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(f"{self.name}-{topic}", n) for n in range(PARTITIONS)]

    def feed(self, count: int) -> None:
        """Send orders, then their payments, in the order of time."""
        first = self.orders
        self.orders += count
        numbers = range(first, self.orders)
        self._send("orders", numbers)
        self._send("payments", [n for n in numbers if is_paid(n)])
        self.windows.update((user(n), at(n) - at(n) % SIZE_MS) for n in numbers)

    def _send(self, topic: str, numbers: "range | list[int]") -> None:
        values = {n: {"n": n, "user": user(n)} if topic == "orders" else n for n in numbers}
        for tp in self.of(topic):
            mine = [n for n in values if partition_of(key(n), PARTITIONS) == tp.partition]
            records = [(key(n), json.dumps(values[n]).encode()) for n in mine]
            self.client.send(tp, records, [at(n) for n in mine])

    def close_all(self) -> None:
        """Move time beyond all windows, in each partition of the topic of orders and behind it."""
        for tp in self.of("orders"):
            users = (f"closing-{n}" for n in range(100))
            each = {partition_of(name.encode(), PARTITIONS): name for name in users}
            records = [
                (None, json.dumps({"n": -1, "user": name}).encode()) for name in each.values()
            ]
            self.client.send(tp, records, [at(self.orders) + CLOSING_MS] * len(records))

    def uncommitted(self) -> int:
        """Return the number of records that are not committed, in the source topics and in
        between.
        """
        between = [TopicPartition(f"{self.name}-per-10s-repartition", n) for n in range(PARTITIONS)]
        tps = [*self.of("orders"), *self.of("payments"), *between]
        committed = self.client.committed(self.name, tps)
        return sum(end - max(committed[tp], 0) for tp, end in self.client.ends(tps).items())

    def counts(self) -> tuple[dict[tuple[str, int], int], int]:
        """Return the last result of each window, and the number of results."""
        read = [each for tp in self.of("counts") for each in self.client.read(tp)]
        found = {}
        for each in read:
            name, start, _ = json.loads(each.key or b"")
            found[name, start] = json.loads(each.value or b"")
        return found, len(read)

    def paid(self) -> Counter[tuple[int, int | None]]:
        read = (each for tp in self.of("paid") for each in self.client.read(tp))
        return Counter((n, payment) for n, payment in (json.loads(r.value or b"") for r in read))


def user(n: int) -> str:
    return f"u{n * 7 % USERS}"


def key(n: int) -> bytes:
    return f"order-{n}".encode()


def at(n: int) -> int:
    return BEGIN_MS + n * STEP_MS


def is_paid(n: int) -> bool:
    return n % 3 > 0


@pytest.fixture
def shop(broker: EmbeddedBroker | ApacheKafka) -> Iterator[Shop]:
    made = Shop(broker.bootstrap)
    yield made
    made.client.close()


@pytest.fixture
def env(shop: Shop, tmp_path: Path) -> dict[str, str]:
    """Return the environment of the app's workers."""
    (tmp_path / "shopapp.py").write_text(APP)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "NAME": shop.name, "STREAMSX_SESSION_TIMEOUT": "3s"}


@SLOW_ON_KAFKA
def test_killed_workers_lose_no_result_of_a_window_or_a_join(
    broker: EmbeddedBroker | ApacheKafka, shop: Shop, tmp_path: Path, env: dict[str, str]
) -> None:
    repeated = 0
    with Workers(broker.bootstrap, tmp_path / "workers", app="shopapp", env=env) as workers:
        for kill in range(KILLS):
            started = workers.now()
            workers.start("w")
            shop.feed(CHUNK)
            workers.until_event("commit", of="w", since=started, count=SECOND)
            for _ in range(CHUNKS_PER_LIFE):
                shop.feed(CHUNK)
            workers.until(lambda: shop.uncommitted() == 0, "all is committed")
            fed = workers.now()
            shop.feed(2 * CHUNK)
            workers.until_event("commit", of="w", since=fed)
            shop.feed(CHUNK)
            workers.kill("w")
            repeated += shop.uncommitted()
            if kill == 1:
                shutil.rmtree(workers.all["w"].state)
        workers.start("w")
        workers.until(lambda: shop.uncommitted() == 0, "all is committed")
        shop.close_all()
        workers.until(lambda: shop.uncommitted() == 0, "all is committed")
        judge(shop, repeated)
        assert workers.stop("w") == [0]


@pytest.mark.slow
def test_flows_are_rolled_from_an_older_version_and_back(
    broker: EmbeddedBroker | ApacheKafka, shop: Shop, tmp_path: Path, env: dict[str, str]
) -> None:
    """Both versions share state directories, changelogs, commits and the event times sent between
    tasks.
    """
    folder = tmp_path / "old"
    folder.mkdir()
    path = os.pathsep.join([str(tmp_path), str(code_of(OLDER, folder))])
    workers = tmp_path / "workers"
    with (
        Workers(broker.bootstrap, workers, app="shopapp", env=env | {"PYTHONPATH": path}) as old,
        Workers(broker.bootstrap, workers, app="shopapp", env=env) as new,
    ):

        def settled() -> bool:
            tasks = [t for group in (old, new) for some in group.active().values() for t in some]
            return len(tasks) == len(set(tasks)) == TASKS

        def change(name: str, before: Workers, after: Workers) -> None:
            assert before.stop(name) == [0], before.log(name)
            shop.feed(CHUNK)
            after.start(name)
            after.until(settled, "all tasks run")
            shop.feed(CHUNK)

        old.start("a", "b")
        old.until(settled, "all tasks run")
        shop.feed(CHUNK)
        for before, after in ((old, new), (new, old)):
            for name in ("a", "b"):
                change(name, before, after)
        shop.close_all()
        old.until(lambda: shop.uncommitted() == 0, "all is committed")
        assert not new.events("lost", "error")
        assert old.stop("a", "b") == [0, 0]
    judge(shop, repeated=0)


def judge(shop: Shop, repeated: int) -> None:
    """Compare the results with the input."""
    orders = {(n, n if is_paid(n) else None) for n in range(shop.orders)}

    paid = shop.paid()
    del paid[-1, None]  # orders without a key that move time
    assert paid.keys() == orders
    assert paid.total() - len(orders) <= 2 * repeated
    counts, _ = shop.counts()
    assert counts.keys() == shop.windows.keys()
    low = {w: (counts[w], n) for w, n in shop.windows.items() if counts[w] < n}
    assert not low, low
    assert sum(counts.values()) - shop.windows.total() <= repeated
