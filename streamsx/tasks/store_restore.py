"""One store and its changelog: what to read next, and when the store has caught up.

OPENING   The store's own position and the bounds of the changelog are being asked for.
READING   Records from the position on go into the store, the newest of each key, the position with
          them. An active reads up to a fixed end, a learner until it is near enough.
TAILING   A learner that is near enough; it goes on reading for as long as it lives. It falls back
          to READING when it is more than twice the limit behind, so that it does not flicker.
DONE      An active at its end. The end was read after the previous owner had let go, so nothing can
          come behind it that this store lacks.

A store that says where it is, and is not within its changelog, was made from records that no broker
has any more: a log was cut, and this may be the last copy. It is set aside and restored from what
there is. Rows without a position are of a restore that was interrupted, and in the changelog still.

Position means written, never only fetched: a restore is at its end when its writes are done. The
end is an offset, not a count of records: transaction markers and compaction leave holes.

Not here: fetching, RocksDB, how long a slice may take, which store goes first.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from streamsx.errors import InvalidTransition

STORY_STEPS = 200
FALLS_BACK_AT_LIMITS = 2


class RestoreState(Enum):
    OPENING = "opening"
    READING = "reading"
    TAILING = "tailing"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Opened:
    """`position`: next changelog offset by the store, None without one; `rows`: it holds some.

    `start`, `end`: first offset and high watermark of the changelog.
    """

    position: int | None
    rows: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """So many records of the changelog are being written, and with the last of them `position`."""

    records: int
    position: int


@dataclass(frozen=True, slots=True)
class Written:
    """All that was fetched is in the store."""


@dataclass(frozen=True, slots=True)
class EndMoved:
    """What a fetch reply said of a follower's end."""

    end: int


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The broker no longer has (or does not have) the offset that was asked for."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Promoted:
    """The previous owner has let go; `end`: high watermark read after that."""

    end: int


Event = Opened | Fetched | Written | EndMoved | OutOfRange | Promoted


@dataclass(frozen=True, slots=True)
class Empty:
    """Remove every row, and the position; `keep`: what was there is set aside."""

    why: str
    keep: bool


@dataclass(frozen=True, slots=True)
class Read:
    """From this offset on, until told otherwise."""

    offset: int


Effect = Empty | Read


class StoreRestore:
    """One store. `follows`: of a learner, which has no end; `limit`: records, when it is near.

    `records`: how many were applied; `position`: next offset by what is written; `writing`: by what
    is being written, None when nothing is.
    """

    def __init__(self, *, follows: bool, limit: int) -> None:
        self.state, self.follows, self.limit = RestoreState.OPENING, follows, limit
        self.position, self.began, self.end = 0, 0, 0
        self.records = 0
        self.writing: int | None = None
        self.story: deque[tuple[float, Event, RestoreState, int, int]] = deque(maxlen=STORY_STEPS)

    @property
    def lag(self) -> int:
        """Records behind the end, holes included."""
        return max(0, self.end - self.position)

    @property
    def total(self) -> int:
        """Records of this restore, by offsets: from where it began to the end."""
        return max(0, self.end - self.began)

    def step(self, now: float, event: Event) -> list[Effect]:
        """The effects of one event, in order. Raises InvalidTransition with the story."""
        self.story.append((now, event, self.state, self.position, self.end))
        effects = self._decide(event)
        self._settle()
        return effects

    def _decide(self, event: Event) -> list[Effect]:
        match event:
            case Opened() if self.state is RestoreState.OPENING:
                return self._opened(event)
            case Fetched(records, position) if self.state in READS and self.writing is None:
                self.records, self.writing = self.records + records, position
            case Written() if self.state in READS and self.writing is not None:
                self.position, self.writing = self.writing, None
            case EndMoved(end) if self.state in READS:
                self.end = max(self.end, end) if self.follows else self.end
            case OutOfRange(start, end) if self.state in READS:
                why = cut(self.position, start, end) or f"the changelog has lost {self.position}"
                return self._restart(Empty(why, keep=True), start, end)
            case OutOfRange() if self.state is RestoreState.DONE:
                pass  # asked behind its end: it has all that was there
            case Promoted(end) if self.state in READS:
                self.follows, self.end = False, end
                self.state = RestoreState.READING
            case _:
                name = type(event).__name__
                raise InvalidTransition(
                    f"restore: {name} while {self.state.value}: {list(self.story)}"
                )
        return []

    def _opened(self, event: Opened) -> list[Effect]:
        self.state, self.end = RestoreState.READING, event.end
        if event.position is None and event.rows:
            wipe = Empty("the store has rows but no position", keep=False)
            return self._restart(wipe, event.start, event.end)
        if event.position is not None and (why := cut(event.position, event.start, event.end)):
            return self._restart(Empty(why, keep=True), event.start, event.end)
        self.position = self.began = event.start if event.position is None else event.position
        return [Read(self.position)]

    def _restart(self, first: Empty, start: int, end: int) -> list[Effect]:
        """Deletes in the gap are unknown, so nothing that is there can be used."""
        self.state = RestoreState.READING
        self.position = self.began = start
        self.end, self.writing = (max(self.end, end) if self.follows else end), None
        return [first, Read(start)]

    def _settle(self) -> None:
        """What its position and the end make of it."""
        if not self.follows:
            if self.writing is None and self.position >= self.end:
                self.state = RestoreState.DONE
        elif self.state is RestoreState.READING and self.lag <= self.limit:
            self.state = RestoreState.TAILING
        elif self.lag > FALLS_BACK_AT_LIMITS * self.limit:
            self.state = RestoreState.READING


READS: Final = frozenset({RestoreState.READING, RestoreState.TAILING})


def cut(position: int, start: int, end: int) -> str:
    """Why a store at `position` cannot go on; empty when it can."""
    if position < start:
        return f"the changelog begins at {start}, the store says {position}"
    if position > end:
        return f"the changelog ends at {end}, the store says {position}"
    return ""


def newest(
    keys: Sequence[bytes | None], values: Sequence[bytes | None]
) -> dict[bytes, bytes | None]:
    """Of changelog records in order of their offsets, the last of each key, in ascending order.
    None as a value deletes; a record without a key is nobody's.
    """
    last = dict(zip(keys, values, strict=True))
    return {key: last[key] for key in sorted(key for key in last if key is not None)}
