"""Commit cycle of a worker: outputs and changelogs first, then offsets, then the stores. Pure.

Two rules hold. Nothing reaches a store before Kafka has the offsets. A task is sealed again only
when the last commit is written, so that a store is never more than one commit behind.

IDLE        No cycle runs. `Due` begins one, and so does a suspended task that has something to
            commit, and a task that was sealed by itself.
SEALING     Task by task, the dirty values are encoded and sent to the changelogs. A task does not
            run between the first and the last slice; the others do. At least once, a task drops out
            if a body of it is in the middle of a record (`open_records`). It is sealed when the
            body is done, whatever the cycle is doing by then, and commits with the next cycle.
FLUSHING    The brokers acknowledge the records that these tasks sent before. Tasks run. A task
            whose records a partition does not take drops out and is held; the others commit. The
            held task is sealed again when all these records have arrived.
COMMITTING  The offsets are an effect, which names no request. The member commits them at the
            group's coordinator, repeats a commit that a rebalance refuses, and reports the tasks it
            dropped because they are no longer ours.
ENDING      Under exactly-once: the offsets are staged, and the transaction that has them, the
            outputs and the rows is being committed. The lease and the group do not matter any more:
            whoever begins with one of the tasks waits for the end of the transaction.
WRITING     Kafka has the offsets; the stores are written in slices.

A task that the group wants back is settled as soon as Kafka has everything the task has done; the
store can be written after the hand-over. The race: m1 seals 1_0 at position 90 and lets 1_0 run on
to 95; the cycle is flushing; the group asks for 1_0 back; 1_0 is suspended at 95. The cycle commits
90, so 1_0 waits for that cycle and then has another one. All waiting tasks share that one.

Under exactly-once (`whole`) one transaction has the work of all tasks, so a cycle commits all of it
or nothing, and no task runs from before the first seal until the flush is over. A suspended task
begins no cycle of its own. A lost task aborts the transaction, and with it the cycle.

Two races show why tasks stand until then, and no longer. "A task is clean when the tasks of the
cycle are chosen, and runs beside the seals": what it sends is flushed and committed, and its
position is in no commit. "A task runs while the offsets are staged": what it sends waits, because
the producer lets nothing leave between the flush and the end of the transaction.

Not here: bytes, sockets, the end of a slice, and the abort of a transaction.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from streamsx.errors import InvalidTransition
from streamsx.model import OffsetAndMetadata, Offsets, TaskId, TopicPartition
from streamsx.processing.progress import NOTHING
from streamsx.processing.task import TaskMetadata, latest
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.topology.time_links import Writer

STORY_STEPS = 200


def metadata_of(sealed: TaskMetadata) -> dict[str, OffsetMetadata]:
    """Return the metadata that a commit writes beside the offset of each topic."""
    return {
        topic: OffsetMetadata(
            sealed.stream_time,
            {reader: at - offset for reader, at in sealed.readers.get(topic, {}).items()},
            sealed.topic_ids.get(topic),
            closed={store: at for store, at in sealed.closed.items() if at > 0},
            told=by_stage(sealed.told.get(topic, {})),
            late=sealed.late,
        )
        for topic, offset in sealed.positions.items()
    }


def place_of(found: Mapping[str, tuple[int, OffsetMetadata]]) -> TaskMetadata:
    """Return the place at which a task begins, from the committed offset of each source topic.

    Args:
        found: offset and metadata by topic; at least one.
    """
    return TaskMetadata(
        {topic: offset for topic, (offset, _) in found.items()},
        max(beside.stream_time for _, beside in found.values()),
        readers={
            topic: {reader: offset + ahead for reader, ahead in beside.readers.items()}
            for topic, (offset, beside) in found.items()
        },
        topic_ids={t: beside.topic_id for t, (_, beside) in found.items() if beside.topic_id},
        closed=latest([beside.closed for _, beside in found.values()]),
        told={topic: dict(by_writer(beside.told)) for topic, (_, beside) in found.items()},
        late=latest([beside.late for _, beside in found.values()]),
    )


def by_stage(told: Mapping[Writer, int | None]) -> dict[str, list[int | None]]:
    """Return the times of writers by stage, a list by partition; nothing if none has told any."""
    found: dict[str, list[int | None]] = {}
    for writer, time in told.items():
        times = found.setdefault(f"{writer.stage:08x}", [])
        times += [NOTHING] * (writer.partition + 1 - len(times))
        times[writer.partition] = time
    return {stage: times for stage, times in found.items() if set(times) != {NOTHING}}


def by_writer(found: Mapping[str, Sequence[int | None]]) -> Iterator[tuple[Writer, int | None]]:
    """Yield writers and their times of what `by_stage` has returned."""
    for stage, times in found.items():
        for partition, time in enumerate(times):
            if time != NOTHING:
                yield Writer(int(stage, 16), partition), time


class CommitState(Enum):
    """State of the commit cycle; the module's docstring explains each."""

    IDLE = "idle"
    SEALING = "sealing"
    FLUSHING = "flushing"
    COMMITTING = "committing"
    ENDING = "ending"
    WRITING = "writing"


