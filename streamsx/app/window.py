"""Windows of flows: the grouping of records by time. Durations are written as in settings."""

from typing import Final, NamedTuple

from streamsx.app.declaration import declaration
from streamsx.app.users_code import users_line
from streamsx.config import seconds
from streamsx.errors import TopologyError
from streamsx.state.layout import Timing

TWO: Final = 2
ROUNDING: Final = 1e-6


class Window(NamedTuple):
    """Window of `size` ms that begins each `step` ms, and stays open `grace` ms beyond its end.

    `grace` None stands for a grace that was not given. `idle` is the ms without input after which
    all windows close, None for never.
    """

    kind: str
    size: int
    step: int
    given_grace: int | None
    idle: int | None = None

    @property
    def grace(self) -> int:
        return self.given_grace or 0

    @property
    def behind(self) -> int:
        """Return the ms by which final results are behind stream time, at most."""
        return self.size + self.grace if self.kind == "session" else self.grace

    @property
    def stays(self) -> int:
        """Return the ms for which a window stays: from its start, or a sliding one's end."""
        return self.grace if self.kind == "sliding" else self.size + self.grace


@declaration
def tumbling(size: object, *, grace: object = None, idle: object = None) -> Window:
    """Return windows of a size, one behind the other.

        hours = flow.group_by_key().window(streamsx.tumbling("1h", grace="5m"))
        hours.count("per-hour", emit="final")

    Args:
        size: Duration of a window.
        grace: Duration for which a window waits, in stream time, for records that come late.
        idle: Duration on the wall without any record after which all windows close; never unless
            given.

    Raises:
        TopologyError: a duration is wrong.
    """
    return _window("tumbling", size, size, grace, idle)


@declaration
def hopping(size: object, step: object, *, grace: object = None, idle: object = None) -> Window:
    """Return windows of a size that begin each step: a record is in several of them.

    Args:
        size: Duration of a window.
        step: Duration between the starts of two windows, not above `size`.
        grace: Duration for which a window waits, in stream time, for records that come late.
        idle: Duration on the wall without any record after which all windows close; never unless
            given.

    Raises:
        TopologyError: a duration is wrong.
    """
    return _window("hopping", size, step, grace, idle)


@declaration
def sliding(size: object, *, grace: object = None, idle: object = None) -> Window:
    """Return windows of a size, both ends inclusive, that end at a record or begin behind one.

    Args:
        size: Duration of a window.
        grace: Duration for which a window waits, in stream time, for records that come late.
        idle: Duration on the wall without any record after which all windows close; never unless
            given.

    Raises:
        TopologyError: a duration is wrong.
    """
    return _window("sliding", size, size, grace, idle)


@declaration
def session(gap: object, *, grace: object = None, idle: object = None) -> Window:
    """Return sessions: records of a key with gaps of at most `gap` between them.

    Args:
        gap: Longest duration between two records of a session.
        grace: Duration for which a window waits, in stream time, for records that come late.
        idle: Duration on the wall without any record after which all windows close; never unless
            given.

    Raises:
        TopologyError: a duration is wrong.
    """
    return _window("session", gap, gap, grace, idle)


def _window(kind: str, size: object, step: object, grace: object, idle: object) -> Window:
    size_ms = _ms("size", size)
    step_ms = _ms("step", step)
    grace_ms = None if grace is None else _ms("grace", grace, least=0)
    if step_ms > size_ms:
        raise TopologyError(
            f"gaps between windows ({users_line()}): step {step} is more than size {size}: records "
            "in between would be in no window"
        )
    return Window(kind, size_ms, step_ms, grace_ms, idle_time(idle))


def idle_time(idle: object) -> int | None:
    """Return the ms of `idle=`; None without it."""
    return None if idle is None else _ms("idle time", idle)


def wait_ms(wait: object) -> int:
    """Return the ms of the wait of `suppress`."""
    return _ms("wait", wait)


class JoinReach(NamedTuple):
    """Times of a join of streams, in ms; `graced`: whether a grace was given."""

    before: int
    after: int
    grace: int
    graced: bool

    @property
    def size(self) -> int:
        """Return the ms of a bucket: a record looks for its matches in three of them at most."""
        return max(1, -(-(self.before + self.after) // 2))

    @property
    def left(self) -> Timing:
        return Timing(self.size, self.size, self.after + self.grace)

    @property
    def right(self) -> Timing:
        return Timing(self.size, self.size, self.before + self.grace)


def join_reach(within: object, grace: object) -> JoinReach:
    """Return the times of a join. `within` is a duration, or a pair (before, after)."""
    if within is None:
        raise TopologyError(
            f"join of flows without within= ({users_line()}): say how far apart two records may be"
        )
    pair = within if isinstance(within, tuple) else (within, within)
    if len(pair) != TWO:
        raise TopologyError(
            f"bad within: within={within!r} ({users_line()}): write (before, after)"
        )
    before, after = (_ms("within", each, least=0) for each in pair)
    grace_ms = 0 if grace is None else _ms("grace", grace, least=0)
    return JoinReach(before, after, grace_ms, grace is not None)


def dedup_timing(within: object, grace: object) -> Timing:
    """Return the times of the ids of `deduplicate`."""
    size = _ms("within", within)
    return Timing(size, size, size + (0 if grace is None else _ms("grace", grace, least=0)))


def _ms(what: str, duration: object, *, least: int = 1) -> int:
    try:
        made = seconds(duration) * 1000
    except ValueError:
        made = float("inf")
    if not least <= made < float("inf") or abs(made - round(made)) > ROUNDING:
        raise TopologyError(
            f"bad {what} of a window: {duration!r} ({users_line()}): write whole milliseconds, as "
            "500ms, 60s or 10m"
        )
    return round(made)
