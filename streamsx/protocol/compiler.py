"""Functions compiled from a schema: bytes to a message, a dict to bytes.

One function per struct and version, written as source text and compiled: runs of fixed-size fields
become one `struct.Struct`, and nothing is looked up by name while it runs. Which schema belongs to
which request, and the frames around it, are `wire`'s.

A decoder trusts nothing. A slice is never longer than what is left, so a length that lies makes the
position run past the end; what is read there fails, and `decode` looks at the end as well. Only an
array's length is looked at beforehand, for its elements are made one by one: they cost far more
than the few bytes of each, and whoever reads what strangers send says how many there may be.
"""

import struct
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import groupby
from typing import Any

from streamsx.errors import DataError
from streamsx.model import Buffer
from streamsx.protocol.schema import FIXED, Field, Schema, fields, message_type, newest_of

VARINT_BYTES_MAX = 5
STRING_BYTES_MAX = (1 << 15) - 1
"""What the length of a string could say before KIP-482. As in Kafka, newer versions have no longer
ones: "a group with a longer name commits; whoever lists groups in an old version gets no answer".
"""

ElementsLeft = list[int]
"""One number: so many more elements the arrays of a message may have together."""
Decoder = Callable[[memoryview, int, int, ElementsLeft], tuple[Any, int]]
"""(data, position, end, room) -> (message, position behind it)."""
Encoder = Callable[[Mapping[str, Any], bytearray], None]
"""Appends the message to the bytes."""


class Malformed(DataError):
    """Bytes that are not what their schema says. Whoever sent them is to be hung up on."""


def decode(
    decoder: Decoder, data: Buffer, start: int = 0, *, whole: bool = True,
    elements_max: int = sys.maxsize,
) -> Any:  # fmt: skip
    """The message at `start`; with `whole`, bytes left over behind it are an error, and so are more
    elements than `elements_max` in all of its arrays.

    Raises Malformed and nothing else, whatever the bytes are.
    """
    view = memoryview(data)
    try:
        message, end = decoder(view, start, len(view), [elements_max])
    except (IndexError, struct.error):
        raise Malformed(f"cut short: {len(view)} bytes") from None
    except UnicodeDecodeError as error:
        raise Malformed(f"a string that is not UTF-8: {error.reason}") from None
    if end > len(view) or (whole and end < len(view)):
        raise Malformed(f"{len(view)} bytes where its lengths say {end}")
    return message


