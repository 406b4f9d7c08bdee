"""What an older commit left on disks goes on: a broker's directory, a worker's state, a snapshot.

`make_kept` made them. Worker a counted 120 lines and stopped. The snapshot is of that time.
Worker b counted 30 lines more, so state and snapshot both lie behind the changelog.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import Rdict

from streamsx.model import TopicPartition
from streamsx.state.api import FORMAT, INDEX, ROW
from streamsx.state.rocks import RocksMemory, RocksRows, options
from tests.golden.make_kept import APP, PARTITIONS, KeptWordCount, unpack
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.workers import Workers

KEPT_LINES, KEPT_WORDS, DISTINCT = 150, 600, 51
MORE_LINES = 45
COMMITTED = {
    "wc-kept-lines-0": 75,
    "wc-kept-lines-1": 75,
    "wc-kept-words-0": 225,
    "wc-kept-words-1": 375,
}
CHANGELOG_ENDS = (46, 46)
SNAPSHOT_ENDS = (25, 26)
TAIL = sum(CHANGELOG_ENDS) - sum(SNAPSHOT_ENDS)
"""Rows that worker b wrote behind the state and the snapshot."""
BESIDE = 'AQAAAaIbtaE9 {"i":"810cb6ce83b44c6db0ffcb0c02e6c4bd"}'
SOME_COUNTS = {"every": 150, "ünï-0": 23, '"q2"': 49, "word-0": 4, "word-39": 3}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(unpack("broker", tmp_path)) as broker:
        yield broker


@pytest.fixture
def wordcount(broker: EmbeddedBroker) -> Iterator[KeptWordCount]:
    """Word count that knows all kept words, by a replay of the kept lines."""
    with KeptWordCount(broker.bootstrap) as wordcount:
        wordcount.words = wordcount.replayed()
        yield wordcount


@pytest.fixture
def workers(broker: EmbeddedBroker, wordcount: KeptWordCount, tmp_path: Path) -> Iterator[Workers]:
    with Workers(broker.bootstrap, tmp_path / "workers", env=wordcount.env) as workers:
        yield workers


def stored(state: Path) -> Counter[str]:
    """Return the counts in the stores of a worker that has stopped."""
    found: Counter[str] = Counter()
    for partition in range(PARTITIONS):
        path = state / APP / "stores" / "counts" / str(partition)
        memory = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=1 << 20)
        db = Rdict(str(path), options(memory))
        layout = bytes(db[FORMAT] or b"").decode()
        db.close()
        rows = RocksRows(path, memory, layout)
        found.update(
            {key[2:-1].decode().replace('\\"', '"'): int(n) for key, n in rows.scan(ROW, INDEX)}
        )
        rows.close()
    return found


def counts_more(workers: Workers, wordcount: KeptWordCount, **settings: object) -> None:
    """Let worker a go on, count more lines and stop; find every count as a replay gives it."""
    workers.start("a", commit_interval="100ms", **settings)
    every = 2 * PARTITIONS
    workers.until(lambda: len(workers.active()["a"]) == every, "a runs all")
    assert wordcount.counts() == wordcount.words, "a task began where nobody had committed"
    wordcount.send(MORE_LINES)
    workers.until(lambda: wordcount.drained, "drained")
    assert workers.stop("a") == [0], workers.log("a")
    assert not workers.events("error", "lost")
    words = wordcount.replayed()
    assert words.total() == KEPT_WORDS + 4 * MORE_LINES
    assert wordcount.counts() == words
    assert stored(workers.all["a"].state) == words


def restored(workers: Workers) -> int:
    """Return how many changelog records the tasks of worker a applied."""
    last = {e["task"]: e["restored"] for e in workers.events("restore_progress", of="a")}
    return sum(last.values())


def test_kept_broker_serves_the_records_and_offsets_it_had(wordcount: KeptWordCount) -> None:
    client = wordcount.client
    assert sum(client.ends(wordcount.lines).values()) == KEPT_LINES
    assert wordcount.words.total() == KEPT_WORDS
    assert len(wordcount.words) == DISTINCT
    assert {word: wordcount.words[word] for word in SOME_COUNTS} == SOME_COUNTS
    assert {str(tp): at for tp, at in wordcount.committed().items()} == COMMITTED
    assert client.ends(wordcount.lines + wordcount.counted) == wordcount.committed()
    assert tuple(client.ends(wordcount.changelog).values()) == CHANGELOG_ENDS
    assert wordcount.counts() == wordcount.words


def test_kept_broker_has_the_text_beside_its_offsets(wordcount: KeptWordCount) -> None:
    assert wordcount.client.beside(APP, TopicPartition(f"{APP}-words", 0)) == BESIDE


def test_worker_on_the_kept_state_goes_on_and_counts_each_word_once(
    workers: Workers, wordcount: KeptWordCount, tmp_path: Path
) -> None:
    unpack("state", tmp_path).rename(tmp_path / "workers" / "a")
    counts_more(workers, wordcount)
    assert restored(workers) == TAIL


def test_worker_with_an_empty_directory_restores_the_kept_changelog_and_counts_each_word_once(
    workers: Workers, wordcount: KeptWordCount
) -> None:
    counts_more(workers, wordcount)
    assert restored(workers) == sum(CHANGELOG_ENDS)


def test_worker_given_the_kept_snapshot_restores_what_follows_and_counts_each_word_once(
    workers: Workers, wordcount: KeptWordCount, tmp_path: Path
) -> None:
    counts_more(workers, wordcount, snapshot=f"file://{unpack('snapshot', tmp_path)}")
    fetched = workers.events("snapshot_fetched", of="a")
    assert sorted(event["position"] for event in fetched) == sorted(SNAPSHOT_ENDS)
    assert restored(workers) == TAIL
