"""Description of messages, read from dataclasses in kio's style.

kio has one class per message and version; types and metadata describe how each field is encoded.
Here the classes become a flat description for `compiler`, and one message type per struct with the
attributes of the newest version. Not here: encoding and decoding. kio itself is not imported, since
the coordinator's own records are described by dataclasses of the same style.
"""

import dataclasses
import types
import typing
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
    "uuid": "16s",
}
"""Kinds of fixed size and their `struct` codes: times are ints of milliseconds, UUIDs are
16 bytes.
"""

UUID_ZERO = bytes(16)
EMPTY = {"string": "", "bytes": b"", "records": b"", "uuid": UUID_ZERO, "bool": False}


class Schema(Protocol):
    """Dataclass whose field metadata describes the encoding, as in kio.

    The metadata keys are `kafka_type` (a key of FIXED, `string`, `bytes` or `records`; absent for
    nested dataclasses) and, for a tagged field, `tag`. Arrays are tuples; `| None` means nullable.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    __flexible__: ClassVar[bool]
    """Whether lengths are compact and tagged fields stand at the end (KIP-482)."""


class WireMessage:
    """Decoded struct. An attribute that was not on the wire has its default from the class."""

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"


class Field(NamedTuple):
    """Field of a struct."""

    name: str
    kind: str
    struct: type[Schema] | None
    array: bool
    nullable: bool
    default: object
    tag: int | None


@cache
def fields(schema: type[Schema]) -> tuple[Field, ...]:
    """Return the fields in the order of the wire; tagged fields are last, by tag."""
    found = [_field(field) for field in dataclasses.fields(schema)]
    return tuple(sorted(found, key=lambda f: -1 if f.tag is None else f.tag))


@cache
def message_type(schema: type[Schema], newest: type[Schema]) -> type[WireMessage]:
    """Return the type of a decoded struct, with the attributes of the newest version and
    of this one.
    """
    attributes = {f.name: _absent(f) for each in (newest, schema) for f in fields(each)}
    return type(schema.__name__, (WireMessage,), attributes)


def newest_of(field: Field, newest: type[Schema]) -> type[Schema]:
    """Return the newest version of a nested struct: the field of the same name in the newest outer
    struct.
    """
    assert field.struct
    same = (f.struct for f in fields(newest) if f.name == field.name and f.struct)
    return next(same, field.struct)


def _absent(field: Field) -> object:
    """Return the value of an attribute that was not on the wire."""
    if field.struct and not field.array and not field.nullable:
        return message_type(field.struct, field.struct)()
    return field.default


def _field(given: dataclasses.Field[Any]) -> Field:
    inner, nullable = _not_none(given.type)
    array = typing.get_origin(inner) is tuple
    if array:
        inner, _ = _not_none(typing.get_args(inner)[0])
    struct = inner if _is_struct(inner) else None
    kind = "struct" if struct else given.metadata["kafka_type"]
    default = _default(given.default, kind, array=array, nullable=nullable)
    return Field(given.name, kind, struct, array, nullable, default, given.metadata.get("tag"))


def _is_struct(annotation: object) -> typing.TypeGuard[type[Schema]]:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def _not_none(annotation: object) -> tuple[object, bool]:
    """Return the type without `| None`, and whether `| None` was there."""
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return annotation, False
    return next(t for t in typing.get_args(annotation) if t is not types.NoneType), True


def _default(given: object, kind: str, *, array: bool, nullable: bool) -> object:
    """Return a default in its wire form. kio has None for a null uuid or time: 0 and -1 on
    the wire.
    """
    if array:
        return None if given is None else ()
    if kind.startswith("timedelta") and hasattr(given, "total_seconds"):
        return round(given.total_seconds() * 1000)
    if isinstance(given, bool | float | str):
        return given
    if isinstance(given, int):
        return int(given)  # a plain int: kio has integer types of its own
    if kind in FIXED:
        return EMPTY.get(kind, -1 if nullable else 0)
    return None if nullable or kind == "struct" else EMPTY[kind]
