"""Codecs of types that msgspec reads: `dict[int, int]`, `set[str]`, dataclasses, datetime, Enum.

`reader` probes an annotation: it returns a decoder, or raises with the part that cannot be read.
Faust's Records and pydantic's models may stand anywhere inside a type; their own methods read and
write them. A dataclass that msgspec cannot build, or with an `__init__` of its own, is called with
the fields that its `__init__` takes; unknown fields are passed over.

Not here: the choice of types for a topic or a table, Records by themselves (`record`), the check
that a codec gives a value back (`roundtrip`).
"""

from collections.abc import Callable, Iterator
from functools import cache
from inspect import Parameter, signature
from itertools import chain, repeat
from types import FunctionType, NoneType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from streamsx.serde.record import is_model, record_of

GENERATED: Final = "<string>"
"""File name of an `__init__` that `dataclass` has generated."""
BY_ORJSON: Final = (
    inspect.AnyType, inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.FloatType,
    inspect.StrType, inspect.DateTimeType, inspect.DateType, inspect.UUIDType, inspect.DecimalType,
    inspect.EnumType, inspect.LiteralType, inspect.ListType, inspect.SetType,
    inspect.FrozenSetType, inspect.VarTupleType, inspect.TupleType, inspect.UnionType,
    inspect.DataclassType,
)  # fmt: skip
"""Parts of a dataclass that orjson writes as msgspec reads them, except for an exponent's sign.
orjson writes a dataclass of these parts, as in earlier versions."""
TEXT_KEYS: Final = (inspect.AnyType, inspect.StrType, inspect.IntType, inspect.UUIDType)
NO_KEYS: Final = (
    inspect.BoolType, inspect.NoneType, inspect.TupleType, inspect.VarTupleType,
    inspect.NamedTupleType, inspect.ListType, inspect.SetType, inspect.FrozenSetType,
    inspect.DictType, inspect.TypedDictType, inspect.StructType, inspect.DataclassType,
    inspect.CustomType,
)  # fmt: skip
"""Types that msgspec does not write as keys of a dict."""
SCALARS: Final = (
    inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType, inspect.DateTimeType,
    inspect.DateType, inspect.TimeType, inspect.TimeDeltaType, inspect.UUIDType,
    inspect.DecimalType, inspect.EnumType,
)  # fmt: skip
"""Types whose values are each a single text, as a raw key needs to be."""

LEAF_TYPES: Final[dict[type, type]] = {
    inspect.BoolType: bool, inspect.IntType: int, inspect.FloatType: float, inspect.StrType: str,
    inspect.NoneType: NoneType,
}  # fmt: skip

ANYTHING: Final = inspect.AnyType()
Convert = Callable[[Any], Any]


class TypedReader(NamedTuple):
    """Result of probing a type.

    `by_orjson`: orjson writes the values, as before msgspec read the type. `hides`: orjson leaves
    fields out.
    """

    info: inspect.Type
    decode: Callable[[Any], Any]
    by_orjson: bool = False
    hides: bool = False

    @property
    def scalar(self) -> bool:
        """Return whether each value is a single text."""
        return all(isinstance(each, SCALARS) for each in _alternatives(self.info))

    @property
    def has_bytes(self) -> bool:
        """Return whether bytes are a value of the type."""
        return any(isinstance(each, inspect.BytesType) for each in _alternatives(self.info))

    @property
    def optional(self) -> bool:
        """Return whether None is a value of the type."""
        return any(isinstance(each, inspect.NoneType) for each in _alternatives(self.info))

    @property
    def fields(self) -> dict[str, frozenset[type]] | None:
        """Return the types that each field of a class takes; None unless all are JSON leaves."""
        info = self.info
        if not isinstance(info, inspect.DataclassType | inspect.StructType):
            return None
        if hasattr(info.cls, "__post_init__"):  # reading runs it
            return None
        found = {field.name: _leaf_types(field.type) for field in info.fields}
        plain = {name: kinds for name, kinds in found.items() if kinds is not None}
        return plain if len(plain) == len(found) else None


def reader(kind: Any) -> TypedReader:
    """Probe a type. Raises TypeError, which names the part that cannot be read."""
    try:
        decoder = msgspec.json.Decoder(kind, dec_hook=_own_type)
        info = inspect.type_info(kind)
    except NameError as error:
        raise TypeError(f"{error}: define it at the module's level, before it is used") from error
    parts = list(_parts(info))
    for part in parts:
        if isinstance(part, inspect.CustomType) and not _has_own_methods(part.cls):
            raise TypeError(f"{part.cls.__module__}.{part.cls.__qualname__} cannot be read as JSON")
        if isinstance(part, inspect.DictType) and not _is_key(part.key_type):
            raise TypeError("a dict in JSON has text or numbers as keys: join parts to one text")
    decode = decoder.decode
    if any(_takes_none(part) for part in parts):
        decode = _with_none_as_default(info, decode)
    if not isinstance(info, inspect.DataclassType):
        return TypedReader(info, decode)
    hides = any(map(_hides_fields, parts))
    return TypedReader(info, decode, by_orjson=all(map(_by_orjson, parts)), hides=hides)


def _alternatives(info: inspect.Type) -> tuple[inspect.Type, ...]:
    return info.types if isinstance(info, inspect.UnionType) else (info,)


def _leaf_types(info: inspect.Type) -> frozenset[type] | None:
    """Return the JSON types that a field takes unchanged; None if the value decides."""
    kinds = set()
    for each in _alternatives(info):
        if type(each) not in LEAF_TYPES or any(part is not None for part in _attributes(each)):
            return None
        kinds.add(LEAF_TYPES[type(each)])
    return frozenset(kinds)


