"""Compiler of schemas: generates functions that decode bytes to a message, and encode a dict to
bytes.

Each struct and version has one function, generated as source text and compiled. Runs of fixed-size
fields become one `struct.Struct`, and no name is looked up at run time. Not here: which schema
belongs to which request, and the frames around messages (`wire`).

A decoder does not trust its input. A slice is never longer than the remaining bytes, so a wrong
length moves the position past the end; reads there fail, and `decode` checks the end as well. Only
the length of an array is checked beforehand, because its elements are created one by one: they cost
far more than the few bytes of each. A caller that reads input of strangers passes the largest
number of elements.
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
"""Longest string whose length fits into the format before KIP-482. As in Kafka, newer versions
accept no longer strings either: otherwise a group with a longer name could commit, and a client
that lists groups in an old version would get no answer.
"""

ElementsLeft = list[int]
"""List of one number: how many more elements the arrays of a message may have together."""
Decoder = Callable[[memoryview, int, int, ElementsLeft], tuple[Any, int]]
"""Function (data, position, end, room) -> (message, position behind the message)."""
Encoder = Callable[[Mapping[str, Any], bytearray], None]
"""Function that appends a message to the bytes."""


class Malformed(DataError):
    """Error for bytes that do not match their schema. The connection to their sender is to
    be closed.
    """


def decode(
    decoder: Decoder, data: Buffer, start: int = 0, *, whole: bool = True,
    elements_max: int = sys.maxsize,
) -> Any:  # fmt: skip
    """Return the message at `start`.

    With `whole`, bytes left over behind the message are an error. More elements than `elements_max`
    in all arrays together are an error too.

    Raises:
        Malformed: The bytes are no such message. No other error is raised, whatever the bytes are.
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
    """Return an unsigned varint and the position behind the varint."""
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
    """Source text of one function, and the values that the text refers to."""

    def __init__(self, head: str) -> None:
        self._lines = [head]
        self._names: dict[str, object] = {
            "get_varint": get_varint, "put_varint": put_varint, "Malformed": Malformed,
        }  # fmt: skip

    def name(self, value: object) -> str:
        """Return a name under which the text can use the value."""
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
        """Compile the text and return the function that it defines under the name `made`."""
        # dataclasses do the same. The text is made from schemas only, never from received bytes.
        exec("\n".join(self._lines), self._names)  # noqa: S102
        return self._names["made"]


def _runs(schema: type[Schema]) -> list[list[Field]]:
    """Return the untagged fields; neighbours of fixed size are grouped."""
    untagged = (field for field in fields(schema) if field.tag is None)
    runs = groupby(untagged, key=lambda field: "" if _fixed(field) else field.name)
    return [list(run) for _, run in runs]


def _fixed(field: Field) -> bool:
    return field.kind in FIXED and not field.array


def _is_number(field: Field) -> bool:
    """Return whether `struct` can pack an array of this kind at once."""
    return field.kind in FIXED and field.kind != "uuid"


def _packing(run: list[Field]) -> struct.Struct:
    return struct.Struct(">" + "".join(FIXED[field.kind] for field in run))


def _compact(schema: type[Schema], field: Field) -> bool:
    """Return whether the length of a field is a varint.

    The length of a client id never is: KIP-511 lets a broker that does not know the version of an
    ApiVersions request still read the header.
    """
    return schema.__flexible__ and (schema.__name__, field.name) != ("RequestHeader", "client_id")


# Names in the text of decoders: `b` is the data, `p` the position, `e` the end, `r` the room for
# elements, `o` the message.


@cache
def decoder(schema: type[Schema], newest: type[Schema]) -> Decoder:
    """Return a function that decodes the struct.

    A decoded message has the attributes of the newest version too.
    """
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
    """Append lines that read a field `into` a name of the text."""
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
"""Expressions that turn the `n` bytes at `p` into a value. Records stay a view of the frame."""


def _decode_length(
    source: SourceText, depth: int, field: Field, into: str, *, compact: bool
) -> None:
    """Append lines that read the length `n`, and begin the branch for values that are not null.

    The lines of the branch go one level deeper.
    """
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
    """Append lines that read the `n` elements of an array."""
    complaint = f'raise Malformed(f"{field.name}: {{n}} elements in {{e - p}} bytes")'
    source.add(depth, f"if n > e - p: {complaint}", "r[0] -= n")
    source.add(depth, f'if r[0] < 0: raise Malformed("{field.name}: too many elements")')
    if _is_number(field):
        code = FIXED[field.kind]
        unpack = source.name(struct.unpack_from)
        source.add(depth, f'{into} = list({unpack}(f">{{n}}{code}", b, p))')
        source.add(depth, f"p += {struct.calcsize('>' + code)} * n")
    else:
        element = field._replace(array=False, nullable=False)
        source.add(depth, f"{into} = a = []", "for _ in range(n):")
        _decode_field(source, depth + 1, element, newest, "i", compact=compact)
        source.add(depth + 1, "a.append(i)")


def _decode_tagged(source: SourceText, schema: type[Schema], newest: type[Schema]) -> None:
    """Append lines that read tagged fields: known tags must fill their size exactly, others are
    skipped.
    """
    source.add(0, "n, p = b[p], p + 1", "if n > 127: n, p = get_varint(b, p - 1)")
    source.add(0, "while n:")
    source.add(1, "t, p = get_varint(b, p)", "z, p = get_varint(b, p)", "z += p", "left = n - 1")
    for field in fields(schema):
        if field.tag is not None:
            source.add(1, f"if t == {field.tag}:")
            _decode_field(source, 2, field, newest, f"o.{field.name}", compact=True)
            source.add(2, f'if p != z: raise Malformed("{field.name}: a tag of another size")')
    source.add(1, "n, p = left, z")


# Names in the text of encoders: `o` is the dict, `w` the bytes, `v` the value of a field.


@cache
def encoder(schema: type[Schema]) -> Encoder:
    """Return a function that encodes a dict.

    Absent keys are written as defaults; keys that the version lacks are ignored. A None where this
    version has no null is written as empty, since a newer version may allow null.
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
    """Append lines that write `v`."""
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
    """Append lines that write the length of `v`, and begin the branch for values that are not None.

    The lines of the branch go one level deeper.
    """
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
    """Append lines that write tagged fields other than their default, in order, each with
    its size.
    """
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
    """Return the bytes of a nested struct with defaults only, which is not written; empty for other
    fields.
    """
    blank = bytearray()
    if field.struct and not field.array:
        encoder(field.struct)({}, blank)
    return bytes(blank)


def _is_set(field: Field) -> str:
    """Return the condition under which `v` is not the default."""
    if field.default is None:
        return "v is not None"
    if field.array:
        return "v"
    return f"v is not None and v != {field.default!r}"
