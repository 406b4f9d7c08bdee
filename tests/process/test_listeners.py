"""Rebalance listeners of an app: they see assigned and revoked partitions, and a revoke waits for
them.
"""

from pathlib import Path

import pytest

from tests.process.conftest import SLOW_ON_KAFKA
from tests.support.apache_kafka import ApacheKafka
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

LINES_PER_S = 300
WAIT_S = 0.7
LISTENING = f"""
import asyncio, os, sys
import streamsx
from streamsx.examples.wordcount import app

@app.on_assigned
def given(tps):
    print("given", sorted(map(str, tps)), flush=True)

@app.on_revoked
async def back(tps):
    await asyncio.sleep({WAIT_S})
    print("back", sorted(map(str, tps)), flush=True)
    if os.environ.get("STREAMSX_INSTANCE_ID") == "fails":
        raise ValueError("no such file")
"""


@pytest.fixture
def listening(
    broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount, tmp_path: Path
) -> Workers:
    folder = tmp_path / "listening"
    folder.mkdir()
    (folder / "listening.py").write_text(LISTENING)
    return Workers(broker.bootstrap, folder, app="listening:app", env=wordcount.env)


@SLOW_ON_KAFKA
def test_only_revoked_partitions_wait_for_the_revocation_listener(
    listening: Workers, wordcount: WordCount
) -> None:
    with listening as workers:
        workers.start("a", commit_interval="200ms")
        wordcount.feed(LINES_PER_S)
        workers.until_event("commit", of="a", count=3)
        workers.start("b", commit_interval="200ms")
        first = workers.until_event("first_record", of="b")
        closing = workers.events("task", of="a", task=first["task"], to="closing")[0]
        assert first["mono"] - closing["mono"] >= WAIT_S
        during = workers.events("commit", of="a")
        assert [c for c in during if closing["mono"] < c["mono"] < first["mono"]], "a goes on"
        assert "given" in workers.log("b")
        assert "back" in workers.log("a")
        workers.until(lambda: len(workers.active()["b"]) == wordcount.partitions, "even")
        wordcount.enough()
        workers.until(lambda: wordcount.drained, "drained")
        assert wordcount.counts() == wordcount.words
        assert workers.stop("a", "b") == [0, 0]


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_failing_listener_ends_the_worker_after_all_is_revoked(
    listening: Workers, wordcount: WordCount
) -> None:
    with listening as workers:
        workers.start("fails", commit_interval="200ms", instance_id="fails")
        wordcount.feed(LINES_PER_S)
        workers.until_event("commit", of="fails", count=3)
        workers.all["fails"].expected = True
        workers.start("b", commit_interval="200ms")
        assert workers.code("fails") == 1
        assert "callback failed: on_revoked back: ValueError: no such file" in workers.error(
            "fails"
        )
        workers.until(lambda: len(workers.active()["b"]) == 2 * wordcount.partitions, "taken over")
        wordcount.enough()
        workers.until(lambda: wordcount.drained, "drained")
        assert wordcount.counts() == wordcount.words
        assert workers.stop("b") == [0]
