"""Fetch loops against a scripted broker: who leads what changes under them."""

import asyncio

from streamsx.clock import SystemClock
from streamsx.engine.fetch import Fetcher, Limits
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.wire import Api, Body
from streamsx.model import TopicPartition
from streamsx.testing.scripted_broker import NODE, Asked, ScriptedBroker

TP = TopicPartition("lines", 0)
NOBODY = -1
SOON_S = 5.0


class Scene:
    """A broker whose only partition has `leader`; questions are events; fetches find nothing."""

    def __init__(self) -> None:
        self.leader = NODE
        self.fetched, self.looked_up = asyncio.Event(), asyncio.Event()
        self.broker = ScriptedBroker({Api.METADATA: self._metadata, Api.FETCH: self._fetch})

    def _metadata(self, _: Asked) -> Body:
        self.looked_up.set()
        partitions = [{"partition_index": 0, "leader_id": self.leader}]
        return {
            "brokers": [{"node_id": NODE, "host": "127.0.0.1", "port": self.broker.port}],
            "controller_id": NODE,
            "topics": [{"name": TP.topic, "partitions": partitions}],
        }

    async def _fetch(self, _: Asked) -> Body:
        self.fetched.set()
        await asyncio.sleep(0.01)  # as long as the request would wait for records
        part = {"partition_index": 0, "high_watermark": 0, "last_stable_offset": 0, "records": b""}
        return {"responses": [{"topic": TP.topic, "partitions": [part]}]}


async def soon(event: asyncio.Event) -> None:
    """Once more, from now on."""
    event.clear()
    async with asyncio.timeout(SOON_S):
        await event.wait()


def ignore(tp: TopicPartition, offset: int) -> None:
    raise AssertionError(f"out of range: {tp} at {offset}")


def test_a_partition_that_had_no_leader_for_a_while_is_fetched_again() -> None:
    """Also where somebody else's question has found that out."""

    async def story() -> None:
        scene = Scene()
        async with scene.broker as broker:
            cluster = Cluster(broker.bootstrap)
            await cluster.start()
            await cluster.follow([TP.topic])
            fetcher = Fetcher(cluster, SystemClock(), "data", Limits(), lambda: None, ignore)
            fetcher.add(TP, 0)
            running = asyncio.create_task(fetcher.run())
            await soon(scene.fetched)

            scene.leader = NOBODY
            await cluster.refresh()
            await soon(scene.looked_up)
            scene.leader = NODE
            await soon(scene.fetched)

            running.cancel()
            await asyncio.wait([running])
            await cluster.stop()

    asyncio.run(story())
