"""spark/publish.py as a job: what it answers of a batch. What is written is looked at without Spark
(`kafka/test_publishing.py`).
"""

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from streamsx.app.lookup import app_named
from streamsx.client import admin
from streamsx.client.admin import NewTopic
from streamsx.client.cluster import Cluster
from streamsx.client.security import PLAINTEXT
from streamsx.spark.plan import LOG
from streamsx.spark.publish import publish, require_transactions
from streamsx.spark.reading import Brokers, TopicRange, rows
from streamsx.spark.rows import DDL
from streamsx.testing import Broker
from tests.support.apache_kafka import ApacheKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
]
APP = "streamsx.examples.wordcount"


@pytest.mark.parametrize(
    "either",
    ["embedded", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.slow])],
    indirect=True,
)
def test_published_batch_returns_the_next_offsets(
    spark: "SparkSession", either: Broker | ApacheKafka
) -> None:
    app_named(APP).override(bootstrap=either.bootstrap)
    one, two = f"one-{uuid.uuid4()}", f"two-{uuid.uuid4()}"

    async def make() -> None:
        cluster = Cluster(either.bootstrap)
        await cluster.start()
        await admin.create_topics(cluster, [NewTopic(one, 2), NewTopic(two, 1)])
        await cluster.stop()

    asyncio.run(make())
    require_transactions(APP, "")

    def sent(topic: str, partition: int, keys: int, *values: bytes) -> list[Any]:
        return [
            (LOG, topic, partition, at * keys + k, 1, b"%d" % k, value, None, None, None)
            for at, value in enumerate(values)
            for k in range(keys)
        ]

    def frame(*parts: list[Any]) -> Any:
        made = spark.createDataFrame([], DDL)
        for each in parts:
            made = made.union(spark.createDataFrame(each, DDL).coalesce(1))
        return made

    both = sent(one, 1, 5, b"old", b"new") + sent(two, 0, 3, b"x")
    found = publish(frame(sent(one, 0, 1000, b"old", b"new"), both), APP)
    assert found == {one: {0: 1000, 1: 5}, two: {0: 3}}
    brokers = Brokers(either.bootstrap, PLAINTEXT)
    values = [
        r["value"] for b in rows(brokers, 0, [TopicRange(one, 0, 1000)]) for r in b.to_pylist()
    ]
    assert values == [b"new"] * 1000
    assert publish(frame(sent(one, 1, 1, b"y")), APP) == {one: {1: 7}}  # behind a commit marker
    assert publish(frame(), APP) == {}
