"""Transactions over the wire, with full disks, restarts and waiting readers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streamsx.broker.groups.transactions import MARKERS_S, TransactionState
from streamsx.broker.log import flusher
from streamsx.broker.log.log import Log
from streamsx.broker.log.markers import MarkerWriter
from streamsx.broker.metadata_store import MetadataStore
from streamsx.broker.net.server import BrokerServer
from streamsx.broker.options import Options
from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.record_batch import Builder, columns
from streamsx.protocol.wire import Api
from tests.unit.broker.conftest import Client, Run, until

Holder = tuple[int, int]


async def begin(client: Client, name: str = "x") -> Holder:
    about = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    told = await client.ask(Api.INIT_PRODUCER_ID, 4, transactional_id=name, **about)
    assert told.error_code == E.NONE
    return told.producer_id, told.producer_epoch


async def write(
    client: Client, holder: Holder, value: bytes, *, partition: int = 0, seq: int = 0,
    name: str = "x",
) -> int:  # fmt: skip
    builder = Builder(1 << 20, transactional=True)
    builder.append(1, None, value)
    data = [{"index": partition, "records": builder.close(*holder, seq)}]
    told = await client.ask(
        Api.PRODUCE, 12, transactional_id=name, acks=-1, timeout=1000,
        topic_data=[{"name": "t", "partition_data": data}],
    )  # fmt: skip
    return int(told.responses[0].partition_responses[0].error_code)


async def end(client: Client, holder: Holder, *, commit: bool = True) -> tuple[int, Holder]:
    about = {"producer_id": holder[0], "producer_epoch": holder[1], "committed": commit}
    told = await client.ask(Api.END_TXN, 5, transactional_id="x", **about)
    return told.error_code, (told.producer_id, told.producer_epoch)


def reading(offset: int = 0, wait_ms: int = 0) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    return {
        "replica_id": -1, "max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20,
        "isolation_level": 1, "topics": [{"topic": "t", "partitions": [partition]}],
        "forgotten_topics_data": [],
    }  # fmt: skip


def seen(told: Any) -> list[bytes | None]:
    (found,) = told.responses[0].partitions
    aborted = [(a.producer_id, a.first_offset) for a in found.aborted_transactions]
    return list(columns(bytes(found.records or b""), 0, aborted=aborted).values)


def state(broker: BrokerServer) -> TransactionState:
    machine = broker.service.groups.machine
    assert machine is not None
    return machine.transactions.by_id["x"].state


@pytest.mark.parametrize("sync", [False, True])
def test_read_committed_fetch_answered_on_commit(run: Run, *, sync: bool) -> None:
    async def story(client: Client, other: Client) -> None:
        holder = await begin(client)
        other.send(Api.FETCH, 11, **reading(wait_ms=60_000))
        for partition in (0, 1):
            assert await write(client, holder, b"a", partition=partition) == E.NONE
        log = client.broker.service.topics.by_name["t"].logs[0]
        await until(lambda: log.high_watermark == 1)
        await until(lambda: log.waiters)
        code, holder = await end(client, holder)
        assert code == E.NONE
        assert seen(await other.told(Api.FETCH, 11)) == [b"a"]
        await until(lambda: state(client.broker) is TransactionState.COMPLETE_COMMIT)
        assert await write(client, holder, b"b") == E.NONE
        assert (await end(client, holder, commit=False))[0] == E.NONE
        await until(lambda: log.last_stable_offset == log.end)
        assert seen(await other.ask(Api.FETCH, 11, **reading())) == [b"a"]

    run(story, options=Options(sync=sync))


def test_transaction_complete_only_after_markers_flushed_with_sync(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut that follows the answer the decision is on the disk, and is carried out."""

    async def story(client: Client, _: Client) -> None:
        holder = await begin(client)
        await write(client, holder, b"a")
        flush, held = Log.flush, asyncio.Event()
        loop = asyncio.get_running_loop()
        go = asyncio.Event()

        def slow(log: Log) -> None:
            loop.call_soon_threadsafe(held.set)
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
            flush(log)

        monkeypatch.setattr(Log, "flush", slow)
        code, holder = await end(client, holder)
        await held.wait()
        assert (code, state(client.broker)) == (E.NONE, TransactionState.PREPARE_COMMIT)
        about = {"transactional_id": "x", "producer_id": holder[0], "producer_epoch": holder[1]}
        told = await client.ask(Api.ADD_OFFSETS_TO_TXN, 3, **about, group_id="g")
        assert told.error_code == E.CONCURRENT_TRANSACTIONS
        go.set()
        await until(lambda: state(client.broker) is TransactionState.COMPLETE_COMMIT)
        assert await write(client, holder, b"b") == E.NONE

    run(story, options=Options(sync=True))


