"""Cleaner of a broker: the logs it looks at, when, and their readers meanwhile."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from streamsx.broker.log import appending, compaction
from streamsx.broker.log.cleaner import due
from streamsx.broker.log.log import Log
from streamsx.broker.log.segment import Descriptors
from streamsx.broker.options import Options
from streamsx.broker.topics import StoredTopic
from streamsx.clock import SystemClock
from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.record_batch import CHECKED_FROM, HEADER_BYTES, Builder, columns
from streamsx.protocol.wire import Api
from tests.unit.broker.conftest import Client, Run, until

KEYS, TIMES = 10_000, 100
VALUE_BYTES = 20
ALL = Options(compacted_bytes_min=0)


def written(log: Log, time_round: int, keys: int = KEYS) -> int:
    """Write each key once; return the bytes."""
    builder, at = Builder(1 << 20), 0
    while at < keys:
        rows = [b"key%07d" % key for key in range(at, min(at + 1000, keys))]
        value = b"%d" % time_round
        builder = Builder(1 << 20)
        builder.extend(1, rows, [value.ljust(VALUE_BYTES)] * len(rows))
        appending.append(log, memoryview(builder.close()), 1 << 20)
        at += len(rows)
    return log.size


async def made(client: Client, name: str, **configs: str) -> Log:
    given = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    asked = [{"name": name, "num_partitions": 1, "replication_factor": 1, "configs": given}]
    told = await client.ask(Api.CREATE_TOPICS, 4, topics=asked, timeout=1000)
    assert told.topics[0].error_code == E.NONE
    return client.broker.service.topics.by_name[name].logs[0]


def read(log: Log, offset: int = 0) -> Iterator[tuple[bytes | None, bytes | None]]:
    while data := log.read(offset, 1 << 20):
        part = columns(data, offset)
        yield from zip(part.keys, part.values, strict=True)
        offset = part.next_offset


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold compactions up until it is opened."""
    gate, real = threading.Event(), compaction.compact

    def late(job: Any) -> Any:
        gate.wait(5)
        return real(job)

    monkeypatch.setattr("streamsx.broker.log.cleaner.compact", late)
    return gate


@pytest.mark.timeout(120)
def test_changelog_compacted_to_three_times_live_rows_while_read(run: Run) -> None:
    """A reader meanwhile gets the newest value of each key, and is answered all the time."""

    async def story(client: Client, other: Client) -> None:
        log = await made(client, "c", cleanup_policy="compact", segment_bytes=str(4 << 20))
        live = written(log, 0)
        for number in range(1, TIMES):
            written(log, number)
        seen: dict[bytes | None, bytes | None] = {}
        offset, asked = 0, 0
        client.broker.service.cleaner.look()
        while offset < log.end:
            partition = {
                "partition": 0, "fetch_offset": offset, "partition_max_bytes": 100_000,
                "log_start_offset": -1,
            }  # fmt: skip
            about = {"max_wait": 100, "min_bytes": 1, "max_bytes": 100_000, "session_epoch": -1}
            topics = [{"topic": "c", "partitions": [partition]}]
            told = await other.ask(Api.FETCH, 11, **about, topics=topics)
            answer = told.responses[0].partitions[0]
            assert answer.error_code == E.NONE
            part = columns(bytes(answer.records), offset)
            seen.update(zip(part.keys, part.values, strict=True))
            offset, asked = part.next_offset, asked + 1
        newest = (b"%d" % (TIMES - 1)).ljust(VALUE_BYTES)
        assert (len(seen), set(seen.values())) == (KEYS, {newest})
        await until(lambda: log.size <= 3 * live)
        assert asked > 1
        assert dict(read(log)) == seen

    run(story)


