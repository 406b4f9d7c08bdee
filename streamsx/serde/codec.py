"""Codec: one function from a value to bytes, one back, for a type and the name of a serializer.

Both functions give the results of Faust's Registry. The Registry is called per message with type
and serializer; a codec is made once, and is called with nothing but the value. The same arguments
give the same codec, so `is` recognises two topics that are read alike.

Surprising rules of Faust's. Bytes are written unchanged, whatever the serializer. `str` does not
mean raw: a topic's value is JSON unless its serializer is another one, and its key is raw; keys and
values of tables are JSON. None is written as JSON's `null` and read from a record without a value.
A dict that names its model in `__faust` is read as that model if no type is given.

Beyond Faust: each type that msgspec reads, and models of pydantic; numbers in raw, where Faust's
producer fails; a dict that names an unknown model stays a dict, where Faust fails. msgspec reads
untyped JSON: an int beyond 64 bits stays an int, where orjson gives a float, and a record of 27
bytes costs 217 ns of CPU instead of 583, one of 106 bytes 543 instead of 695 (155 KB: a quarter
more).

A record without a value, or with JSON's null, is None without a type. With a type, a topic passes
over the record (`NoValue`) unless the topic asks for None.

Not here: records of Faust (`record`), other types (`typed`), the values that a table may hold
(`roundtrip`), the serializer of a topic (`streamsx.app.channel`).
"""

import dataclasses
import marshal
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, cast

import msgspec
import orjson

from streamsx.errors import TopologyError
from streamsx.serde.record import BLESSED, is_model, is_plain, record_of
from streamsx.serde.roundtrip import (
    NULL,
    FieldsRoundTrip,
    PlainRoundTrip,
    RereadRoundTrip,
    RoundTrip,
    TypeRoundTrip,
)
from streamsx.serde.typed import (
    TypedReader,
    called_with_fields,
    encoder,
    has_own_init,
    is_pydantic,
    pydantic_reader,
    raw_reader,
    reader,
    write_pydantic,
    write_raw,
)

Encode = Callable[[Any], bytes | None]
Decode = Callable[[bytes | None], Any]
Loads = Callable[[bytes], Any]

RAW: Final = "raw"
JSON: Final = "json"
JSON_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE
"""Options of Faust's, and a newline to cut off: a result of orjson that is kept holds a block of
1 KiB or more, whereas a slice of the result has its exact size."""
TABLE_OPTIONS: Final = (
    orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
)  # fmt: skip
"""Options without a type: values that JSON does not give back are refused where that is free."""
MARSHAL_PLAIN: Final = 2
"""Version of marshal's format that does not look for objects that occur twice: 30 % less time."""
JSON_LIST: Final = ord("[")
MARSHAL_TUPLE: Final = ord("(")
MARSHAL_FLOAT: Final = ord("g")
"""Marks of a list in JSON, and of a tuple and a float in that version; texts and numbers may have
them too. Searching a byte takes 10 ns, bytes by `find` 100 and by `in` 220."""
BEYOND: Final = "64-bit"
"""Word in orjson's error for an int that orjson does not write."""


class NoValue(ValueError):
    """Error for a record without a value, in a topic with a type that did not ask for None."""


class Quick(NamedTuple):
    """Quicker `decode` for nearly all records, without a Python frame: saves 100-200 ns of 700.

    `decode` may raise where the codec's `decode` does not, which then has to be called. None means
    that the bytes are the value. With `blessed`, a dict that names its model needs the codec's
    `decode` too.
    """

    decode: Callable[[Any], Any] | None
    blessed: bool = False


class Codec(NamedTuple):
    """Pair of functions for a type and a serializer.

    `name` is the serializer's, as a store's layout records it. `check` is the check of a table's
    values, None if all values are accepted.
    """

    name: str
    encoders: "Encoders"
    decode: Decode
    quick: Quick
    check: RoundTrip | None = None

    @property
    def encode(self) -> Encode:
        return self.encoders.encode


def serializer_of(kind: Any) -> Any:
    """Return the serializer that a model declares for itself; None without one."""
    return getattr(getattr(kind, "_options", None), "serializer", None)


