"""What may be committed, in which order: outputs and changelog, then offsets, then the stores.

Two rules. Nothing reaches a store before Kafka has the offsets. A task is sealed again only when
its last commit is written, so that a store is never more than one commit behind.

IDLE        Between cycles. `Due` begins one, and so does a suspended task that has something to
            commit.
SEALING     Task by task, the dirty values are encoded and sent to the changelogs. A task does not
            run between its first and its last slice; the others do.
FLUSHING    All that was sent before is being acknowledged. Tasks run.
COMMITTING  The group's coordinator has the offsets in its hand. The member repeats what a rebalance
            refuses, and tells what it dropped because it is no longer ours.
WRITING     Kafka has them; the stores are written in slices.

A task that the group wants back is settled as soon as Kafka has everything it has done; the store
can be written behind the hand-over. The race: m1 seals 1_0 at position 90 and lets it run on to
95; the cycle is flushing; the group asks for 1_0 back; it is suspended at 95. The cycle's commit
holds 90, so 1_0 waits for that cycle and then has one of its own. All that wait have it together.

At least once. Not here: bytes, sockets, when a slice ends.
"""

import base64
import struct
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from streamsx.errors import InvalidTransition
from streamsx.model import TaskId, TopicPartition
from streamsx.task.task import Sealed

STORY_STEPS = 200


METADATA = struct.Struct(">Bq")
METADATA_VERSION = 1


def metadata(stream_time: int) -> str:
    """What is committed beside each offset, as text: the stream time, in ms."""
    return base64.b64encode(METADATA.pack(METADATA_VERSION, stream_time)).decode()


def stream_time(metadata: str) -> int:
    """The stream time of `metadata`; -1 when somebody else wrote it."""
    try:
        version, found = METADATA.unpack(base64.b64decode(metadata, validate=True))
    except (ValueError, struct.error):
        return -1
    return int(found) if version == METADATA_VERSION else -1


class CommitState(Enum):
    IDLE = "idle"
    SEALING = "sealing"
    FLUSHING = "flushing"
    COMMITTING = "committing"
    WRITING = "writing"


@dataclass(frozen=True, slots=True)
class Due:
    """The interval is over, or too much is dirty; `tasks` have something to commit."""

    tasks: frozenset[TaskId]


@dataclass(frozen=True, slots=True)
class Suspended:
    """The group wants the task back; `dirty`: it has run since its last seal."""

    task: TaskId
    dirty: bool


@dataclass(frozen=True, slots=True)
class TaskSealed:
    task: TaskId
    sealed: Sealed


@dataclass(frozen=True, slots=True)
class Flushed:
    """Everything sent before the last `Flush` is acknowledged; next offset per partition."""

    ends: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    """Kafka has the offsets, but for these tasks: they are no longer ours, or it refuses them."""

    dropped: frozenset[TaskId]
    denied: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class TaskWritten:
    task: TaskId


@dataclass(frozen=True, slots=True)
class TaskLost:
    """It commits nothing more."""

    task: TaskId


Event = Due | Suspended | TaskSealed | Flushed | OffsetsCommitted | TaskWritten | TaskLost


