"""serde/ against Faust's own Registry and Schema: the same bytes and the same values, both ways."""

from decimal import Decimal
from types import SimpleNamespace
from typing import Any, Optional

import faust
import orjson
import pytest
from faust.serializers.registry import Registry
from faust.serializers.schemas import Schema
from faust.types.tuples import Message
from hypothesis import given
from hypothesis import strategies as st

from streamsx.serde.codec import Codec, table_codec, topic_codec

FAUST = SimpleNamespace(serializers=Registry("raw", "json"))


class Order(faust.Record):
    account: str
    amount: float
    note: str = "none"
    tags: list[str] = []  # noqa: RUF012  # as users write it


class Signed(faust.Record, serializer="json", include_metadata=False):
    name: str
    parent: Optional[Order] = None  # noqa: UP045  # as users write it


class Plain(faust.Record):
    a: str


class Coerced(faust.Record, coerce=True, namespace="other.name"):
    price: Decimal
    count: int = 3


class Renamed(faust.Record):
    shown: str = faust.models.fields.StringField(input_name="sent")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
orders = st.builds(
    Order,
    st.text(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.lists(st.text(), max_size=2),
)
signed = st.builds(Signed, st.text(), st.none() | orders)
coerced = st.builds(Coerced, st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 9))
models = orders | signed | coerced | st.builds(Renamed, st.text())
values = json_values | st.binary() | models | st.sets(st.integers(0, 9)) | st.decimals()
kinds = st.sampled_from([None, str, bytes, int, float, Decimal, Order, Signed, Coerced, Renamed])
serializers = st.sampled_from([None, "json", "raw", "pickle_restricted", "binary"])


def outcome(call: Any, *arguments: Any) -> Any:
    """Return the result of a call, or that it raised.

    Records are equal when all fields are; the order of the fields may be that of the message.
    """
    try:
        result = call(*arguments)
    except Exception:
        return "error"
    if hasattr(result, "__is_model__"):
        held = {k: v for k, v in vars(result).items() if k != "__evaluated_fields__"}
        return type(result), repr(sorted(held.items()))
    return type(result), repr(result)


NONE = (type(None), "None")


def as_faust(kind: Any, data: bytes | None, read: Any, of_faust: Any) -> bool:
    """Return whether a value was read as Faust reads it; a missing typed value may differ.

    Faust gives None for some of these and fails for others. Here a topic's value is skipped unless
    its agent asks for None; a key or a table's value is None (`unit/testing/test_values`).
    """
    missing = data in (None, b"null") or of_faust == NONE
    if kind is not None and missing and of_faust in (NONE, "error"):
        return read in (NONE, "error")
    return bool(read == of_faust)


def faust_schema(kind: Any, serializer: Any) -> Any:
    return Schema(
        key_type=kind, value_type=kind, key_serializer=serializer, value_serializer=serializer
    )


def message(data: bytes | None) -> Message:
    return Message("t", 0, 0, 0.0, 0, None, data, data, None)


def codecs(kind: Any, serializer: Any) -> tuple[Codec, Codec]:
    return topic_codec(kind, serializer, "raw"), topic_codec(kind, serializer, "json")


@given(kinds, serializers, values)
def test_topic_records_are_encoded_as_by_faust(kind: Any, serializer: Any, value: Any) -> None:
    schema, (key_codec, value_codec) = faust_schema(kind, serializer), codecs(kind, serializer)
    for dumps, codec in ((schema.dumps_key, key_codec), (schema.dumps_value, value_codec)):
        written = outcome(lambda dumps=dumps: dumps(FAUST, value, headers=None)[0])
        if written == "error" or written[0] in (bytes, type(None)):  # else its producer fails
            assert outcome(codec.encode, value) == written


@given(kinds, serializers, values | st.none())
def test_topic_records_are_decoded_as_by_faust(kind: Any, serializer: Any, value: Any) -> None:
    schema, (key_codec, value_codec) = faust_schema(kind, serializer), codecs(kind, serializer)
    try:
        data = value_codec.encode(value)
    except Exception:
        data = b"\xff\x00 not it"
    loads = ((schema.loads_key, key_codec), (schema.loads_value, value_codec))
    for load, codec in loads:
        read = outcome(codec.decode, data)
        assert as_faust(kind, data, read, outcome(load, FAUST, message(data)))


