"""Layout of a store's rows: keys here and in the changelog, and the format text of a database.

A node knows the keys of its kind, so callers ask the node and know no tags;
`streamsx.state.factory` makes the store of a kind. Behind the tag a row has this key:

| kind | row key | changelog key | value |
|---|---|---|---|
| kv | key | key | value |
| timed | key | key | time, i64 ms; value |
| subscriptions | length of the foreign key, u32; foreign key; left key | the row key | time; tag |
| window | start of the window, u64 ms; key | Faust's: JSON of `[key, [start, end]]` | value |
| session | key | key | sessions of the key, framed (`framed`) |
| sliding | key | key | sliding windows and times of records of the key, framed (`framed`) |
| buffer | start of the bucket, u64 ms; key | the row key | records of a join, framed (`framed`) |

Rows with the time first lie in the order in which they expire, so one range deletes what has
expired. Sessions and sliding windows have index rows beside their rows: tag INDEX, u64 ms, key.
Index rows are in no changelog: whoever writes the row of a session writes its index rows too
(`StoreNode.indexed`).

Keys of a key-value store and of its changelog differ by the tag byte, and values are the same
bytes: a value is encoded once for Kafka and for the disk. Keys and values of tables are those of
Faust, so streamsx takes over from a stopped Faust app, and stock Faust can read the topics of
streamsx. Key and window's end stand in the key that Faust writes for a window, in seconds, and a
window ends 0.1 s before the next one begins. The key's own bytes stand there unchanged, even if
they are not JSON. The end also tells a restore that the size of the window was changed.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Any, Final, NamedTuple

from streamsx.errors import IncompatibleStore
from streamsx.serde.codec import Codec
from streamsx.state.api import INDEX, ROW, Rows
from streamsx.state.framed import entries_codec, second_times, sessions_codec, timed_codec

LAYOUT_VERSION = 1
KEY_VALUE: Final = "kv"
WINDOW: Final = "window"
SESSION: Final = "session"
SLIDING: Final = "sliding"
BUFFER: Final = "buffer"
TIMED: Final = "timed"
SUBSCRIPTIONS: Final = "subscriptions"
"""Kinds of stores, as the format text names them."""
INDEXED: Final = (SESSION, SLIDING)
"""Kinds with index rows."""
TIME_BYTES: Final = 8
MARK_DIGITS: Final = 8
NEVER: Final = 1 << 62
"""Time in ms that a window stays which does not close."""
INDEXED_PER_GAP: Final = 4
"""Index rows of one session in a gap: a session that goes on gets a new one each quarter."""
FAUST_GAP_S: Final = 0.1
"""Seconds between the end of a window, as Faust writes it, and the start of the next one."""
FAUST_KEY: Final = re.compile(
    rb"\[(.*),\s*\[\s*([^\s,\[\]]+)\s*,\s*([^\s,\[\]]+)\s*\]\s*\]", re.DOTALL
)
"""Key and bounds in a key of a windowed table, from any writer of JSON."""
FIRST_ROWS: Final = 32
"""Number of unreadable rows that prove another type.

Nearly always the first row is readable, and no other is read.
"""


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of a store by stream time, in ms.

    `size`: length of a window, gap of sessions, or bucket of a join buffer; `step`: from the start
    of a window to the start of the next; `stays`: from the start of a window, the end of a session
    or the time of a joined record until stream time closes it, grace included.

    Rows of another `size` or `step` do not fit, so both are part of the format text and of the
    topology's signature. `stays` may change.
    """

    size: int
    step: int
    stays: int


class Kind(NamedTuple):
    """Layout of a kind of stores.

    `key_at`: place of the key in a row, behind the tag; `codec`: codec of a row's value, made from
    that of the node; `to_changelog`: changelog keys of rows without tags; `from_changelog`: the
    same keys back; `entries`: keys and values in a row as people know them, of its decoded key, its
    row key without tag, and its decoded value.
    """

    key_at: int
    codec: Callable[[Codec], Codec]
    to_changelog: Callable[["StoreNode", list[bytes]], list[bytes]]
    from_changelog: Callable[["StoreNode", bytes], bytes]
    entries: Callable[["StoreNode", Any, bytes, Any], Iterable[tuple[Any, Any]]]


