"""Rows of the broker's database, as values and as bytes.

Groups and offsets have the bytes of Kafka's own GroupMetadataValue (version 4) and
OffsetCommitValue (version 3), so that they could be written to `__consumer_offsets` unchanged.
Transactions have the bytes of TransactionLogValue (version 1).

Fields that Kafka does not store are tagged fields, which Kafka skips. Joins in progress and ids
that are not used yet are not stored: after a crash their clients ask again.
"""

from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, field
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform, get_type_hints
from urllib.parse import quote, unquote

from streamsx.errors import StoreCorrupt
from streamsx.protocol.compiler import Malformed
from streamsx.protocol.schema import fields
from streamsx.protocol.wire import record_decoder, record_encoder

OURS = 10_000
"""First tag of our own fields, far above any tag that Kafka may still assign."""
Described = TypeVar("Described")


class GroupKey(NamedTuple):
    """Key of the row of a group that ever had a member."""

    group: str


class OffsetKey(NamedTuple):
    """Key of the row of one committed offset."""

    group: str
    topic: str
    partition: int


class TransactionKey(NamedTuple):
    """Key of the row of a transactional id."""

    transactional_id: str


class TopicKey(NamedTuple):
    """Key of the row of a topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupKey:
    """Key of the row of a consumer-protocol group that ever had a member.

    This key and the next three are no tuples: tuples of different types are equal if their parts
    are equal.
    """

    group: str


@dataclass(frozen=True, slots=True)
class ConsumerMemberKey:
    """Key of the row of one member of a consumer-protocol group."""

    group: str
    member_id: str


class TargetKey(ConsumerMemberKey):
    """Key of the row of a member's target assignment."""


class CurrentKey(ConsumerMemberKey):
    """Key of the row of a member's current assignment."""


def _is(kind: str, tag: int | None = None) -> Any:
    """Return a field with its Kafka type as kio names it; empty for an array of structs."""
    return field(metadata={"kafka_type": kind} | ({} if tag is None else {"tag": tag}))


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def row_value(described: type[Described]) -> type[Described]:
    """Make a frozen dataclass, encoded with compact lengths and tagged fields at the end."""
    described.__flexible__ = True  # type: ignore[attr-defined]  # for `schema.Schema`
    return dataclass(frozen=True, slots=True)(described)


@row_value
class ProtocolValue:
    """Protocol that a member supports, with the metadata that the member sent for this protocol."""

    name: str = _is("string")
    metadata: bytes = _is("bytes")


@row_value
class MemberValue:
    """Member as described by its last JoinGroup; timeouts in ms, as on the wire.

    `subscription` is the member's metadata for the chosen protocol. Kafka stores no other metadata.
    """

    member_id: str = _is("string")
    group_instance_id: str | None = _is("string")
    client_id: str = _is("string")
    client_host: str = _is("string")
    rebalance_timeout: int = _is("int32")
    session_timeout: int = _is("int32")
    subscription: bytes = _is("bytes")
    assignment: bytes = _is("bytes")
    protocols: tuple[ProtocolValue, ...] = _is("", OURS)


@row_value
class GroupValue:
    """Generation of a group, with the members as they joined.

    With `synced` the members also have the assignments that the leader sent.
    """

    protocol_type: str = _is("string")
    generation: int = _is("int32")
    protocol: str | None = _is("string")
    leader: str | None = _is("string")
    state_timestamp: int = _is("int64")
    members: tuple[MemberValue, ...] = _is("")
    synced: bool = _is("bool", OURS)


@row_value
class ConsumerGroupValue:
    """Kafka's ConsumerGroupMetadataValue; Kafka stores `target_epoch` in a separate record."""

    epoch: int = _is("int32")
    target_epoch: int = _is("int32", OURS)


@row_value
class ClassicMemberValue:
    """Session timeout (ms) and protocols from a member's JoinGroup."""

    session_timeout: int = _is("int32")
    protocols: tuple[ProtocolValue, ...] = _is("")


