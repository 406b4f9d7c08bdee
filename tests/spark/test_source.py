"""`streamsx-kafka` through Spark: batches and streams, in and out. What is read of a partition, and
in which order, is looked at without Spark (`unit/spark/test_reading.py`).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamsx.model import TopicPartition
from streamsx.protocol.record_batch import Builder
from streamsx.spark.source import KafkaSource, frame, into_topics
from streamsx.testing import Broker
from tests.support.client import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]
TOPICS = {"orders": 2, "clicks": 2, "empty": 1}
TASKS = '[["orders", "clicks"]]'


@pytest.fixture
def bootstrap(spark: "SparkSession") -> Iterator[str]:
    """Orders at even times, clicks at odd ones, in two partitions: twelve of each in all."""
    spark.dataSource.register(KafkaSource)
    with Broker(topics=TOPICS) as broker:
        client = Client(broker.bootstrap)
        for number in range(4):
            for at, topic in enumerate(("orders", "clicks")):
                builder = Builder(1 << 20)
                for time in range(6 * (number // 2), 6 * (number // 2) + 3):
                    key = None if time == 4 else b"k"
                    builder.append(2 * time + at, key, b"v", [("h", b"x")] if time == 5 else [])
                client.send_raw(TopicPartition(topic, number % 2), builder.close())
        client.close()
        yield broker.bootstrap


def options(bootstrap: str, **more: str) -> dict[str, str]:
    topics = {"subscribe": ",".join(TOPICS), "tasks": TASKS}
    return {"kafka.bootstrap.servers": bootstrap, **topics, **more}


def test_each_task_is_one_spark_partition_in_order_of_time(
    spark: "SparkSession", bootstrap: str
) -> None:
    from pyspark.sql.functions import spark_partition_id

    read = frame(spark, options(bootstrap))
    rows = read.withColumn("task", spark_partition_id()).collect()
    for task in (0, 1):
        mine = [row for row in rows if row.task == task]
        assert {row.partition for row in mine} == {task}
        assert [row.timestamp for row in mine] == [*range(6), *range(12, 18)]
        assert [row.topic for row in mine] == ["orders", "clicks"] * 6
        assert [row.offset for row in mine] == [n // 2 for n in range(12)]
    assert len(rows) == 24


def test_empty_topic_has_no_rows_and_missing_topic_is_named(
    spark: "SparkSession", bootstrap: str
) -> None:
    read = spark.read.format("streamsx-kafka").options(**options(bootstrap))
    assert read.options(subscribe="empty", tasks="[]").load().count() == 0
    with pytest.raises(Exception, match="no such topic: nowhere: create it"):
        read.options(subscribe="nowhere", tasks="[]").load().count()


def test_stream_resumes_from_the_checkpoint(
    spark: "SparkSession", bootstrap: str, tmp_path: Path
) -> None:
    batches: list[list[tuple[str, int, int]]] = []

    def hear(read: "DataFrame", _: int) -> None:
        batches.append([(row.topic, row.partition, row.offset) for row in read.collect()])

    def run() -> None:
        stream = spark.readStream.format("streamsx-kafka")
        read = stream.options(**options(bootstrap, maxOffsetsPerTrigger="10")).load()
        query = read.writeStream.foreachBatch(hear).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()

    run()
    assert [len(batch) for batch in batches] == [10, 10, 4]
    assert len({row for batch in batches for row in batch}) == 24
    last = (tmp_path / "offsets" / "2").read_text().splitlines()[-1]
    assert json.loads(last) == {
        "clicks": {"0": 6, "1": 6}, "empty": {"0": 0}, "orders": {"0": 6, "1": 6},
    }  # fmt: skip
    client = Client(bootstrap)
    client.send(TopicPartition("empty", 0), [(None, None)])
    client.close()
    run()
    assert batches[3:] == [[("empty", 0, 0)]]


def test_written_rows_are_read_back(spark: "SparkSession", bootstrap: str) -> None:
    given = options(bootstrap, subscribe="orders", tasks="[]")
    to_clicks = "'empty' topic", "int(0) partition", "key", "value", "headers", "timestamp"
    read = spark.read.format("streamsx-kafka").options(**given).load().selectExpr(*to_clicks)
    into_topics(read, given)
    back = spark.read.format("streamsx-kafka").options(**{**given, "subscribe": "empty"}).load()
    found = sorted((row.timestamp, row.key, row.headers) for row in back.collect())
    assert found == sorted((row.timestamp, row.key, row.headers) for row in read.collect())
