"""State machine of a store's restore: the next read of the changelog, and the end of the restore.

OPENING   The store's own position and the bounds of the changelog are being asked for.
READING   Records from the position on go into the store, the newest of each key, together with the
          new position. An active reads up to a fixed end, a learner until it is near enough.
TAILING   A learner is near enough, and goes on reading as long as it lives. The learner falls back
          to READING when it is more than twice the limit behind, so that the state does not
          flicker.
DONE      An active is at the end, which was read after the previous owner's release, so no later
          record can be missing in this store.

A store with a position outside its changelog was made from records that no broker has any more: a
log was cut, and this store may be the last copy. The store is set aside, and a new one is restored
from the records that are left. Rows without a position come from an interrupted restore, and are
still in the changelog.

A position counts written records, never records that were only fetched: a restore is at the end
when the writes are done. The end is an offset, not a count of records: transaction markers and
compaction leave holes.

Not here: fetching, RocksDB, the length of a slice, the order of stores.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from streamsx.errors import InvalidTransition

STORY_STEPS = 200
FALLS_BACK_AT_LIMITS = 2
"""Lag, as a multiple of the limit, above which a tailing learner is reading again."""


class RestoreState(Enum):
    """State of a restore; the module's docstring explains each."""

    OPENING = "opening"
    READING = "reading"
    TAILING = "tailing"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Opened:
    """Event: the store is open, and the bounds of the changelog are known.

    Attributes:
        position: next changelog offset by the store; None without one.
        rows: whether the store holds rows.
        start: first offset of the changelog.
        end: high watermark of the changelog.
    """

    position: int | None
    rows: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Event: so many changelog records are being written, with the last of them `position`."""

    records: int
    position: int


@dataclass(frozen=True, slots=True)
class Written:
    """Event: all fetched records are in the store."""


@dataclass(frozen=True, slots=True)
class EndMoved:
    """Event: a fetch reply named a new end of a follower's changelog."""

    end: int


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """Event: the broker does not have the requested offset, or no longer has it."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Promoted:
    """Event: the previous owner has released; `end`: high watermark read after that."""

    end: int


Event = Opened | Fetched | Written | EndMoved | OutOfRange | Promoted


@dataclass(frozen=True, slots=True)
class Empty:
    """Effect: remove every row and the position; `keep`: set the old store aside."""

    why: str
    keep: bool


@dataclass(frozen=True, slots=True)
class Read:
    """Effect: read from this offset on, until the next such effect."""

    offset: int


Effect = Empty | Read


class StoreRestore:
    """Restore of one store.

    Attributes:
        follows: whether the store belongs to a follower, which has no fixed end.
        limit: lag in records at which a follower is near enough.
        records: number of applied records.
        position: next offset after the written records.
        writing: next offset after the records that are being written; None without any.
        began: offset at which this restore began.
        end: end of the changelog, as known so far.
    """

    def __init__(self, *, follows: bool, limit: int) -> None:
        self.state = RestoreState.OPENING
        self.follows = follows
        self.limit = limit
        self.position = 0
        self.began = 0
        self.end = 0
        self.records = 0
        self.writing: int | None = None
        self.story: deque[tuple[float, Event, RestoreState, int, int]] = deque(maxlen=STORY_STEPS)

    @property
    def lag(self) -> int:
        """Return the records behind the end, holes included."""
        return max(0, self.end - self.position)

    @property
    def total(self) -> int:
        """Return the records of this restore by offsets, from its beginning to the end."""
        return max(0, self.end - self.began)

    def step(self, now: float, event: Event) -> list[Effect]:
        """Return the effects of one event, in order.

        Raises:
            InvalidTransition: the event does not fit the state; the message holds the story.
        """
        self.story.append((now, event, self.state, self.position, self.end))
        effects = self._decide(event)
        self._settle()
        return effects

    def _decide(self, event: Event) -> list[Effect]:
        match event:
            case Opened() if self.state is RestoreState.OPENING:
                return self._opened(event)
            case Fetched(records, position) if self.state in READS and self.writing is None:
                self.records = self.records + records
                self.writing = position
            case Written() if self.state in READS and self.writing is not None:
                self.position = self.writing
                self.writing = None
            case EndMoved(end) if self.state in READS:
                self.end = max(self.end, end) if self.follows else self.end
            case OutOfRange(start, end) if self.state in READS:
                why = cut(self.position, start, end) or f"the changelog has lost {self.position}"
                return self._restart(Empty(why, keep=True), start, end)
            case OutOfRange() if self.state is RestoreState.DONE:
                pass  # the read was after the end: the store has all records
            case Promoted(end) if self.state in READS:
                self.follows = False
                self.end = end
                self.state = RestoreState.READING
            case _:
                name = type(event).__name__
                raise InvalidTransition(
                    f"restore: {name} while {self.state.value}: {list(self.story)}"
                )
        return []

    def _opened(self, event: Opened) -> list[Effect]:
        self.state = RestoreState.READING
        self.end = event.end
        if event.position is None and event.rows:
            wipe = Empty("the store has rows but no position", keep=False)
            return self._restart(wipe, event.start, event.end)
        if event.position is not None and (why := cut(event.position, event.start, event.end)):
            return self._restart(Empty(why, keep=True), event.start, event.end)
        self.position = self.began = event.start if event.position is None else event.position
        return [Read(self.position)]

    def _restart(self, first: Empty, start: int, end: int) -> list[Effect]:
        """Begin again with an empty store: deletes in the gap are unknown, so no row is usable."""
        self.state = RestoreState.READING
        self.position = self.began = start
        self.end = max(self.end, end) if self.follows else end
        self.writing = None
        return [first, Read(start)]

    def _settle(self) -> None:
        """Set the state that follows from the position and the end."""
        if not self.follows:
            if self.writing is None and self.position >= self.end:
                self.state = RestoreState.DONE
        elif self.state is RestoreState.READING and self.lag <= self.limit:
            self.state = RestoreState.TAILING
        elif self.lag > FALLS_BACK_AT_LIMITS * self.limit:
            self.state = RestoreState.READING


READS: Final = frozenset({RestoreState.READING, RestoreState.TAILING})


def cut(position: int, start: int, end: int) -> str:
    """Return the reason why a store at `position` cannot go on; empty if it can."""
    if position < start:
        return f"the changelog begins at {start}, the store is at {position}"
    if position > end:
        return f"the changelog ends at {end}, the store is at {position}"
    return ""


def newest(
    keys: Sequence[bytes | None], values: Sequence[bytes | None]
) -> dict[bytes, bytes | None]:
    """Return the last changelog record of each key, in ascending order of the keys.

    A value of None deletes. Records without a key are left out.

    Args:
        keys: keys of records in the order of their offsets.
        values: values of the same records.
    """
    last = dict(zip(keys, values, strict=True))
    return {key: last[key] for key in sorted(key for key in last if key is not None)}
