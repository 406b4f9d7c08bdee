"""One Apache Kafka for all tests that are marked `kafka`, in the one worker that runs them.

Tests make topics and groups of their own; one that stops the broker starts it again.
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
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(kafka_jars, tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
