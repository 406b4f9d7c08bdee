"""Workers that start with a snapshot: what they read, what they hold, and what a kill leaves."""

from pathlib import Path

import pytest
from rocksdict import Rdict

from streamsx.state.api import FORMAT, INDEX, ROW
from streamsx.state.rocks import RocksMemory, RocksRows, options
from tests.support.snapshots import chain_of, make
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

pytestmark = pytest.mark.parametrize("broker", ["embedded"], indirect=True)


def stored(workers: Workers, wordcount: WordCount, name: str) -> dict[int, dict[bytes, bytes]]:
    """Return all entries of the stores of a worker that has ended, by partition, and the layout at
    -1.
    """
    found: dict[int, dict[bytes, bytes]] = {}
    for partition in range(wordcount.partitions):
        path = workers.all[name].state / wordcount.app / "stores" / "counts" / str(partition)
        memory = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=1 << 20)
        layout = Rdict(str(path), options(memory))
        found[-1] = {b"": bytes(layout[FORMAT] or b"")}
        layout.close()
        rows = RocksRows(path, memory, found[-1][b""].decode())
        found[partition] = dict(rows.scan(ROW, INDEX))
        rows.close()
    return found


def counted(workers: Workers, wordcount: WordCount, name: str, lines: int) -> None:
    """Return the counts of one worker alone, from its start to its end."""
    workers.start(name, commit_interval="200ms")
    wordcount.send(lines)
    workers.until(lambda: wordcount.drained, "drained")
    assert workers.stop(name) == [0]


def snapshot(workers: Workers, wordcount: WordCount, name: str, folder: Path) -> str:
    """Make a snapshot of the changelogs as they are now."""
    uri = f"file://{folder}/snapshots"
    layout = stored(workers, wordcount, name)[-1][b""].decode()
    ends = wordcount.client.ends(wordcount.changelog)
    parts = {
        tp.partition: (chain_of((r.key, r.value) for r in wordcount.client.read(tp)), ends[tp])
        for tp in wordcount.changelog
    }
    counts = {tp.topic: wordcount.partitions for tp in wordcount.counted}
    make(uri, folder, wordcount.app, "counts", layout, parts, counts)
    return uri


def restored(workers: Workers, name: str) -> int:
    """Return the number of changelog records that each task restored, by its last event."""
    last = {e["task"]: e["restored"] for e in workers.events("restore_progress", of=name)}
    return sum(last.values())


def runs_all(workers: Workers, wordcount: WordCount, name: str) -> None:
    every = 2 * wordcount.partitions
    workers.until(lambda: len(workers.active()[name]) == every, f"{name} runs all")


def test_worker_loads_the_snapshot_and_replays_only_later_records(
    workers: Workers, wordcount: WordCount, tmp_path: Path
) -> None:
    counted(workers, wordcount, "a", 2000)
    uri = snapshot(workers, wordcount, "a", tmp_path)
    before = wordcount.client.ends(wordcount.changelog)
    counted(workers, wordcount, "a", 50)
    ends = wordcount.client.ends(wordcount.changelog)
    tail = sum(ends.values()) - sum(before.values())
    workers.start("b", snapshot=uri)
    runs_all(workers, wordcount, "b")
    assert len(workers.events("snapshot_fetched", of="b")) == wordcount.partitions
    assert 0 < restored(workers, "b") == tail < sum(before.values()) / 4
    assert workers.stop("b") == [0]
    workers.start("c")
    runs_all(workers, wordcount, "c")
    assert restored(workers, "c") == sum(ends.values())
    assert workers.stop("c") == [0]
    of = {name: stored(workers, wordcount, name) for name in "abc"}
    assert of["b"] == of["c"] == of["a"]
    assert sum(len(rows) for n, rows in of["b"].items() if n >= 0) == len(wordcount.words)


@pytest.mark.parametrize("wordcount", [1], indirect=True)
@pytest.mark.slow
def test_worker_killed_while_loading_a_snapshot_loads_again(
    workers: Workers, wordcount: WordCount, tmp_path: Path
) -> None:
    counted(workers, wordcount, "a", 500)
    uri = snapshot(workers, wordcount, "a", tmp_path)
    for nth in (2, 3):  # the first of two files is in; a chunk of the second is here
        workers.start("b", snapshot=uri, fault=f"during_snapshot:{nth}")
        assert workers.code("b") == -9, f"{nth} was not reached"
    workers.start("b", snapshot=uri)
    runs_all(workers, wordcount, "b")
    assert restored(workers, "b") == 0
    assert len(workers.events("snapshot_fetched", of="b")) == 1
    counted_again = wordcount.client.ends(wordcount.changelog)
    assert workers.stop("b") == [0]
    assert stored(workers, wordcount, "b") == stored(workers, wordcount, "a")
    assert wordcount.client.ends(wordcount.changelog) == counted_again
    assert list((workers.all["b"].state / wordcount.app / "trash").iterdir()) == []


@pytest.mark.parametrize("wordcount", [1], indirect=True)
def test_worker_reports_a_torn_snapshot_and_replays(
    workers: Workers, wordcount: WordCount, tmp_path: Path
) -> None:
    counted(workers, wordcount, "a", 500)
    uri = snapshot(workers, wordcount, "a", tmp_path)
    for sst in sorted(tmp_path.glob("snapshots/sst/counts/0/*"))[1:]:
        sst.write_bytes(sst.read_bytes()[:-1])
    workers.start("b", snapshot=uri)
    runs_all(workers, wordcount, "b")
    (told,) = workers.events("error", of="b")
    assert "torn file in a snapshot" in told["what"]
    assert restored(workers, "b") == sum(wordcount.client.ends(wordcount.changelog).values())
    assert workers.stop("b") == [0]
    assert stored(workers, wordcount, "b") == stored(workers, wordcount, "a")