@dataclass(frozen=True, slots=True)
class Due:
    """Event: the interval is over, or too much is dirty; `tasks` have something to commit."""

    tasks: frozenset[TaskId]


@dataclass(frozen=True, slots=True)
class Suspended:
    """Event: the group wants the task back; `dirty`: the task has run since the last seal."""

    task: TaskId
    dirty: bool


@dataclass(frozen=True, slots=True)
class TaskPutOff:
    """Event: the task whose seal would begin has a body in the middle of a record."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class TaskWhole:
    """Event: a task that was put off has no body in the middle of a record any more."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class TaskSealed:
    """Event: the dirty values of the task are encoded and sent to the changelogs."""

    task: TaskId
    sealed: TaskMetadata


@dataclass(frozen=True, slots=True)
class Flushed:
    """Event: all records of the sealed tasks are acknowledged, except those of `late` tasks.

    `wall_s`: Unix second at which the offsets are committed.
    """

    late: frozenset[TaskId] = frozenset()
    wall_s: int = 0


@dataclass(frozen=True, slots=True)
class Arrived:
    """Event: everything that this held task had sent before the seal is acknowledged."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    """Event: Kafka has the offsets, except for tasks no longer ours, or denied by the group."""

    dropped: frozenset[TaskId]
    denied: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """Event: the transaction of the sealed tasks is committed."""


@dataclass(frozen=True, slots=True)
class TaskWritten:
    """Event: the committed rows of the task are in the stores."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class TaskLost:
    """Event: the task commits nothing more."""

    task: TaskId