@dataclass(frozen=True, slots=True)
class StoreNode:
    """Store of a task and the topic of its changes.

    `key_type`: str, bytes or int if the table has one; `persistent`: on disk; `kind`: kind of the
    store; `timing`: times of a store by stream time; `by_bytes`: operators use the store, by the
    bytes of the keys.
    """

    name: str
    changelog: str
    keys: Codec
    values: Codec
    key_type: type | None = None
    persistent: bool = True
    kind: str = KEY_VALUE
    timing: Timing | None = None
    by_bytes: bool = False

    def layout(self, partitions: int) -> str:
        """Return the format text of a database, kept in the row at FORMAT.

        A database with any other text has another format.
        """
        layout = {
            "version": LAYOUT_VERSION, "store": self.kind, "key": self.keys.name,
            "value": self.values.name, "topic": self.changelog, "partitions": partitions,
        }  # fmt: skip
        return json.dumps(layout | self.sizes, separators=(",", ":"))

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes that rows depend on, in ms; no sizes in a key-value store."""
        return {} if self.timing is None else {"size": self.timing.size, "step": self.timing.step}

    @property
    def row_values(self) -> Codec:
        """Return the codec of a row's whole value."""
        return KINDS[self.kind].codec(self.values)

    def local_keys(self, keys: Iterable[bytes | None]) -> list[bytes | None]:
        """Return changelog keys as keys of `Rows`.

        None stays None, because a record without a key has no row.

        Raises:
            IncompatibleStore: the changelog is that of a store of another kind or size.
        """
        if self.kind != WINDOW:
            return [None if key is None else ROW + key for key in keys]
        read = KINDS[self.kind].from_changelog
        return [None if key is None else ROW + read(self, key) for key in keys]

    def changelog_keys(self, keys: list[bytes]) -> list[bytes]:
        """Return the changelog keys of rows, which come without their tags."""
        return KINDS[self.kind].to_changelog(self, keys)

    def changelog_key(self, row: bytes) -> bytes:
        """Return the changelog key of a row."""
        return self.changelog_keys([row[1:]])[0]

    def key_of(self, row: bytes) -> bytes:
        """Return the encoded key in a row, without tag and time."""
        return row[1 + KINDS[self.kind].key_at :]

    def entries(self, row: bytes, raw: bytes) -> Iterable[tuple[Any, Any]]:
        """Return keys and values in a row as people know them: sessions of a row one by one.

        The key of a window or session is [key, start, end], that of a joined record [key, time].
        """
        key = self.keys.decode(self.key_of(row))
        return KINDS[self.kind].entries(self, key, row[1:], self.row_values.decode(raw))

    def indexed(self, rows: Mapping[bytes, bytes | None]) -> Mapping[bytes, bytes | None]:
        """Return the rows with the index rows that belong to them, ascending.

        Every writer of rows below a store's cache calls this method: seals and restores alike.
        """
        if self.kind not in INDEXED:
            return rows
        width = index_width(self)
        index = {
            INDEX + time_bytes(end - end % width) + row[1:]: b""
            for row, raw in rows.items()
            if raw is not None
            for end in second_times(raw)
        }
        return {**rows, **dict(sorted(index.items()))}


def store_mark(name: str) -> str:
    """Return the short stable name under which commits keep a store's stream time."""
    return sha256(name.encode()).hexdigest()[:MARK_DIGITS]


def time_bytes(at: int) -> bytes:
    """Return a time in ms as the first bytes of a row: rows are in the order of their times."""
    return at.to_bytes(TIME_BYTES, "big")