def topic_codec(
    kind: Any, serializer: Any, default: Any, *, empty: bool = False, key: bool = False
) -> Codec:
    """Return the codec of the keys or the values of a topic.

    `default` is the app's serializer; JSON replaces raw for a type that is not a single text.
    `empty` means that the topic asks for None. `key` means that a key may be missing.
    """
    chosen = serializer or serializer_of(kind) or default
    if chosen == RAW and not serializer and _needs_json(kind):
        chosen = JSON
    return _hashable_codec(kind, chosen, empty=empty or (key and not is_model(kind)))


def table_key_codec(kind: Any) -> Codec:
    """Return the codec of the keys of a table; keys of type bytes are raw."""
    serializer = RAW if kind is bytes else serializer_of(kind) or JSON
    return _hashable_codec(kind, serializer, empty=True)


def table_codec(kind: Any) -> Codec:
    """Return the codec of the values of a table, with the check that values come back."""
    made = table_key_codec(kind)
    if kind is None or kind is Any or kind is str:
        strict = TableEncoders(made.encoders)
        return made._replace(encoders=strict, check=PlainRoundTrip(made.decode, plain_bytes))
    read = None if kind in CONVERSIONS or is_model(kind) or is_pydantic(kind) else _reader(kind)
    if read is not None and read.hides:
        made = made._replace(encoders=Encoders(JSON, BY_MSGSPEC))
    return made._replace(check=_check(kind, made, read))


def _hashable_codec(kind: Any, serializer: Any, *, empty: bool) -> Codec:
    try:
        hash(kind)
    except TypeError as error:
        raise _unknown(kind, error) from error
    return codec(None if kind is Any else kind, serializer, empty)


@cache
def codec(kind: Any, serializer: Any, empty: bool = False) -> Codec:
    """Return the codec for a type and a serializer.

    `kind` is the type of the values, None for any. `serializer` is a name or a Faust codec. With
    `empty`, a missing value is None, else `decode` raises NoValue.

    Raises:
        TopologyError: the name is unknown, or the type cannot be read.
    """
    if is_pydantic(kind):
        read = _only_json(kind, serializer, pydantic_reader(kind))
        return _json_codec(kind, read, Encoders(JSON, to_json), empty=empty)
    if kind not in CONVERSIONS and not is_model(kind):
        made = _reader(kind)
        if made is not None:
            return _read_codec(kind, made, serializer, empty=empty)
    dumps, loads = _serializer(serializer)
    name = serializer if isinstance(serializer, str) else type(serializer).__name__
    required = not empty and kind is not None
    decode, quick = _decoders(kind, loads, raw=serializer == RAW, required=required)
    return Codec(name, Encoders(serializer, dumps), decode, quick)


# -- writing


class Encoders(dict[type, Encode]):
    """Functions of one serializer by the type of the value, chosen at a type's first value.

    Most callers want `encode`. The record path looks up the function and calls it, which saves a
    frame: 40 ns of 100.
    """

    def __init__(self, serializer: Any, dumps: Encode) -> None:
        super().__init__()
        self._serializer = serializer
        self._dumps = dumps

    def encode(self, value: Any) -> bytes | None:
        return self[type(value)](value)

    def or_none(self) -> "Encoders":
        """Return the same encoders, but None gives no bytes, as for keys in any serializer."""
        made = Encoders(self._serializer, self._dumps)
        made[type(None)] = _as_it_is
        return made

    def grouping(self, where: str) -> "Encoders":
        """Return the same encoders for keys of `group_by`, which must not be missing."""
        return GroupKeys(self._serializer, self._dumps, where)

    def __missing__(self, kind: type) -> Encode:
        self[kind] = chosen = self._choose(kind)
        return chosen

    def _choose(self, kind: type) -> Encode:
        if issubclass(kind, bytes):
            return _as_it_is
        if _is_struct(kind) and self._serializer == JSON:
            return BY_MSGSPEC
        if is_pydantic(kind) and self._serializer == JSON:
            return write_pydantic
        if not is_model(kind):
            return str.encode if self._serializer == RAW and kind is str else self._dumps
        own = serializer_of(kind)
        dumps = _serializer(own)[0] if own else self._dumps
        return lambda model: dumps(model.to_representation())


