"""Start and end of the broker's server: options, directory, and the requests it supports."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from streamsx.broker.api.served import SERVED
from streamsx.broker.log import appending
from streamsx.broker.log.segment import Segment
from streamsx.broker.net import server
from streamsx.broker.net.client_connection import ConnectionLimits
from streamsx.broker.net.server import BrokerServer
from streamsx.errors import StoreLocked, UsageError, WorldError
from streamsx.protocol import wire
from streamsx.protocol.record_batch import Builder


@pytest.mark.parametrize("api", SERVED, ids=lambda api: wire.Api(api).name)
def test_served_versions_start_at_kafkas_oldest_and_have_schemas(api: int) -> None:
    oldest, newest, *_ = SERVED[api]
    known = wire.versions(api)
    assert known[0] == oldest <= newest <= known[1]


@pytest.mark.parametrize("topic", [("t", 0), ("t", -1), ("t", 9), ("a b", 1), ("", 1)])
def test_invalid_topic_option_refused_before_broker_starts(
    tmp_path: Path, topic: tuple[str, int]
) -> None:
    name, partitions = topic

    async def started() -> None:
        limits = ConnectionLimits(partitions_max=8)
        async with BrokerServer(tmp_path / "data", topics={name: partitions}, limits=limits):
            raise AssertionError("it serves")

    with pytest.raises(UsageError, match=f"bad topic: {name}:{partitions}: "):
        asyncio.run(started())


def test_clean_marker_written_only_after_clean_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All was flushed then; a new start removes the marker until it has ended."""
    clean, lock, flushed = tmp_path / "clean", tmp_path / "lock", list[Path]()
    lock.write_text("12345678901234567890")  # of a broker with a longer name
    monkeypatch.setattr(Segment, "flush", lambda segment: flushed.append(segment.path))

    async def ends(*, well: bool) -> None:
        broker = BrokerServer(tmp_path, topics={"t": 2})
        await broker.start()
        assert (clean.exists(), lock.read_text()) == (False, str(os.getpid()))
        log = broker.service.topics.by_name["t"].logs[0]
        builder = Builder(1000)
        builder.append(1, None, b"x")
        appending.append(log, memoryview(builder.close()), 1000)
        flushed.clear()
        if well:
            await broker.close()
            assert (clean.exists(), flushed) == (True, [log.segments[0].path])
            return
        broker._server.close()
        broker._sweep_timer.cancel()
        broker.abandon()
        assert (clean.exists(), flushed) == (False, [])

    asyncio.run(ends(well=True))
    asyncio.run(ends(well=False))


def held_in(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open."""
    found = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    return [path for path in found if path.startswith(str(folder.resolve()))]


@pytest.mark.parametrize("well", [True, False], ids=["closed", "abandoned"])
def test_ended_broker_leaves_no_open_files_or_timers(tmp_path: Path, well: bool) -> None:
    """A simulation kills hundreds of brokers in one process, and starts as many in
    their folders.
    """

    async def story() -> None:
        broker = BrokerServer(tmp_path, topics={"t": 1})
        await broker.start()
        builder = Builder(1000)
        builder.append(1, None, b"x")
        log = broker.service.topics.by_name["t"].logs[0]
        appending.append(log, memoryview(builder.close()), 1000)
        assert any(path.endswith(".log") for path in held_in(tmp_path))
        sweep = broker._sweep_timer
        if well:
            await broker.close()
            assert sweep.cancelled()
        else:
            broker._server.close()
            sweep.cancel()
            broker.abandon()
        assert held_in(tmp_path) == []

    asyncio.run(story())


def test_broker_with_failed_log_raises_on_close_and_restarts(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        broker = BrokerServer(tmp_path, topics={"t": 1})
        await broker.start()
        broker.service.topics.by_name["t"].logs[0].fail()
        with pytest.raises(WorldError, match=r"t-0: a flush failed: .*: make room or repair it"):
            await broker.close()
        async with BrokerServer(tmp_path) as again:
            assert not again.service.topics.by_name["t"].logs[0].failed

    asyncio.run(story())


def test_directory_marked_clean_while_still_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock was released first: another broker could start, and be killed, in between. Errors of
    the disk came without a remedy.
    """

    def full(folder: Path) -> None:
        with pytest.raises(StoreLocked):
            server.lock(folder)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def story() -> None:
        broker = BrokerServer(tmp_path)
        await broker.start()
        monkeypatch.setattr(server, "mark_clean", full)
        with pytest.raises(WorldError, match=r"No space left on device: make room or repair it"):
            await broker.close()
        assert held_in(tmp_path) == []

    asyncio.run(story())