def index_width(node: StoreNode) -> int:
    """Return the ms that share one time in the index of sessions: ends are rounded down."""
    assert node.timing is not None, node
    return max(1, node.timing.size // INDEXED_PER_GAP)


# -- keys of changelogs, by kind


def _same_codec(codec: Codec) -> Codec:
    return codec


def _same_keys(node: StoreNode, keys: list[bytes]) -> list[bytes]:
    return keys


def _same_key(node: StoreNode, key: bytes) -> bytes:
    return key


def _faust_tail(node: StoreNode, start: int) -> bytes:
    """Return the part of Faust's key behind the key itself, computed in floats as Faust does."""
    assert node.timing is not None, node
    begin = start / 1000
    end = begin + node.timing.size / 1000 - FAUST_GAP_S
    return b",[%a,%a]]" % (begin, end)


def _to_faust(node: StoreNode, keys: list[bytes]) -> list[bytes]:
    """Return Faust's keys of windows. A slice of rows has few starts, so each is written once."""
    made = list[bytes]()
    last = tail = b""
    for key in keys:
        if key[:TIME_BYTES] != last:
            last = key[:TIME_BYTES]
            tail = _faust_tail(node, int.from_bytes(last, "big"))
        made.append(b"[" + key[TIME_BYTES:] + tail)
    return made


def _from_faust(node: StoreNode, key: bytes) -> bytes:
    """Return the row key of Faust's key of a window.

    Raises:
        IncompatibleStore: the key is none, or of a window of another size.
    """
    assert node.timing is not None, node
    found = window_of(key)
    if found is None:
        raise _of_another(node, f"key {key[:100]!r} has no window")
    plain, start, end = found
    if (size := end - start) != node.timing.size:
        raise _of_another(
            node, f"its windows have {size} ms, those of this app {node.timing.size} ms"
        )
    return time_bytes(start) + plain


def window_of(key: bytes) -> tuple[bytes, int, int] | None:
    """Return the key in Faust's key of a window, and start and end in ms; None in another key."""
    found = FAUST_KEY.fullmatch(key)
    if found is None:
        return None
    try:
        start = round(float(found[2]) * 1000)
        end = round((float(found[3]) + FAUST_GAP_S) * 1000)
        time_bytes(start)
    except (ValueError, OverflowError):
        return None
    return found[1].rstrip(), start, end


def _of_another(node: StoreNode, what: str) -> IncompatibleStore:
    return IncompatibleStore(
        f"changelog of another store: store {node.name}, topic {node.changelog}: {what}: " + RENEWED
    )


# -- entries of rows, by kind


def _one(node: StoreNode, key: Any, row: bytes, value: Any) -> Iterable[tuple[Any, Any]]:
    return ((key, value),)


def _of_window(node: StoreNode, key: Any, row: bytes, value: Any) -> Iterable[tuple[Any, Any]]:
    assert node.timing is not None, node
    start = int.from_bytes(row[:TIME_BYTES], "big")
    return (([key, start, start + node.timing.size], value),)


def _of_sessions(node: StoreNode, key: Any, row: bytes, value: Any) -> Iterable[tuple[Any, Any]]:
    return (([key, start, end], each) for start, end, each in value)


def _of_sliding(node: StoreNode, key: Any, row: bytes, value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the windows in a row, without the times of records."""
    return (([key, start, end], each) for start, end, each in value if each is not None)


def _of_timed(node: StoreNode, key: Any, row: bytes, value: Any) -> Iterable[tuple[Any, Any]]:
    return ((key, value[1]),)


def _of_buffer(node: StoreNode, key: Any, row: bytes, value: Any) -> Iterable[tuple[Any, Any]]:
    return (([key, at], each) for at, _, each in value)


RENEWED: Final = "give it a new name, or raise the app's version, which begins with empty stores"
"""Remedy for a store whose kind or size was changed under its name."""
IN_CHANGELOG: Final = ("store", "size", "step")
"""Parts of a format text on which the rows in the changelog depend too."""


def remedy(found: str, wanted: str) -> str:
    """Return the remedy for a database with another format text.

    A restore helps where only the database differs. Rows of another kind or size are in the
    changelog too.
    """
    try:
        there, here = json.loads(found), json.loads(wanted)
        lasting = any(there.get(part) != here.get(part) for part in IN_CHANGELOG)
    except (AttributeError, ValueError):  # a later release may write anything
        lasting = False
    return RENEWED if lasting else "remove the folder to restore it from its changelog"


KINDS: Final = {
    KEY_VALUE: Kind(0, _same_codec, _same_keys, _same_key, _one),
    WINDOW: Kind(TIME_BYTES, _same_codec, _to_faust, _from_faust, _of_window),
    SESSION: Kind(0, sessions_codec, _same_keys, _same_key, _of_sessions),
    BUFFER: Kind(TIME_BYTES, entries_codec, _same_keys, _same_key, _of_buffer),
    SLIDING: Kind(0, sessions_codec, _same_keys, _same_key, _of_sliding),
    TIMED: Kind(0, timed_codec, _same_keys, _same_key, _of_timed),
    SUBSCRIPTIONS: Kind(0, timed_codec, _same_keys, _same_key, _one),
}


def refuse_other_types(node: StoreNode, rows: Rows) -> None:
    """Check that the table's types fit the first rows.

    One unreadable row fails only the records that ask for it. If all are unreadable, the type has
    changed: each record would fail, and the tasks would stop one by one.

    Raises:
        IncompatibleStore: the types fit none of the first rows.
    """
    found: tuple[bytes, Exception] | None = None
    decode = node.row_values.decode
    for row, raw in islice(rows.scan(ROW, INDEX), FIRST_ROWS):
        try:
            node.keys.decode(node.key_of(row))
            decode(raw)
        except Exception as error:  # any codec's
            found = found or (node.key_of(row), error)
        else:
            return
    if found is not None:
        key, why = found
        raise IncompatibleStore(
            f"stored rows do not fit the table's type: table {node.name}, key {key[:100]!r}: "
            f"{type(why).__name__}: {why}: give a field that was added a default, or declare "
            "what is stored, or raise the app's version, which begins with empty tables"
        ) from why
