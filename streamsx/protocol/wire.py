"""Requests and responses as frames: one decoder and one encoder per (API, version).

Handlers and callers are written once for all versions. A decoded message has the attributes of the
newest version; absent ones have their default. An encoder takes a plain dict and writes the fields
that the version knows. Field names are kio's: Kafka's in snake case, times without `_ms` (they are
ints of milliseconds here). Broker and client share all of this module.

kio's module of a version is imported when that version is first used, 4-12 ms each. Not here:
reading and writing sockets, and the choice of a version.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum, unique
from functools import cache, partial
from struct import Struct
from types import ModuleType
from typing import Any, Literal, Protocol

from streamsx.model import Buffer, TopicPartition
from streamsx.protocol.compiler import ElementsLeft, Malformed, decode, decoder, encoder
from streamsx.protocol.schema import Schema

SchemaKind = Literal["request", "response", "header", "data"]
Body = Mapping[str, Any]
FrameDecoder = Callable[[Buffer], tuple[Any, Any]]
"""Function frame -> (header, message)."""
REQUEST_ELEMENTS_MAX = 1 << 16
"""Limit of elements in all arrays of a request together. A broker has 10,000 partitions, and each
may have a topic and some configurations of its own. A frame of a megabyte could have 400,000
elements, and cost a second.
"""


class FrameEncoder(Protocol):
    """Encoder that returns the frame with its length in front; a response has no client id."""

    def __call__(
        self, correlation_id: int, body: Body, client_id: str | None = None
    ) -> bytearray: ...


_length = Struct(">i")
_head = Struct(">hhi")
_version = Struct(">h")


@unique
class Api(IntEnum):
    """API keys of the requests that this project serves or sends."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69


def request_head(frame: Buffer) -> tuple[int, int, int]:
    """Return API key, version and correlation id, with which every request of any version begins.

    Raises:
        Malformed: There are fewer bytes.
    """
    if len(frame) < _head.size:
        raise Malformed(f"a request of {len(frame)} bytes")
    api, version, correlation_id = _head.unpack_from(frame)
    return api, version, correlation_id


@cache
def versions(api: int) -> tuple[int, int]:
    """Return the oldest and the newest version that kio has a schema for.

    Raises:
        Malformed: The API is unknown.
    """
    index = _kio()
    if api not in index.api_key_map:
        raise Malformed(f"api {api}: unknown")
    found = index.schema_name_map[index.api_key_map[api]]
    return min(found), max(found)


@cache
def _decoder(kind: SchemaKind, api: int, version: int, *, whole: bool = True) -> FrameDecoder:
    header = _header(api, version, kind)
    body = _schema(api, version, kind)
    read_header = decoder(header, header)
    read_body = decoder(body, _schema(api, versions(api)[1], kind))

    def read(data: memoryview, position: int, end: int, room: ElementsLeft) -> tuple[Any, int]:
        head, position = read_header(data, position, end, room)
        message, position = read_body(data, position, end, room)
        return (head, message), position

    most = REQUEST_ELEMENTS_MAX if kind == "request" else sys.maxsize
    return partial(decode, read, whole=whole, elements_max=most)


@cache
def _encoder(kind: SchemaKind, api: int, version: int) -> FrameEncoder:
    write_header = encoder(_header(api, version, kind))
    write_body = encoder(_schema(api, version, kind))
    head = {"request_api_key": api, "request_api_version": version}

    def encode(correlation_id: int, body: Body, client_id: str | None = None) -> bytearray:
        frame = bytearray(_length.size)
        write_header({**head, "correlation_id": correlation_id, "client_id": client_id}, frame)
        write_body(body, frame)
        _length.pack_into(frame, 0, len(frame) - _length.size)
        return frame

    return encode


# Factories: each takes (api, version) and returns a decoder or an encoder, or raises Malformed if
# there is no schema. Decoders raise Malformed for bytes that are no such frame, and no other error.
# Tagged fields of a header are never written.

