"""A cluster of one scripted broker; a real broker with workers in virtual time."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from streamsx.kafka.cluster import Cluster
from streamsx.simulation.bench import Bench
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


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """`words` has three partitions; what must not happen fails the test."""
    made = Bench(tmp_path, {"words": 3})
    yield made
    made.close()
