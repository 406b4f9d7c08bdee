"""Workers that are killed, at random moments and at crash points: no record is lost.

Under at-least-once a killed worker's records since its last commit are processed again. So a count
may be too high by these, and never too low.
"""

import pytest

from tests.process.conftest import SLOW_ON_EMBEDDED, SLOW_ON_KAFKA
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

LINES_PER_S = 800
COMMIT = "400ms"


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_killed_and_restarted_worker_loses_nothing(workers: Workers, wordcount: WordCount) -> None:
    workers.start("a", "b", "c", commit_interval=COMMIT, acceptable_recovery_lag=100)
    wordcount.feed(LINES_PER_S)
    for name in ("a", "b", "c"):
        workers.until_event("commit", of=name, count=3)
    allowed = 0
    for name in ("a", "b", "c"):
        workers.until_event("commit", of=name, since=workers.now(), count=2)
        committed = wordcount.committed()
        workers.kill(name)
        allowed += wordcount.uncommitted(committed, workers.held(name))
        killed = workers.now()
        workers.start(name, commit_interval=COMMIT, acceptable_recovery_lag=100)
        workers.until_event("commit", of=name, since=killed, count=2)
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.surplus() <= allowed
    assert workers.stop("a", "b", "c") == [0, 0, 0]


@SLOW_ON_EMBEDDED
def test_other_workers_take_over_from_a_killed_worker(
    workers: Workers, wordcount: WordCount
) -> None:
    short = {"session_timeout": "3s", "commit_interval": COMMIT}
    workers.start("a", "b", "c", **short)
    wordcount.feed(LINES_PER_S)
    for name in ("a", "b", "c"):
        workers.until_event("commit", of=name, count=3)
    committed = wordcount.committed()
    workers.kill("b")
    allowed = wordcount.uncommitted(committed, workers.held("b"))

    def taken_over() -> bool:
        active = workers.active()
        return len(active["a"] | active["c"]) == 2 * wordcount.partitions

    workers.until(taken_over, "taken over")
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.surplus() <= allowed
    assert workers.stop("a", "c") == [0, 0]


POINTS = {
    "processing:100": COMMIT,
    "after_seal:3": COMMIT,
    "after_flush:3": COMMIT,
    "during_restore": COMMIT,
    "before_adopt:3": COMMIT,
    "during_write": "1s",
    "after_write:3": COMMIT,
}
"""With commit intervals; a store is written in several batches if there are many rows."""


@pytest.mark.parametrize("wordcount", [1], indirect=True)
@SLOW_ON_KAFKA
def test_a_worker_killed_at_any_point_of_a_commit_or_restore_loses_nothing(
    workers: Workers, wordcount: WordCount
) -> None:
    workers.start("a", commit_interval=COMMIT)
    wordcount.feed(LINES_PER_S)
    workers.until_event("commit", count=3)
    assert workers.stop("a") == [0]
    allowed = 0
    for point, interval in POINTS.items():
        workers.start("a", fault=point, commit_interval=interval)
        assert workers.code("a") == -9, f"{point} was not reached"
        allowed += wordcount.uncommitted(wordcount.committed())
    wordcount.enough()
    workers.start("a", commit_interval=COMMIT)
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.surplus() <= allowed
    assert workers.stop("a") == [0]
