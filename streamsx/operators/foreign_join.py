"""Operators that join a table with another one by a key of the other: a foreign-key join.

A left row is where the left key is, the right row where the foreign key is. So a change of a left
row sends a subscription to the task of the foreign key. The task keeps the subscription, and
answers with the right value now and with each change of that value. The result is made where the
left row is, out of the row that is there when the answer comes.

An answer may be under way while the left row changes, goes, or comes again. So a left row has a
tag, the hash of its value and time; a subscription carries the tag, and each answer repeats the
tag. An answer with another tag than the row's is dropped: another one is to come.

    subscription   key: the foreign key. u8 flags (1: subscribes, 2: is answered), tag, left key
    answer         key: the left key. tag, u8 whether a value follows, the right value

The timestamp of a subscription is the time of the left change, that of an answer the time of the
result.
"""

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from streamsx.operators.operator import Code, Operator, indented
from streamsx.serde.codec import Codec, Quick, table_codec
from streamsx.state.framed import TAG_BYTES
from streamsx.state.layout import StoreNode, time_bytes
from streamsx.state.subscription_store import prefix_of

FOREIGN_LEFT: Final = "foreign_left"
"""Kind of the operator of the left changes: sub-topologies with it feed each other in a circle."""
NO_TAG: Final = bytes(TAG_BYTES)
"""Tag of a left row that is not there."""
RAW_BYTES: Final = table_codec(bytes)

FIND_LEFT: Final = """\
{row} = {left_get}({key})
if {row} is None:
    {row} = {left_load}({key})
elif {row} is GONE:
    {row} = None
"""
FIND_RIGHT: Final = FIND_LEFT.replace("left_", "right_")
BIND_LEFT: Final = """\
{left_hot} = {left}.hot
{left_get} = {left_hot}.get
{left_load} = {left}.load
"""
BIND_RIGHT: Final = BIND_LEFT.replace("left", "right")
KEYED: Final = "if {key} is None:\n    {counts}.skipped += 1\nelse:\n"

CHANGED: Final = """\
if {value} is not None or {row} is not None:
    {was} = None if {row} is None else {foreign}({row}[1][1])
    {now_at} = None if {value} is None else {foreign}({value})
    {tag} = {tag_of}({value}, {timestamp})
    {left_hot}[{key}] = GONE if {value} is None else ({timestamp}, ({tag}, {value}))
    if {now_at} is not None:
        if {was} is not None and {was} != {now_at}:
            {send}({was}, {subscription}(0, {tag}, {key}), {timestamp}, None)
        {send}({now_at}, {subscription}(3, {tag}, {key}), {timestamp}, None)
    elif {was} is not None and @ends:
        {send}({was}, {subscription}(2, {tag}, {key}), {timestamp}, None)
    else:
        if {was} is not None:
            {send}({was}, {subscription}(0, {tag}, {key}), {timestamp}, None)
        {new_value} = @alone
        {then}
"""
SUBSCRIBED: Final = """\
{flags}, {tag}, {left_key} = {value}
{prefix} = {prefix_of}({key})
{subscriptions}.put_row(
    {prefix}, {prefix} + {left_key}, ({timestamp}, {tag}) if {flags} & 1 else GONE
)
if {flags} & 2:
""" + indented(
    FIND_RIGHT
    + """\
{at} = {timestamp} if {row} is None else max({timestamp}, {row}[0])
{theirs} = {row}[1] if {row} is not None and {flags} & 1 else None
{send}({left_key}, {tag} + {answer}({theirs}), {at}, None)
"""
)
RIGHT_CHANGED: Final = """\
if {value} is not None or {row} is not None:
    {right_hot}[{key}] = GONE if {value} is None else ({timestamp}, {value})
    {body} = {answer}({value})
    {sent} = 0
    for {left_key}, {since}, {tag} in {subscriptions}.subscribers({prefix_of}({key})):
        {send}({left_key}, {tag} + {body}, max({timestamp}, {since}), None)
        {sent} += 1
        if not {sent} % SLICE_ROWS:
            yield
"""
ANSWER: Final = """\
if ({no_tag} if {row} is None else {row}[1][0]) == {value}[0]:
    {new_value} = @result
    {then}
"""


class ForeignStores(NamedTuple):
    """Stores of a foreign-key join."""

    left: StoreNode
    right: StoreNode
    subscriptions: StoreNode


