"""What the broker keeps beside the logs: its rows, as values and as bytes.

Groups and offsets have the bytes of Kafka's own GroupMetadataValue (version 4) and
OffsetCommitValue (version 3), so that they could be written to `__consumer_offsets` as they are.
What Kafka does not keep stands in tagged fields, which it skips. Joins under way and ids not yet
used are not here: after a crash their clients ask again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple

from streamsx.errors import StoreCorrupt
from streamsx.kafka.compiler import Malformed
from streamsx.kafka.wire import record_decoder, record_encoder


class GroupKey(NamedTuple):
    """The row of a group that ever had a member."""

    group: str


class OffsetKey(NamedTuple):
    """The row of one committed offset."""

    group: str
    topic: str
    partition: int


class TopicKey(NamedTuple):
    """The row of a topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class MemberValue:
    """One member as its last JoinGroup described it; timeouts in ms, as on the wire."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A generation, and with `synced` also what its leader assigned; members as they joined."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    synced: bool
    members: tuple[MemberValue, ...]


@dataclass(frozen=True, slots=True)
class OffsetValue:
    """Where to read on; `commit_timestamp` in unix ms."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int


@dataclass(frozen=True, slots=True)
class TopicValue:
    """A topic; `configs` are those that were set."""

    topic_id: bytes
    partitions: int
    configs: Mapping[str, str]


Key = GroupKey | OffsetKey
Value = GroupValue | OffsetValue
Committed = dict[tuple[str, int], OffsetValue]
"""What one group committed, by topic and partition."""


# How they travel: dataclasses in the style of kio's.

OURS = 10_000
"""The first of our tags, far from any that Kafka may still give away."""


def _is(kind: str, tag: int | None = None) -> Any:
    return field(metadata={"kafka_type": kind} | ({} if tag is None else {"tag": tag}))


@dataclass
class _Protocol:
    __flexible__: ClassVar[bool] = True
    name: str = _is("string")
    metadata: bytes = _is("bytes")


@dataclass
class _Member:
    __flexible__: ClassVar[bool] = True
    member_id: str = _is("string")
    group_instance_id: str | None = _is("string")
    client_id: str = _is("string")
    client_host: str = _is("string")
    rebalance_timeout: int = _is("int32")
    session_timeout: int = _is("int32")
    subscription: bytes = _is("bytes")
    assignment: bytes = _is("bytes")
    protocols: tuple[_Protocol, ...] = _is("", OURS)


@dataclass
class _Group:
    __flexible__: ClassVar[bool] = True
    protocol_type: str = _is("string")
    generation: int = _is("int32")
    protocol: str | None = _is("string")
    leader: str | None = _is("string")
    state_timestamp: int = _is("int64")
    members: tuple[_Member, ...] = _is("")
    synced: int = _is("int8", OURS)


@dataclass
class _Offset:
    __flexible__: ClassVar[bool] = False
    offset: int = _is("int64")
    leader_epoch: int = _is("int32")
    metadata: str = _is("string")
    commit_timestamp: int = _is("int64")


@dataclass
class _Config:
    __flexible__: ClassVar[bool] = True
    name: str = _is("string")
    value: str = _is("string")


@dataclass
class _Topic:
    __flexible__: ClassVar[bool] = True
    topic_id: bytes = _is("uuid")
    partitions: int = _is("int32")
    configs: tuple[_Config, ...] = _is("")


SCHEMAS = {b"G": (_Group, 4), b"O": (_Offset, 3), b"T": (_Topic, 0)}
"""By the first byte of the key: the schema of the value, and its version."""


def key_bytes(key: Key | TopicKey) -> bytes:
    """Parts behind NULs: topics have none in their names, so it can be read from the end."""
    kind = {GroupKey: "G", OffsetKey: "O", TopicKey: "T"}[type(key)]
    return "\0".join([kind, *map(str, key)]).encode()


def value_bytes(value: Value | TopicValue) -> bytes:
    """A version, and what it says."""
    match value:
        case GroupValue():
            members = [_member_body(member, value.protocol) for member in value.members]
            return _encoder(b"G")(_fields(value) | {"members": members})
        case OffsetValue():
            return _encoder(b"O")(_fields(value))
        case TopicValue():
            configs = [{"name": name, "value": v} for name, v in sorted(value.configs.items())]
            return _encoder(b"T")(_fields(value) | {"configs": configs})


def read_row(key: bytes, data: bytes) -> tuple[Key | TopicKey, Value | TopicValue]:
    """What key_bytes and value_bytes wrote. Raises StoreCorrupt for anything else."""
    try:
        kind, _, rest = key.partition(b"\0")
        found = _decoder(kind)(data)
        text = rest.decode()
        if kind == b"G":
            return GroupKey(text), _group(found)
        if kind == b"O":
            group, topic, partition = text.rsplit("\0", 2)
            at = OffsetKey(group, topic, int(partition))
            note, time = found.metadata, found.commit_timestamp
            return at, OffsetValue(found.offset, found.leader_epoch, note, time)
        configs = {config.name: config.value for config in found.configs}
        return TopicKey(text), TopicValue(found.topic_id, found.partitions, configs)
    except (KeyError, ValueError, Malformed) as error:
        raise StoreCorrupt(f"row {key!r} of the broker's metadata: {error}: not ours?") from error


def _fields(value: Value | TopicValue | MemberValue) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value)}


def _member_body(member: MemberValue, protocol: str | None) -> dict[str, Any]:
    offered = [{"name": name, "metadata": data} for name, data in member.protocols]
    subscription = dict(member.protocols).get(protocol or "", b"")
    return _fields(member) | {"subscription": subscription, "protocols": offered}


def _group(found: Any) -> GroupValue:
    members = tuple(
        MemberValue(
            m.member_id, m.group_instance_id, m.client_id, m.client_host, m.rebalance_timeout,
            m.session_timeout, tuple((p.name, p.metadata) for p in m.protocols), m.assignment,
        )
        for m in found.members
    )  # fmt: skip
    return GroupValue(
        found.protocol_type, found.generation, found.protocol, found.leader, found.state_timestamp,
        bool(found.synced), members,
    )  # fmt: skip


@cache
def _encoder(kind: bytes) -> Callable[[dict[str, Any]], bytes]:
    schema, version = SCHEMAS[kind]
    return record_encoder(schema, version)


@cache
def _decoder(kind: bytes) -> Callable[[bytes], Any]:
    schema, version = SCHEMAS[kind]
    return record_decoder({version: schema})
