"""Lags of inactive stores: true at the time of each report."""

import asyncio

import pytest

from streamsx.client.admin import Bounds
from streamsx.client.cluster import Cluster
from streamsx.config import Config
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.wire import Api
from streamsx.tasks.inactive_stores import InactiveStores, behind
from streamsx.tasks.log_bounds import LogBounds
from tests.support.scripted_broker import Asked, ScriptedBroker

TASK, LOG = TaskId(1, 0), TopicPartition("log", 0)


@pytest.mark.parametrize(
    ("position", "lag"),
    [(100, 0), (90, 10), (10, 90), (None, 90), (9, 90), (101, 90)],
    ids=["at the end", "behind", "at the start", "nothing kept", "cut", "ahead"],
)
def test_dormant_store_lag_is_the_distance_left_to_read(position: int | None, lag: int) -> None:
    assert behind(position, Bounds(10, 100)) == lag


def test_log_without_a_leader_has_no_lag_and_does_not_delay_others() -> None:
    """The worker with such a store ended: it waited 10 s for an answer."""
    led, lost = TaskId(1, 0), TaskId(1, 1)

    def offsets(asked: Asked) -> dict[str, object]:
        end = 100 + asked.body.topics[0].partitions[0].timestamp
        return {"topics": [{"name": "log", "partitions": [{"partition_index": 0, "offset": end}]}]}

    async def story() -> None:
        async with ScriptedBroker({Api.LIST_OFFSETS: offsets}, {"log": 1}) as broker:
            cluster = Cluster(broker.bootstrap)
            await cluster.start()
            dormant = InactiveStores(LogBounds(cluster, Config(id="a")), lambda: None)
            dormant.add(led, {LOG: 98}, None)
            dormant.add(lost, {LOG: 98, TopicPartition("log", 1): 7}, 0)
            await dormant.look()
            assert dormant.lags == {led: 1, lost: None}
            await broker.stop()
            await dormant.look()
            assert dormant.lags == {led: None, lost: None}
            await cluster.stop()

    asyncio.run(story())


def test_dormant_lag_grows_while_another_worker_writes() -> None:
    end = 100

    def offsets(asked: Asked) -> dict[str, object]:
        at = asked.body.topics[0].partitions[0].timestamp
        found = {"partition_index": 0, "offset": 0 if at == -2 else end}
        return {"topics": [{"name": "log", "partitions": [found]}]}

    async def story() -> None:
        nonlocal end
        changes: list[int | None] = []
        async with ScriptedBroker({Api.LIST_OFFSETS: offsets}, {"log": 1}) as broker:
            cluster = Cluster(broker.bootstrap)
            await cluster.start()
            dormant = InactiveStores(
                LogBounds(cluster, Config(id="a")), lambda: changes.append(dormant.lags.get(TASK))
            )
            dormant.add(TASK, {LOG: 100}, 0)
            end = 5000
            await dormant.look()
            assert changes == [4900]
            dormant.remove(TASK)
            await dormant.look()
            assert dormant.lags == {}
            await cluster.stop()

    asyncio.run(story())