class TypedEncoders(Encoders):
    """Encoders of a type that contains bytes: bytes are written like its other values."""

    def _choose(self, kind: type) -> Encode:
        return self._dumps


class TableEncoders(Encoders):
    """Encoders of a table without a type, which refuse non-JSON values where that is free.

    Records are written as everywhere. Bytes are refused, because JSON has none.
    """

    def __init__(self, usual: Encoders) -> None:
        super().__init__(JSON, to_table)
        self._usual = usual

    def _choose(self, kind: type) -> Encode:
        return self._usual[kind] if is_model(kind) else to_table


class GroupKeys(Encoders):
    """Encoders of keys of `group_by`, which refuse a missing key.

    A record without a key goes to any partition: its group would be spread over several tasks.
    """

    def __init__(self, serializer: Any, dumps: Encode, where: str) -> None:
        super().__init__(serializer, dumps)
        self._where = where

    def _choose(self, kind: type) -> Encode:
        chosen = super()._choose(kind)
        if kind is type(None):
            raise TypeError(f"group_by gave no key: {self._where}: give each record one")
        if chosen is to_raw and kind not in (int, float) and not issubclass(kind, str):
            raise TypeError(
                f"group_by gave a {kind.__name__} as key: {self._where}: it must be str, bytes or "
                "a number"
            )
        return chosen


class FlowKeys(Encoders):
    """Encoders of the keys of a flow, which refuse keys of another type than the declared one.

    Such a key would be read back as another object behind a topic in between. `made_at` is the
    user's file and line. A missing key gives no bytes.
    """

    def __init__(self, usual: Encoders, kind: Any, made_at: str) -> None:
        super().__init__(RAW, usual.encode)
        self._usual = usual
        self._kind = kind
        self._made_at = made_at

    def _choose(self, kind: type) -> Encode:
        if kind is type(None):
            return _as_it_is
        if isinstance(self._kind, type) and not issubclass(kind, self._kind):
            raise TypeError(
                f"key is a {kind.__name__}, not a {self._kind.__name__} ({self._made_at}): let the "
                f"function return one, or write key_type={kind.__name__}"
            )
        return self._usual[kind]


def to_json(value: Any) -> bytes:
    """Return the bytes that Faust's `json` codec writes; ints may be of any size."""
    try:
        return orjson.dumps(value, _json_default, JSON_OPTIONS)[:-1]
    except TypeError as error:
        if BEYOND not in str(error):
            raise
        return BY_MSGSPEC(value)


def to_table(value: Any) -> bytes:
    """Write JSON that reads back equal, apart from the cases that `PlainRoundTrip` checks."""
    return orjson.dumps(value, option=TABLE_OPTIONS)[:-1]


def plain_bytes(value: Any) -> bytes | None:
    """Write a value as `to_table` does; return None if it may be read back as another one.

    JSON has a list for a tuple, and null for a float that is not finite: what is read is unequal
    then. What marshal writes shows whether there may be tuples and floats, so most values need not
    be read. marshal refuses types that are derived from its own, such as an Enum of texts, which
    would be equal. A dict in a dict takes 0.5 us, and 1.2 part by part; one with floats takes 0.8,
    and 7.
    """
    try:
        data = orjson.dumps(value, None, TABLE_OPTIONS)[:-1]
        shape = marshal.dumps(value, MARSHAL_PLAIN)
    except (TypeError, ValueError):
        return None
    doubtful = JSON_LIST in data and MARSHAL_TUPLE in shape
    doubtful = doubtful or (MARSHAL_FLOAT in shape and data.find(NULL) >= 0)
    if (doubtful and LOADS(data) != value) or (type(value) is dict and BLESSED in value):
        return None
    return data


