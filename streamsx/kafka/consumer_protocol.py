"""What members of a consumer group tell each other through the coordinator, which reads none of it.

A Subscription travels in JoinGroup, an Assignment in SyncGroup (KIP-429 owned partitions, KIP-792
their generation, KIP-881 rack). Versions 0 to 3 are read, a newer one as 3, for they only grow at
the end; subscriptions are written as 3, assignments as 0, which every client can read. What the
user data say is the assignor's.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from streamsx.kafka.wire import SchemaKind, load, record_decoder, record_encoder
from streamsx.model import Buffer, TopicPartition

PROTOCOL_TYPE = "consumer"
NO_GENERATION = -1

SUBSCRIPTION_VERSION = 3
ASSIGNMENT_VERSION = 0


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants and holds when it joins."""

    topics: tuple[str, ...]
    user_data: bytes = b""
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    """In which it came to hold them; NO_GENERATION also for versions that do not tell."""
    rack: str | None = None
    """None if it did not say."""

    def write(self) -> bytes:
        """Topics and partitions sorted, so that equal subscriptions are equal bytes."""
        body = {
            "topics": sorted(self.topics),
            "user_data": self.user_data,
            "owned_partitions": _by_topic(self.owned),
            "generation_id": self.generation,
            "rack_id": self.rack,
        }
        return _subscription_encoder()(body)

    @classmethod
    def read(cls, data: Buffer) -> "Subscription":
        """Raises Malformed and nothing else."""
        said = _subscription_decoder()(data)
        return cls(
            topics=tuple(said.topics),
            user_data=said.user_data or b"",
            owned=_partitions(said.owned_partitions),
            generation=said.generation_id,
            rack=said.rack_id,
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the leader gives a member."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes = b""

    def write(self) -> bytes:
        """Partitions sorted, so that equal assignments are equal bytes."""
        body = {"assigned_partitions": _by_topic(self.partitions), "user_data": self.user_data}
        return _assignment_encoder()(body)

    @classmethod
    def read(cls, data: Buffer) -> "Assignment":
        """No bytes at all are no partitions: what SyncGroup answers a member that the leader left
        out. Raises Malformed and nothing else.
        """
        if not data:
            return cls()
        said = _assignment_decoder()(data)
        return cls(_partitions(said.assigned_partitions), said.user_data or b"")


def _by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partitions": [tp.partition for tp in group]}
        for topic, group in groupby(sorted(partitions), key=lambda tp: tp.topic)
    ]


def _partitions(topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(t.topic, partition) for t in topics for partition in t.partitions)


DATA: SchemaKind = "data"


@cache
def _subscription_encoder() -> Callable[[dict[str, Any]], bytes]:
    schema = load("consumer_protocol_subscription", SUBSCRIPTION_VERSION, DATA)
    return record_encoder(schema, SUBSCRIPTION_VERSION)


@cache
def _subscription_decoder() -> Callable[[Buffer], Any]:
    versions = range(SUBSCRIPTION_VERSION + 1)
    name = "consumer_protocol_subscription"
    return record_decoder({v: load(name, v, DATA) for v in versions}, newer=True)


@cache
def _assignment_encoder() -> Callable[[dict[str, Any]], bytes]:
    schema = load("consumer_protocol_assignment", ASSIGNMENT_VERSION, DATA)
    return record_encoder(schema, ASSIGNMENT_VERSION)


@cache
def _assignment_decoder() -> Callable[[Buffer], Any]:
    schema = load("consumer_protocol_assignment", ASSIGNMENT_VERSION, DATA)
    return record_decoder({ASSIGNMENT_VERSION: schema}, newer=True)
