"""Fixtures of real workers as processes, against Apache Kafka and the embedded broker.

`broker` is killed, started, stopped and frozen in the same way, whichever it is. Each test has an
app, state directories and files of its own. Only the brokers outlive a test: one Apache Kafka, and
one embedded broker for each process of pytest, because starting one takes half a CPU-second.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apache_kafka import ApacheKafka
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

ON_KAFKA = (pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(240))

SLOW_ON_KAFKA = pytest.mark.parametrize(
    "broker",
    ["embedded", pytest.param("kafka", marks=[*ON_KAFKA, pytest.mark.slow])],
    indirect=True,
)
"""Tests whose broker does nothing special: the gate runs them on the embedded one alone."""
SLOW_ON_EMBEDDED = pytest.mark.parametrize(
    "broker",
    [pytest.param("embedded", marks=pytest.mark.slow), pytest.param("kafka", marks=ON_KAFKA)],
    indirect=True,
)
"""Tests that the gate runs on Apache Kafka alone."""


def gate_on_kafka(name: str, on_kafka: str, **others: object) -> pytest.MarkDecorator:
    """Return cases of a test: the gate runs one of them on Apache Kafka, the others on the embedded
    broker.

    `just slow` runs every case on both.

    Args:
        name: Name of the parameter beside `broker`.
        on_kafka: Id of the case that runs on Apache Kafka.
        others: Values by the ids of all cases.
    """
    cases = [
        pytest.param(
            broker, value, id=f"{broker}-{case}",
            marks=[*(ON_KAFKA if broker == "kafka" else ()),
                   *([pytest.mark.slow] if (broker == "kafka") != (case == on_kafka) else [])],
        )
        for broker in ("embedded", "kafka")
        for case, value in others.items()
    ]  # fmt: skip
    return pytest.mark.parametrize(("broker", name), cases, indirect=["broker"])


def code_of(commit: str, folder: Path) -> Path:
    """Write the code of a commit into a folder, and return it; skip the test without a git
    history.
    """
    top = Path(__file__).parents[2]
    archive = subprocess.run(["git", "archive", commit], cwd=top, check=False, capture_output=True)
    if archive.returncode:
        pytest.skip(f"no history: {archive.stderr.decode()}")
    subprocess.run(["tar", "-x"], cwd=folder, check=True, input=archive.stdout)
    return folder


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("embedded") / "broker") as embedded:
        yield embedded


@pytest.fixture(scope="session")
def kafka_of_v1(
    kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheKafka]:
    """Return an Apache Kafka whose transactional producers keep their epoch, as before KIP-890."""
    home = tmp_path_factory.mktemp("kafka-of-v1")
    with ApacheKafka(kafka_jars, home, features={"transaction.version": 1}) as node:
        yield node


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=ON_KAFKA)])
def broker(request: pytest.FixtureRequest) -> EmbeddedBroker | ApacheKafka:
    """Return a running broker, whatever the test before did to it.

    Either kind has `kill`, `start(idle_s=...)`, `restart` and `pid`.
    """
    found: EmbeddedBroker | ApacheKafka = request.getfixturevalue(request.param)
    if found.pid is None:
        found.start()
    return found


@pytest.fixture
def wordcount(
    request: pytest.FixtureRequest, broker: EmbeddedBroker | ApacheKafka
) -> Iterator[WordCount]:
    """Return a word count over 4 partitions, or as many as the test asks for."""
    with WordCount(broker.bootstrap, partitions=getattr(request, "param", 4)) as wordcount:
        yield wordcount


@pytest.fixture
def workers(
    broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount, tmp_path: Path
) -> Iterator[Workers]:
    """Return workers of the word count, not started yet.

    They send heartbeats six times as often as by default: a group of three settles in 2 s, not 10
    s.
    """
    env = {"STREAMSX_HEARTBEAT_INTERVAL": "500ms", **wordcount.env}
    with Workers(broker.bootstrap, tmp_path / "workers", env=env) as workers:
        yield workers