def test_marker_write_retried_after_disk_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(client: Client, _: Client) -> None:
        holder = await begin(client)
        for partition in (0, 1):
            await write(client, holder, b"a", partition=partition)
        append = MarkerWriter._append

        def failing(writer: MarkerWriter, log: Log, *about: Any) -> None:
            if log.folder.name == "t-0":
                raise OSError("planted")
            append(writer, log, *about)

        with monkeypatch.context() as broken:
            broken.setattr(MarkerWriter, "_append", failing)
            code, holder = await end(client, holder)
            assert (code, state(client.broker)) == (E.NONE, TransactionState.PREPARE_COMMIT)
        logs = client.broker.service.topics.by_name["t"].logs
        assert [log.last_stable_offset for log in logs] == [0, 2], "the other one is not kept back"
        await asyncio.wait_for(
            until(lambda: state(client.broker) is TransactionState.COMPLETE_COMMIT), MARKERS_S * 5
        )
        assert [(log.last_stable_offset, log.end) for log in logs] == [(2, 2), (2, 2)]
        assert "The end of a transaction was not written to t-0" in caplog.text

    run(story)


def test_transaction_stays_ongoing_when_commit_row_is_not_written(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(client: Client, _: Client) -> None:
        def failing(*_: object, **__: object) -> None:
            raise OSError("planted")

        holder = await begin(client)
        await write(client, holder, b"a")
        with monkeypatch.context() as broken:
            broken.setattr(MetadataStore, "write", failing)
            assert (await end(client, holder))[0] == E.COORDINATOR_NOT_AVAILABLE
            assert await write(client, holder, b"b", partition=1) == E.CONCURRENT_TRANSACTIONS
        assert state(client.broker) is TransactionState.ONGOING
        assert await write(client, holder, b"b", partition=1) == E.NONE
        assert (await end(client, holder))[0] == E.NONE

    run(story)


@pytest.mark.parametrize("lost", ["markers", "rows"])
def test_transaction_left_open_by_crash_is_ended_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The markers are missing after the decision; or a power cut took the row of the
    transaction.
    """

    async def story() -> None:
        async with BrokerServer(tmp_path, topics={"t": 2}) as broker, Client(broker) as client:
            holder = await begin(client)
            for partition in (0, 1):
                await write(client, holder, b"a", partition=partition)
            if lost == "markers":
                monkeypatch.setattr(MarkerWriter, "write", lambda *_: False)
                assert (await end(client, holder))[0] == E.NONE
                monkeypatch.undo()
            else:
                rows = [key for key, _ in broker.service.meta.rows("X")]
                broker.service.meta.write(deletes=rows)
            for log in broker.service.topics.by_name["t"].logs:
                assert (log.last_stable_offset, log.end) == (0, 1)
        async with BrokerServer(tmp_path) as broker, Client(broker) as client:
            for log in broker.service.topics.by_name["t"].logs:
                assert (log.last_stable_offset, log.end) == (2, 2)
            found = seen(await client.ask(Api.FETCH, 11, **reading()))
            assert found == ([b"a"] if lost == "markers" else [])

    asyncio.run(story())


def test_transaction_without_row_aborted_once_disk_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut took the row of a transaction, and the disk is full at the start."""

    def failing(*_: object) -> None:
        raise OSError("planted")

    async def story() -> None:
        async with BrokerServer(tmp_path, topics={"t": 1}) as broker, Client(broker) as client:
            await write(client, await begin(client), b"a")
            broker.service.meta.write(deletes=[key for key, _ in broker.service.meta.rows("X")])
        monkeypatch.setattr(flusher, "REOPEN_S", 0.01)
        with monkeypatch.context() as full:
            full.setattr(MarkerWriter, "_append", failing)
            broker = BrokerServer(tmp_path)
            await broker.start()
        (log,) = broker.service.topics.by_name["t"].logs
        assert log.last_stable_offset == 0
        await until(lambda: log.last_stable_offset == 2)
        await broker.close()

    asyncio.run(story())


def test_transaction_commit_completes_without_marker_for_deleted_topic(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        holder = await begin(client)
        await write(client, holder, b"a")
        topic = {"name": "t", "topic_id": bytes(16)}
        await client.ask(Api.DELETE_TOPICS, 6, topics=[topic], timeout=1000)
        assert (await end(client, holder))[0] == E.NONE
        assert state(client.broker) is TransactionState.COMPLETE_COMMIT

    run(story)
