"""Three workers of an older version go over to this one while records flow, one at a time."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamsx.testing.apache_kafka import ApacheKafka
from streamsx.testing.embedded_broker import EmbeddedBroker
from streamsx.testing.wordcount import WordCount
from streamsx.testing.workers import Workers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
OLD = "833c08b"
"""Before the world was simulated."""
TOP = Path(__file__).parents[2]
LINES_PER_S = 300


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with that commit."""
    folder = tmp_path_factory.mktemp("old")
    archive = subprocess.run(["git", "archive", OLD], cwd=TOP, check=False, capture_output=True)
    if archive.returncode:
        pytest.skip(f"no history: {archive.stderr.decode()}")
    subprocess.run(["tar", "-x"], cwd=folder, check=True, input=archive.stdout)
    return folder


@pytest.fixture
def old(
    broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount, tmp_path: Path, old_code: Path
) -> Iterator[Workers]:
    """As `workers`, with the same directories, of the older version."""
    env = {"STREAMSX_HEARTBEAT_INTERVAL": "500ms", **wordcount.env, "PYTHONPATH": str(old_code)}
    with Workers(broker.bootstrap, tmp_path / "workers", env=env) as workers:
        yield workers


def test_an_older_group_goes_over_one_worker_at_a_time(
    old: Workers, workers: Workers, wordcount: WordCount
) -> None:
    def settled() -> bool:
        tasks = [t for group in (old, workers) for some in group.active().values() for t in some]
        return len(tasks) == len(set(tasks)) == 2 * wordcount.partitions

    wordcount.feed(LINES_PER_S)
    old.start("a", "b", "c", commit_interval="400ms")
    for name in ("a", "b", "c"):
        old.until_event("commit", of=name, count=3)
    for name in ("a", "b", "c"):
        old.until(settled, "all tasks run")
        assert old.stop(name) == [0], old.log(name)
        began = workers.now()
        workers.start(name, commit_interval="400ms")
        workers.until_event("commit", of=name, since=began, count=3)
    workers.until(settled, "all tasks run")
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")

    assert wordcount.counts() == wordcount.words
    assert not workers.events("lost", "error")
    assert workers.stop("a", "b", "c") == [0, 0, 0]
