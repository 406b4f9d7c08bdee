"""Kafka's own clients, and Kafka Streams, from Maven: unmodified, in a JVM of their own."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamsx.spark.maven import JarsMissing, jars
from streamsx.testing import Broker
from tests.support.apache_kafka import JAVA

JAVA_S = 90.0
SOURCES = Path(__file__).parent / "java"

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.xdist_group("kafka"),
    pytest.mark.timeout(120),
]

Clients = Callable[..., list[str]]


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With the clients, compiled."""
    if not (javac := shutil.which("javac")):
        pytest.skip("needs javac on PATH")
    try:
        found = jars(SOURCES / "pom.xml")
    except JarsMissing as missing:
        pytest.skip(str(missing))
    made = tmp_path_factory.mktemp("classes")
    subprocess.run(
        [javac, "-cp", f"{found}/*", "-d", str(made), str(SOURCES / "Clients.java")],
        check=True, timeout=JAVA_S,
    )  # fmt: skip
    return f"{made}:{found}/*"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", topics={"t": 4, "lines": 2, "counts": 2}) as broker:
        yield broker


@pytest.fixture
def clients(class_path: str, broker: Broker) -> Clients:
    """What they print."""

    def run(what: str, *options: str) -> list[str]:
        command = [*JAVA, "-cp", class_path, "Clients", what, broker.bootstrap, *options]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=JAVA_S)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"
COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"


@pytest.mark.parametrize("assignor", [RANGE, COOPERATIVE], ids=["range", "cooperative"])
def test_consumers_share_a_topic(clients: Clients, assignor: str) -> None:
    told = clients(
        "consumers", f"partition.assignment.strategy={assignor}", "heartbeat.interval.ms=100"
    )
    assert told == ["read 100", "shared", "alone again, committed 100 of 100"]


def test_an_admin_administers(clients: Clients) -> None:
    assert clients("admin") == [
        "nodes 1", "again true", "partitions 3", "retention 6000", "end 5 newest 4", "start 2",
        "held 3 note", "groups 1", "group Empty", "topics [counts, lines, t]",
    ]  # fmt: skip


def test_streams_counts_words_and_goes_on(clients: Clients, tmp_path: Path) -> None:
    told = clients("streams", "processing.guarantee=at_least_once", f"state.dir={tmp_path}/state")
    assert told == ["counted {one=1, two=2}", "counted {one=2, three=1, two=3}"]