@dataclass(frozen=True, slots=True)
class Seal:
    """Note the positions, encode what is dirty, send it to the changelogs."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class Flush: ...


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    sealed: Mapping[TaskId, Sealed]


@dataclass(frozen=True, slots=True)
class Adopt:
    """What was sealed is committed: write it into the stores, in slices. `ends`: of changelogs."""

    task: TaskId
    sealed: Sealed
    ends: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class SuspendedSettled:
    """Kafka has all that this suspended task has done."""

    task: TaskId


Effect = Seal | Flush | CommitOffsets | Adopt | SuspendedSettled


class Step(NamedTuple):
    now: float
    event: str
    state: CommitState
    effects: tuple[str, ...]


class CommitCycles:
    """The commit cycles of one worker; one at a time, all tasks in it."""

    def __init__(self) -> None:
        self.state = CommitState.IDLE
        self._to_seal: list[TaskId] = []
        self._sealing: TaskId | None = None
        self._sealed: dict[TaskId, Sealed] = {}
        self._ends: Mapping[TopicPartition, int] = {}
        self._unwritten: set[TaskId] = set()
        self._suspended: dict[TaskId, bool] = {}
        self.story: deque[Step] = deque(maxlen=STORY_STEPS)

    def holds(self, task: TaskId) -> bool:
        """It is part of the cycle that runs."""
        return (
            task in self._to_seal
            or task == self._sealing
            or task in self._sealed
            or task in self._unwritten
        )

    def step(self, now: float, event: Event) -> list[Effect]:
        """The effects of one event, in order. Raises InvalidTransition with the story."""
        before = self.state
        effects = self._decide(event)
        if self.state is CommitState.IDLE:
            effects += self._next_cycle()
        names = tuple(type(effect).__name__ for effect in effects)
        self.story.append(Step(now, repr(event)[:200], before, names))
        return effects

    def _decide(self, event: Event) -> list[Effect]:
        match event:
            case Due(tasks):
                return self._begin(tasks) if self.state is CommitState.IDLE else []
            case Suspended(task, dirty):
                return self._suspend(task, dirty=dirty)
            case TaskSealed(task, sealed) if task == self._sealing:
                self._sealing, self._sealed[task] = None, sealed
                return self._next_seal()
            case Flushed(ends) if self.state is CommitState.FLUSHING:
                self.state, self._ends = (
                    CommitState.COMMITTING if self._sealed else CommitState.IDLE,
                    ends,
                )
                return [CommitOffsets(dict(self._sealed))] if self._sealed else []
            case OffsetsCommitted(dropped, denied) if self.state is CommitState.COMMITTING:
                return self._adopt(dropped, denied)
            case TaskWritten(task) if task in self._unwritten:
                self._unwritten.discard(task)
                return self._written()
            case TaskLost(task):
                return self._forget(task)
        raise InvalidTransition(f"commit: {event} while {self.state.value}: {list(self.story)}")

    def _begin(self, tasks: Iterable[TaskId]) -> list[Effect]:
        self._to_seal = sorted(tasks, reverse=True)
        return self._next_seal() if self._to_seal else []

    def _next_seal(self) -> list[Effect]:
        if self._to_seal:
            self.state, self._sealing = CommitState.SEALING, self._to_seal.pop()
            if self._suspended.get(self._sealing):
                self._suspended[self._sealing] = False  # this seal holds all it has done
            return [Seal(self._sealing)]
        self.state = CommitState.FLUSHING if self._sealed else CommitState.IDLE
        return [Flush()] if self._sealed else []

    def _suspend(self, task: TaskId, *, dirty: bool) -> list[Effect]:
        sealed_later = task in self._to_seal
        if not dirty and not self.holds(task):
            return [SuspendedSettled(task)]
        if not dirty and task in self._unwritten:
            return [
                SuspendedSettled(task)
            ]  # Kafka has it; the store is written behind the hand-over
        self._suspended[task] = dirty and not sealed_later
        return []

    def _adopt(self, dropped: frozenset[TaskId], denied: frozenset[TaskId]) -> list[Effect]:
        """Who is wanted back and denied goes without; whoever gets it does the same again."""
        adopted = sorted(self._sealed.keys() - dropped - denied)
        effects: list[Effect] = [Adopt(t, self._sealed[t], self._ends) for t in adopted]
        for task in sorted(self._sealed.keys() - dropped):
            if self._suspended.get(task) is False or (task in denied and task in self._suspended):
                del self._suspended[task]
                effects.append(SuspendedSettled(task))
        self.state, self._unwritten, self._sealed = CommitState.WRITING, set(adopted), {}
        return effects + self._written()

    def _written(self) -> list[Effect]:
        if not self._unwritten:
            self.state = CommitState.IDLE
        return []

    def _next_cycle(self) -> list[Effect]:
        """Suspended tasks with something to commit do not wait for the interval."""
        return self._begin(task for task, dirty in self._suspended.items() if dirty)

    def _forget(self, task: TaskId) -> list[Effect]:
        self._suspended.pop(task, None)
        self._to_seal = [t for t in self._to_seal if t != task]
        self._sealed.pop(task, None)
        self._unwritten.discard(task)
        if self.state is CommitState.WRITING:
            return self._written()
        if self._sealing == task:
            self._sealing = None
            return self._next_seal()
        return []
