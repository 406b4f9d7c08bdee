"""Many windows on real workers: with kills, closing all at once, and idle by the clock.

The figures are properties of the tests: `--junitxml FILE -o junit_family=xunit1` writes them into a
file.
"""

import json
import os
import sys
import uuid
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event

import pytest

from streamsx.client.security import PLAINTEXT
from streamsx.clock import SystemClock
from streamsx.event_loops import run
from streamsx.model import TopicPartition
from streamsx.protocol.partitioner import partition_of
from streamsx.tools.cli.cluster import connected
from streamsx.tools.cli.processes import Child
from tests.process.conftest import ON_KAFKA
from tests.support import turns
from tests.support.apache_kafka import ApacheKafka
from tests.support.client import Client
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.throughput.corpora import ORDERS_FROM_MS, CorpusRow, fill, orders
from tests.support.workers import Workers

APP = """
import os
import streamsx
from streamsx.app.window import tumbling

name = os.environ["NAME"]
app = streamsx.App(name, topic_partitions=4, commit_interval="300ms")
orders = app.flow(name + "-orders", key_type=str)
timing = tumbling("10s", grace="2s", idle=os.environ.get("IDLE"))
counts = orders.group_by_key().window(timing).count("counts", emit="final")
counts.to(app.topic(name + "-finals"))
"""
PARTITIONS = 4
SIZE_MS = 10_000
STAYS_MS = 12_000
ORDERS = 300_000
FINALS = 86_363
KILLS = 3
IDLE_S = 3.0
LOOK_EVERY_S = 0.1
SOON_S = 1.0
CLOSING_MS = 3_600_000
PATIENCE_S = 300.0
BOTH_BROKERS = pytest.mark.parametrize(
    "broker", ["embedded", pytest.param("kafka", marks=ON_KAFKA)], indirect=True
)
Window = tuple[str, int]


