"""What may be committed, in which order: outputs and changelog, then offsets, then the stores.

Two rules. Nothing reaches a store before Kafka has the offsets. A task is sealed again only when
its last commit is written, so that a store is never more than one commit behind.

IDLE        Between cycles. `Due` begins one, and so does a suspended task that has something to
            commit.
SEALING     Task by task, the dirty values are encoded and sent to the changelogs. A task does not
            run between its first and its last slice; the others do.
FLUSHING    What these tasks sent before is being acknowledged. Tasks run. One whose records a
            partition does not take drops out and is held: the others commit. It is sealed again
            when all of it has arrived.
COMMITTING  The group's coordinator has the offsets in its hand. The member repeats what a rebalance
            refuses, and tells what it dropped because it is no longer ours.
WRITING     Kafka has them; the stores are written in slices.

A task that the group wants back is settled as soon as Kafka has everything it has done; the store
can be written behind the hand-over. The race: m1 seals 1_0 at position 90 and lets it run on to
95; the cycle is flushing; the group asks for 1_0 back; it is suspended at 95. The cycle's commit
holds 90, so 1_0 waits for that cycle and then has one of its own. All that wait have it together.

At least once. Not here: bytes, sockets, when a slice ends.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from streamsx.errors import InvalidTransition
from streamsx.model import TaskId
from streamsx.processing.task import TaskMetadata
from streamsx.protocol.commit_metadata import OffsetMetadata

STORY_STEPS = 200


def metadata_of(sealed: TaskMetadata) -> dict[str, OffsetMetadata]:
    """Return what a commit writes beside the offset of each topic."""
    return {
        topic: OffsetMetadata(
            sealed.stream_time,
            {reader: at - offset for reader, at in sealed.readers.get(topic, {}).items()},
            sealed.topic_ids.get(topic),
        )
        for topic, offset in sealed.positions.items()
    }


def place_of(found: Mapping[str, tuple[int, OffsetMetadata]]) -> TaskMetadata:
    """Return the place at which a task begins, of what is committed for each of its topics."""
    return TaskMetadata(
        {topic: offset for topic, (offset, _) in found.items()},
        max(beside.stream_time for _, beside in found.values()),
        readers={
            topic: {reader: offset + ahead for reader, ahead in beside.readers.items()}
            for topic, (offset, beside) in found.items()
        },
        topic_ids={t: beside.topic_id for t, (_, beside) in found.items() if beside.topic_id},
    )


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
    sealed: TaskMetadata


@dataclass(frozen=True, slots=True)
class Flushed:
    """Everything that these tasks sent before is acknowledged, but for what is `late`."""

    late: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class Arrived:
    """Everything that this held task had sent before its seal is acknowledged."""

    task: TaskId


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


Event = Due | Suspended | TaskSealed | Flushed | Arrived | OffsetsCommitted | TaskWritten | TaskLost


@dataclass(frozen=True, slots=True)
class Flush: ...


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    sealed: Mapping[TaskId, TaskMetadata]


@dataclass(frozen=True, slots=True)
class Adopt:
    """These are committed, and can be written."""

    sealed: Mapping[TaskId, TaskMetadata]


@dataclass(frozen=True, slots=True)
class SuspendedSettled:
    """Kafka has all that this suspended task has done."""

    task: TaskId


Effect = Flush | CommitOffsets | Adopt | SuspendedSettled


class CommitCycles:
    """The commit cycles of one worker; one at a time, all tasks in it."""

    def __init__(self) -> None:
        self.state = CommitState.IDLE
        self.sealing: TaskId | None = None
        """Its positions are to be noted, what is dirty encoded and sent to the changelogs: then
        `TaskSealed`."""
        self.sealed: dict[TaskId, TaskMetadata] = {}
        """What is being committed."""
        self.unwritten: list[TaskId] = []
        """What was adopted is to be written into their stores, one by one: then `TaskWritten`."""
        self.held: set[TaskId] = set()
        """Sealed, and not to be sealed again before `Arrived`: an output takes nothing."""
        self._to_seal: list[TaskId] = []
        self._suspended: dict[TaskId, bool] = {}
        self.story: deque[tuple[float, str, CommitState, list[str]]] = deque(maxlen=STORY_STEPS)

    def step(self, now: float, event: Event) -> list[Effect]:
        """The effects of one event, in order. Raises InvalidTransition with the story."""
        before = self.state
        effects = self._decide(event)
        if self.state is CommitState.IDLE:
            effects += self._next_cycle()
        self.story.append((now, repr(event)[:200], before, [type(e).__name__ for e in effects]))
        return effects

    def _decide(self, event: Event) -> list[Effect]:
        match event:
            case Due(tasks):
                return self._begin(tasks) if self.state is CommitState.IDLE else []
            case Suspended(task, dirty):
                return self._suspend(task, dirty=dirty)
            case TaskSealed(task, sealed) if task == self.sealing:
                self.sealed[task] = sealed
                return self._next_seal()
            case Flushed(late) if self.state is CommitState.FLUSHING:
                self._hold(late)
                self.state = self._if_sealed(CommitState.COMMITTING)
                return [CommitOffsets(dict(self.sealed))] if self.sealed else []
            case Arrived(task):
                self.held.discard(task)
                return []
            case OffsetsCommitted(dropped, denied) if self.state is CommitState.COMMITTING:
                return self._adopt(dropped, denied)
            case TaskWritten(task) if task in self.unwritten:
                self.unwritten.remove(task)
                return self._written()
            case TaskLost(task):
                return self._forget(task)
        raise InvalidTransition(f"commit: {event} while {self.state.value}: {list(self.story)}")

    def _begin(self, tasks: Iterable[TaskId]) -> list[Effect]:
        self._to_seal = sorted(set(tasks) - self.held, reverse=True)
        return self._next_seal() if self._to_seal else []

    def _next_seal(self) -> list[Effect]:
        self.sealing = self._to_seal.pop() if self._to_seal else None
        if self.sealing is not None:
            self.state = CommitState.SEALING
            if self._suspended.get(self.sealing):
                self._suspended[self.sealing] = False  # this seal holds all it has done
            return []
        self.state = self._if_sealed(CommitState.FLUSHING)
        return [Flush()] if self.sealed else []

    def _hold(self, late: Iterable[TaskId]) -> None:
        """Take these out of the cycle; one that is wanted back has a cycle of its own later."""
        for task in self.sealed.keys() & late:
            del self.sealed[task]
            self.held.add(task)
            if task in self._suspended:
                self._suspended[task] = True

    def _if_sealed(self, then: CommitState) -> CommitState:
        return then if self.sealed else CommitState.IDLE

    def _suspend(self, task: TaskId, *, dirty: bool) -> list[Effect]:
        if task in self.held:
            dirty = True  # Kafka has not got what it sealed
        if not dirty and task not in (*self._to_seal, self.sealing, *self.sealed):
            return [SuspendedSettled(task)]  # its store can be written behind the hand-over
        self._suspended[task] = dirty and task not in self._to_seal
        return []

    def _adopt(self, dropped: frozenset[TaskId], denied: frozenset[TaskId]) -> list[Effect]:
        """Who is wanted back and denied goes without; whoever gets it does the same again."""
        gone = dropped | denied
        adopted = {t: self.sealed[t] for t in sorted(self.sealed) if t not in gone}
        effects: list[Effect] = [Adopt(adopted)]
        for task in sorted(self.sealed.keys() - dropped):
            if self._suspended.get(task) is False or (task in denied and task in self._suspended):
                del self._suspended[task]
                effects.append(SuspendedSettled(task))
        self.state, self.unwritten, self.sealed = CommitState.WRITING, list(adopted), {}
        return effects + self._written()

    def _written(self) -> list[Effect]:
        if not self.unwritten:
            self.state = CommitState.IDLE
        return []

    def _next_cycle(self) -> list[Effect]:
        """Suspended tasks with something to commit do not wait for the interval."""
        return self._begin(task for task, dirty in self._suspended.items() if dirty)

    def _forget(self, task: TaskId) -> list[Effect]:
        self._suspended.pop(task, None)
        self.held.discard(task)
        self._to_seal = [t for t in self._to_seal if t != task]
        self.sealed.pop(task, None)
        self.unwritten = [t for t in self.unwritten if t != task]
        if self.state is CommitState.WRITING:
            return self._written()
        return self._next_seal() if self.sealing == task else []