def test_topic_cut_by_cleanup_policy_and_retention(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        small = {"segment_bytes": "100"}
        logs = [
            await made(client, "kept", retention_ms="-1", **small),
            await made(client, "old", retention_ms="1000", **small),
            await made(client, "large", retention_ms="-1", retention_bytes="1", **small),
            await made(client, "newest", cleanup_policy="compact", retention_ms="1", **small),
        ]
        for log in logs:
            for time in range(3):
                written(log, time, 1)
        client.broker.service.cleaner.look()
        assert [log.start for log in logs] == [0, 3, 2, 0]
        assert [log.end for log in logs] == [3] * 4
        appending.append(logs[1], memoryview(record()), 1000)
        client.broker.service.cleaner.look()
        assert logs[1].start == 3, "it is of now"

    run(story)


def record(time: int = 1 << 45) -> bytearray:
    builder = Builder(1000)
    builder.append(time, b"k", b"v")
    return builder.close()


def test_failed_cleaning_logged_once_and_other_logs_cleaned(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = compaction.compact

    def failing(job: Any) -> Any:
        if job.files[0].path.parent.name == "a-0":
            raise OSError("planted")
        return real(job)

    monkeypatch.setattr("streamsx.broker.log.cleaner.compact", failing)

    async def story(client: Client, _: Client) -> None:
        logs = [await made(client, name, cleanup_policy="compact") for name in ("a", "b")]
        for log in logs:
            written(log, 1, 1)
            written(log, 2, 1)
        client.broker.service.cleaner.look()
        await until(lambda: len(list(read(logs[1]))) == 1)
        await asyncio.sleep(0.05)

    run(story, options=ALL)
    told = [line.message for line in caplog.records if "Cleaning of " in line.message]
    assert len(told) == 1
    assert "planted" in told[0]


@pytest.mark.parametrize("name", ["segment.ms", "max.compaction.lag.ms"])
def test_continuously_written_log_is_compacted(run: Run, name: str) -> None:
    """The newest record was never older than the lag, and so the last file was never closed."""

    async def story(client: Client, _: Client) -> None:
        log = await made(
            client, "a", cleanup_policy="compact",
            **{"min.compaction.lag.ms": "100", name: "100"},
        )  # fmt: skip

        def shorter() -> bool:
            """Than all that was written, of which the newest is always younger than the lag."""
            builder = Builder(1000)
            builder.append(int(SystemClock().wall() * 1000), b"k", b"v")
            appending.append(log, memoryview(builder.close()), 1000)
            client.broker.service.cleaner.look()
            return len(list(read(log))) < log.end

        await until(shorter)

    run(story, options=ALL)


def test_broker_survives_cleaning_of_malformed_and_damaged_batches(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in reading a batch ended the process, and each later start of it."""

    async def story(client: Client, _: Client) -> None:
        nonsense, flipped, last = [
            await made(client, name, cleanup_policy="compact") for name in ("n", "f", "z")
        ]
        batch = record(1)
        batch[HEADER_BYTES] = 0x7F
        batch[CHECKED_FROM - 4 : CHECKED_FROM] = crc32c(batch[CHECKED_FROM:]).to_bytes(4)
        appending.append(nonsense, memoryview(batch), 1000)
        for log in (nonsense, flipped, last):
            for number in range(2):
                written(log, number, 2)
        with flipped.segments[0].path.open("r+b") as file:
            file.seek(flipped.size - 1)
            file.write(b"?")
        for _look in range(3):
            client.broker.service.cleaner.look()
            await until(lambda: len(list(read(last))) == 2)
            await until(lambda: "Cleaning of " in caplog.text)
            written(flipped, 3, 2)
        assert len(flipped.segments) == 2
        newest = b"1".ljust(VALUE_BYTES)
        await until(lambda: len(list(read(nonsense, 1))) == 2)
        assert dict(read(nonsense, 1)) == {b"key%07d" % at: newest for at in (0, 1)}

    run(story, options=ALL)
    told = [line.message for line in caplog.records if "Cleaning of " in line.message]
    assert len(told) == 1
    assert "checksum" in told[0]


def test_compaction_due_by_dirty_ratio_of_topic(tmp_path: Path) -> None:
    topic = StoredTopic("t", b"", {"min.cleanable.dirty.ratio": "0.6"})
    log = Log(tmp_path / "t-0", Descriptors(), segment_bytes=1, clean=True, sync=False)
    for dirty_files, enough in ((0, False), (1, False), (2, True)):
        appending.append(log, memoryview(record()), 1000)
        log.compacted = [(1, 0)]
        assert due(topic, log, 0, 0) is enough, dirty_files


def test_compaction_uses_lag_and_tombstone_times_of_topic(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = list[dict[str, int]]()
    monkeypatch.setattr(
        "streamsx.broker.log.cleaner.compaction", lambda log, now_ms, **about: jobs.append(about)
    )

    async def story(client: Client, _: Client) -> None:
        lags = {"min_compaction_lag_ms": "7", "delete_retention_ms": "8"}
        written(await made(client, "a", cleanup_policy="compact", **lags), 1, 1)
        client.broker.service.cleaner.look()

    run(story, options=ALL)
    assert jobs == [{"lag_ms": 7, "tombstones_ms": 8}]


def test_log_with_many_keys_compacted_to_end_in_one_pass(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part was compacted per look: a large table under constant writes grew without limit."""
    monkeypatch.setattr(compaction, "KEYS_MAX", 1)

    async def story(client: Client, _: Client) -> None:
        logs = [await made(client, name, cleanup_policy="compact") for name in ("a", "b")]
        for log in logs:
            for number in (1, 2, 3):
                written(log, number, 2000)
        client.broker.service.cleaner.look()
        await until(lambda: all(len(list(read(log))) == 2000 for log in logs))

    run(story, options=ALL)


def test_busy_log_does_not_hold_up_cleaning_of_others(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at the busy log did not end, so none reached the other logs."""
    monkeypatch.setattr(compaction, "KEYS_MAX", 1)

    async def story(client: Client, _: Client) -> None:
        busy, other = [await made(client, name, cleanup_policy="compact") for name in ("a", "b")]
        cleaner, look = client.broker.service.cleaner, list[int]()
        looked = cleaner.look

        def fed() -> None:
            look.append(len(busy.compacted))
            for number in range(3):
                written(busy, number, 2000)
            looked()

        monkeypatch.setattr(cleaner, "look", fed)
        fed()
        for number in (1, 2):
            written(other, number, 2)
        await until(lambda: len(list(read(other))) == 2)
        assert len(look) > 1
        cleaner.stop()

    run(story, options=ALL)


def test_failed_compaction_leaves_no_files(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(client: Client, _: Client) -> None:
        log = await made(client, "a", cleanup_policy="compact")
        for number in (1, 2):
            written(log, number, 2)

        def refused(*_: object) -> bool:
            raise OSError("planted")

        monkeypatch.setattr(Log, "put", refused)
        client.broker.service.cleaner.look()
        await until(lambda: "planted" in caplog.text)
        assert not list(log.folder.glob("*.made"))

    run(story, options=ALL)


def test_segment_of_delete_topic_rolls_after_segment_ms(run: Run) -> None:
    """Young records in it would keep all old ones."""

    async def story(client: Client, _: Client) -> None:
        log = await made(client, "a", cleanup_policy="delete", segment_ms="10")
        for time in (1 << 44, (1 << 44) + 11):
            appending.append(log, memoryview(record(time)), 1000)
        client.broker.service.cleaner.look()
        assert [segment.base for segment in log.segments] == [0, 2]

    run(story)


def test_first_segment_without_time_does_not_hide_others_from_lag(tmp_path: Path) -> None:
    topic = StoredTopic("t", b"", {"cleanup.policy": "compact", "max.compaction.lag.ms": "10"})
    log = Log(tmp_path / "t-0", Descriptors(), segment_bytes=1, clean=True, sync=False)
    for time in (-1, 100):
        appending.append(log, memoryview(record(time)), 1000)
    assert not due(topic, log, 109, 1000)
    assert due(topic, log, 110, 1000)


def test_topic_deleted_during_compaction_stays_deleted(run: Run, tmp_path: Path) -> None:

    async def story(client: Client, _: Client) -> None:
        log = await made(client, "a", cleanup_policy="compact")
        written(log, 1, 1)
        written(log, 2, 1)
        client.broker.service.cleaner.look()
        told = await client.ask(Api.DELETE_TOPICS, 4, topic_names=["a"], timeout=1000)
        assert told.responses[0].error_code == E.NONE
        await client.broker.service.cleaner.close()
        await asyncio.sleep(0)
        assert not (tmp_path / "data" / "logs" / "a-0").exists()

    run(story, options=ALL)


def test_topic_recreated_during_compaction_keeps_records(run: Run, gate: threading.Event) -> None:
    """The compacted files have the same names: they replaced the files of the new topic."""

    async def story(client: Client, _: Client) -> None:
        log = await made(client, "a", cleanup_policy="compact")
        written(log, 1, 1)
        written(log, 2, 1)
        client.broker.service.cleaner.look()
        await client.ask(Api.DELETE_TOPICS, 4, topic_names=["a"], timeout=1000)
        namesake = await made(client, "a", cleanup_policy="compact")
        for number in range(3):
            written(namesake, number, 2)
        before = list(read(namesake))
        gate.set()
        await client.broker.service.cleaner.close()
        await asyncio.sleep(0)
        assert list(read(namesake)) == before
        assert [path.name for path in namesake.folder.iterdir()] == [f"{0:020d}.log"]

    run(story, options=ALL)


def test_topic_recreated_before_queued_compaction_is_untouched(
    run: Run, gate: threading.Event
) -> None:
    """The deleted log rolled a file in the folder of the new one, whose next start continued at its
    end.
    """

    async def story(client: Client, _: Client) -> None:
        deleted, other = [await made(client, name, cleanup_policy="compact") for name in "ab"]
        for number in range(3):
            written(deleted, number, 1)
            written(other, number, 1)
        client.broker.service.cleaner.look()
        await client.ask(Api.DELETE_TOPICS, 4, topic_names=["a"], timeout=1000)
        namesake = await made(client, "a", cleanup_policy="compact")
        written(namesake, 1, 1)
        gate.set()
        await until(lambda: len(list(read(other))) == 1)
        assert [path.name for path in namesake.folder.iterdir()] == [f"{0:020d}.log"]

    run(story, options=ALL)


def test_cleaner_runs_periodically(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        log = await made(client, "a", retention_ms="1000")
        written(log, 1, 1)
        await until(lambda: log.start == 1)
        written(log, 1, 1)
        await until(lambda: log.start == 2)

    run(story, options=Options(cleaner_interval_s=0.01))