@row_value
class ConsumerMemberValue:
    """Kafka's ConsumerGroupMemberMetadataValue; timeouts in ms.

    `classic` is set for members that speak JoinGroup.
    """

    group_instance_id: str | None = _is("string")
    rack_id: str | None = _is("string")
    client_id: str = _is("string")
    client_host: str = _is("string")
    topics: tuple[str, ...] = _is("string")
    regex: str | None = _is("string")
    rebalance_timeout: int = _is("int32")
    assignor: str | None = _is("string")
    classic: ClassicMemberValue | None = field(default=None, metadata={"tag": 0})


@row_value
class PlacesValue:
    """Partitions of one topic, and in parallel the epochs at which they were assigned.

    `epochs` is None in a record of a broker that knew no such epochs (KIP-1251).
    """

    topic_id: bytes = _is("uuid")
    partitions: tuple[int, ...] = _is("int32")
    epochs: tuple[int, ...] | None = field(default=None, metadata={"kafka_type": "int32", "tag": 0})


@row_value
class TargetValue:
    """Kafka's ConsumerGroupTargetAssignmentMemberValue."""

    places: tuple[PlacesValue, ...] = _is("")


@row_value
class CurrentValue:
    """Kafka's ConsumerGroupCurrentMemberAssignmentValue."""

    epoch: int = _is("int32")
    previous_epoch: int = _is("int32")
    state: int = _is("int8")
    assigned: tuple[PlacesValue, ...] = _is("")
    revoking: tuple[PlacesValue, ...] = _is("")


@dataclass(frozen=True, slots=True)
class OffsetValue:
    """Committed offset, at which a reader resumes; `commit_timestamp` in unix ms."""

    __flexible__: ClassVar[bool] = False
    offset: int = _is("int64")
    leader_epoch: int = _is("int32")
    metadata: str = _is("string")
    commit_timestamp: int = _is("int64")


@row_value
class TransactionTopicValue:
    """Partitions of one topic that belong to a transaction."""

    topic: str = _is("string")
    partition_ids: tuple[int, ...] = _is("int32")


@row_value
class StagedOffsetValue:
    """Offset that takes effect once its transaction is committed."""

    topic: str = _is("string")
    partition: int = _is("int32")
    offset: int = _is("int64")
    leader_epoch: int = _is("int32")
    metadata: str = _is("string")
    commit_timestamp: int = _is("int64")


@row_value
class TransactionGroupValue:
    """Group that belongs to a transaction, with the offsets staged for this group."""

    group: str = _is("string")
    offsets: tuple[StagedOffsetValue, ...] = _is("")


@row_value
class TransactionValue:
    """Transactional id with its owner and the progress of its transaction; times in unix ms.

    `previous_*` name the owner before the last change. `next_producer_id` names the owner after the
    end of the transaction.
    """

    producer_id: int = _is("int64")
    previous_producer_id: int = _is("int64", 0)
    next_producer_id: int = _is("int64", 1)
    producer_epoch: int = _is("int16")
    transaction_timeout: int = _is("int32")
    transaction_status: int = _is("int8")
    transaction_partitions: tuple[TransactionTopicValue, ...] | None = _is("")
    last_update_timestamp: int = _is("int64")
    start_timestamp: int = _is("int64")
    previous_epoch: int = _is("int16", OURS)
    groups: tuple[TransactionGroupValue, ...] = _is("", OURS + 1)


@row_value
class ConfigValue:
    """Topic configuration that was set explicitly."""

    name: str = _is("string")
    value: str = _is("string")


@row_value
class TopicValue:
    """Topic: id, number of partitions, and configurations that were set."""

    topic_id: bytes = _is("uuid")
    partitions: int = _is("int32")
    configs: tuple[ConfigValue, ...] = _is("")