class Shop:
    """Topic of orders and topic of finals of one app."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.name = f"windows-{uuid.uuid4().hex[:8]}"
        self.bootstrap = bootstrap
        self.client = Client(bootstrap)
        self.client.create(f"{self.name}-finals", PARTITIONS, {"retention.ms": "-1"})
        (folder / "windowsapp.py").write_text(APP)
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.env = {
            "PYTHONPATH": path, "NAME": self.name, "STREAMSX_SESSION_TIMEOUT": "3s",
        }  # fmt: skip

    def of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(f"{self.name}-{topic}", n) for n in range(PARTITIONS)]

    def fill(self, rows: Iterable[CorpusRow], from_ms: int) -> None:
        """Fill the topic of orders; ten orders share a millisecond."""
        run(_filled(self.bootstrap, f"{self.name}-orders", rows, from_ms))

    def close_all(self, at_ms: int) -> None:
        """Move time beyond all windows."""
        for tp in self.of("orders"):
            self.client.send(tp, [(b"closing", b"{}")], [at_ms])

    def done(self) -> int:
        """Return the number of committed orders."""
        return sum(max(n, 0) for n in self.client.committed(self.name, self.of("orders")).values())

    def beyond(self, orders: int) -> bool:
        return self.done() > orders

    def drained(self) -> bool:
        return self.done() == sum(self.client.ends(self.of("orders")).values())

    def sent(self) -> int:
        """Return the number of finals that were sent."""
        return sum(self.client.ends(self.of("finals")).values())

    def has_sent(self, finals: int) -> bool:
        return self.sent() == finals

    def finals(self) -> tuple[dict[Window, int], int]:
        """Return the last final of each window, and the number of finals."""
        read = [each for tp in self.of("finals") for each in self.client.read(tp)]
        found: dict[Window, int] = {}
        for each in read:
            user, start, _ = json.loads(each.key or b"")
            found[user, start] = json.loads(each.value or b"")
        return found, len(read)


async def _filled(bootstrap: str, topic: str, rows: Iterable[CorpusRow], from_ms: int) -> None:
    options = Namespace(bootstrap=bootstrap, security=PLAINTEXT)
    async with connected(options) as cluster:
        await fill(cluster, SystemClock(), topic, PARTITIONS, rows, from_ms)


@pytest.fixture
def shop(broker: EmbeddedBroker | ApacheKafka, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(broker.bootstrap, tmp_path)
    yield made
    made.client.close()


def closed_counts(count: int) -> dict[Window, int]:
    """Count by plain Python, for the windows that this many orders close."""
    counts = Counter[tuple[int, str, int]]()
    times = [0] * PARTITIONS
    for number, (key, _) in enumerate(islice(orders(), count)):
        assert key is not None
        at = ORDERS_FROM_MS + number // 10
        partition = partition_of(key, PARTITIONS)
        times[partition] = max(times[partition], at)
        counts[partition, key.decode(), at - at % SIZE_MS] += 1
    return {
        (user, start): count
        for (partition, user, start), count in counts.items()
        if start + STAYS_MS <= times[partition]
    }


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
@BOTH_BROKERS
def test_three_kills_amid_300_000_orders_lose_no_final(
    broker: EmbeddedBroker | ApacheKafka,
    shop: Shop,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """Each worker starts with an empty directory, so its state comes from the changelog."""
    shop.fill(islice(orders(), ORDERS), ORDERS_FROM_MS)
    repeated = 0
    with Workers(broker.bootstrap, tmp_path / "w", app="windowsapp", env=shop.env) as workers:
        for life in range(KILLS):
            name = f"w{life}"
            goal = (life + 1) * ORDERS // (KILLS + 2)
            workers.start(name)
            workers.until(partial(shop.beyond, goal), f"{goal} orders are done")
            workers.kill(name)
            repeated += 2 * workers.largest_commit(name)
        workers.start("last")
        workers.until(shop.drained, "all is committed", PATIENCE_S)
        assert workers.stop("last") == [0]
    expected = closed_counts(ORDERS)
    finals, sent = shop.finals()
    assert len(expected) == FINALS
    assert finals.keys() == expected.keys()
    assert not {w: (finals[w], n) for w, n in expected.items() if finals[w] < n}
    larger = sum(finals.values()) - sum(expected.values())
    assert larger <= repeated
    record_property("figures", f"{len(finals)} finals, {sent} results, {larger} counted twice")


@pytest.mark.slow
@BOTH_BROKERS
def test_idle_windows_close_within_a_second_of_their_time(
    broker: EmbeddedBroker | ApacheKafka,
    shop: Shop,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    env = {**shop.env, "IDLE": f"{IDLE_S}s"}
    shop.client.create(f"{shop.name}-orders", PARTITIONS, {"retention.ms": "-1"})
    waited = []
    with Workers(broker.bootstrap, tmp_path / "w", app="windowsapp", env=env) as workers:
        workers.start("w")
        for round_ in range(4):
            goal = PARTITIONS * (round_ + 1)
            shop.close_all(ORDERS_FROM_MS + round_ * CLOSING_MS)
            sent = workers.now()
            workers.until(partial(shop.has_sent, goal), f"{goal} finals")
            waited.append(workers.now() - sent)
        assert workers.stop("w") == [0]
    record_property("seconds", [round(each, 1) for each in waited[1:]])
    assert all(IDLE_S <= each < IDLE_S + SOON_S for each in waited[1:]), waited


def until(condition: Callable[[], bool], child: Child) -> None:
    clock = SystemClock()
    moment = Event()
    over = clock.now() + PATIENCE_S
    while not condition():
        assert child.code is None, child.tail(20)
        assert clock.now() < over, child.tail(20)
        moment.wait(LOOK_EVERY_S)


def closing(
    broker: EmbeddedBroker | ApacheKafka, shop: Shop, tmp_path: Path, windows: int
) -> turns.Turns:
    """Close this many windows of a worker by one record in each partition."""
    rows = ((b"user-%07d" % n, b"{}") for n in range(windows))
    shop.fill(rows, ORDERS_FROM_MS)
    file = tmp_path / "turns.json"
    command = [
        sys.executable, "-m", "tests.support.turns", str(file), "worker", "windowsapp",
        "--bootstrap", broker.bootstrap, "--state-dir", str(tmp_path / "state"), "-l", "warning",
    ]  # fmt: skip
    top = Path(__file__).parents[2]
    env = {**os.environ, **shop.env, "PYTHONPATH": f"{top}{os.pathsep}{shop.env['PYTHONPATH']}"}
    child = Child("w", tmp_path / "w.log", command, env=env, folder=tmp_path)
    try:
        until(shop.drained, child)
        shop.close_all(ORDERS_FROM_MS + CLOSING_MS)
        until(shop.drained, child)
    finally:
        code = child.stop(PATIENCE_S)
    assert code == 0, child.tail(20)
    assert shop.sent() == windows
    return turns.read(file)


@pytest.mark.perf
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("broker", ["embedded"], indirect=True)
@pytest.mark.parametrize(("windows", "turn_ms"), [(43_000, 30.0), (1_000_000, 100.0)])
def test_windows_that_close_at_once_hold_no_turn_for_long(
    broker: EmbeddedBroker,
    shop: Shop,
    tmp_path: Path,
    windows: int,
    turn_ms: float,
    record_property: Callable[[str, object], None],
) -> None:
    found = closing(broker, shop, tmp_path, windows)
    record_property("turns", found)
    assert found.turn_ms < turn_ms
