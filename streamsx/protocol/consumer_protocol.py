"""What members of a consumer group tell each other through the coordinator, which reads none of it.

A Subscription travels in JoinGroup, an Assignment in SyncGroup (KIP-429 owned partitions, KIP-792
their generation, KIP-881 rack). Versions 0 to 3 are read, a newer one as 3, for they only grow at
the end; subscriptions are written as 3, assignments as 0, which every client can read. What the
user data say is the assignor's.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from streamsx.model import Buffer, TopicPartition
from streamsx.protocol.wire import by_topic, load, record_decoder, record_encoder

PROTOCOL_TYPE = "consumer"
PROTOCOL_TYPES = (PROTOCOL_TYPE, "stream")
NO_GENERATION = -1

SUBSCRIPTION, ASSIGNMENT = ("subscription", 3), ("assignment", 0)
"""What they are called, and the version that is written."""


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
        return _codec(*SUBSCRIPTION)[0](body)

    @classmethod
    def read(cls, data: Buffer) -> "Subscription":
        """Raises Malformed and nothing else."""
        said = _codec(*SUBSCRIPTION)[1](data)
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
        return _codec(*ASSIGNMENT)[0](body)

    @classmethod
    def read(cls, data: Buffer) -> "Assignment":
        """No bytes at all are no partitions: what SyncGroup answers a member that the leader left
        out. Raises Malformed and nothing else.
        """
        if not data:
            return cls()
        said = _codec(*ASSIGNMENT)[1](data)
        return cls(_partitions(said.assigned_partitions), said.user_data or b"")


def _by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return by_topic(((tp, tp.partition) for tp in sorted(partitions)), "topic")


def _partitions(topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(t.topic, partition) for t in topics for partition in t.partitions)


ToBytes = Callable[[dict[str, Any]], bytes]
FromBytes = Callable[[Buffer], Any]


@cache
def _codec(name: str, newest: int) -> tuple[ToBytes, FromBytes]:
    """Made when it is first needed, for that is when kio's schemas are imported."""
    schemas = {v: load(f"consumer_protocol_{name}", v, "data") for v in range(newest + 1)}
    return record_encoder(schemas[newest], newest), record_decoder(schemas, newer=True)
