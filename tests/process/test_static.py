"""Static members: a worker that is restarted keeps its tasks, and the other workers see no
rebalance.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.conftest import SLOW_ON_KAFKA, gate_on_kafka
from tests.support.apache_kafka import ApacheKafka
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

LINES_PER_S = 400
SETTINGS = {"static_membership": "true", "commit_interval": "400ms", "session_timeout": "20s"}


def at_rest(workers: Workers, wordcount: WordCount) -> bool:
    """Wait until the group is stable and each worker runs its tasks.

    A worker that is stopped in a rebalance comes back in that rebalance, so waiting for learners
    alone is not enough.
    """
    runs = [len(tasks) for tasks in workers.active().values()]
    return sum(runs) == 2 * wordcount.partitions and max(runs) - min(runs) <= 1


def begun(workers: Workers, wordcount: WordCount, *names: str) -> None:
    workers.start(*names, **SETTINGS)
    wordcount.feed(LINES_PER_S)
    workers.until(lambda: at_rest(workers, wordcount), "all tasks run, on all")
    for name in names:
        workers.until_event("commit", of=name, count=3)


def runs_again(workers: Workers, name: str, tasks: set[str]) -> bool:
    return workers.held(name) >= tasks


@gate_on_kafka("killed", "killed", stopped=False, killed=True)
def test_static_member_keeps_tasks_over_a_bounce_without_revocations(
    workers: Workers, wordcount: WordCount, killed: bool
) -> None:
    begun(workers, wordcount, "a", "b", "c")
    held, committed = workers.held("b"), wordcount.committed()
    gone = workers.now()
    if killed:
        workers.kill("b")
    else:
        assert workers.stop("b") == [0], workers.log("b")
    allowed = wordcount.uncommitted(committed, held) if killed else 0
    workers.until_event("commit", of="a", since=workers.now(), count=3)
    assert not [e for e in workers.events("rebalance_started") if e["mono"] > gone]
    back = workers.now()

    workers.start("b", **SETTINGS)

    workers.until(lambda: runs_again(workers, "b", held), "b runs what it ran")
    workers.until_event("rebalance_started", of="b", reason="static return", since=back)
    workers.until_event("commit", of="b", since=back, count=3)
    later = [e for e in workers.events("revoked", "lost") if e["mono"] > back]
    assert not later
    assert not [e for e in workers.events("leaving", "left", of="b") if e["mono"] > back]
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.surplus() <= allowed


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_leave_tool_removes_a_static_member_for_good(
    workers: Workers, wordcount: WordCount, broker: EmbeddedBroker | ApacheKafka
) -> None:
    begun(workers, wordcount, "a", "b")
    workers.all["b"].expected = True
    where = ["--app", wordcount.app, "--bootstrap", broker.bootstrap, "--instances", "b"]

    subprocess.run([sys.executable, "-m", "streamsx", "leave", *where], check=True)

    assert workers.code("b") == 0
    workers.until(lambda: len(workers.held("a")) == 2 * wordcount.partitions, "a runs everything")
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.counts() == wordcount.words
    assert workers.stop("a") == [0]


@SLOW_ON_KAFKA
def test_first_worker_with_a_duplicate_instance_id_is_fenced_and_ends(
    workers: Workers, wordcount: WordCount, broker: EmbeddedBroker | ApacheKafka, tmp_path: Path
) -> None:
    begun(workers, wordcount, "a", "b")
    env = {"STREAMSX_HEARTBEAT_INTERVAL": "500ms", **wordcount.env}
    with Workers(broker.bootstrap, tmp_path / "elsewhere", env=env) as others:
        others.start("b", **SETTINGS)

        assert workers.code("b") == 1

        assert "FENCED_INSTANCE_ID" in workers.log("b")
        assert "give each an --instance-id of its own" in workers.error("b")
        others.until_event("commit", of="b", count=3)
        assert others.stop("b") == [0]
