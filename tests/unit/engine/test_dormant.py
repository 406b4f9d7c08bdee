"""What is told of stores that nobody keeps up is true when it is told."""

import asyncio

import pytest

from streamsx.engine.dormant import Dormant, behind
from streamsx.kafka.admin import Bounds
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.wire import Api
from streamsx.model import TaskId, TopicPartition
from streamsx.testing.scripted_broker import Asked, ScriptedBroker

TASK, LOG = TaskId(1, 0), TopicPartition("log", 0)


@pytest.mark.parametrize(
    ("position", "lag"),
    [(100, 0), (90, 10), (10, 90), (None, 90), (9, 90), (101, 90)],
    ids=["at the end", "behind", "at the start", "nothing kept", "cut", "ahead"],
)
def test_a_store_is_as_far_behind_as_it_has_to_read(position: int | None, lag: int) -> None:
    assert behind(position, Bounds(10, 100)) == lag


def test_the_lag_grows_while_somebody_else_writes() -> None:
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
            dormant = Dormant(cluster, lambda: changes.append(dormant.lags.get(TASK)))
            dormant.add(TASK, {LOG: 100}, 0)
            end = 5000
            await dormant.look()
            assert changes == [4900]
            dormant.remove(TASK)
            await dormant.look()
            assert dormant.lags == {}
            await cluster.stop()

    asyncio.run(story())