request_decoder = partial(_decoder, "request", whole=False)
"""Decoder of requests. Bytes left over behind the message are no error, as in Kafka: librdkafka
2.16 sends three extra bytes when it requests all topics (Metadata v13).
"""
request_encoder = partial(_encoder, "request")
response_decoder = partial(_decoder, "response")
response_encoder = partial(_encoder, "response")


def record_encoder(schema: type[Schema], version: int) -> Callable[[Body], bytes]:
    """Return an encoder for values outside requests, as in `__consumer_offsets`.

    The format is 2 bytes of version, then the body. A schema that kio lacks is a dataclass in kio's
    style (`schema.Schema`).
    """
    write = encoder(schema)

    def encode(body: Body) -> bytes:
        out = bytearray(_version.pack(version))
        write(body, out)
        return bytes(out)

    return encode


def record_decoder(
    schemas: Mapping[int, type[Schema]], *, newer: bool = False
) -> Callable[[Buffer], Any]:
    """Return a decoder for bytes that `record_encoder` wrote in any of these versions.

    With `newer`, a higher version is read as the newest one and the bytes behind are ignored: such
    formats only ever grow at their end.

    Raises:
        Malformed: Raised by the decoder, as its only error.
    """
    newest = max(schemas)
    known = {version: decoder(schema, schemas[newest]) for version, schema in schemas.items()}

    def read(data: Buffer) -> Any:
        if len(data) < _version.size:
            raise Malformed(f"a version in {len(data)} bytes")
        (version,) = _version.unpack_from(data)
        if version not in known and not (newer and version > newest):
            raise Malformed(f"version {version}, known are {sorted(known)}")
        use = known[min(version, newest)]
        return decode(use, data, _version.size, whole=not newer)

    return read


def by_topic(
    parts: Iterable[tuple[TopicPartition, object]],
    name: str = "name",
    partitions: str = "partitions",
) -> list[dict[str, Any]]:
    """Group the entries of partitions by topic, in the form of request bodies."""
    topics: defaultdict[str, list[object]] = defaultdict(list)
    for tp, part in parts:
        topics[tp.topic].append(part)
    return [{name: topic, partitions: entries} for topic, entries in topics.items()]


def load(name: str, version: int, kind: SchemaKind) -> type[Schema]:
    """Return a schema of kio."""
    kio = _kio()
    found: type[Schema] = kio.load_entity_schema(name, version, kio.EntityType[kind])
    return found


@cache
def _kio() -> ModuleType:
    """Import kio's index of schemas without hypothesis.

    kio describes its types to hypothesis, and therefore imports hypothesis wherever it is
    installed. In a new folder that costs a worker 130 MiB and 1 CPU-second, and leaves a
    `.hypothesis` in that folder. A None in `sys.modules` makes an import fail as if the package
    were not installed. A process that already uses hypothesis, as tests do, gives kio the real
    package.
    """
    absent = "hypothesis" not in sys.modules
    if absent:
        sys.modules["hypothesis.strategies"] = None  # type: ignore[assignment]  # as documented
    try:
        import kio.index
    finally:
        if absent:
            sys.modules.pop("hypothesis.strategies", None)
    return kio.index


def _schema(api: int, version: int, kind: SchemaKind) -> type[Schema]:
    low, high = versions(api)
    if not low <= version <= high:
        raise Malformed(f"api {api} v{version}: known are {low} to {high}")
    return load(_kio().api_key_map[api], version, kind)


def _header(api: int, version: int, kind: SchemaKind) -> type[Schema]:
    flexible = _schema(api, version, kind).__flexible__
    if kind == "request":
        return load("request_header", 2 if flexible else 1, "header")
    # A client reads the response to ApiVersions before it knows which version the broker chose, so
    # the header of that response never became flexible (KIP-511).
    return load("response_header", 1 if flexible and api != Api.API_VERSIONS else 0, "header")
