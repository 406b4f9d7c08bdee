"""Workers whose broker is killed, closes connections or stops answering: they stay."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.process.conftest import SLOW_ON_KAFKA, gate_on_kafka
from tests.support.apache_kafka import ApacheKafka
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

LINES_PER_S = 400
NAMES = ("a", "b", "c")
SETTINGS = {"commit_interval": "300ms", "acceptable_recovery_lag": 100}
MOVES = ("assigned", "revoked", "lost", "learner_ready")
IDLE_S, BEAT_S, PAUSE_S = 1.0, 2.0, 3.0


def settle(workers: Workers, wordcount: WordCount) -> dict[str, set[str]]:
    """Wait until all tasks run, each worker has some and no move is due; return the tasks by
    worker.
    """

    def settled() -> bool:
        active = workers.active()
        last = [workers.events("assigned", of=name)[-1:] for name in active]
        return (
            sum(map(len, active.values())) == 2 * wordcount.partitions
            and all({task[:1] for task in tasks} == {"0", "1"} for tasks in active.values())
            and all(event and not event[0]["learner"] for event in last)
        )

    workers.until(settled, "settled")
    return workers.active()


def commits_of_all(workers: Workers, count: int) -> None:
    """Wait for a number of commits of each worker, from now on."""
    now = workers.now()
    for name in NAMES:
        workers.until_event("commit", of=name, since=now, count=count)


@contextmanager
def frozen(broker: EmbeddedBroker | ApacheKafka) -> Iterator[None]:
    assert broker.pid
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@SLOW_ON_KAFKA
def test_broker_kill_and_restart_moves_and_loses_nothing(
    broker: EmbeddedBroker | ApacheKafka, workers: Workers, wordcount: WordCount
) -> None:
    workers.start(*NAMES, **SETTINGS)
    wordcount.feed(LINES_PER_S)
    before = settle(workers, wordcount)
    for _ in range(2):
        commits_of_all(workers, 2)
        killed = workers.now()
        broker.kill()
        broker.start()
        commits_of_all(workers, 2)
        assert workers.active() == before
        moved = [e for e in workers.events(*MOVES) if e["mono"] > killed]
        assert not moved, "a member was taken out, or a task was moved"
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.counts() == wordcount.words
    assert workers.stop(*NAMES) == [0, 0, 0]


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_idle_connection_closes_do_not_disturb_workers(
    broker: EmbeddedBroker | ApacheKafka, workers: Workers, wordcount: WordCount
) -> None:
    """Heartbeats and input come so seldom that all connections but the fetcher's are closed in
    between.
    """
    broker.stop()
    broker.start(idle_s=IDLE_S)
    try:
        workers.start(*NAMES, heartbeat_interval=f"{BEAT_S}s", **SETTINGS)
        before = settle(workers, wordcount)
        calm = workers.now()
        for pauses in (1, 2):
            wordcount.send(200)
            workers.until(lambda: wordcount.drained, "drained")
            over = calm + pauses * PAUSE_S
            workers.until(lambda: workers.now() > over, "a pause")  # noqa: B023
        wordcount.send(200)
        workers.until(lambda: wordcount.drained, "drained")
        assert wordcount.counts() == wordcount.words
        assert workers.active() == before
        new = workers.events("rebalance_started", "error", *MOVES)
        assert [e for e in new if e["mono"] > calm] == []
        for name in NAMES:
            lines = workers.log(name).splitlines()
            loud = [line for line in lines if " INFO " not in line and "waiting for" not in line]
            assert not loud
        assert workers.stop(*NAMES) == [0, 0, 0]
    finally:
        broker.kill()  # who needs it next starts it without the limit


@gate_on_kafka("frozen_s", "longer", shorter=2.0, longer=6.0)
def test_workers_suspend_and_lose_nothing_while_the_broker_is_frozen(
    broker: EmbeddedBroker | ApacheKafka,
    workers: Workers,
    wordcount: WordCount,
    frozen_s: float,
) -> None:
    """The session timeout is 4 s."""
    workers.start(*NAMES, session_timeout="4s", **SETTINGS)
    wordcount.feed(LINES_PER_S)
    before = settle(workers, wordcount)
    commits_of_all(workers, 2)
    began = workers.now()
    with frozen(broker):
        workers.until(lambda: workers.now() > began + frozen_s, "the broker frozen")
    commits_of_all(workers, 3)
    allowed = sum(2 * workers.largest_commit(name) for name in NAMES)
    settle(workers, wordcount)
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    lost = workers.events("lost")
    assert wordcount.surplus() <= (allowed if lost else 0)
    if frozen_s < 4:
        assert not lost
        assert workers.active() == before
    assert workers.stop(*NAMES) == [0, 0, 0]
