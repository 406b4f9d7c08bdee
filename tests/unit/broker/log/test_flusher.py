"""Flushes of logs in a thread, one after the other."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from streamsx.broker.log import flusher
from streamsx.broker.log.flusher import Flusher
from streamsx.broker.log.log import DurableEnd, Log
from tests.unit.broker.conftest import until


class FakeLog:
    """Log that counts flushes; a flush waits at `gate`, and fails with the first of `errors`."""

    def __init__(self, *errors: OSError) -> None:
        self.errors = list(errors)
        self.gate = threading.Event()
        self.gate.set()
        self.begun = self.flushes = self.marked = 0
        self.folder, self.failed = Path("t-0"), False

    def mark(self) -> DurableEnd:
        return cast("DurableEnd", None)

    def flush(self) -> None:
        self.begun += 1
        self.gate.wait(5)
        self.flushes += 1
        if self.errors:
            raise self.errors.pop(0)

    def flushed_to(self, _: DurableEnd) -> None:
        self.marked += 1

    def fail(self) -> None:
        self.failed = True


class FakeMeta(FakeLog):
    """Metadata that report by themselves when they are dirty."""

    def written(self) -> None: ...


def made(*, meta: FakeMeta | None = None, reopen: Callable[[], bool] = bool) -> Flusher:
    return Flusher(cast("Any", meta or FakeMeta()), reopen)


def appended(flushes: Flusher, *logs: FakeLog) -> None:
    for log in logs:
        flushes.appended(cast("Log", log))


async def until_flushed(flushes: Flusher) -> None:
    done = asyncio.Event()
    flushes.when_flushed(done.set)
    await asyncio.wait_for(done.wait(), 10)


def test_appended_records_flushed_once_within_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flusher, "INTERVAL_S", 0.01)

    async def story() -> None:
        flushes, log, other = made(), FakeLog(), FakeLog()
        appended(flushes, log, other, log)
        await until(lambda: log.marked and other.marked)
        await asyncio.sleep(0.05)
        assert (log.flushes, log.marked, other.flushes) == (1, 1, 1)
        appended(flushes, log)
        await until(lambda: log.marked == 2)
        await flushes.close()

    asyncio.run(story())


def test_waiter_arriving_during_flush_waits_for_next_flush() -> None:
    """The running flush may have begun before these records."""

    async def story() -> None:
        flushes, log, told = made(), FakeLog(), list[str]()
        log.gate.clear()
        appended(flushes, log)
        flushes.when_flushed(lambda: told.append(f"first {log.flushes}"))
        appended(flushes, log)
        flushes.when_flushed(lambda: told.append(f"second {log.flushes}"))
        await asyncio.sleep(0.02)
        assert log.begun == 1
        log.gate.set()
        await until(lambda: len(told) == 2)
        assert told == ["first 1", "second 2"]
        await flushes.close()

    asyncio.run(story())


def test_log_with_failed_flush_is_not_flushed_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next flush would succeed: the system has given the failed pages up."""

    async def story() -> None:
        flushes, log, other = made(), FakeLog(OSError("planted")), FakeLog()
        appended(flushes, log, other)
        await until_flushed(flushes)
        assert (log.failed, other.failed) == (True, False)
        appended(flushes, log, other)
        await until_flushed(flushes)
        assert (log.flushes, log.marked, other.marked) == (1, 0, 2)
        await flushes.close()

    asyncio.run(story())
    assert "A flush of t-0 to the disk failed: planted." in caplog.text


def test_failed_log_reopened_until_disk_recovers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flusher, "REOPEN_S", 0.01)
    left = [True, True, False]

    async def story() -> None:
        flushes, log = made(reopen=lambda: left.pop(0)), FakeLog(OSError("planted"))
        appended(flushes, log)
        await until_flushed(flushes)
        await until(lambda: not left)
        await asyncio.sleep(0.05)  # nobody asks again
        await flushes.close()

    asyncio.run(story())


def test_failed_log_not_reopened_during_flush_or_after_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The flush is of the old log, and might take the one error that the new one would see."""
    monkeypatch.setattr(flusher, "REOPEN_S", 0.01)
    asked: list[int] = []

    async def story() -> None:
        slow = FakeLog(OSError("planted"))
        flushes = made(reopen=lambda: bool(asked.append(slow.flushes)))  # type: ignore[func-returns-value]
        slow.gate.clear()
        appended(flushes, slow)
        flushes.when_flushed(lambda: None)
        flushes.heal()  # another one has failed
        await until(lambda: slow.begun)
        await asyncio.sleep(0.05)
        assert asked == []
        slow.gate.set()
        await until(lambda: asked)
        await asyncio.sleep(0.05)
        assert (asked, slow.failed) == ([1], True), "once, for both"
        slow.gate.clear()
        appended(flushes, other := FakeLog())
        other.gate.clear()
        flushes.when_flushed(lambda: None)
        flushes.heal()
        await until(lambda: other.begun)
        await asyncio.sleep(0.05)
        other.gate.set()
        await flushes.close()
        await asyncio.sleep(0.05)
        assert asked == [1], "nor when it is closed"

    asyncio.run(story())


def test_failed_row_flush_triggers_reopen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "REOPEN_S", 0.01)
    asked: list[bool] = []

    async def story() -> None:
        meta = FakeMeta(OSError("planted"))
        flushes = made(meta=meta, reopen=lambda: bool(asked.append(True)))  # type: ignore[func-returns-value]
        await until_flushed(flushes)
        await until(lambda: asked)
        await flushes.close()

    asyncio.run(story())


def test_rows_flushed_within_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "INTERVAL_S", 0.01)

    async def story() -> None:
        meta = FakeMeta()
        flushes = made(meta=meta)
        meta.written()
        await until(lambda: meta.flushes)
        await flushes.close()

    asyncio.run(story())


def test_deleted_log_does_not_keep_others_from_being_flushed() -> None:
    async def story() -> None:
        flushes, gone, log = made(), FakeLog(FileNotFoundError()), FakeLog()
        appended(flushes, gone, log)
        for _ in range(2):  # the second time there is nothing to do
            await until_flushed(flushes)
            assert (log.flushes, gone.failed) == (1, False)
        await flushes.close()

    asyncio.run(story())


def test_close_waits_for_running_flush_and_starts_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flusher, "INTERVAL_S", 0.01)

    async def story() -> None:
        flushes, log = made(), FakeLog()
        log.gate.clear()
        appended(flushes, log)
        flushes.when_flushed(lambda: None)
        appended(flushes, log)
        end = asyncio.ensure_future(flushes.close())
        await asyncio.sleep(0)
        assert not end.done()
        log.gate.set()
        await end
        assert log.flushes == 1
        await asyncio.sleep(0.05)
        assert log.flushes == 1

    asyncio.run(story())


def test_close_waits_for_flush_waiters_and_reopens_nothing_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A produce comes during a flush, and the broker is stopped; the flush after it fails."""
    monkeypatch.setattr(flusher, "REOPEN_S", 0.01)

    async def story() -> None:
        opened: list[bool] = []

        def reopen() -> bool:
            opened.append(True)
            return False

        flushes = made(reopen=reopen)
        first, log = FakeLog(), FakeLog(OSError("planted"))
        first.gate.clear()
        appended(flushes, first)
        flushes.when_flushed(lambda: None)
        appended(flushes, log)
        told: list[bool] = []
        flushes.when_flushed(lambda: told.append(log.failed))
        asyncio.get_running_loop().call_later(0.02, first.gate.set)
        await flushes.close()
        assert told == [True]
        await asyncio.sleep(0.05)
        assert not opened

    asyncio.run(story())
