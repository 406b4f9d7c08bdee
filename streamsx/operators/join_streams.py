"""Operators that join two streams by key and time: one for the records of each side.

A left and a right record of one key match if the right one is at most `before` earlier and at most
`after` later than the left one. A result leaves when the second of the two comes, with the later
one's time. A left record's window reaches to its time and `after`, a right one's to its time and
`before`. Stream time beyond that and the grace closes the window: the record matches nothing from
then on, and a record that comes with its window closed is late. So a record has either matches, or,
in left and outer joins, one result without the other side. That result leaves when the window
closes, with the record's own time.

A record without a value, or without a time, is skipped. A record without a key matches nothing: it
is skipped, or has its result without the other side at once.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from streamsx.operators.operator import Code, Operator
from streamsx.state.join_buffer import ENTRIES_MAX, JoinBuffer
from streamsx.state.layout import StoreNode, time_bytes

BIND: Final = """\
{hot} = {own}.hot
{get} = {hot}.get
{load} = {own}.load
{other_hot} = {other}.hot
{other_get} = {other_hot}.get
{peek} = {other}.peek
"""
JOIN: Final = """\
if {value} is None or {timestamp} < 0:
    {counts}.skipped += 1
elif {key} is None:
    @unkeyed
elif {timestamp} + {stays} < {now}:
    {counts}.late += 1
else:
    {low} = {timestamp} - {back}
    {high} = {timestamp} + {reach}
    {found} = []
    for {start} in range(max(0, {low} - {low} % {size}), {high} + 1, {size}):
        {row} = {pack}({start}) + {key}
        {entries} = {other_get}({row})
        if {entries} is None:
            {entries} = {peek}({row}) or ()
        for {entry} in {entries}:
            if {low} <= {entry}[0] <= {high} and {entry}[0] + {other_stays} >= {now}:
                {found}.append({entry})
                @mark
    if len({found}) > 1:
        {found}.sort(key={by_time})
    {row} = {pack}({timestamp} - {timestamp} % {size}) + {key}
    {entries} = {get}({row})
    if {entries} is None:
        {entries} = {load}({row}) or []
    if len({entries}) >= {entries_max}:
        raise {own}.full({key})
    {entries}.append([{timestamp}, bool({found}), {value}])
    {hot}[{row}] = {entries}
    @note
    for {entry} in {found}:
        {new_timestamp} = max({timestamp}, {entry}[0])
        {new_value} = @result
        {then}
"""
MARK: Final = """\
if not {entry}[1]:
                    {entry}[1] = True
                    {other_hot}[{row}] = {entries}"""
NOTE: Final = """\
if {timestamp} < {own}.horizon and not {found}:
        {own}.note({timestamp}, {key}, len({entries}) - 1)"""
ALONE_AT_ONCE: Final = """\
{new_timestamp} = {timestamp}
    {new_value} = @alone
    {then}"""
RESULTS: Final = Code(
    """\
for {part} in {closed}({left}, {right}, {clock}, SLICE_ROWS):
    for {new_timestamp}, {side}, {plain_key}, {found} in {part}:
        {new_value} = {fun}(None, {found}) if {side} else {fun}({found}, None)
        {then}
    yield
