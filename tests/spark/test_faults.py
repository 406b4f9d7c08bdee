"""Kills at chosen moments, and torn files: state is exact, or nothing is written."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
import pytest

from streamsx.errors import IncompatibleStore, StreamsxError
from streamsx.model import TopicPartition
from streamsx.state.snapshot import manifest_name, newest, numbers
from streamsx.state.snapshot_files import open_files
from streamsx.testing import Broker
from streamsx.tools.cli.later import LateSession
from tests.spark.test_runner import APP, COUNTS, Feed, some
from tests.support.apache_kafka import ApacheKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]
LOOK_S: Final = 0.05


@pytest.fixture
def feed(spark: "SparkSession", tmp_path: Path) -> Iterator[Feed]:
    with Broker(topics=COUNTS) as broker:
        made = Feed(spark, broker, tmp_path)
        yield made
        made.client.close()


@pytest.mark.slow
def test_executors_killed_in_tasks_or_before_the_sink_change_nothing(feed: Feed) -> None:
    """Their state is made again, and is the same, from the state before."""
    feed.feed(*some(0), "kill", *some(40))
    out = feed.folder / "sent"
    command = [
        sys.executable, "-m", "tests.spark.cluster", APP, feed.uri, str(out), str(feed.folder),
        feed.broker.bootstrap,
    ]  # fmt: skip
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": os.getcwd()}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert feed.stored() == feed.truth()
    counted = Counter(each.value for each in feed.fed)
    sent = pq.read_table(out).to_pylist()
    wanted = [(word, b"%d" % n) for word, count in counted.items() for n in range(1, count + 1)]
    assert sorted((row["key"], row["value"]) for row in sent) == sorted(wanted)
    feed.feed(*some(80))
    feed.run()
    assert feed.stored() == feed.truth()


@pytest.mark.parametrize(
    "either",
    ["embedded", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.slow])],
    indirect=True,
)
@pytest.mark.slow
def test_driver_killed_between_changelogs_and_manifest_resumes_exactly(
    feed: Feed, either: Broker | ApacheKafka
) -> None:
    feed.on_kafka(either)
    log = "frail-seen-changelog"
    feed.feed(*some(0, 50))
    command = [
        sys.executable, "-m", "streamsx", "spark", "run", APP, "--state", feed.uri,
        "--available-now", "--max-records", "25", "--master", "local[2,4]",
        "--conf", "spark.driver.memory=1g", "--scratch", str(feed.folder),
    ]  # fmt: skip
    fault = {"STREAMSX_FAULT": "before_manifest:2", "BROKER_URL": either.bootstrap}
    killed = subprocess.run(
        command, env=os.environ | fault, check=False, capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert numbers(feed.files) == [0]

    def logged() -> dict[bytes | None, bytes]:
        read = [r for n in range(2) for r in feed.client.read(TopicPartition(log, n), 0)]
        return {k: v for k, v in {r.key: r.value for r in read}.items() if v is not None}

    def held_now() -> dict[bytes, bytes]:
        return {key[1:]: value for rows in feed.stored().values() for key, value in rows}

    truth = {key[1:]: value for rows in feed.truth().values() for key, value in rows}
    assert logged() == truth  # the second batch is there, and does not count
    same = list[bool]()  # whatever the batches after it are cut to, it leaves nothing there
    feed.run(
        max_records=10, sink="kafka", publishes=True,
        heard=lambda _: same.append(logged() == held_now()),
    )  # fmt: skip
    assert same == [True] * 3
    assert numbers(feed.files) == [0, 1, 2, 3]
    assert feed.stored() == feed.truth()
    assert logged() == truth
    held = newest(feed.files)
    assert held is not None
    for n, part in held.stores["seen"].partitions.items():
        end = feed.client.ends([TopicPartition(log, n)])[TopicPartition(log, n)]
        assert part.changelog_next is not None
        assert end - 1 <= part.changelog_next <= end  # behind both, but for a marker


Cli = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def cli(feed: Feed) -> Iterator[Cli]:
    """`streamsx spark run`, in a process of its own."""
    begun: list[subprocess.Popen[str]] = []

    def begin(*options: str, fault: str = "") -> "subprocess.Popen[str]":
        command = [
            sys.executable, "-m", "streamsx", "spark", "run", APP, "--state", feed.uri, "--json",
            "--no-publish", "--sink", "noop", "--max-records", "15", "--master", "local[2,4]",
            "--conf", "spark.driver.memory=1g", "--scratch", str(feed.folder), *options,
        ]  # fmt: skip
        # Executors of a cluster are in folders of their own.
        variables = {
            "STREAMSX_FAULT": fault, "BROKER_URL": feed.broker.bootstrap, "PYTHONPATH": os.getcwd(),
        }  # fmt: skip
        made = subprocess.Popen(
            command, env=os.environ | variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
        )  # fmt: skip
        begun.append(made)
        return made

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def ends_on(live: "subprocess.Popen[str]", feed: Feed, last: int) -> None:
    """A query that was sent SIGTERM: behind the batch `last`, with what it had in all."""
    out, said = live.communicate()
    assert live.returncode == 0, said
    result = json.loads(out.splitlines()[-1])
    assert result["number"] == numbers(feed.files)[-1] > last
    feed.run()
    assert feed.stored() == feed.truth()


def wait_behind(live: "subprocess.Popen[str]", feed: Feed, last: int) -> None:
    while max(numbers(feed.files), default=-1) <= last:
        with pytest.raises(subprocess.TimeoutExpired):  # it lives
            live.wait(LOOK_S)


@pytest.mark.slow
def test_query_killed_after_a_commit_resumes_and_ends_on_sigterm(feed: Feed, cli: Cli) -> None:
    """The query ends with exit code 0, when the running batch is over."""
    feed.feed(*some(0, 30))
    killed = cli("--available-now", fault="after_manifest:2")
    _, said = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, said
    assert numbers(feed.files) == [0, 1]
    feed.feed(*some(30, 20))
    live = cli("--every", "100ms")
    wait_behind(live, feed, 1)
    live.terminate()
    ends_on(live, feed, 1)


@pytest.mark.slow
def test_sigterm_to_driver_and_jvm_exits_0_without_the_batch(feed: Feed, cli: Cli) -> None:
    """The signal goes to both processes, as systemd sends it."""
    feed.feed(*some(0))
    live = cli("--every", "100ms")
    wait_behind(live, feed, -1)
    os.killpg(live.pid, signal.SIGTERM)
    ends_on(live, feed, -1)


@pytest.mark.slow
def test_killed_executor_loses_no_records(feed: Feed, cli: Cli) -> None:
    feed.feed(*some(0), "kill", *some(40), "kill", *some(80))
    live = cli("--available-now", "--master", "local-cluster[2,1,1024]")
    out, said = live.communicate()
    assert live.returncode == 0, said
    assert json.loads(out.splitlines()[-1])["records"] == len(feed.fed)
    assert feed.stored() == feed.truth()


def torn(folder: Path) -> None:
    for sst in (folder / "sst").rglob("*.sst"):
        sst.write_bytes(sst.read_bytes()[:-1])


def of_a_later_format(folder: Path) -> None:
    path = folder / manifest_name(0)
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":9', 1))


def cut_short(folder: Path) -> None:
    path = folder / manifest_name(0)
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.slow
def test_damaged_state_is_refused_and_nothing_is_written(feed: Feed) -> None:
    feed.feed(*some(0))
    feed.run()
    feed.feed(*some(40))
    made = feed.uri
    for spoil, kind, said in (
        (torn, StreamsxError, r"torn file in a snapshot: .*expected \d+ bytes .*found \d+ with"),
        (of_a_later_format, IncompatibleStore, "another format: .*expected 1, found 9"),
        (cut_short, IncompatibleStore, "not a manifest: "),
    ):
        copied = feed.folder / spoil.__name__  # nobody has opened its files
        shutil.copytree(made, copied)
        spoil(copied)
        feed.uri, feed.files = str(copied), open_files(str(copied))
        before = sorted(copied.rglob("*.*"))
        with pytest.raises(kind, match=said):
            feed.run()
        assert sorted(copied.rglob("*.*")) == before


def test_number_of_finished_tasks_is_reported_while_running(
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
    with LateSession({}, options, say) as later:
        later.say("reading")
        held = later.sparkContext.parallelize(range(3), 3)
        job = threading.Thread(target=held.foreach, args=[hold])
        job.start()
        assert told.wait(60), said
        with open(gate, "w"):
            job.join()