def encoded_all(encode: Encode, values: Iterable[Any]) -> list[bytes | None]:
    """Encode values of one type; the JSON of tables takes no frame of ours: 260 ns, not 350."""
    if encode is not to_table:
        return list(map(encode, values))
    dumps = orjson.dumps
    options = TABLE_OPTIONS
    return [dumps(value, option=options)[:-1] for value in values]


def _json_default(value: Any) -> Any:
    from faust.utils.json import on_default  # 20 ms, and most apps never need it

    return on_default(value)


BY_MSGSPEC: Final = encoder(_json_default)


def to_raw(value: Any) -> bytes | None:
    """Return text as UTF-8, numbers as text, None as no bytes. Raises TypeError for other types."""
    if isinstance(value, str):
        return value.encode()
    if type(value) in (int, float):
        return str(value).encode()
    if value is None:
        return None
    raise TypeError(
        f"not text or bytes: {type(value).__name__}: give the topic a serializer, or send str "
        "or bytes"
    )


def _as_it_is(value: Any) -> Any:
    return value


def _serializer(name: Any) -> tuple[Encode, Loads]:
    if name == JSON:
        return to_json, LOADS
    if name == RAW:
        return to_raw, _as_it_is
    from faust.serializers.codecs import get_codec

    try:
        found = get_codec(name)
        return found.dumps, found.loads
    except (AttributeError, KeyError, TypeError) as error:
        raise TopologyError(
            f"unknown serializer: {name!r}: use raw, json, or one that is registered with Faust"
        ) from error


# -- reading


LOADS: Final = msgspec.json.Decoder().decode


def _decoders(kind: Any, loads: Loads, *, raw: bool, required: bool) -> tuple[Decode, Quick]:
    """Return decoders. A record without a value is None, or raises NoValue if one is required."""
    convert = (RAW_CONVERSIONS if raw else CONVERSIONS).get(kind) or _conversion(kind)

    def converted(data: bytes | None) -> Any:
        payload = None if data is None else loads(data)
        if payload is not None:
            return convert(payload)
        return _missing(kind) if required else None

    if raw and convert is _as_it_is:
        return _as_it_is, Quick(None)
    if raw and convert is bytes.decode:
        return (converted if required else _or_none(convert)), Quick(convert)

    def reconstructed(data: bytes | None) -> Any:
        payload = None if data is None else loads(data)
        if type(payload) is not dict or BLESSED not in payload:
            return payload  # a frame less: 80 ns of 330
        return _reconstructed(payload)

    if convert is _reconstructed:
        return reconstructed, Quick(loads, blessed=True)
    return converted, Quick(converted)


def _missing(kind: Any) -> Any:
    raise NoValue(f"no value: a {_name(kind)} was expected")


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _or_none(decode: Loads) -> Decode:
    def read(data: bytes | None) -> Any:
        return None if data is None else decode(data)

    return read


def _conversion(kind: Any) -> Callable[[Any], Any]:
    return record_of(kind) if is_model(kind) else called_with_fields(kind)


def _reconstructed(payload: Any) -> Any:
    """Return the model that a dict names; any other payload unchanged."""
    if type(payload) is not dict or BLESSED not in payload:
        return payload
    from faust.models.base import maybe_model

    return maybe_model(payload)


def _text(payload: Any) -> Any:
    return payload.decode() if isinstance(payload, bytes) else payload


def _bytes(payload: Any) -> Any:
    return payload.encode() if isinstance(payload, str) else payload


CONVERSIONS: Final[dict[Any, Callable[[Any], Any]]] = {
    None: _reconstructed,
    str: _text,
    bytes: _bytes,
    int: lambda payload: int(_text(payload)),
    float: lambda payload: float(_text(payload)),
    Decimal: lambda payload: Decimal(_text(payload)),
}
RAW_CONVERSIONS: Final[dict[Any, Callable[[Any], Any]]] = CONVERSIONS | {
    None: _as_it_is,
    bytes: _as_it_is,
    str: bytes.decode,
}


# -- types that msgspec reads


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__struct_fields__")