""",
    ("value", "timestamp"),
    {"key": "{plain_key}", "decoded": "{decode_key}({plain_key})", "headers": "None"},
)
DROPS: Final = Code("for _ in {closed}({left}, {right}, {clock}, SLICE_ROWS):\n    yield\n")


class Sides(NamedTuple):
    """Form of a join: which records have a result without the other side, and times in ms."""

    left_alone: bool
    right_alone: bool
    before: int
    after: int


def by_time(entry: list[Any]) -> int:
    return entry[0]  # type: ignore[no-any-return]


def join_streams(
    left: StoreNode,
    right: StoreNode,
    fun: Callable[[Any, Any], Any],
    sides: Sides,
    decode_key: Callable[[Any], Any],
) -> tuple[Operator, Operator]:
    """Return the operators of the left and of the right records."""
    one = _side(left, right, fun, sides, decode_key, right_side=False)
    return one, _side(left, right, fun, sides, decode_key, right_side=True)


def _side(
    left: StoreNode,
    right: StoreNode,
    fun: Callable[[Any, Any], Any],
    sides: Sides,
    decode_key: Callable[[Any], Any],
    *,
    right_side: bool,
) -> Operator:
    own, other = (right, left) if right_side else (left, right)
    alone, other_alone = (
        (sides.right_alone, sides.left_alone)
        if right_side
        else (sides.left_alone, sides.right_alone)
    )
    code = Code(
        _block(right_side=right_side, alone=alone, other_alone=other_alone),
        ("value", "timestamp"),
        bind=BIND,
        close=RESULTS if sides.left_alone or sides.right_alone else DROPS,
        due="min({left}.due, {right}.due)",
        moves_due=True,
    )
    assert own.timing is not None, own
    assert other.timing is not None, other
    functions: dict[str, Any] = {
        "fun": fun,
        "pack": time_bytes,
        "by_time": by_time,
        "decode_key": decode_key,
        "closed": _closer(sides),
    }
    constants = {
        "back": sides.after if right_side else sides.before,
        "reach": sides.before if right_side else sides.after,
        "stays": own.timing.stays,
        "other_stays": other.timing.stays,
        "size": own.timing.size,
        "entries_max": ENTRIES_MAX,
    }
    stores = {"left": left, "right": right, "own": own, "other": other}
    kind = f"join_{'right' if right_side else 'left'}"
    return Operator(kind, code, functions, stores=stores, constants=constants)


def _block(*, right_side: bool, alone: bool, other_alone: bool) -> str:
    """Return the lines for the records of one side."""
    result = "{fun}({entry}[2], {value})" if right_side else "{fun}({value}, {entry}[2])"
    without = "{fun}(None, {value})" if right_side else "{fun}({value}, None)"
    parts = {
        "@unkeyed": ALONE_AT_ONCE.replace("@alone", without) if alone else "{counts}.skipped += 1",
        "@mark": MARK if other_alone else "pass",
        "@note": NOTE if alone else "pass",
        "@result": result,
    }
    block = JOIN
    for name, text in parts.items():
        block = block.replace(name, text)
    return block


Closed = tuple[int, bool, bytes, Any]
"""Time, side (whether the right one), key and value of a record that has no match."""


def _closer(
    sides: Sides,
) -> Callable[[JoinBuffer, JoinBuffer, int, int], Iterator[list[Closed]]]:
    """Return a function that closes both buffers, and yields records without a match by time."""

    def closed(left: JoinBuffer, right: JoinBuffer, now: int, limit: int) -> Iterator[list[Closed]]:
        first = _records(left, now, limit, right_side=False, alone=sides.left_alone)
        second = _records(right, now, limit, right_side=True, alone=sides.right_alone)
        yield from _by_time(first, second, limit)

    return closed


def _records(
    buffer: JoinBuffer, now: int, limit: int, *, right_side: bool, alone: bool
) -> Iterator[Closed | None]:
    """Yield the closed records of one buffer that have a result; None for a pause."""
    if not alone:
        for _ in buffer.drop(now, limit):
            yield None
        return
    for part in buffer.close(now, limit):
        yield from ((at, right_side, key, value) for at, key, value in part)
        yield None


def _by_time(
    first: Iterator[Closed | None], second: Iterator[Closed | None], limit: int
) -> Iterator[list[Closed]]:
    """Merge two ascending iterators into slices; a pause in either is a slice too."""
    heads: list[Closed | None] = [None, None]
    left = [first, second]
    done = [False, False]
    part = list[Closed]()
    while True:
        for n, source in enumerate(left):
            while heads[n] is None and not done[n]:
                try:
                    heads[n] = next(source)
                except StopIteration:
                    done[n] = True
                else:
                    if heads[n] is None:
                        yield part
                        part = []
        found = [(head, n) for n, head in enumerate(heads) if head is not None]
        if not found:
            break
        head, n = min(found, key=lambda each: each[0][:2])
        part.append(head)
        heads[n] = None
        if len(part) >= limit:
            yield part
            part = []
    if part:
        yield part
