"""What the broker keeps beside the logs: its rows, as values and as bytes.

Groups and offsets have the bytes of Kafka's own GroupMetadataValue (version 4) and
OffsetCommitValue (version 3), so that they could be written to `__consumer_offsets` as they are;
transactions those of TransactionLogValue (version 1).
What Kafka does not keep stands in tagged fields, which it skips. Joins under way and ids not yet
used are not here: after a crash their clients ask again.
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
"""The first of our tags, far from any that Kafka may still give away."""
Described = TypeVar("Described")


class GroupKey(NamedTuple):
    """The row of a group that ever had a member."""

    group: str


class OffsetKey(NamedTuple):
    """The row of one committed offset."""

    group: str
    topic: str
    partition: int


class TransactionKey(NamedTuple):
    """The row of a transactional id."""

    transactional_id: str


class TopicKey(NamedTuple):
    """The row of a topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupKey:
    """The row of a group of the consumer protocol that ever had a member.

    No tuple, nor are the next three: tuples of different types are equal if their parts are.
    """

    group: str


@dataclass(frozen=True, slots=True)
class ConsumerMemberKey:
    """The row of one of its members."""

    group: str
    member_id: str


class TargetKey(ConsumerMemberKey):
    """The row of what it is to get."""


class CurrentKey(ConsumerMemberKey):
    """The row of what it has."""


def _is(kind: str, tag: int | None = None) -> Any:
    """How a field travels, said as kio says it; nothing of an array of structs."""
    return field(metadata={"kafka_type": kind} | ({} if tag is None else {"tag": tag}))


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def row_value(described: type[Described]) -> type[Described]:
    """A frozen dataclass that travels with compact lengths, and tagged fields at its end."""
    described.__flexible__ = True  # type: ignore[attr-defined]  # for `schema.Schema`
    return dataclass(frozen=True, slots=True)(described)


@row_value
class ProtocolValue:
    """A protocol that a member supports, and what it told of itself for it."""

    name: str = _is("string")
    metadata: bytes = _is("bytes")


@row_value
class MemberValue:
    """One member as its last JoinGroup described it; timeouts in ms, as on the wire.

    `subscription` is its metadata for the protocol that was chosen; Kafka keeps no other.
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
    """A generation, and with `synced` also what its leader assigned; members as they joined."""

    protocol_type: str = _is("string")
    generation: int = _is("int32")
    protocol: str | None = _is("string")
    leader: str | None = _is("string")
    state_timestamp: int = _is("int64")
    members: tuple[MemberValue, ...] = _is("")
    synced: bool = _is("bool", OURS)


@row_value
class ConsumerGroupValue:
    """ConsumerGroupMetadataValue; Kafka keeps `target_epoch` in a record of its own."""

    epoch: int = _is("int32")
    target_epoch: int = _is("int32", OURS)


@row_value
class ClassicMemberValue:
    """What a member said in its JoinGroup; the time in ms."""

    session_timeout: int = _is("int32")
    protocols: tuple[ProtocolValue, ...] = _is("")


@row_value
class ConsumerMemberValue:
    """ConsumerGroupMemberMetadataValue; `classic` of who speaks JoinGroup; the time in ms."""

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
    """Partitions of one topic. The epochs at which they were assigned are parallel to them, or
    None in a record of a broker that knew none (KIP-1251).
    """

    topic_id: bytes = _is("uuid")
    partitions: tuple[int, ...] = _is("int32")
    epochs: tuple[int, ...] | None = field(default=None, metadata={"kafka_type": "int32", "tag": 0})


@row_value
class TargetValue:
    """ConsumerGroupTargetAssignmentMemberValue."""

    places: tuple[PlacesValue, ...] = _is("")


@row_value
class CurrentValue:
    """ConsumerGroupCurrentMemberAssignmentValue."""

    epoch: int = _is("int32")
    previous_epoch: int = _is("int32")
    state: int = _is("int8")
    assigned: tuple[PlacesValue, ...] = _is("")
    revoking: tuple[PlacesValue, ...] = _is("")


@dataclass(frozen=True, slots=True)
class OffsetValue:
    """Where to read on; `commit_timestamp` in unix ms."""

    __flexible__: ClassVar[bool] = False
    offset: int = _is("int64")
    leader_epoch: int = _is("int32")
    metadata: str = _is("string")
    commit_timestamp: int = _is("int64")


@row_value
class TransactionTopicValue:
    """What of a topic belongs to a transaction."""

    topic: str = _is("string")
    partition_ids: tuple[int, ...] = _is("int32")


@row_value
class StagedOffsetValue:
    """An offset that counts once its transaction is committed."""

    topic: str = _is("string")
    partition: int = _is("int32")
    offset: int = _is("int64")
    leader_epoch: int = _is("int32")
    metadata: str = _is("string")
    commit_timestamp: int = _is("int64")


@row_value
class TransactionGroupValue:
    """A group that belongs to a transaction, and what is committed for it."""

    group: str = _is("string")
    offsets: tuple[StagedOffsetValue, ...] = _is("")


@row_value
class TransactionValue:
    """A transactional id: whose it is, and how far its transaction has come; times in unix ms.

    `previous_*`: whose it was before the last change; `next_producer_id`: whose it is to be once
    the transaction has ended.
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
    """One configuration of a topic that was set."""

    name: str = _is("string")
    value: str = _is("string")


