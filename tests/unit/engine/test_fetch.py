"""Fetch loops against a scripted broker: who leads what changes under them."""

import asyncio
from collections.abc import Callable, Coroutine

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
    """A broker whose only partition has `leader`; each fetch finds nothing, and is an event."""

    def __init__(self) -> None:
        self.leader = NODE
        self.asked = asyncio.Event()
        self.broker = ScriptedBroker({Api.METADATA: self._metadata, Api.FETCH: self._fetch})

    def _metadata(self, _: Asked) -> Body:
        partitions = [{"partition_index": 0, "leader_id": self.leader}]
        return {
            "brokers": [{"node_id": NODE, "host": "127.0.0.1", "port": self.broker.port}],
            "controller_id": NODE,
            "topics": [{"name": TP.topic, "partitions": partitions}],
        }

    async def _fetch(self, _: Asked) -> Body:
        self.asked.set()
        await asyncio.sleep(0.01)  # as long as the request would wait for records
        part = {"partition_index": 0, "high_watermark": 0, "last_stable_offset": 0, "records": b""}
        return {"responses": [{"topic": TP.topic, "partitions": [part]}]}

    async def fetched(self) -> None:
        """Once more, from now on."""
        self.asked.clear()
        async with asyncio.timeout(SOON_S):
            await self.asked.wait()


def ignore(tp: TopicPartition, offset: int) -> None:
    raise AssertionError(f"out of range: {tp} at {offset}")


def play(story: Callable[[Scene, Cluster], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        scene = Scene()
        async with scene.broker as broker:
            cluster = Cluster(broker.bootstrap)
            await cluster.start()
            await cluster.follow([TP.topic])
            fetcher = Fetcher(cluster, SystemClock(), "data", Limits(), lambda: None, ignore)
            fetcher.add(TP, 0)
            running = asyncio.create_task(fetcher.run())
            await scene.fetched()
            await story(scene, cluster)
            running.cancel()
            await asyncio.wait([running])
            await cluster.stop()

    asyncio.run(run())


def test_a_partition_that_had_no_leader_for_a_while_is_fetched_again() -> None:
    """Whoever asked for the metadata that said so, and for those that know the leader again."""

    async def story(scene: Scene, cluster: Cluster) -> None:
        scene.leader = NOBODY
        await cluster.refresh()
        await asyncio.sleep(0.1)  # the loop has nothing to ask for
        scene.leader = NODE
        await cluster.refresh()
        await scene.fetched()

    play(story)


def test_a_fetcher_looks_for_a_leader_itself() -> None:
    async def story(scene: Scene, cluster: Cluster) -> None:
        scene.leader = NOBODY
        await cluster.refresh()
        scene.leader = NODE
        await scene.fetched()

    play(story)
