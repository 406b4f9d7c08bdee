"""Batches that are damaged on the broker's disk: their reader waits there, and nothing
else does.
"""

from pathlib import Path

from streamsx.model import TopicPartition
from streamsx.protocol.record_batch import scan
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.wordcount import WordCount
from tests.support.workers import Workers


def damage(folder: Path, tp: TopicPartition, number: int) -> tuple[int, int]:
    """Flip the last byte of a batch; return the first offset of that batch and of the next one."""
    (log,) = (folder / "logs" / str(tp)).glob("*.log")
    data = bytearray(log.read_bytes())
    at, size, header = list(scan(data, check=True))[number]
    with log.open("r+b") as file:
        file.seek(at + size - 1)
        file.write(bytes([data[at + size - 1] ^ 1]))
    return header.base_offset, header.last_offset + 1


def test_damaged_batch_holds_only_one_partition_until_deleted(
    tmp_path: Path,
) -> None:
    with (
        EmbeddedBroker(tmp_path / "broker") as broker,
        WordCount(broker.bootstrap) as wordcount,
        Workers(broker.bootstrap, tmp_path / "workers", env=wordcount.env) as workers,
    ):
        for _ in range(3):
            wordcount.send(200)
        bad, *others = wordcount.lines
        start, behind = damage(tmp_path / "broker", bad, 1)
        workers.start("a", commit_interval="200ms")
        error = workers.until_event("error")
        assert error["where"] == f"{bad} at offset {start}"
        assert f"record batch at offset {start}: its checksum is not" in str(error["what"])
        assert "kafka-delete-records.sh" in str(error["what"])

        wordcount.send(400)
        ends = wordcount.client.ends(others)
        committed = wordcount.client.committed
        workers.until(lambda: committed(wordcount.app, others) == ends, "the others")
        assert committed(wordcount.app, [bad]) == {bad: start}

        wordcount.client.delete_records(bad, behind)
        workers.until(lambda: wordcount.drained, "drained")
        assert len(workers.events("error")) == 1
        assert workers.stop("a") == [0]


def test_task_with_a_damaged_changelog_waits_and_other_tasks_restore(
    tmp_path: Path,
) -> None:
    with (
        EmbeddedBroker(tmp_path / "broker") as broker,
        WordCount(broker.bootstrap) as wordcount,
        Workers(broker.bootstrap, tmp_path / "workers", env=wordcount.env) as workers,
    ):
        wordcount.send(200)
        workers.start("a", commit_interval="200ms")
        workers.until(lambda: wordcount.drained, "drained")
        assert workers.stop("a") == [0]
        start, _ = damage(tmp_path / "broker", wordcount.changelog[0], 0)

        workers.start("b", commit_interval="200ms")
        error = workers.until_event("error", of="b")
        assert error["where"] == f"{wordcount.changelog[0]} at offset {start}"
        wordcount.send(200)
        committed = wordcount.client.committed
        for some in wordcount.lines, wordcount.counted[1:]:  # first all lines, for they make words
            ends = wordcount.client.ends(some)
            workers.until(lambda: committed(wordcount.app, some) == ends, "the others")  # noqa: B023
        assert workers.active()["b"] == {
            *(f"0_{n}" for n in range(4)),
            *(f"1_{n}" for n in range(1, 4)),
        }
        assert len(workers.events("error", of="b")) == 1
        assert workers.stop("b") == [0]
