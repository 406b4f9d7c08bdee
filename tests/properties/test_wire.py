"""Our codec against kio's own, on every message and version, and on malformed bytes."""

import io
import random
import types
import typing
import uuid
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import PayloadEntityType, api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.protocol import Entity

from streamsx.protocol import wire
from streamsx.protocol.compiler import Malformed, decode, decoder, encoder
from streamsx.protocol.schema import UUID_ZERO, WireMessage

MESSAGES_PER_VERSION = 5
CODES = [code for code in ErrorCode if code >= 0]
DRAW: dict[str, Callable[[random.Random], object]] = {
    "bool": lambda r: r.random() < 0.5,
    "int8": lambda r: r.randrange(-128, 128),
    "int16": lambda r: r.randrange(-(1 << 15), 1 << 15),
    "int32": lambda r: r.randrange(-(1 << 31), 1 << 31),
    "int64": lambda r: r.randrange(-(1 << 63), 1 << 63),
    "uint16": lambda r: r.randrange(1 << 16),
    "float64": lambda r: r.uniform(-1e9, 1e9),
    "error_code": lambda r: r.choice(CODES),
    "timedelta_i32": lambda r: timedelta(milliseconds=r.randrange(-1, 1 << 31)),
    "timedelta_i64": lambda r: timedelta(milliseconds=r.randrange(-1, 1 << 40)),
    "datetime_i64": lambda r: datetime.fromtimestamp(r.randrange(1 << 31), UTC),
    "uuid": lambda r: uuid.UUID(int=r.getrandbits(128)),
    "string": lambda r: "".join(r.choices("abc-ßè€😀", k=r.choice([0, 1, 7, 130]))),
    "bytes": lambda r: r.randbytes(r.choice([0, 1, 30, 200])),
    "records": lambda r: r.randbytes(r.choice([0, 1, 61, 20000])),
}


def schemas() -> list[tuple[int, int, PayloadEntityType]]:
    kinds: tuple[PayloadEntityType, ...] = (EntityType.request, EntityType.response)
    return [
        (api, version, kind)
        for api, name in sorted(api_key_map.items())
        for version in sorted(schema_name_map[name])
        for kind in kinds
    ]


def split(field: Field[Any]) -> tuple[Any, bool, bool]:
    """Return the inner type of a kio field, whether it is an array, and whether it is nullable."""
    inner, nullable = field.type, False
    if typing.get_origin(inner) is types.UnionType:
        inner, nullable = typing.get_args(inner)[0], True
    array = typing.get_origin(inner) is tuple
    inner = typing.get_args(inner)[0] if array else inner
    return (typing.get_args(inner) or [inner])[0], array, nullable


def draw(rng: random.Random, schema: type[Entity]) -> Entity:
    """Draw a random message; tagged and nullable fields are sometimes their default or null."""
    values: dict[str, object] = {}
    for field in fields(schema):
        inner, array, nullable = split(field)
        if field.default is not MISSING and rng.random() < 0.3:
            continue
        if nullable and "tag" not in field.metadata and rng.random() < 0.2:
            values[field.name] = None
        elif array:
            values[field.name] = tuple(one(rng, inner, field) for _ in range(rng.randrange(4)))
        else:
            values[field.name] = one(rng, inner, field)
    return schema(**values)


def one(rng: random.Random, inner: Any, field: Field[Any]) -> object:
    kind = field.metadata.get("kafka_type")
    return DRAW[kind](rng) if kind else draw(rng, inner)


def plain(value: Any, kind: str = "") -> Any:
    """Return a message as our side writes it: a dict of ints, strings, bytes and lists."""
    match value:
        case None:
            return {"uuid": UUID_ZERO, "datetime_i64": -1}.get(kind)
        case uuid.UUID():
            return value.bytes
        case timedelta():
            return round(value.total_seconds() * 1000)
        case datetime():
            return round(value.timestamp() * 1000)
        case tuple():
            return [plain(each) for each in value]
        case bool() | int() | float() | str() | bytes():
            return value
    kinds = {f: "" if split(f)[1] else f.metadata.get("kafka_type", "") for f in fields(value)}
    return {f.name: plain(getattr(value, f.name), kind) for f, kind in kinds.items()}


def told(value: object) -> object:
    """Return a decoded message in the same form."""
    match value:
        case WireMessage():
            names = {n for n in dir(type(value)) if not n.startswith("_")}
            return {name: told(getattr(value, name)) for name in names}
        case list() | tuple():
            return [told(each) for each in value]
        case memoryview():
            return bytes(value)
    return value


def test_every_message_of_every_version_equals_kio_byte_for_byte() -> None:
    rng = random.Random(1)
    for api, version, kind in schemas():
        schema = load_entity_schema(api_key_map[api], version, kind)
        for _ in range(MESSAGES_PER_VERSION):
            message, theirs = draw(rng, schema), io.BytesIO()
            entity_writer(schema)(theirs, message)

            ours = bytearray()
            encoder(schema)(plain(message), ours)
            assert ours == theirs.getvalue(), (api, version, kind.name, message)

            read = decode(decoder(schema, schema), bytes(ours))
            assert told(read) == plain(message), (api, version, kind.name)
            assert entity_reader(schema)(bytes(ours), 0) == (message, len(ours))


def samples(seed: int, per_version: int = 1) -> list[tuple[int, int, bytes]]:
    """Return request frames, without their length, of every api and version."""
    rng, found = random.Random(seed), []
    for api, version, kind in schemas():
        if kind is EntityType.request:
            schema = load_entity_schema(api_key_map[api], version, kind)
            for _ in range(per_version):
                frame = wire.request_encoder(api, version)(7, plain(draw(rng, schema)), "me")
                found.append((api, version, bytes(frame[4:])))
    return found


def mutated(rng: random.Random, frame: bytes) -> bytes:
    """Return a frame cut, with flipped bytes, or with a bad length somewhere in it."""
    at = rng.randrange(len(frame))
    lies = [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff" * 9, b"\x00", b"\xff\xff\xff\xff\x0f"]
    match rng.randrange(4):
        case 0:
            return frame[:at]
        case 1:
            return frame + rng.randbytes(rng.randrange(1, 5))
        case 2:
            return frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1 :]
    lie = rng.choice(lies)
    return frame[:at] + lie + frame[at + len(lie) :]


def test_mutated_request_is_decoded_or_raises_malformed() -> None:
    rng, refused, total = random.Random(2), 0, 0
    for api, version, frame in samples(3):
        for _ in range(12):
            total += 1
            try:
                wire.request_decoder(api, version)(mutated(rng, frame))
            except Malformed:
                refused += 1
    assert total / 2 < refused < total


@given(st.sampled_from(schemas()), st.binary(max_size=120))
@settings(max_examples=400)
def test_random_bytes_are_decoded_or_raise_malformed(
    schema: tuple[int, int, PayloadEntityType], data: bytes
) -> None:
    api, version, kind = schema
    read = wire.request_decoder if kind is EntityType.request else wire.response_decoder
    try:
        read(api, version)(data)
    except Malformed:
        return
    assert len(data) >= 4


@pytest.mark.parametrize("keep", [0, 1, 7, 20])
def test_request_cut_short_anywhere_is_malformed(keep: int) -> None:
    for api, version, frame in samples(4):
        with pytest.raises(Malformed):
            wire.request_decoder(api, version)(frame[: min(keep, len(frame) - 1)])
