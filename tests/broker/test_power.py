"""Power failures: with `--sync` all acknowledged records survive, on a directory of real files."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamsx.broker.log.log import Log
from streamsx.broker.net.server import BrokerServer
from streamsx.broker.options import Options
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import columns
from streamsx.protocol.wire import Api
from streamsx.simulation.power import PowerLoss
from tests.support.sweeps import seeds
from tests.unit.broker.conftest import Client, produced

ROUNDS = 4


Act = Callable[["Client", random.Random, "Acknowledged"], Coroutine[Any, Any, None]]


class Acknowledged:
    """Records and changes that the broker has acknowledged, and those that it may have."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.records: dict[tuple[str, int], dict[int, bytes]] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        self.refused: dict[tuple[str, int], set[bytes]] = {}

    def place(self, rng: random.Random) -> tuple[str, int]:
        topic = rng.choice(sorted(self.topics))
        return topic, rng.randrange(self.topics[topic])


async def act(client: Client, rng: random.Random, said: Acknowledged) -> None:
    """Do something at random, and note the outcome."""
    acts: list[Act] = [make, *[produce] * 6, wait, clean, commit, grow, delete]
    await (rng.choice(acts) if said.topics else make)(client, rng, said)


async def wait(*_: object) -> None:
    await asyncio.sleep(0.006)  # a flush, or another try of one that failed


async def clean(client: Client, *_: object) -> None:
    client.broker.service.cleaner.look()


async def make(client: Client, rng: random.Random, said: Acknowledged) -> None:
    name, partitions = f"t{rng.randint(0, 99)}", rng.randint(1, 3)
    small = {"cleanup.policy": "compact", "segment.bytes": str(rng.choice((200, 1000)))}
    configs = [{"name": key, "value": value} for key, value in small.items()]
    about = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
    asked = [{"name": name, **about}]
    told = await client.ask(Api.CREATE_TOPICS, 4, topics=asked, timeout=1000)
    if not told.topics[0].error_code:
        said.topics[name] = partitions


async def produce(client: Client, rng: random.Random, said: Acknowledged) -> None:
    place, value = said.place(rng), rng.randbytes(50)
    client.send(Api.PRODUCE, 9, **produced(value, topic=place[0], partition=place[1], key=value))
    told = (await client.told(Api.PRODUCE, 9)).responses[0].partition_responses[0]
    if not told.error_code:
        said.records.setdefault(place, {})[told.base_offset] = value
    else:
        assert told.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        said.refused.setdefault(place, set()).add(value)


async def commit(client: Client, rng: random.Random, said: Acknowledged) -> None:
    (topic, partition), offset = said.place(rng), rng.randint(0, 99)
    committed = [{"partition_index": partition, "committed_offset": offset}]
    topics = [{"name": topic, "partitions": committed}]
    about = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    told = await client.ask(Api.OFFSET_COMMIT, 7, **about, topics=topics)
    assert not told.topics[0].partitions[0].error_code
    said.offsets[topic, partition] = offset


async def grow(client: Client, rng: random.Random, said: Acknowledged) -> None:
    topic, _ = said.place(rng)
    asked = [{"name": topic, "count": said.topics[topic] + 1}]
    told = await client.ask(Api.CREATE_PARTITIONS, 1, topics=asked, timeout=1000)
    if code := told.results[0].error_code:
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
    else:
        said.topics[topic] += 1


async def delete(client: Client, rng: random.Random, said: Acknowledged) -> None:
    if rng.random() < 0.7:
        return
    topic, _ = said.place(rng)
    told = await client.ask(Api.DELETE_TOPICS, 4, topic_names=[topic], timeout=1000)
    assert not told.responses[0].error_code
    del said.topics[topic]
    said.records = {place: kept for place, kept in said.records.items() if place[0] != topic}
    said.offsets = {place: kept for place, kept in said.offsets.items() if place[0] != topic}
    said.refused = {place: those for place, those in said.refused.items() if place[0] != topic}


def check(broker: BrokerServer, said: Acknowledged, *, sync: bool) -> None:
    """Check that all topics are there; of records without `sync` those that were flushed."""
    store, machine = broker.service.topics, broker.service.groups.machine
    assert {name: n for name, (_, n) in store.catalog().items()} == said.topics
    for (topic, partition), values in said.records.items():
        found = dict(records(store.find(topic).log(partition)))
        assert found.items() >= values.items(), (topic, partition)
        assert said.refused.get((topic, partition), set()).isdisjoint(found.values()), topic
    if not sync:
        said.offsets.clear()
        return
    assert machine is not None
    group = machine.groups.get("g")
    committed = group.committed if group else {}
    assert {place: value.offset for place, value in committed.items()} == said.offsets


def forget_unflushed(broker: BrokerServer, said: Acknowledged) -> None:
    for (topic, partition), values in said.records.items():
        flushed = broker.service.topics.by_name[topic].logs[partition].flushed
        for offset in [offset for offset in values if offset >= flushed]:
            del values[offset]


def forget_what_no_note_says(broker: BrokerServer, said: Acknowledged) -> None:
    """Leave out the notes of refused data: a part of these data may be there."""
    for topic, partition in tuple(said.refused):
        log = broker.service.topics.by_name[topic].logs[partition]
        if log.failed and log.folder in UNNOTED:
            del said.refused[topic, partition]


UNNOTED = set[Path]()
"""Folders of logs whose newest note was refused."""


def note_failure(log: Log, real: Callable[[Log], None] = Log.note_failure) -> None:
    UNNOTED.add(log.folder)
    real(log)
    UNNOTED.discard(log.folder)


def records(log: Log) -> Iterator[tuple[int, bytes | None]]:
    offset = log.start
    while data := log.read(offset, 1 << 30):
        found = columns(data, offset)
        yield from zip(found.offsets, found.values, strict=True)
        offset = found.next_offset


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("failures", [0.0, 0.3])
@pytest.mark.parametrize("seed", seeds(3, 8))
def test_records_acknowledged_with_sync_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, failures: float, sync: bool
) -> None:
    """Records that were refused because the disk had failed do not hide later ones."""
    monkeypatch.setattr("streamsx.broker.log.flusher.REOPEN_S", 0.005)
    monkeypatch.setattr("streamsx.broker.log.flusher.INTERVAL_S", 0.005)
    monkeypatch.setattr(Log, "note_failure", note_failure)
    rng, said = random.Random(seed), Acknowledged()
    power = PowerLoss(tmp_path / "data", rng)

    async def until_the_power_fails() -> None:
        power.failures = 0.0
        broker = BrokerServer(tmp_path / "data", options=Options(sync=sync, compacted_bytes_min=0))
        await broker.start()
        check(broker, said, sync=sync)
        power.failures = failures
        async with Client(broker) as client:
            for _ in range(rng.randint(1, 60)):
                await act(client, rng, said)
            if rng.random() < 0.5:  # it may be there, it need not
                client.send(Api.PRODUCE, 9, **produced(b"x", topic=min(said.topics, default="t")))
                await asyncio.sleep(0)
        await broker.service.cleaner.close()
        await broker.service.flusher.close()  # its thread would go on
        if not sync:
            forget_unflushed(broker, said)
        forget_what_no_note_says(broker, said)
        broker.abandon()
        broker._server.close()

    with power.watching():
        for _ in range(ROUNDS):
            asyncio.run(until_the_power_fails())
            power.lose()
        asyncio.run(until_the_power_fails())
