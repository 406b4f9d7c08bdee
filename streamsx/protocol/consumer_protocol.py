"""Consumer protocol: messages between members of a group, which the coordinator passes on unread.

A Subscription travels in JoinGroup, an Assignment in SyncGroup (KIP-429 owned partitions, KIP-792
their generation, KIP-881 rack). Versions 0 to 3 are read. A newer version is read as 3, because
versions only grow at the end. Subscriptions are written as version 3, assignments as version 0,
which every client can read. Not here: the content of the user data (the assignor).
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

SUBSCRIPTION = ("subscription", 3)
"""Name of the schema, and the version that is written."""
ASSIGNMENT = ("assignment", 0)
"""Name of the schema, and the version that is written."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscription of a member: the topics that it wants and the partitions that it owns
    at the join.
    """

    topics: tuple[str, ...]
    user_data: bytes = b""
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    """Generation in which the member got its partitions; NO_GENERATION also for versions without
    the field.
    """
    rack: str | None = None
    """Rack of the member; None if the member sent none."""

    def write(self) -> bytes:
        """Encode, with topics and partitions sorted, so that equal subscriptions give
        equal bytes.
        """
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
        """Decode a subscription.

        Raises:
            Malformed: The bytes are no subscription. No other error is raised.
        """
        body = _codec(*SUBSCRIPTION)[1](data)
        return cls(
            topics=tuple(body.topics),
            user_data=body.user_data or b"",
            owned=_partitions(body.owned_partitions),
            generation=body.generation_id,
            rack=body.rack_id,
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """Assignment of a member, made by the leader."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes = b""

    def write(self) -> bytes:
        """Encode, with partitions sorted, so that equal assignments give equal bytes."""
        body = {"assigned_partitions": _by_topic(self.partitions), "user_data": self.user_data}
        return _codec(*ASSIGNMENT)[0](body)

    @classmethod
    def read(cls, data: Buffer) -> "Assignment":
        """Decode an assignment.

        Empty bytes are an empty assignment: SyncGroup sends them to a member that the leader left
        out.

        Raises:
            Malformed: The bytes are no assignment. No other error is raised.
        """
        if not data:
            return cls()
        body = _codec(*ASSIGNMENT)[1](data)
        return cls(_partitions(body.assigned_partitions), body.user_data or b"")


def _by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return by_topic(((tp, tp.partition) for tp in sorted(partitions)), "topic")


def _partitions(topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(t.topic, partition) for t in topics for partition in t.partitions)


ToBytes = Callable[[dict[str, Any]], bytes]
FromBytes = Callable[[Buffer], Any]


@cache
def _codec(name: str, newest: int) -> tuple[ToBytes, FromBytes]:
    """Build encoder and decoder on first use, since building them imports kio's schemas."""
    schemas = {v: load(f"consumer_protocol_{name}", v, "data") for v in range(newest + 1)}
    return record_encoder(schemas[newest], newest), record_decoder(schemas, newer=True)