def _is_dataclass(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


@cache
def _reader(kind: Any) -> TypedReader | None:
    """Return a type's reader; None for a dataclass with an own `__init__`, or an unreadable one."""
    if _is_dataclass(kind) and has_own_init(kind):
        return None
    try:
        return reader(kind)
    except TypeError as error:
        if _is_dataclass(kind):
            return None
        raise _unknown(kind, error) from error


def _unknown(kind: Any, error: Exception) -> TopologyError:
    return TopologyError(
        f"unknown type: {kind!r}: {error}: use one that msgspec reads (str, int, dict[int, int], "
        "a dataclass, datetime), a Record, a pydantic model, or none"
    )


def _needs_json(kind: Any) -> bool:
    """Return whether values of a type are not a single text."""
    if kind is None or kind is Any or kind in RAW_CONVERSIONS or is_model(kind):
        return False
    made = None if is_pydantic(kind) else _reader(kind)
    return made is None or not made.scalar


def _only_json(kind: Any, serializer: Any, read: Loads) -> Loads:
    if serializer != JSON:
        raise TopologyError(f"unknown serializer: {serializer!r}: {_name(kind)} is read as json")
    return read


def _read_codec(kind: Any, made: TypedReader, serializer: Any, *, empty: bool) -> Codec:
    if made.scalar and serializer == RAW:
        encoders = Encoders(RAW, write_raw)
        read = raw_reader(kind)
        decode = _or_none(read) if empty else _or_missing(kind, read)
        return Codec(RAW, encoders, decode, Quick(read))
    if serializer != JSON and _is_dataclass(kind):
        return _by_fields(kind, serializer, empty=empty)
    read = _only_json(kind, serializer, made.decode)
    usual = to_json if made.by_orjson or _is_struct(kind) else BY_MSGSPEC
    encoders = (TypedEncoders if made.has_bytes else Encoders)(JSON, usual)
    return _json_codec(kind, read, encoders, empty=empty or made.optional)


def _by_fields(kind: Any, serializer: Any, *, empty: bool) -> Codec:
    """Return the codec of a dataclass in a format other than JSON."""
    dumps, loads = _serializer(serializer)
    decode, quick = _decoders(kind, loads, raw=serializer == RAW, required=not empty)
    return Codec(str(serializer), Encoders(serializer, dumps), decode, quick)


def _json_codec(kind: Any, read: Loads, encoders: Encoders, *, empty: bool) -> Codec:
    """Return a JSON codec. `read` raises for null where null is not a value of the type."""

    def decode(data: bytes | None) -> Any:
        if data is not None and data.strip() != NULL:
            return read(data)
        return None if empty else _missing(kind)

    return Codec(JSON, encoders, decode, Quick(read))


def _or_missing(kind: Any, decode: Loads) -> Decode:
    def read(data: bytes | None) -> Any:
        return _missing(kind) if data is None else decode(data)

    return read


# -- what a table with a type may hold


def _check(kind: Any, made: Codec, read: TypedReader | None) -> RoundTrip:
    """Return the cheapest check that is sufficient for a type."""
    if made.name == RAW:
        return TypeRoundTrip(kind)
    encode = made.encode
    decode = made.decode
    if is_model(kind) and is_plain(kind):
        names = list(kind._options.fieldpos.values())  # noqa: SLF001  # as in `record`
        values = _getter(names, itemgetter)
        return FieldsRoundTrip(kind, encode, decode, lambda record: values(vars(record)), None)
    fields = read.fields if read is not None and isinstance(kind, type) else None
    if fields:
        allowed = list(fields.values())
        return FieldsRoundTrip(kind, encode, decode, _getter(list(fields), attrgetter), allowed)
    kept = frozenset({kind} if kind is int else ())
    floats = frozenset({kind} if kind is float else ())
    return RereadRoundTrip(_name(kind), encode, decode, kept, floats)


def _getter(names: list[str], getter: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return the function from an object to the values of its fields, always as a tuple."""
    if len(names) > 1:
        return cast("Callable[[Any], Any]", getter(*names))
    return lambda value: tuple(getter(name)(value) for name in names)
