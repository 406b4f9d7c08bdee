"""Names of repartition topics: two apps of one file, and an app that changes
`repartition_names`.
"""

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamsx.model import TopicPartition
from tests.process.conftest import SLOW_ON_KAFKA
from tests.support.apache_kafka import ApacheKafka
from tests.support.client import Client
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.workers import Workers

SHOP = """
import os
import streamsx

app = streamsx.App("shop", topic_partitions=2)
totals = app.Table("totals", default=int)

@app.agent(app.topic(os.environ["ORDERS"]), name=os.environ["ORDERS"] + "-add")
async def add(stream):
    async for order in stream.group_by(lambda o: o["user"], name="user"):
        totals[order["user"]] += 1
"""
ORDERS = 100
USERS = 7


class Shop:
    """One file with an app for each test, each with an id of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.name = f"shop-{uuid.uuid4().hex[:8]}"
        self.client = Client(bootstrap)
        self.client.create(self.name, 2)
        self.expected: Counter[str] = Counter()

    def sell(self) -> None:
        for partition in range(2):
            users = [f"user {n % USERS}" for n in range(ORDERS)]
            orders = [(None, json.dumps({"user": user}).encode()) for user in users]
            self.client.send(TopicPartition(self.name, partition), orders)
            self.expected.update(users)

    def totals(self, app: str) -> Counter[str]:
        """Return the totals in the changelog of an app; None without a changelog."""
        tps = [TopicPartition(f"{app}-totals-changelog", partition) for partition in range(2)]
        rows = {record.key: record.value for tp in tps for record in self.client.read(tp)}
        return Counter({json.loads(k or b""): json.loads(v or b"") for k, v in rows.items()})


@pytest.fixture
def shop(broker: EmbeddedBroker | ApacheKafka) -> Iterator[Shop]:
    shop = Shop(broker.bootstrap)
    yield shop
    shop.client.close()


@pytest.fixture
def workers(broker: EmbeddedBroker | ApacheKafka, shop: Shop, tmp_path: Path) -> Iterator[Workers]:
    (tmp_path / "shop.py").write_text(SHOP)
    env = {
        "PYTHONPATH": str(tmp_path), "ORDERS": shop.name, "STREAMSX_COMMIT_INTERVAL": "200ms",
    }  # fmt: skip
    with Workers(broker.bootstrap, tmp_path / "workers", app="shop", env=env) as workers:
        yield workers


@SLOW_ON_KAFKA
def test_apps_with_two_ids_from_one_file_count_separately(shop: Shop, workers: Workers) -> None:
    prod, staging = f"{shop.name}-prod", f"{shop.name}-staging"
    workers.start("prod", id=prod)
    workers.start("staging", id=staging)
    for name in "prod", "staging":
        workers.until_event("task", of=name, to="running", count=4)
    shop.sell()
    for app in prod, staging:
        workers.until(lambda: shop.totals(app).total() >= shop.expected.total(), app)  # noqa: B023
    assert workers.stop("prod", "staging") == [0, 0]
    assert shop.totals(prod) == shop.totals(staging) == shop.expected


@SLOW_ON_KAFKA
def test_repartition_topics_under_faust_names_are_not_abandoned(
    shop: Shop, workers: Workers
) -> None:
    app = f"{shop.name}-app"
    workers.start("a", id=app, repartition_names="faust")
    workers.until_event("task", of="a", to="running", count=4)
    shop.sell()
    workers.until(lambda: shop.totals(app) == shop.expected, "counted")
    assert workers.stop("a") == [0]
    faust_s = f"{shop.name}-add-{shop.name}-user-repartition"
    assert f"Topics without the app's id: {faust_s}" in workers.log("a")

    workers.start("a", id=app)
    assert workers.code("a") == 2
    assert workers.error("a") == (
        f"error: repartition topics have other names: {faust_s}: group {app} has committed "
        "offsets there: set repartition_names='faust' to continue with them, or delete these "
        "topics with their unread records"
    )

    shop.sell()
    workers.start("a", id=app, repartition_names="faust")
    workers.until(lambda: shop.totals(app) == shop.expected, "counted on")
    assert workers.stop("a") == [0]
