"""Virtual time: one heap of events, in the order of (time, number), and the story that it makes.

A `Life` is one run of a process, or of one of its threads. What is due for one that is frozen waits
for it, in order; what is due for one that is over is dropped.

Not here: what the events are.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from heapq import heappop, heappush

from streamsx.model import TaskId, TopicPartition

STORY_TAIL = 40
EVENTS_MAX = 500_000
"""Of one run; more is a loop without a pause."""
DIGEST_MASK = (1 << 64) - 1
ABOUT_MAX, ITEMS_MAX = 200, 12
"""Characters of a line; items of a list in it."""

Call = Callable[[], object]


@dataclass(slots=True)
class Life:
    """`host`: of several lives on one machine, like the two threads of a worker."""

    name: str
    over: bool = False
    frozen_until: float = 0.0

    @property
    def host(self) -> str:
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Line:
    """Of a story: at this time, to whom, what, about what."""

    at: float
    who: str
    what: str
    about: object

    def __str__(self) -> str:
        about = "" if self.about is None else brief(self.about)[:ABOUT_MAX]
        return f"{self.at:9.3f} {self.who:10} {self.what:14} {about}".rstrip()


def brief(value: object) -> str:
    """For people: partitions and tasks as they are written, bytes by how many they are."""
    match value:
        case TaskId() | TopicPartition() | str() | float() | int() if not isinstance(value, Enum):
            return str(value)
        case Enum():
            return value.name
        case bytes() | bytearray():
            return f"{len(value)} bytes"
        case Mapping():
            return "{" + ", ".join(f"{brief(k)}: {brief(v)}" for k, v in value.items()) + "}"
        case AbstractSet():
            return "{" + ", ".join(sorted(map(brief, value))) + "}"
        case Sequence() if len(value) > ITEMS_MAX:
            return f"[{brief(value[0])}, and {len(value) - 1} more]"
        case Sequence():
            return "[" + ", ".join(map(brief, value)) + "]"
    if is_dataclass(value) and "__str__" not in vars(type(value)):
        told = (f"{f.name}={brief(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({', '.join(told)})"
    return str(value)


class Heap:
    """`story`: the last lines, or all of them with `keep`; `digest`: of all events."""

    def __init__(self, *, keep: bool = False) -> None:
        self.now, self.events, self.digest = 0.0, 0, 0
        self.story: deque[Line] = deque(maxlen=None if keep else STORY_TAIL)
        self._due: list[tuple[float, int, Life, str, object, Call]] = []
        self._number = 0

    def at(self, when: float, life: Life, what: str, about: object, call: Call) -> None:
        """`what` and `about` are for the story; `about` must not change any more."""
        self._number += 1
        heappush(self._due, (max(when, self.now), self._number, life, what, about, call))

    def after(self, seconds: float, life: Life, what: str, about: object, call: Call) -> None:
        self.at(self.now + seconds, life, what, about, call)

    def note(self, life: Life, what: str, about: object = None) -> None:
        """A line of the story that is no event."""
        self.story.append(Line(self.now, life.name, what, about))

    def step(self, until: float) -> bool:
        """The next event; False if there is none before `until`."""
        while self._due and self._due[0][0] <= until:
            at, number, life, what, about, call = heappop(self._due)
            self.now = max(self.now, at)
            if life.over:
                continue
            if life.frozen_until > self.now:
                heappush(self._due, (life.frozen_until, number, life, what, about, call))
                continue
            self.events += 1
            if self.events > EVENTS_MAX:
                raise AssertionError(f"over {EVENTS_MAX} events: {life.name} {what}")
            self.note(life, what, about)
            self.digest = (self.digest * 1_000_003 + number * 31 + int(at * 1e6)) & DIGEST_MASK
            call()
            return True
        self.now = until
        return False


class Alarm:
    """One timer, with one event on the heap however often it is moved: an early one looks again."""

    def __init__(self, heap: Heap, life: Life, what: str, about: object, call: Call) -> None:
        self._heap, self._life, self._what, self._about, self._call = heap, life, what, about, call
        self._due: float | None = None
        self._looks_at: float | None = None

    def set(self, at: float) -> None:
        self._due = at
        if self._looks_at is None or at < self._looks_at:
            self._looks_at = at
            self._heap.at(at, self._life, self._what, self._about, self._look)

    def clear(self) -> None:
        self._due = None

    def _look(self) -> None:
        if self._looks_at is not None and self._looks_at <= self._heap.now:
            self._looks_at = None
        if self._due is not None and self._due <= self._heap.now:
            self._due = None
            self._call()
        elif self._due is not None and self._looks_at is None:
            self.set(self._due)


class Thread:
    """A loop that others tell things (`call_soon_threadsafe`): whenever it does something, it has
    heard all that it was told before; when it has nothing to do, that takes `hop_s`."""

    def __init__(self, heap: Heap, life: Life, hop_s: float) -> None:
        self.heap, self.life, self._hop_s = heap, life, hop_s
        self._told: deque[Call] = deque()

    @property
    def listens(self) -> bool:
        """It has heard everything, and may do something."""
        return not self._told and self.life.frozen_until <= self.heap.now

    def tell(self, what: str, about: object, call: Call) -> None:
        """From another thread."""
        self._told.append(call)
        self.heap.after(self._hop_s, self.life, what, about, self.hear)

    def later(self, seconds: float, what: str, about: object, call: Call) -> None:
        """Of its own."""

        def due() -> None:
            self.hear()
            call()

        self.heap.after(seconds, self.life, what, about, due)

    def hear(self) -> None:
        while self._told:
            self._told.popleft()()