def _parts(info: inspect.Type) -> Iterator[inspect.Type]:
    """Yield a type and all within it, once each: types may contain themselves."""
    seen: dict[int, Any] = {}
    left: list[Any] = [info]
    while left:
        part = left.pop()
        if id(part) in seen or not isinstance(part, inspect.Type | inspect.Field | tuple):
            continue
        seen[id(part)] = part
        if isinstance(part, inspect.Type):
            yield part
        left += part if isinstance(part, tuple) else _attributes(part)


def _attributes(part: Any) -> list[Any]:
    return [getattr(part, name) for name in part.__struct_fields__]


def _is_key(info: inspect.Type) -> bool:
    """Return whether some values of a type are the text of a key."""
    return not all(isinstance(each, NO_KEYS) for each in _alternatives(info))


def _hides_fields(part: inspect.Type) -> bool:
    """Return whether orjson leaves out a field of a dataclass, because its name begins with `_`."""
    fields = part.fields if isinstance(part, inspect.DataclassType) else ()
    return any(field.name.startswith("_") for field in fields)


def _by_orjson(part: inspect.Type) -> bool:
    if isinstance(part, inspect.DictType):
        return isinstance(part.key_type, TEXT_KEYS)
    return isinstance(part, BY_ORJSON)


# -- types with methods of their own


def is_pydantic(kind: Any) -> bool:
    """Return whether a class is a model of pydantic 2, without importing pydantic."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def _has_own_methods(kind: Any) -> bool:
    return is_model(kind) or is_pydantic(kind)


_record_of: Final = cache(record_of)
"""Cached `record_of`: inspecting a class takes 20 us, making a Record of it 2 us."""


def _own_type(kind: Any, payload: Any) -> Any:
    """Read a part that msgspec does not know."""
    return kind.model_validate(payload) if is_pydantic(kind) else _record_of(kind)(payload)


def pydantic_reader(kind: Any) -> Callable[[Any], Any]:
    """Return the function from JSON to a model of pydantic."""
    read: Callable[[Any], Any] = kind.model_validate_json
    return read


def encoder(default: Convert) -> Callable[[Any], bytes]:
    """Return the function from a value to JSON. `default` converts types unknown to msgspec."""

    def own_part(value: Any) -> Any:
        if is_pydantic(type(value)):
            return value.model_dump(mode="json")
        return value.to_representation() if is_model(type(value)) else default(value)

    return msgspec.json.Encoder(enc_hook=own_part).encode


def write_pydantic(value: Any) -> bytes:
    """Write a model of pydantic by its own method."""
    text: str = value.model_dump_json()
    return text.encode()


# -- raw: one text for one value


def raw_reader(kind: Any) -> Callable[[bytes], Any]:
    """Return the function from text to a scalar."""

    def read(data: bytes) -> Any:
        return msgspec.convert(data.decode(), kind, strict=False)

    return read


def write_raw(value: Any) -> bytes:
    """Write a scalar as its text. Raises TypeError for anything else."""
    plain = msgspec.to_builtins(value)
    if type(plain) is bool:
        return b"true" if plain else b"false"
    if not isinstance(plain, str | int | float):
        raise TypeError(f"not text or bytes: {type(value).__name__}: give the topic a serializer")
    return str(plain).encode()


# -- dataclasses


def has_own_init(kind: Any) -> bool:
    """Return whether a dataclass has an `__init__` that `dataclass` did not generate."""
    init = kind.__init__
    return not (isinstance(init, FunctionType) and init.__code__.co_filename == GENERATED)


def called_with_fields(kind: Any) -> Convert:
    """Return the function from a dict to a dataclass, by calling its `__init__`."""
    parameters = signature(kind).parameters
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
        return lambda fields: kind(**fields)
    known = frozenset(parameters)
    return lambda fields: kind(**{name: fields[name] for name in fields if name in known})


def _takes_none(part: inspect.Type) -> bool:
    """Return whether a dataclass has a field whose default is None."""
    fields = part.fields if isinstance(part, inspect.DataclassType) else ()
    return any(field.default is None for field in fields)


def _with_none_as_default(info: inspect.Type, decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decoder that reads null as a field's default None, as in `when: datetime = None`."""

    def read(data: Any) -> Any:
        try:
            return decode(data)
        except msgspec.ValidationError:
            payload = msgspec.json.decode(data)
            kept = _without_nulls(info, payload)
            if kept == payload:
                raise
            return decode(msgspec.json.encode(kept))

    return read


def _without_nulls(info: inspect.Type, payload: Any) -> Any:
    """Return JSON without the nulls that stand for a default."""
    if isinstance(info, inspect.UnionType):
        for each in info.types:
            payload = _without_nulls(each, payload)
    elif isinstance(payload, list):
        first = getattr(info, "item_types", ())
        kinds = chain(first, repeat(getattr(info, "item_type", ANYTHING)))
        return [_without_nulls(kind, part) for kind, part in zip(kinds, payload, strict=False)]
    elif isinstance(payload, dict) and isinstance(info, inspect.DictType):
        return {key: _without_nulls(info.value_type, part) for key, part in payload.items()}
    elif isinstance(payload, dict) and isinstance(info, inspect.DataclassType):
        fields = {field.encode_name: field for field in info.fields}
        return {
            key: _without_nulls(fields[key].type, part) if key in fields else part
            for key, part in payload.items()
            if part is not None or key not in fields or fields[key].default is not None
        }
    return payload
