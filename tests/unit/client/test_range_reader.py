"""Ranges of partitions, each read to its end and no further, and reasons why one cannot be."""

import asyncio
from collections.abc import Coroutine, Iterator

import pytest

from streamsx.client import range_reader
from streamsx.client.cluster import Cluster
from streamsx.client.range_reader import Range, RangeReader
from streamsx.clock import SystemClock
from streamsx.errors import TopicGone, WorldError
from streamsx.event_loops import run
from streamsx.model import TopicPartition
from streamsx.testing import Broker
from tests.support.client import Client

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """Return a broker with 100 records in A, in batches of ten, and 3 in B."""
    with Broker(topics={"t": 2}) as broker:
        client = Client(broker.bootstrap)
        for ten in range(10):
            client.send(A, [(None, b"%d" % (10 * ten + n)) for n in range(10)])
        client.send(B, [(None, b"b")] * 3)
        client.close()
        yield broker.bootstrap


async def read(
    bootstrap: str, ranges: dict[TopicPartition, Range]
) -> dict[TopicPartition, list[int]]:
    cluster = Cluster(bootstrap)
    await cluster.start()
    reader = RangeReader(cluster, SystemClock(), ranges)
    await reader.start()
    found: dict[TopicPartition, list[int]] = {tp: [] for tp in ranges}
    try:
        for tp in ranges:
            while batch := await reader.next(tp):
                assert len(batch.keys) == len(batch.values) == len(batch.timestamps)
                found[tp] += batch.offsets
            assert await reader.next(tp) is None
    finally:
        await reader.stop()
        await cluster.stop()
    return found


def test_range_may_end_within_a_batch(bootstrap: str) -> None:
    found = run(read(bootstrap, {A: Range(13, 58), B: Range(0, 3)}))
    assert found == {A: list(range(13, 58)), B: [0, 1, 2]}


def test_empty_range_ends_at_once(bootstrap: str) -> None:
    assert run(read(bootstrap, {A: Range(100, 100), B: Range(2, 3)})) == {A: [], B: [2]}


def test_loop_may_stop_between_two_reads(bootstrap: str) -> None:
    with asyncio.Runner() as runner:

        def wait(coroutine: Coroutine[None, None, object]) -> object:
            return runner.run(coroutine)

        cluster = Cluster(bootstrap)
        wait(cluster.start())
        reader = RangeReader(cluster, SystemClock(), {A: Range(0, 100)})
        wait(reader.start())
        batch = runner.run(reader.next(A))
        assert batch is not None
        assert wait(reader.next(A)) is None
        wait(reader.stop())
        wait(cluster.stop())
        assert list(batch.offsets) == list(range(100))


def test_deleted_offset_is_reported(bootstrap: str) -> None:
    client = Client(bootstrap)
    client.delete_records(A, 20)
    client.close()
    with pytest.raises(TopicGone, match="t-0 offset 13"):
        run(read(bootstrap, {A: Range(13, 58)}))


def test_range_end_never_reached_is_an_error_after_a_stall(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "STALL_S", 0.5)
    with pytest.raises(WorldError, match=r"t-1: no data for 0\.5 s"):
        run(read(bootstrap, {B: Range(0, 4)}))
