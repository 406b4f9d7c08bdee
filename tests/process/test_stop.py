"""SIGTERM at any moment: the worker ends in time, with the exit code that says how."""

import os
import signal
from pathlib import Path

import pytest

from tests.process.conftest import SLOW_ON_KAFKA
from tests.support.apache_kafka import ApacheKafka
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

STUBBORN = """
import asyncio
import os
import time
import streamsx

app = streamsx.App("stubborn", shutdown_timeout="2s")

async def goes_on():
    while True:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            pass

@app.task
async def job():
    print("begun", flush=True)
    await (goes_on() if os.environ["KIND"] == "task" else asyncio.to_thread(time.sleep, 100))
"""
LITTLE_S = 20.0
"""Beside its limit: one last commit of 5 s, closing, a busy machine. Less than the 25 s of
`shutdown_timeout`."""


@SLOW_ON_KAFKA
def test_worker_waiting_for_the_broker_stops_at_once(
    broker: EmbeddedBroker | ApacheKafka, workers: Workers
) -> None:
    broker.kill()
    workers.start("a")
    workers.until_event("worker_started")
    assert workers.stop("a", timeout_s=LITTLE_S) == [0]


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_worker_not_yet_in_the_group_stops_at_once(workers: Workers) -> None:
    for moment in range(6):
        name = f"w{moment}"
        workers.start(name)
        started = workers.until_event("worker_started", of=name)["mono"]
        workers.until(lambda: workers.now() > started + moment * 0.1, "a moment")  # noqa: B023
        assert workers.stop(name, timeout_s=LITTLE_S) == [0], workers.log(name)


@SLOW_ON_KAFKA
def test_second_signal_ends_the_worker_at_once(workers: Workers, wordcount: WordCount) -> None:
    """The first signal waits for a learner that never catches up."""
    wordcount.feed(500)
    workers.start("a", acceptable_recovery_lag=0)
    workers.until_event("commit", of="a", count=2)
    workers.start("b", acceptable_recovery_lag=0)
    workers.until_event("assigned", of="b")
    workers.signal("a", signal.SIGTERM)
    workers.until_event("leaving", of="a")
    assert workers.stop("a", timeout_s=LITTLE_S) == [0]
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.counts() == wordcount.words


@SLOW_ON_KAFKA
def test_worker_stops_in_time_without_the_broker_and_loses_nothing(
    broker: EmbeddedBroker | ApacheKafka, workers: Workers, wordcount: WordCount
) -> None:
    wordcount.feed(500)
    workers.start("a", shutdown_timeout="2s", commit_interval="200ms")
    workers.until_event("commit", count=3)
    broker.kill()
    (code,) = workers.stop("a", timeout_s=2 + LITTLE_S)
    assert code in (0, 1), "1 if something was not committed"
    broker.start()
    wordcount.enough()
    assert len(wordcount.client.members(wordcount.app)) == 1, "a member that nobody could remove"
    workers.start("a", commit_interval="200ms")
    workers.until(lambda: wordcount.drained, "drained")
    assert workers.stop("a") == [0]
    assert wordcount.surplus() <= 2 * workers.largest_commit("a")


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_worker_stops_in_time_while_the_broker_does_not_answer(
    broker: EmbeddedBroker | ApacheKafka, workers: Workers, wordcount: WordCount
) -> None:
    wordcount.feed(500)
    workers.start("a", shutdown_timeout="2s", commit_interval="60s")
    workers.until_event("first_record", count=2 * wordcount.partitions)
    assert broker.pid
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        assert workers.stop("a", timeout_s=2 + LITTLE_S) == [1]
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.parametrize("kind", ["task", pytest.param("thread", marks=pytest.mark.slow)])
def test_user_code_that_does_not_end_is_left_behind(tmp_path: Path, kind: str) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"PYTHONPATH": path, "KIND": kind}
    with (
        EmbeddedBroker(tmp_path / "broker") as broker,
        Workers(broker.bootstrap, tmp_path / "workers", app="stubborn", env=env) as workers,
    ):
        workers.start("a")
        workers.until(lambda: "begun" in workers.log("a"), "begun")
        assert workers.stop("a", timeout_s=2 + LITTLE_S) == [0]
        named = "stubborn.job at " if kind == "task" else "threads ['asyncio_0']"
        assert f"Left behind: {named}" in workers.error("a")