Event = (
    Due | Suspended | TaskPutOff | TaskWhole | TaskSealed | Flushed | Arrived | OffsetsCommitted
    | TransactionEnded | TaskWritten | TaskLost
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Flush:
    """Effect: wait until the brokers have acknowledged the records of the sealed tasks."""


@dataclass(frozen=True, slots=True)
class ReadersLeftOut:
    """Effect: the text beside an offset has no room for how far these readers are ahead."""

    task: TaskId
    topic: str
    readers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Effect: commit the offsets of the sealed tasks; `OffsetsCommitted` answers."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Effect: commit the transaction of the sealed tasks; `TransactionEnded` answers."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Effect: these tasks are committed, and their rows can be written to the stores."""

    sealed: Mapping[TaskId, TaskMetadata]


@dataclass(frozen=True, slots=True)
class SuspendedSettled:
    """Effect: Kafka has all that this suspended task has done."""

    task: TaskId


Effect = Flush | ReadersLeftOut | CommitOffsets | EndTransaction | Adopt | SuspendedSettled


ANSWERED = (CommitState.FLUSHING, CommitState.COMMITTING, CommitState.ENDING)
"""States that end with an answer."""
STANDING = (CommitState.SEALING, CommitState.FLUSHING)
"""States in which a record that is sent may still get into the transaction."""
FLUSHED = (CommitState.COMMITTING, CommitState.ENDING)
"""States of a transaction that has all of its records."""


class CommitCycles:
    """Commit cycles of one worker; one at a time, shared by all tasks.

    Args:
        whole: whether one transaction has the work of all tasks.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self.state = CommitState.IDLE
        self.sealing: TaskId | None = None
        """Task whose positions are noted and whose dirty values are sent to the changelogs next;
        `TaskSealed` answers."""
        self.sealed: dict[TaskId, TaskMetadata] = {}
        """Tasks in this cycle that are sealed, and being committed."""
        self.early: dict[TaskId, TaskMetadata] = {}
        """Tasks that were sealed by themselves, and commit with the next cycle."""
        self.unwritten: list[TaskId] = []
        """Tasks whose committed rows are to be written to their stores, one task after another;
        `TaskWritten` answers."""
        self.held: set[TaskId] = set()
        """Sealed tasks with an output that takes no records; not sealed again before `Arrived`."""
        self._to_seal: list[TaskId] = []
        self._suspended: dict[TaskId, bool] = {}
        """Suspended tasks that still commit; True for a task that needs another seal."""
        self.story: deque[tuple[float, str, CommitState, list[str]]] = deque(maxlen=STORY_STEPS)

    def step(self, now: float, event: Event) -> list[Effect]:
        """Return the effects of one event, in order.

        Raises:
            InvalidTransition: the event does not fit the state; the message holds the story.
        """
        before = self.state
        effects = self._decide(event)
        if self.state is CommitState.IDLE and not self._whole:
            effects += self._next_cycle()
        self.story.append((now, repr(event)[:200], before, [type(e).__name__ for e in effects]))
        return effects

    @property
    def wanted(self) -> bool:
        """Return whether a suspended task has something to commit."""
        return any(self._suspended.values())

    def commits(self, task: TaskId) -> bool:
        """Return whether a seal of a task is not committed yet."""
        return task in self.sealed or task in self.early

    @property
    def sealed_next(self) -> Collection[TaskId]:
        """Return the tasks that are being sealed, or will be."""
        return self._to_seal if self.sealing is None else [self.sealing, *self._to_seal]

    def waits(self, task: TaskId) -> bool:
        """Return whether a suspended task waits for its commit."""
        return task in self._suspended

    @property
    def stands(self) -> bool:
        """Return whether no task may run, because it would send into the transaction."""
        return self._whole and self.state in STANDING

    @property
    def flushed(self) -> bool:
        """Return whether a transaction has all of its records, and waits for its end."""
        return self._whole and self.state in FLUSHED

    def _decide(self, event: Event) -> list[Effect]:
        match event:
            case Due(tasks):
                return self._begin(tasks) if self.state is CommitState.IDLE else []
            case Suspended(task, dirty):
                return self._suspend(task, dirty=dirty)
            case TaskPutOff() | TaskWhole() | TaskSealed():
                return self._decide_seal(event)
            case Flushed(late, wall_s) if self.state is CommitState.FLUSHING:
                self._hold(late)
                self.state = self._if_sealed(CommitState.COMMITTING)
                return self._commit(wall_s) if self.sealed else []
            case Arrived(task):
                self.held.discard(task)
                return []
            case OffsetsCommitted(dropped, denied) if self.state is CommitState.COMMITTING:
                return self._end() if self._whole else self._adopt(dropped, denied)
            case TransactionEnded() if self.state is CommitState.ENDING:
                return self._adopt(frozenset(), frozenset())
            case TaskWritten(task) if task in self.unwritten:
                self.unwritten.remove(task)
                return self._written()
            case TaskLost(task):
                return self._forget(task)
        raise self._invalid(event)

    def _decide_seal(self, event: TaskPutOff | TaskWhole | TaskSealed) -> list[Effect]:
        match event:
            case TaskPutOff(task):
                return self._forget(task)
            case TaskWhole(task):
                return self._seal_too(task)
            case TaskSealed(task, sealed) if task == self.sealing:
                seals = self.sealed if self.state is CommitState.SEALING else self.early
                seals[task] = sealed
                return self._next_seal()
        raise self._invalid(event)

    def _invalid(self, event: Event) -> InvalidTransition:
        what = f"commit: {event} while {self.state.value}: {list(self.story)}"
        return InvalidTransition(what)

    def _begin(self, tasks: Iterable[TaskId]) -> list[Effect]:
        """Begin a cycle with tasks, and with those that were sealed by themselves."""
        self.sealed = self.early
        self.early = {}
        known = {*self.held, *self.sealed, self.sealing}
        self._to_seal = sorted({*tasks, *self._to_seal} - known, reverse=True)
        self.state = CommitState.SEALING
        return self._next_seal() if self.sealing is None else []

    def _seal_too(self, task: TaskId) -> list[Effect]:
        if task == self.sealing or task in self._to_seal:
            return []
        self._to_seal.append(task)
        return self._next_seal() if self.sealing is None else []

    def _next_seal(self) -> list[Effect]:
        self.sealing = self._to_seal.pop() if self._to_seal else None
        if self.sealing is not None:
            if self._suspended.get(self.sealing):
                self._suspended[self.sealing] = False  # this seal covers all it has done
            return []
        if self.state is not CommitState.SEALING:
            return []
        self.state = self._if_sealed(CommitState.FLUSHING)
        return [Flush()] if self.sealed else []

    def _hold(self, late: Iterable[TaskId]) -> None:
        """Take late tasks out of the cycle; a suspended one has another cycle later."""
        for task in self.sealed.keys() & late:
            del self.sealed[task]
            self.held.add(task)
            if task in self._suspended:
                self._suspended[task] = True

    def _commit(self, wall_s: int) -> list[Effect]:
        """Return the commit of the sealed tasks, after the readers left out of the texts."""
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        effects: list[Effect] = []
        for task, sealed in sorted(self.sealed.items()):
            for topic, place in metadata_of(sealed).items():
                beside = place._replace(committed_s=wall_s)
                long = beside.readers or beside.told or beside.late
                fitted, left_out = beside.fitted() if long else (beside, {})
                if left_out:
                    effects.append(ReadersLeftOut(task, topic, left_out))
                given = OffsetAndMetadata(sealed.positions[topic], fitted.encode())
                offsets[TopicPartition(topic, task.partition)] = given
        return [*effects, CommitOffsets(offsets)]

    def _end(self) -> list[Effect]:
        self.state = CommitState.ENDING
        return [EndTransaction()]

    def _if_sealed(self, then: CommitState) -> CommitState:
        return then if self.sealed else CommitState.IDLE

    def _suspend(self, task: TaskId, *, dirty: bool) -> list[Effect]:
        if task in self.held:
            dirty = True  # Kafka does not have all that the task sealed
        if not dirty and task not in (*self._to_seal, self.sealing, *self.sealed, *self.early):
            return [SuspendedSettled(task)]  # its store can be written after the hand-over
        self._suspended[task] = dirty and task not in self._to_seal
        return []

    def _adopt(self, dropped: frozenset[TaskId], denied: frozenset[TaskId]) -> list[Effect]:
        """Adopt the committed tasks, and release a suspended task even if its commit was denied.

        The next owner of a denied task processes the same records again.
        """
        gone = dropped | denied
        adopted = {t: self.sealed[t] for t in sorted(self.sealed) if t not in gone}
        effects: list[Effect] = [Adopt(adopted)]
        for task in sorted(self.sealed.keys() - dropped):
            if self._suspended.get(task) is False or (task in denied and task in self._suspended):
                del self._suspended[task]
                effects.append(SuspendedSettled(task))
        self.state = CommitState.WRITING
        self.unwritten = list(adopted)
        self.sealed = {}
        return effects + self._written()

    def _written(self) -> list[Effect]:
        if not self.unwritten:
            self.state = CommitState.IDLE
        return []

    def _next_cycle(self) -> list[Effect]:
        """Begin a cycle before the interval ends, for tasks that were sealed by themselves, and for
        suspended ones with something to commit."""
        waiting = [task for task, dirty in self._suspended.items() if dirty]
        return self._begin(waiting) if waiting or self.early else []

    def _forget(self, task: TaskId) -> list[Effect]:
        self._suspended.pop(task, None)
        self.held.discard(task)
        self._to_seal = [t for t in self._to_seal if t != task]
        self.sealed.pop(task, None)
        self.early.pop(task, None)
        self.unwritten = [t for t in self.unwritten if t != task]
        effects: list[Effect] = []
        if self.state is CommitState.WRITING:
            effects = self._written()
        elif self._whole and self.state in ANSWERED:
            self.state = self._if_sealed(self.state)
        return effects + self._next_seal() if self.sealing == task else effects