@given(kinds, st.binary())
def test_any_bytes_are_decoded_as_by_faust(kind: Any, data: bytes) -> None:
    schema, (key_codec, value_codec) = faust_schema(kind, None), codecs(kind, None)
    loads = ((schema.loads_key, key_codec), (schema.loads_value, value_codec))
    for load, codec in loads:
        read = outcome(codec.decode, data)
        assert as_faust(kind, data, read, outcome(load, FAUST, message(data)))


@given(kinds, values, values)
def test_table_rows_are_encoded_and_decoded_as_by_faust(kind: Any, key: Any, value: Any) -> None:
    app = faust.App("codecs", broker="kafka://")
    store: Any = app.Table("t", key_type=kind, value_type=kind)
    serializer = store.key_serializer
    codec = table_codec(kind)
    for thing in (key, value):
        written = outcome(
            lambda thing=thing: FAUST.serializers.dumps_value(kind, thing, serializer=serializer)
        )
        made = outcome(codec.encode, thing)
        if made == "error" and isinstance(thing, bytes | set | Decimal):
            continue  # JSON does not give these back: a table refuses them
        if written == "error" or written[0] is bytes:
            assert made == written
        if written != "error" and written[0] is bytes:
            data = codec.encode(thing)
            of_faust = outcome(
                lambda data=data: FAUST.serializers.loads_value(kind, data, serializer=serializer)
            )
            assert as_faust(kind, data, outcome(codec.decode, data), of_faust)


@given(
    st.dictionaries(
        st.sampled_from(["account", "amount", "note", "tags", "extra", "__faust"]),
        json_values
        | st.sampled_from([{"ns": Order._options.namespace}, {"ns": "other.name"}, {"ns": "?"}]),
    )
)
def test_decoded_record_equals_from_data_for_any_fields(fields: dict[str, Any]) -> None:
    codec = topic_codec(Order, "json", None)
    data = codec.encode(fields)
    expected = outcome(lambda: Order.from_data(dict(fields), preferred_type=Order))
    assert outcome(codec.decode, data) == expected


def test_record_decoded_without_the_constructor_is_complete() -> None:
    codec = topic_codec(Order, None, "json")
    made, read = Order("ann", 1.5), codec.decode(Order("ann", 1.5).dumps(serializer="json"))
    assert read == made
    plain = topic_codec(Plain, None, "json").decode(b'{"a": "x"}')
    assert hash(plain) == hash(Plain("x"))
    assert read.dumps(serializer="json") == made.dumps(serializer="json")
    assert read.derive(amount=2.0) == Order("ann", 2.0)
    assert read.__dict__.keys() - {"__evaluated_fields__"} == set(Order._options.fields)


def test_nested_record_is_decoded_on_access() -> None:
    raw = b'{"name": "x", "parent": {"account": "ann", "amount": 1.0}}'
    assert topic_codec(Signed, None, "json").decode(raw).parent == Order("ann", 1.0)


class Finished(faust.Record):
    a: str

    def __post_init__(self) -> None:
        self.finished = True


class Other(faust.Record, allow_blessed_key=True):
    b: str


@pytest.mark.parametrize(
    ("kind", "raw", "name", "value"),
    [
        (Coerced, b'{"price": "1.5", "count": "4"}', "count", 4),
        (Renamed, b'{"sent": "x"}', "shown", "x"),
        (Finished, b'{"a": "x"}', "finished", True),
        (Plain, b'{"b": "x", "__faust": {"ns": "%s"}}', "b", "x"),
    ],
)
def test_records_that_are_not_plain_use_the_constructor(
    kind: Any, raw: bytes, name: str, value: Any
) -> None:
    raw = raw.replace(b"%s", Other._options.namespace.encode())
    read, expected = topic_codec(kind, "json", None).decode(raw), kind.from_data(orjson.loads(raw))
    assert getattr(read, name) == value
    assert read == expected


def test_model_without_fields_fails_as_in_faust() -> None:
    with pytest.raises(AttributeError):
        topic_codec(faust.Record, "json", None).decode(b"{}")


def test_infinity_in_a_message_is_written_as_null() -> None:
    """JSON has no infinity. The properties above draw none, so this test holds the result."""
    assert topic_codec(None, "json", None).encode({"amount": float("inf")}) == b'{"amount":null}'