@row_value
class TopicValue:
    """A topic."""

    topic_id: bytes = _is("uuid")
    partitions: int = _is("int32")
    configs: tuple[ConfigValue, ...] = _is("")


GroupRowKey = GroupKey | ConsumerGroupKey | ConsumerMemberKey | TargetKey | CurrentKey
GroupRowValue = GroupValue | ConsumerGroupValue | ConsumerMemberValue | TargetValue | CurrentValue
"""What groups keep of themselves."""
OF_A_MEMBER = (ConsumerMemberKey, TargetKey, CurrentKey)
"""The rows that each member of a group of the consumer protocol has."""
Key = GroupRowKey | OffsetKey | TransactionKey
Value = GroupRowValue | OffsetValue | TransactionValue
CommittedOffsets = dict[tuple[str, int], OffsetValue]
"""What one group committed, by topic and partition."""


class RowKind(NamedTuple):
    """How rows of a kind are told from others, and in which version they are written."""

    letter: str
    """With which the bytes of the key begin."""
    key: type[Any]
    """Any text, then names and numbers."""
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
"""The letters of what the coordinator loads, in the order in which it does: offsets are last."""
OF_TRANSACTIONS = "X"
_by_key = {kind.key: kind for kind in KINDS}
_types = {kind.key: tuple(get_type_hints(kind.key).values()) for kind in KINDS}
_by_letter = {kind.letter: kind for kind in KINDS}


def row_bytes(key: Key | TopicKey, value: Value | TopicValue) -> tuple[bytes, bytes]:
    """As they are stored."""
    return key_bytes(key), _codec(_by_key[type(key)])[0](asdict(value))


def key_bytes(key: Key | TopicKey) -> bytes:
    """Parts behind NULs. Only the first may hold one itself: it is read from the end."""
    first, *names = map(str, key if isinstance(key, tuple) else astuple(key))
    return "\0".join([_by_key[type(key)].letter, first, *map(quote, names)]).encode()


def read_row(key: bytes, data: bytes) -> tuple[Key | TopicKey, Any]:
    """What `row_bytes` wrote. Raises StoreCorrupt for anything else."""
    try:
        letter, _, rest = key.decode().partition("\0")
        kind = _by_letter[letter]
        value = _value(kind.value, _codec(kind)[1](data))
        types = _types[kind.key]
        first, *names = rest.rsplit("\0", len(types) - 1)
        parts = zip(types, (first, *map(unquote, names)), strict=True)
        return kind.key(*(read(part) for read, part in parts)), value
    except (KeyError, ValueError, Malformed) as error:
        raise StoreCorrupt(f"row {key!r} of the broker's metadata: {error}: not ours?") from error


def _value(kind: Any, said: Any) -> Any:
    """What was decoded, as one of our values; what is of no kind (None) is one already."""
    if isinstance(said, list | tuple):
        return tuple(_value(kind, each) for each in said)
    if kind is None or said is None:
        return said
    return kind(**{f.name: _value(f.struct, getattr(said, f.name)) for f in fields(kind)})


@cache
def _codec(kind: RowKind) -> tuple[Callable[[dict[str, Any]], bytes], Callable[[bytes], Any]]:
    encode = record_encoder(kind.value, kind.version)
    return encode, record_decoder({kind.version: kind.value})
