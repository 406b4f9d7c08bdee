"""Brokers of the conversations: the embedded broker, and Apache Kafka."""

from collections.abc import Callable, Iterator

import pytest

from streamsx.testing import Broker
from tests.support.conversation import Conversation, Group


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("embedded") / "data") as broker:
        yield broker


@pytest.fixture(
    params=[
        "embedded",
        pytest.param(
            "kafka",
            marks=[pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(240)],
        ),
    ]
)
def talk(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Iterator[Conversation]:
    broker = request.getfixturevalue(request.param)
    with Conversation(broker.bootstrap, ours=isinstance(broker, Broker)) as talk:
        yield talk
        record_property("checks", len(talk.labels))
        assert talk.wrong == {}


@pytest.fixture
def group(talk: Conversation) -> Group:
    return Group(talk)
