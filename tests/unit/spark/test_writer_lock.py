"""A process begins to write when the transactions of the last workers are over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from streamsx.app.lookup import app_named
from streamsx.client import admin
from streamsx.client.admin import NewTopic
from streamsx.client.cluster import Cluster
from streamsx.client.transaction import transaction
from streamsx.errors import WorldError
from streamsx.model import TopicPartition
from streamsx.spark import writer_lock
from streamsx.spark.plan import stages
from streamsx.spark.writer_lock import transactions_over
from streamsx.testing import Broker

APP = app_named("tests.unit.spark.apps:carried")
(INNER,) = stages(APP.topology(), {"sales": 2}, 2)[1].inner


@asynccontextmanager
async def topics(broker: Broker) -> AsyncIterator[Cluster]:
    cluster = Cluster(broker.bootstrap)
    await cluster.start()
    await admin.create_topics(cluster, [NewTopic("sales", 2), NewTopic(INNER, 3)])
    yield cluster
    await cluster.stop()


def test_open_transaction_between_stages_is_waited_for() -> None:
    async def story(broker: Broker) -> None:
        async with topics(broker) as cluster:
            async with transaction(cluster, "of-a-killed-worker") as send:
                await send(TopicPartition(INNER, 1), [(b"u1", b"{}", 1)])
                waits = asyncio.create_task(transactions_over(cluster, APP.conf, APP.topology()))
                done, _ = await asyncio.wait([waits], timeout=0.5)
                assert not done
            await asyncio.wait_for(waits, 10)

    with Broker() as broker:
        asyncio.run(story(broker))


def test_transaction_that_stays_open_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_lock, "BROKERS_LOOK_S", 0.0)
    conf = replace(APP.conf, transaction_timeout_s=0.0)

    async def story(broker: Broker) -> None:
        async with (
            topics(broker) as cluster,
            transaction(cluster, "of-a-killed-worker") as send,
        ):
            await send(TopicPartition(INNER, 1), [(b"u1", b"{}", 1)])
            with pytest.raises(WorldError, match=f"a transaction stays open: {INNER}-1: "):
                await transactions_over(cluster, conf, APP.topology())
        # Topics that others write may have open transactions for ever.
        async with topics(broker) as cluster, transaction(cluster, "of-others") as send:
            await send(TopicPartition("sales", 0), [(b"u1", b"{}", 1)])
            await transactions_over(cluster, conf, APP.topology())

    with Broker() as broker:
        asyncio.run(story(broker))
