"""Workers on three real brokers, which are restarted one after the other, and of which one dies.

Leaders move back to their preferred brokers as soon as these are back. So the coordinator of the
group moves while its old broker lives, and closes no connection.
"""

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Self

import pytest

from streamsx.clock import SystemClock
from streamsx.model import TopicPartition
from tests.support.apache_kafka import ApacheCluster
from tests.support.client import Client
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.xdist_group("kafka"),
    pytest.mark.timeout(240),
]
LINES_PER_S = 300
LOOK_EVERY_S = 0.2
STANDS_S = 12.0
"""Of which as much passes as the session of a broker that was killed has left: 7 to 9 s by default,
3 to 5 s where there is little time.
"""


class Commits:
    """Committed offsets of a group, seen from outside. A context manager; it asks in a thread."""

    def __init__(self, bootstrap: str, group: str, tps: list[TopicPartition]) -> None:
        self._client, self._group, self._tps = Client(bootstrap), group, tps
        self._clock = SystemClock()
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="commits")
        self._failed: BaseException | None = None
        self.advances: dict[TopicPartition, list[float]] = {tp: [] for tp in tps}
        """Monotonic seconds of each look that found more than the one before."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()
        self._client.close()
        if self._failed is not None:
            raise self._failed

    def _watch(self) -> None:
        before: dict[TopicPartition, int] = {}
        try:
            while not self._enough.wait(LOOK_EVERY_S):
                found = self._client.committed(self._group, self._tps)
                now = self._clock.now()
                for tp, offset in found.items():
                    if offset > before.get(tp, -1):
                        self.advances[tp].append(now)
                before = found
        except BaseException as error:  # whatever it is, the test has to know
            self._failed = error

    def all_since(self, moment: float) -> bool:
        """Return whether each partition has advanced since."""
        return all(times and times[-1] > moment for times in self.advances.values())

    def pauses(self) -> dict[str, float]:
        """Return the longest time between two advances of each partition."""
        return {
            str(tp): round(max(b - a for a, b in pairwise(times)), 1)
            for tp, times in self.advances.items()
        }


@pytest.fixture(params=[5.0, 9.0])
def cluster(
    request: pytest.FixtureRequest, kafka_jars: Path, tmp_path: Path
) -> Iterator[ApacheCluster]:
    with ApacheCluster(kafka_jars, tmp_path / "cluster", session_s=request.param) as cluster:
        yield cluster


@pytest.fixture
def wordcount(cluster: ApacheCluster) -> Iterator[WordCount]:
    with WordCount(cluster.bootstrap) as wordcount:
        yield wordcount


@pytest.fixture
def workers(cluster: ApacheCluster, wordcount: WordCount, tmp_path: Path) -> Iterator[Workers]:
    with Workers(cluster.bootstrap, tmp_path / "workers", env=wordcount.env) as workers:
        yield workers


def test_workers_survive_rolling_broker_restart_and_coordinator_death(
    cluster: ApacheCluster, wordcount: WordCount, workers: Workers
) -> None:
    names = ("a", "b", "c")
    workers.start(*names, commit_interval="500ms")
    wordcount.feed(LINES_PER_S)
    for name in names:
        workers.until_event("commit", of=name, count=3)
    workers.until(
        lambda: sum(map(len, workers.active().values())) == 2 * wordcount.partitions, "all run"
    )

    moved_away = 0
    with Commits(
        cluster.bootstrap, wordcount.app, [*wordcount.lines, *wordcount.counted]
    ) as commits:

        def go_on(what: str) -> None:
            now = workers.now()
            workers.until(lambda: commits.all_since(now), f"all go on: {what}")

        go_on("before anything happens")
        for number, node in cluster.brokers.items():
            node.restart()
            cluster.until_in_sync()
            left = cluster.coordinator(wordcount.app)
            cluster.elect_preferred()
            moved_away += left != cluster.coordinator(wordcount.app)
            go_on(f"broker {number} is back")
        coordinator = cluster.coordinator(wordcount.app)
        assert coordinator is not None
        cluster.brokers[coordinator].kill()
        go_on("the coordinator is dead")

    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert moved_away, "the coordinator never left a broker that lives"
    assert wordcount.counts() == wordcount.words
    assert not workers.events("lost", "error")
    assert max(commits.pauses().values()) < STANDS_S, commits.pauses()
    assert workers.stop(*names) == [0, 0, 0]