GroupRowKey = GroupKey | ConsumerGroupKey | ConsumerMemberKey | TargetKey | CurrentKey
GroupRowValue = GroupValue | ConsumerGroupValue | ConsumerMemberValue | TargetValue | CurrentValue
"""Values of the rows of a group."""
OF_A_MEMBER = (ConsumerMemberKey, TargetKey, CurrentKey)
"""Keys of the rows that each member of a consumer-protocol group has."""
Key = GroupRowKey | OffsetKey | TransactionKey
Value = GroupRowValue | OffsetValue | TransactionValue
CommittedOffsets = dict[tuple[str, int], OffsetValue]
"""Offsets that one group committed, by topic and partition."""


class RowKind(NamedTuple):
    """Kind of row: how its key is recognized, and the version in which its value is written."""

    letter: str
    """First character of the key's bytes."""
    key: type[Any]
    """Key type: its first part is any text, the others are names and numbers."""
    value: type[Any]
    version: int


KINDS = (
    RowKind("G", GroupKey, GroupValue, 4),
    RowKind("K", ConsumerGroupKey, ConsumerGroupValue, 0),
    RowKind("M", ConsumerMemberKey, ConsumerMemberValue, 0),
    RowKind("A", TargetKey, TargetValue, 0),
    RowKind("C", CurrentKey, CurrentValue, 0),
    RowKind("O", OffsetKey, OffsetValue, 3),
    RowKind("T", TopicKey, TopicValue, 0),
    RowKind("X", TransactionKey, TransactionValue, 1),
)
OF_GROUPS = "GKMACO"
"""Letters of the rows of groups, in the order in which the coordinator loads them: offsets last."""
OF_TRANSACTIONS = "X"
_by_key = {kind.key: kind for kind in KINDS}
_types = {kind.key: tuple(get_type_hints(kind.key).values()) for kind in KINDS}
_by_letter = {kind.letter: kind for kind in KINDS}


def row_bytes(key: Key | TopicKey, value: Value | TopicValue) -> tuple[bytes, bytes]:
    """Return the stored bytes of a key and its value."""
    return key_bytes(key), _codec(_by_key[type(key)])[0](asdict(value))


def key_bytes(key: Key | TopicKey) -> bytes:
    """Return the stored bytes of a key: its letter and its parts, separated by NULs.

    Only the first part may contain NULs itself, because `read_row` splits from the end.
    """
    first, *names = map(str, key if isinstance(key, tuple) else astuple(key))
    return "\0".join([_by_key[type(key)].letter, first, *map(quote, names)]).encode()


def read_row(key: bytes, data: bytes) -> tuple[Key | TopicKey, Any]:
    """Return the key and the value that `row_bytes` wrote.

    Raises:
        StoreCorrupt: The bytes are anything else.
    """
    try:
        letter, _, rest = key.decode().partition("\0")
        kind = _by_letter[letter]
        value = _value(kind.value, _codec(kind)[1](data))
        types = _types[kind.key]
        first, *names = rest.rsplit("\0", len(types) - 1)
        parts = zip(types, (first, *map(unquote, names)), strict=True)
        return kind.key(*(read(part) for read, part in parts)), value
    except (KeyError, ValueError, Malformed) as error:
        raise StoreCorrupt(
            f"row {key!r} of the broker's metadata: {error}: was it written by another "
            "program? Restore a copy of the data directory"
        ) from error


def _value(kind: Any, said: Any) -> Any:
    """Convert a decoded value to the type `kind`; with None return the value as decoded."""
    if isinstance(said, list | tuple):
        return tuple(_value(kind, each) for each in said)
    if kind is None or said is None:
        return said
    return kind(**{f.name: _value(f.struct, getattr(said, f.name)) for f in fields(kind)})


@cache
def _codec(kind: RowKind) -> tuple[Callable[[dict[str, Any]], bytes], Callable[[bytes], Any]]:
    encode = record_encoder(kind.value, kind.version)
    return encode, record_decoder({kind.version: kind.value})
