"""A codec: one function from a value to bytes, one back, for a type and the name of a serializer.

Both give what Faust's Registry gives, both ways; that one is asked per call and per message, these
are made once, and are called with nothing but the value. The same arguments give the same codec,
so two topics that read alike can be told by `is`.

Rules of Faust's that surprise. Bytes are written as they are, whatever the serializer. `str` does
not mean raw: a topic's value is JSON unless its serializer says otherwise, its key is raw; keys and
values of tables are JSON. None is written as JSON's `null` and read from a record without a value.
A dict that names its model in `__faust` is read as that model where no type is asked for.

Beyond Faust: dataclasses and msgspec.Struct; numbers in raw, where Faust's producer fails; a dict
that names an unknown model stays a dict, where Faust fails.

Not here: records of Faust (`record`), which serializer a topic has (`streamsx.app.channel`).
"""

import dataclasses
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any, Final, NamedTuple

import orjson

from streamsx.errors import TopologyError
from streamsx.serde.record import BLESSED, is_model, record_of

Encode = Callable[[Any], bytes | None]
Decode = Callable[[bytes | None], Any]
Loads = Callable[[bytes], Any]

RAW: Final = "raw"
JSON: Final = "json"
JSON_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE
"""Faust's, and a newline to cut off: a result of orjson's that is kept holds a block of 1 KiB or
more, a slice of it has its exact size."""


class Quick(NamedTuple):
    """What `decode` gives for nearly all records, and no frame of ours: 100-200 ns of 700.

    It may raise where `decode` does not, which then is asked; None: as it is. `blessed`: a dict
    that names its model needs `decode` too.
    """

    decode: Callable[[Any], Any] | None
    blessed: bool = False


class Codec(NamedTuple):
    """`name`: of the serializer, as a store's layout has it."""

    name: str
    encoders: "Encoders"
    decode: Decode
    quick: Quick

    @property
    def encode(self) -> Encode:
        return self.encoders.encode


def serializer_of(kind: Any) -> Any:
    """The serializer that a model declares for itself; None without one."""
    return getattr(getattr(kind, "_options", None), "serializer", None)


def topic_codec(kind: Any, serializer: Any, default: Any, *, empty: bool = False) -> Codec:
    """Of the keys or the values of a topic. `default`: the app's."""
    return codec(kind, serializer or serializer_of(kind) or default, empty)


def table_codec(kind: Any) -> Codec:
    """Of the keys or the values of a table."""
    return codec(kind, RAW if kind is bytes else serializer_of(kind) or JSON)


@cache
def codec(kind: Any, serializer: Any, empty: bool = False) -> Codec:
    """`kind`: type of the values, None: whatever comes. `serializer`: a name or a Faust codec.
    `empty`: a model may have no value.

    Raises TopologyError for a name that nobody knows, or a type that cannot be read.
    """
    if _is_struct(kind):
        return _struct_codec(kind, serializer)
    dumps, loads = _serializer(serializer)
    name = serializer if isinstance(serializer, str) else type(serializer).__name__
    required = is_model(kind) and not empty
    decode, quick = _decoders(kind, loads, raw=serializer == RAW, required=required)
    return Codec(name, Encoders(serializer, dumps), decode, quick)


# -- writing


class Encoders(dict[type, Encode]):
    """How values of each type are written by one serializer; chosen when the first one comes.

    `encode` is what most callers want. The record path looks up and calls what it finds, and spares
    a frame: 40 ns of 100.
    """

    def __init__(self, serializer: Any, dumps: Encode) -> None:
        super().__init__()
        self._serializer, self._dumps = serializer, dumps

    def encode(self, value: Any) -> bytes | None:
        return self[type(value)](value)

    def or_none(self) -> "Encoders":
        """The same, and None is no bytes: as keys are written, whatever the serializer."""
        made = Encoders(self._serializer, self._dumps)
        made[type(None)] = _as_it_is
        return made

    def grouping(self, where: str) -> "Encoders":
        """The same for keys of `group_by`, of which there must be one."""
        return GroupKeys(self._serializer, self._dumps, where)

    def __missing__(self, kind: type) -> Encode:
        self[kind] = chosen = self._choose(kind)
        return chosen

    def _choose(self, kind: type) -> Encode:
        if issubclass(kind, bytes):
            return _as_it_is
        if _is_struct(kind) and self._serializer == JSON:
            return _struct_encoder()
        if not is_model(kind):
            return str.encode if self._serializer == RAW and kind is str else self._dumps
        own = serializer_of(kind)
        dumps = _serializer(own)[0] if own else self._dumps
        return lambda model: dumps(model.to_representation())


class GroupKeys(Encoders):
    """A record without a key goes to any partition: its group would lie in several tasks."""

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


def to_json(value: Any) -> bytes:
    """What Faust's `json` codec writes."""
    return orjson.dumps(value, _json_default, JSON_OPTIONS)[:-1]


def _json_default(value: Any) -> Any:
    from faust.utils.json import on_default  # 20 ms, and most apps never need it

    return on_default(value)


def to_raw(value: Any) -> bytes | None:
    """Text as UTF-8, None as no bytes at all."""
    if isinstance(value, str):
        return value.encode()
    if type(value) in (int, float):
        return str(value).encode()
    if value is None:
        return None
    raise TypeError(
        f"not raw: {type(value).__name__}: give the topic a serializer, or send str or bytes"
    )


def _as_it_is(value: Any) -> Any:
    return value


def _serializer(name: Any) -> tuple[Encode, Loads]:
    if name == JSON:
        return to_json, orjson.loads
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


def _decoders(kind: Any, loads: Loads, *, raw: bool, required: bool) -> tuple[Decode, Quick]:
    """Records without a value are None, unless one is required."""
    convert = (RAW_CONVERSIONS if raw else CONVERSIONS).get(kind) or _conversion(kind)

    def converted(data: bytes | None) -> Any:
        if data is None and not required:
            return None
        if data is None:
            raise ValueError(f"no value: a {kind.__name__} was expected")
        return convert(loads(data))

    if raw and convert is _as_it_is:
        return _as_it_is, Quick(None)
    if raw and convert is bytes.decode:
        return _or_none(convert), Quick(convert)
    if convert is _reconstructed:
        return converted, Quick(loads, blessed=True)
    decode = _or_none(convert) if raw and not required else converted
    return decode, Quick(decode)


def _or_none(decode: Loads) -> Decode:
    def read(data: bytes | None) -> Any:
        return None if data is None else decode(data)

    return read


def _conversion(kind: Any) -> Callable[[Any], Any]:
    if is_model(kind):
        return record_of(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return lambda fields: kind(**fields)
    raise TopologyError(
        f"unknown type: {kind!r}: use str, bytes, int, float, Decimal, a Record, a dataclass, a "
        "msgspec.Struct, or none"
    )


def _reconstructed(payload: Any) -> Any:
    """The model that a dict names."""
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


# -- msgspec


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__struct_fields__")


def _struct_codec(kind: Any, serializer: Any) -> Codec:
    if serializer != JSON:
        raise TopologyError(f"unknown serializer: {serializer!r}: {kind.__name__} is read as json")
    import msgspec.json

    decode = msgspec.json.Decoder(kind).decode
    return Codec(JSON, Encoders(JSON, to_json), _or_none(decode), Quick(decode))


def _struct_encoder() -> Encode:
    import msgspec.json

    return msgspec.json.Encoder().encode
