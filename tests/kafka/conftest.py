"""One Apache Kafka for all tests that are marked `kafka`, in the one worker that runs them.

Tests make topics and groups of their own; one that stops the broker may leave it so.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamsx.testing.apache_kafka import ApacheKafka
from streamsx.testing.jars import JarsMissing, jars

POM = Path(__file__).with_name("pom.xml")


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    try:
        return jars(POM)
    except JarsMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def kafka_node(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(kafka_jars, tmp_path_factory.mktemp("kafka")) as node:
        yield node


@pytest.fixture
def kafka(kafka_node: ApacheKafka) -> ApacheKafka:
    """Running, whatever the test before did to it."""
    if kafka_node.pid is None:
        kafka_node.start()
    return kafka_node
