"""A cluster of one scripted broker."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from streamsx.kafka.cluster import Cluster
from streamsx.testing.scripted_broker import ScriptedBroker

Clusters = Callable[[ScriptedBroker], AbstractAsyncContextManager[Cluster]]


@pytest.fixture
def connected() -> Clusters:
    """The cluster of a broker that runs; it follows the broker's topics."""

    @asynccontextmanager
    async def connect(broker: ScriptedBroker) -> AsyncIterator[Cluster]:
        cluster = Cluster(broker.bootstrap)
        await cluster.start()
        await cluster.follow(broker.topics)
        try:
            yield cluster
        finally:
            await cluster.stop()

    return connect