def get_varint(data: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint and the position behind it."""
    number = shift = 0
    for _ in range(VARINT_BYTES_MAX):
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
        shift += 7
    raise Malformed(f"a varint of more than {VARINT_BYTES_MAX} bytes")


def put_varint(out: bytearray, number: int) -> None:
    """Append an unsigned varint."""
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


class SourceText:
    """The text of one function and the names it uses."""

    def __init__(self, head: str) -> None:
        self._lines = [head]
        self._names: dict[str, object] = {
            "get_varint": get_varint, "put_varint": put_varint, "Malformed": Malformed,
        }  # fmt: skip

    def name(self, value: object) -> str:
        """A name for a value that the text may use."""
        name = f"x{len(self._names)}"
        self._names[name] = value
        return name

    def add(self, depth: int, *lines: str) -> None:
        """Append lines, `depth` levels below the head."""
        self._lines += [" " * (depth + 1) + line for line in lines]

    def unpack(self, depth: int, into: str, packing: struct.Struct) -> None:
        """Append lines that read values of fixed size `into` names of the text."""
        self.add(depth, f"{into}, = {self.name(packing.unpack_from)}(b, p)", f"p += {packing.size}")

    def function(self) -> Any:
        """The function that the text defines; it is called `made`."""
        # As dataclasses do. The text comes from schemas alone, never from what was received.
        exec("\n".join(self._lines), self._names)  # noqa: S102
        return self._names["made"]


def _runs(schema: type[Schema]) -> list[list[Field]]:
    """The untagged fields, neighbours of fixed size together."""
    untagged = (field for field in fields(schema) if field.tag is None)
    runs = groupby(untagged, key=lambda field: "" if _fixed(field) else field.name)
    return [list(run) for _, run in runs]


def _fixed(field: Field) -> bool:
    return field.kind in FIXED and not field.array


def _is_number(field: Field) -> bool:
    """Whether `struct` knows an array of them as one."""
    return field.kind in FIXED and field.kind != "uuid"


def _packing(run: list[Field]) -> struct.Struct:
    return struct.Struct(">" + "".join(FIXED[field.kind] for field in run))


def _compact(schema: type[Schema], field: Field) -> bool:
    """Whether its length is a varint. A client id's never is: KIP-511 lets a broker that does not
    know the version of an ApiVersions request read the header all the same.
    """
    return schema.__flexible__ and (schema.__name__, field.name) != ("RequestHeader", "client_id")


# Decoders: in the text `b` is the data, `p` the position, `e` the end, `r` the room for elements,
# `o` the message.


@cache
def decoder(schema: type[Schema], newest: type[Schema]) -> Decoder:
    """Reads the struct; what it gives has the attributes of the newest version too."""
    source = SourceText("def made(b, p, e, r):")
    source.add(0, f"o = {source.name(message_type(schema, newest))}()")
    for run in _runs(schema):
        if _fixed(run[0]):
            source.unpack(0, ", ".join(f"o.{field.name}" for field in run), _packing(run))
        else:
            field = run[0]
            compact = _compact(schema, field)
            _decode_field(source, 0, field, newest, f"o.{field.name}", compact=compact)
    if schema.__flexible__:
        _decode_tagged(source, schema, newest)
    source.add(0, "return o, p")
    made: Decoder = source.function()
    return made


def _decode_field(
    source: SourceText, depth: int, field: Field, newest: type[Schema], into: str, *, compact: bool
) -> None:
    """Read it `into` a name of the text."""
    if _fixed(field):
        source.unpack(depth, into, _packing([field]))
    elif field.struct and not field.array:
        if field.nullable:  # KIP-893: one byte, negative for null
            source.add(depth, "p += 1", f"if b[p - 1] > 127: {into} = None", "else:")
        inner = source.name(decoder(field.struct, newest_of(field, newest)))
        source.add(depth + field.nullable, f"{into}, p = {inner}(b, p, e, r)")
    else:
        _decode_length(source, depth, field, into, compact=compact)
        if field.array:
            _decode_elements(source, depth + 1, field, newest, into, compact=compact)
        else:
            source.add(depth + 1, f"{into} = {READ[field.kind]}", "p += n")


READ = {"string": 'str(b[p:p + n], "utf8")', "bytes": "bytes(b[p:p + n])", "records": "b[p:p + n]"}
"""How the `n` bytes at `p` become a value. Records stay a view of the frame."""


def _decode_length(
    source: SourceText, depth: int, field: Field, into: str, *, compact: bool
) -> None:
    """`n`, then the branch in which it is not null; its lines go one level deeper."""
    text = field.kind == "string" and not field.array
    if compact:
        source.add(depth, "n = b[p] - 1", "p += 1")
        source.add(depth, "if n > 126:", " n, p = get_varint(b, p - 1)", " n -= 1")
        if text:
            complaint = f'raise Malformed(f"{field.name}: a string of {{n}} bytes")'
            source.add(depth + 1, f"if n > {STRING_BYTES_MAX}: {complaint}")
    else:
        source.unpack(depth, "n", struct.Struct(">h" if text else ">i"))
    null = f'raise Malformed("null where {field.name} must not be")'
    if field.nullable:
        null = f"{into} = None"
    source.add(depth, f"if n < 0: {null}", "else:")


def _decode_elements(
    source: SourceText, depth: int, field: Field, newest: type[Schema], into: str, *, compact: bool
) -> None:
    """The `n` elements of an array."""
    complaint = f'raise Malformed(f"{field.name}: {{n}} elements in {{e - p}} bytes")'
    source.add(depth, f"if n > e - p: {complaint}", "r[0] -= n")
    source.add(depth, f'if r[0] < 0: raise Malformed("{field.name}: too many elements")')
    if _is_number(field):
        code, unpack = FIXED[field.kind], source.name(struct.unpack_from)
        source.add(depth, f'{into} = list({unpack}(f">{{n}}{code}", b, p))')
        source.add(depth, f"p += {struct.calcsize('>' + code)} * n")
    else:
        element = field._replace(array=False, nullable=False)
        source.add(depth, f"{into} = a = []", "for _ in range(n):")
        _decode_field(source, depth + 1, element, newest, "i", compact=compact)
        source.add(depth + 1, "a.append(i)")


def _decode_tagged(source: SourceText, schema: type[Schema], newest: type[Schema]) -> None:
    """Known tags must fill their size exactly, unknown ones are skipped."""
    source.add(0, "n, p = b[p], p + 1", "if n > 127: n, p = get_varint(b, p - 1)")
    source.add(0, "while n:")
    source.add(1, "t, p = get_varint(b, p)", "z, p = get_varint(b, p)", "z += p", "left = n - 1")
    for field in fields(schema):
        if field.tag is not None:
            source.add(1, f"if t == {field.tag}:")
            _decode_field(source, 2, field, newest, f"o.{field.name}", compact=True)
            source.add(2, f'if p != z: raise Malformed("{field.name}: a tag of another size")')
    source.add(1, "n, p = left, z")


# Encoders: in the text `o` is the dict, `w` the bytes, `v` a field's value.


@cache
def encoder(schema: type[Schema]) -> Encoder:
    """Writes a dict: absent keys as defaults, keys that the version lacks not at all.

    None where this version knows no null is written as empty: a newer version may know it.
    """
    source = SourceText("def made(o, w):")
    source.add(0, "get = o.get")
    for run in _runs(schema):
        if _fixed(run[0]):
            values = ", ".join(f"get({field.name!r}, {field.default!r})" for field in run)
            source.add(0, f"w += {source.name(_packing(run).pack)}({values})")
        else:
            source.add(0, f"v = get({run[0].name!r}, {run[0].default!r})")
            _encode_field(source, 0, run[0], compact=_compact(schema, run[0]))
    if schema.__flexible__:
        _encode_tagged(source, schema)
    made: Encoder = source.function()
    return made


def _encode_field(source: SourceText, depth: int, field: Field, *, compact: bool) -> None:
    """Append `v`."""
    if _fixed(field):
        source.add(depth, f"w += {source.name(_packing([field]).pack)}(v)")
    elif field.struct and not field.array:
        inner = source.name(encoder(field.struct))
        if field.nullable:
            source.add(depth, "w.append(255 if v is None else 1)")
            source.add(depth, f"if v is not None: {inner}(v, w)")
        else:
            source.add(depth, f"{inner}(v or {{}}, w)")
    else:
        _encode_length(source, depth, field, compact=compact)
        if not field.array:
            source.add(depth + 1, "w += v")
        elif _is_number(field):
            pack = source.name(struct.pack)
            source.add(depth + 1, f'w += {pack}(f">{{len(v)}}{FIXED[field.kind]}", *v)')
        else:
            element = field._replace(array=False, nullable=False)
            source.add(depth + 1, "for v in v:")
            _encode_field(source, depth + 2, element, compact=compact)


def _encode_length(source: SourceText, depth: int, field: Field, *, compact: bool) -> None:
    """The length of `v`, then the branch in which it is not None; its lines go one level deeper."""
    text = field.kind == "string" and not field.array
    null = -1 if field.nullable or field.kind == "records" else 0
    if compact:
        source.add(depth, f"if v is None: w.append({null + 1})", "else:")
        source.add(depth + 1, *["v = v.encode()"] * text, "n = len(v) + 1")
        source.add(depth + 1, "if n < 128: w.append(n)", "else: put_varint(w, n)")
    else:
        pack = source.name(struct.Struct(">h" if text else ">i").pack)
        source.add(depth, f"if v is None: w += {pack}({null})", "else:")
        source.add(depth + 1, *["v = v.encode()"] * text, f"w += {pack}(len(v))")


def _encode_tagged(source: SourceText, schema: type[Schema]) -> None:
    """The tagged fields that differ from their default, in order, each with its size."""
    tagged = [field for field in fields(schema) if field.tag is not None]
    if not tagged:
        source.add(0, "w.append(0)")
        return
    source.add(0, "out, tags, count = w, b'', 0")
    for field in tagged:
        source.add(0, f"v = get({field.name!r}, {field.default!r})")
        source.add(0, f"if {_is_set(field)}:")
        source.add(1, "w = bytearray()")
        _encode_field(source, 1, field, compact=True)
        source.add(1, f"if w != {_blank(field)!r}:")
        source.add(2, "t = bytearray()", f"put_varint(t, {field.tag})", "put_varint(t, len(w))")
        source.add(2, "tags += t + w", "count += 1")
    source.add(0, "put_varint(out, count)", "out += tags")


def _blank(field: Field) -> bytes:
    """A nested struct with defaults alone, which needs no tag; no other field is ever so."""
    blank = bytearray()
    if field.struct and not field.array:
        encoder(field.struct)({}, blank)
    return bytes(blank)


def _is_set(field: Field) -> str:
    """The condition under which `v` is not the default."""
    if field.default is None:
        return "v is not None"
    if field.array:
        return "v"
    return f"v is not None and v != {field.default!r}"
