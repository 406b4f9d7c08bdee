"""Two agents of one topic in real workers: one waits, fails or is repaired, the other
one counts.
"""

from contextlib import closing
from pathlib import Path

import pytest

from streamsx.model import TopicPartition
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.tasks.open_records import RECORD_PATIENCE_S
from streamsx.topology.nodes import reader_name
from tests.support.client import Client
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.workers import Workers

APP = """
import asyncio
import streamsx

app = streamsx.App("pairs", commit_interval="200ms")
words = app.topic("words")
counts = app.Table("counts", default=int)

@app.agent(words, name="other")
async def other(stream):
    async for word in stream:
        if word == "wait":
            await asyncio.sleep({wait_s})
        if word == "bad" and {broken}:
            raise ValueError(word)

@app.agent(words, name="healthy")
async def healthy(stream):
    async for word in stream:
        counts["n"] += 1
"""
WORDS, CHANGELOG = TopicPartition("words", 0), TopicPartition("pairs-counts-changelog", 0)


@pytest.mark.timeout(240)
def test_agent_beside_a_waiting_or_failing_agent_counts_each_record_once(tmp_path: Path) -> None:
    def write(wait_s: float, *, broken: bool = False) -> None:
        (tmp_path / "pairs.py").write_text(APP.format(wait_s=wait_s, broken=broken))

    def send(word: str, then: int) -> None:
        client.send(WORDS, [(None, f'"{each}"'.encode()) for each in [word, *["a"] * then]])

    def counted() -> int:
        return max((int(row.value or b"0") for row in client.read(CHANGELOG)), default=0)

    def finished(count: int) -> bool:
        return client.committed("pairs", [WORDS]) == {WORDS: count} and counted() == count

    def ahead() -> int:
        beside = OffsetMetadata.decode(client.beside("pairs", WORDS))
        return beside.readers.get(reader_name("healthy"), 0)

    with (
        EmbeddedBroker(tmp_path / "broker") as broker,
        Workers(broker.bootstrap, tmp_path, app="pairs") as workers,
        closing(Client(broker.bootstrap)) as client,
    ):
        client.create("words", 1)
        write(3600)
        workers.start("w")
        send("wait", 99)
        workers.until(ahead, "what was counted is committed, beside the offset of a record at hand")
        workers.kill("w")

        write(0)
        workers.start("w")
        workers.until(lambda: finished(100), "100 counted behind a kill")
        assert workers.stop("w") == [0]

        write(RECORD_PATIENCE_S + 8)
        workers.start("w")
        send("wait", 49)
        workers.until(ahead, "more is counted while the other one waits")
        assert workers.stop("w") == [0]
        assert client.committed("pairs", [WORDS]) == {WORDS: 101}, "its record is done at the end"

        write(0, broken=True)
        workers.start("w")
        workers.until(lambda: finished(150), "150 counted behind a clean end")
        for _ in range(10):
            send("bad", 0)
        workers.until_event("error", of="w")
        assert workers.stop("w") == [0]
        assert client.committed("pairs", [WORDS]) == {WORDS: 150}

        write(0)
        workers.start("w")
        workers.until(lambda: finished(160), "160 counted behind mended code")
        assert workers.stop("w") == [0]
