"""Starts and ends of logs, and first positions of tasks, on a real broker."""

import asyncio

import pytest

from streamsx.client.cluster import Cluster
from streamsx.config import Config
from streamsx.model import TopicPartition
from streamsx.tasks.log_bounds import LogBounds
from streamsx.testing import Broker
from tests.support.client import Client

OLD, NEW = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(("reset", "begins"), [("earliest", 2), ("latest", 5)])
def test_partition_without_offset_begins_by_auto_offset_reset(reset: str, begins: int) -> None:
    async def told(bootstrap: str) -> tuple[dict[TopicPartition, int], int]:
        cluster = Cluster(bootstrap)
        await cluster.start()
        await cluster.follow(["t"])
        bounds = LogBounds(cluster, Config(id="a", consumer_auto_offset_reset=reset))
        running = asyncio.create_task(bounds.run())
        try:
            async with asyncio.timeout(10):
                found = await bounds.of([OLD])
                return await bounds.begin([OLD, NEW]), found[OLD].start
        finally:
            running.cancel()
            await cluster.stop()

    with Broker(topics={"t": 2}) as broker:
        client = Client(broker.bootstrap)
        client.send(OLD, [(None, b"x")] * 5)
        client.delete_records(OLD, 2)
        client.close()
        assert asyncio.run(told(broker.bootstrap)) == ({OLD: begins, NEW: 0}, 2)
