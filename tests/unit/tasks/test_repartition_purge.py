"""Purge of repartition topics: processed records are deleted there, and in no other topic."""

import asyncio
from contextlib import closing
from pathlib import Path

from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.model import TaskId, TopicPartition
from streamsx.tasks.repartition_purge import RepartitionPurge
from streamsx.testing import Broker
from tests.support.client import Client

OURS, USERS = TopicPartition("by-name-repartition", 1), TopicPartition("lines", 1)
ROUND_S = 0.01


def test_only_committed_records_of_repartition_topics_are_purged(tmp_path: Path) -> None:
    async def purged(bootstrap: str) -> tuple[int, int]:
        cluster = Cluster(bootstrap)
        await cluster.start()
        purging = RepartitionPurge(cluster, [OURS.topic, "not-created"], ROUND_S)
        # Offsets of a topic that is gone are said and tried again; the others go all the same.
        running = asyncio.create_task(purging.run())
        purging.committed(TaskId(0, 1), {OURS.topic: 3, USERS.topic: 3})
        purging.committed(TaskId(0, 1), {OURS.topic: 6})
        try:
            async with asyncio.timeout(10):
                found = await admin.bounds(cluster, [OURS, USERS])
                while found[OURS].start != 6:
                    found = await admin.bounds(cluster, [OURS, USERS])
        finally:
            running.cancel()
            await cluster.stop()
        return found[OURS].start, found[USERS].start

    with Broker(tmp_path) as broker, closing(Client(broker.bootstrap)) as client:
        for tp in (OURS, USERS):
            client.create(tp.topic, 2)
            client.send(tp, [(None, b"x")] * 10)
        assert asyncio.run(purged(broker.bootstrap)) == (6, 0)


def test_app_without_repartition_topics_purges_nothing() -> None:
    asyncio.run(asyncio.wait_for(RepartitionPurge(Cluster("127.0.0.1:1"), []).run(), 1))
