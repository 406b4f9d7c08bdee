"""Kafka's own clients, and Kafka Streams, from Maven: unmodified, in a JVM of their own."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamsx.broker.groups.group import GroupConfig
from streamsx.testing import Broker
from tests.support.apache_kafka import JAVA
from tests.support.maven import JarsMissing, jars

JAVA_S = 90.0
SOURCES = Path(__file__).parent / "java"

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.xdist_group("kafka"),
    pytest.mark.timeout(240),
]

Clients = Callable[..., list[str]]


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the class path with the clients, compiled."""
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
    groups = GroupConfig(consumer_heartbeat_interval_ms=100)
    topics = {"t": 4, "lines": 2, "counts": 2}
    with Broker(tmp_path / "data", topics=topics, groups=groups) as broker:
        yield broker


@pytest.fixture
def clients(class_path: str, broker: Broker) -> Clients:
    """Run the clients, and return their output."""

    def run(what: str, *options: str) -> list[str]:
        command = [*JAVA, "-cp", class_path, "Clients", what, broker.bootstrap, *options]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=JAVA_S)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


ASSIGNOR = "partition.assignment.strategy=org.apache.kafka.clients.consumer"
OF_CONSUMERS = {
    "range": (f"{ASSIGNOR}.RangeAssignor", "heartbeat.interval.ms=100"),
    "cooperative": (f"{ASSIGNOR}.CooperativeStickyAssignor", "heartbeat.interval.ms=100"),
    "consumer": ("group.protocol=consumer",),
}


@pytest.mark.parametrize("options", OF_CONSUMERS.values(), ids=list(OF_CONSUMERS))
def test_java_consumers_share_a_topic(clients: Clients, options: tuple[str, ...]) -> None:
    told = clients("consumers", *options)
    assert told == ["read 100", "shared", "alone again, committed 100 of 100"]


def test_java_transaction_is_atomic_and_zombie_producer_is_fenced(clients: Clients) -> None:
    told = clients("transactions")
    assert told == ["fenced ProducerFencedException", "read [committed]", "offset 1"]


def test_java_admin_manages_topics_records_and_groups(clients: Clients) -> None:
    assert clients("admin") == [
        "nodes 1", "again true", "partitions 3", "retention 6000", "end 5 newest 4", "start 2",
        "held 3 note", "groups 1", "group Empty", "topics [counts, lines, t]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "guarantee", [pytest.param("at_least_once", marks=pytest.mark.slow), "exactly_once_v2"]
)
def test_kafka_streams_counts_words_and_resumes(
    clients: Clients, guarantee: str, tmp_path: Path
) -> None:
    told = clients("streams", f"processing.guarantee={guarantee}", f"state.dir={tmp_path}/state")
    assert told == ["counted {one=1, two=2}", "counted {one=2, three=1, two=3}"]
