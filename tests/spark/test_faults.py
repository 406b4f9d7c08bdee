"""State that is spoilt is refused before anything is written; and what people hear meanwhile."""

import os
import shutil
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamsx.errors import IncompatibleStore, StreamsxError
from streamsx.state.snapshot import manifest_name
from streamsx.state.snapshot_files import open_files
from streamsx.testing import Broker
from streamsx.tools.spark import COMMANDS, Later
from tests.spark.test_runner import COUNTS, Feed, some

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(240)]


@pytest.fixture
def feed(spark: "SparkSession", tmp_path: Path) -> Iterator[Feed]:
    with Broker(topics=COUNTS) as broker:
        made = Feed(spark, broker, tmp_path)
        yield made
        made.client.close()


def torn(folder: Path) -> None:
    for sst in (folder / "sst").rglob("*.sst"):
        sst.write_bytes(sst.read_bytes()[:-1])


def of_a_later_format(folder: Path) -> None:
    path = folder / manifest_name(0)
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":9', 1))


def cut_short(folder: Path) -> None:
    path = folder / manifest_name(0)
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("spoil", "kind", "said"),
    [
        (torn, StreamsxError, r"torn file in a snapshot: .*expected \d+ bytes .*found \d+ with"),
        (of_a_later_format, IncompatibleStore, "another format: .*expected 1, found 9"),
        (cut_short, IncompatibleStore, "not a manifest: "),
    ],
)
def test_what_is_spoilt_is_refused_and_nothing_is_written(
    feed: Feed, spoil: Callable[[Path], None], kind: type[Exception], said: str
) -> None:
    feed.feed(*some(0))
    feed.run()
    feed.feed(*some(40))
    copied = feed.folder / "copied"  # nobody has opened its files
    shutil.copytree(feed.uri, copied)
    spoil(copied)
    feed.uri, feed.files = str(copied), open_files(str(copied))
    before = sorted(copied.rglob("*.*"))
    with pytest.raises(kind, match=said):
        feed.run()
    assert sorted(copied.rglob("*.*")) == before


def test_how_many_tasks_are_done_is_told_while_they_run(
    spark: "SparkSession", tmp_path: Path
) -> None:
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    told, said = threading.Event(), list[str]()

    def say(text: str) -> None:
        said.append(text)
        if "reading: 1 of 3 tasks" in said:
            told.set()

    def hold(n: int) -> None:
        if n:
            with open(gate):  # until there is a writer
                pass

    options = Namespace(master=None, conf={}, debug=False)
    with Later(COMMANDS["compact"], options, say) as later:
        later.say("reading")
        held = later.sparkContext.parallelize(range(3), 3)
        job = threading.Thread(target=held.foreach, args=[hold])
        job.start()
        assert told.wait(60), said
        with open(gate, "w"):
            job.join()
