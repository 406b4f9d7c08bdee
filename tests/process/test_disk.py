"""A disk that fills up under a running worker: the worker ends, and committed data is safe."""

import json
import resource
import sys

import pytest

from tests.support.wordcount import WordCount
from tests.support.workers import Workers

FILE_BYTES_MAX = 64 << 10
"""No file of it may grow beyond: to RocksDB that is as good as a full disk."""
LITTLE_S = 20.0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process")
@pytest.mark.parametrize("broker", ["embedded"], indirect=True)
def test_worker_with_a_full_disk_leaves_and_a_restart_continues(
    workers: Workers, wordcount: WordCount
) -> None:
    workers.start("a", commit_interval="200ms", log_level="warning")
    wordcount.feed(1000)
    workers.until_event("commit", of="a", count=2)

    limits = (FILE_BYTES_MAX, FILE_BYTES_MAX)
    resource.prlimit(workers.pid("a"), resource.RLIMIT_FSIZE, limits)
    assert workers.code("a") == 1

    lines = workers.log("a").splitlines()
    assert lines[-1].startswith("error: disk full or broken: ")
    assert "File too large: make room there" in lines[-1]
    assert not [line for line in lines if "Traceback" in line or "unexpected" in line]
    (left,) = workers.events("left", of="a")
    (failed,) = workers.events("error", of="a", where="worker")
    assert left["mono"] - failed["mono"] < LITTLE_S, json.dumps(failed)

    allowed = 2 * workers.largest_commit("a")
    workers.start("a")
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.surplus() <= allowed
    assert workers.stop("a") == [0]