class ForeignTopics(NamedTuple):
    """Names of the topics of a foreign-key join."""

    subscriptions: str
    answers: str


class ForeignJoin(NamedTuple):
    """Operators of a foreign-key join, by the records that they take."""

    left: Operator
    subscriptions: Operator
    right: Operator
    answers: Operator


def foreign_join(
    stores: ForeignStores,
    topics: ForeignTopics,
    fun: Callable[[Any, Any], Any],
    foreign: Callable[[Any], bytes | None],
    values: Codec,
    right_values: Codec,
    *,
    left: bool,
) -> ForeignJoin:
    """Return the operators. `foreign` returns the bytes of a left value's foreign key.

    `values` and `right_values` are the codecs of the values of both tables. `left`: a left row
    without a right one has a result too.
    """
    alone = "None if {value} is None else {fun}({value}, None)" if left else "None"
    ends = "{value} is None" if left else "True"
    changed = CHANGED.replace("@alone", alone).replace("@ends", ends)
    there = "{row} is not None" + ("" if left else " and {value}[1] is not None")
    result = f"{{fun}}({{row}}[1][1], {{value}}[1]) if {there} else None"
    answer = _answer_writer(right_values)
    right_side = {"right": stores.right, "subscriptions": stores.subscriptions}
    shared: Mapping[str, Any] = {"answer": answer, "prefix_of": prefix_of}
    made = ("value",)
    plain = {"headers": "None"}
    return ForeignJoin(
        Operator(
            FOREIGN_LEFT,
            Code(
                KEYED + indented(FIND_LEFT + changed),
                made, plain, bind=BIND_LEFT,
            ),
            {"fun": fun, "foreign": foreign, "tag_of": _tagger(values), "subscription": written},
            topics.subscriptions,
            {"left": stores.left},
        ),
        Operator(
            "foreign_subscription",
            Code(KEYED + indented(SUBSCRIBED), bind=BIND_RIGHT),
            shared, topics.answers, right_side,
        ),
        Operator(
            "foreign_right",
            Code(KEYED + indented(FIND_RIGHT + RIGHT_CHANGED), bind=BIND_RIGHT),
            shared, topics.answers, right_side,
        ),
        Operator(
            "foreign_answer",
            Code(
                KEYED + indented(FIND_LEFT + ANSWER.replace("@result", result)),
                made, plain, bind=BIND_LEFT,
            ),
            {"fun": fun, "no_tag": NO_TAG},  # type: ignore[dict-item]
            stores={"left": stores.left},
        ),
    )  # fmt: skip


def _tagger(values: Codec) -> Callable[[Any, int], bytes]:
    """Return a function from a left value and its time in ms to the tag of the row."""
    encoders = values.encoders

    def tag(value: Any, at: int) -> bytes:
        if value is None:
            return NO_TAG
        data = encoders[type(value)](value) or b""
        return blake2b(time_bytes(at) + data, digest_size=TAG_BYTES).digest()

    return tag


def written(flags: int, tag: bytes, left_key: bytes) -> bytes:
    """Return the bytes of a subscription."""
    return bytes((flags,)) + tag + left_key


def _subscription(data: bytes | None) -> tuple[int, bytes, bytes]:
    assert data is not None, "a subscription without a value"
    return data[0], data[1 : 1 + TAG_BYTES], data[1 + TAG_BYTES :]


def _answer_writer(values: Codec) -> Callable[[Any], bytes]:
    """Return a function from a right value to the bytes of an answer, behind the tag."""
    encoders = values.encoders

    def body(value: Any) -> bytes:
        return b"\x00" if value is None else b"\x01" + (encoders[type(value)](value) or b"")

    return body


def subscription_codec() -> Codec:
    """Return the codec of subscriptions as operators read them: flags, tag, left key."""
    return Codec("subscription", RAW_BYTES.encoders, _subscription, Quick(_subscription))


def answer_codec(values: Codec) -> Codec:
    """Return the codec of answers as operators read them: tag and right value."""
    read = values.decode

    def decode(data: bytes | None) -> tuple[bytes, Any]:
        assert data is not None, "an answer without a value"
        value = read(data[TAG_BYTES + 1 :]) if data[TAG_BYTES] else None
        return data[:TAG_BYTES], value

    return Codec("answer", RAW_BYTES.encoders, decode, Quick(decode))
