"""Shell of the commit cycle: seals and writes in slices, flushes, hands offsets to the member.

The order of the steps is decided in `streamsx.tasks.commit_cycle`. The member handles refusals by
the group, and reports them as dropped tasks.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from streamsx.client.error_advice import Denial
from streamsx.client.producer import Goals, Producer
from streamsx.client.transactional_id import TransactionIdentity
from streamsx.clock import Clock
from streamsx.errors import STORE_FAULTS, Bug, StreamsxError, TaskStopped, ValueRefused
from streamsx.group.member import LAST_COMMIT_S
from streamsx.journal import LOG, Journal
from streamsx.model import Offsets, TaskId, TopicPartition
from streamsx.processing.task import TaskMetadata
from streamsx.protocol.commit_metadata import TEXT_BYTES_MAX
from streamsx.protocol.error_codes import name_of
from streamsx.tasks import commit_cycle, crash_points
from streamsx.tasks.active_task import Active
from streamsx.tasks.commit_cycle import CommitCycles
from streamsx.tasks.open_records import OpenRecords
from streamsx.tasks.state_machine import TaskEvent
from streamsx.tasks.task_registry import Happened

SEAL_ROWS = 250
"""Rows sealed at a time. A row costs 0.9 us, against 2.1 us with 1,000 rows at a time, which no
processor cache holds."""
WRITE_ROWS = 250
"""Rows written at a time. RocksDB holds the GIL during a write: 2,000 rows took 9 ms at the median
and 44 ms at the 99th percentile on a busy machine."""
DIRTY_ROWS_MAX = 50_000
"""Dirty rows that begin a commit before the interval ends, if they are as many as the records that
made them, or more. Waiting would save no write of such rows, and a task stands still while it is
sealed: 1 us a row, then 1.5 us to write the row. Rows that many records share do wait: 200,000 keys
at 200,000 records a second make 126,000 rows a second, and 174,000 in cycles of 50,000.
"""
FLUSH_PATIENCE_S = 1.0
"""Time after which a task whose records are not acknowledged drops out of a cycle. A leader that
moves takes 0.1 to 0.5 s; a longer wait would hold up the commits of all tasks."""
FULL = 2
"""Most dirty bytes, as a multiple of those that begin a cycle: the sealed ones, and as many made
meanwhile."""
PATIENCE_SHARE = 1 / 2
"""Share of the time for a task's release that its bodies may take; the rest is for its last commit.
In a worker that leaves, the last LAST_COMMIT_S before its deadline are for last commits too."""

OffsetSender = Callable[[int, Offsets, TransactionIdentity | None], None]
"""Function that commits offsets under a number, or stages them in a transaction; `committed` or
`refused` answers."""
Taken = Callable[[TaskId, Mapping[str, int]], None]
"""Function of the repartition purge, called with the offsets of a task that Kafka has taken."""


class CommitLimits(NamedTuple):
    """Limits at which a cycle begins.

    `interval_s`: time from the end of the last cycle of all tasks; `dirty_bytes`: bytes that do not
    wait for the interval.
    """

    interval_s: float
    dirty_bytes: int


class CommitOutcomes(NamedTuple):
    """Functions that receive the outcome of a commit for one task.

    `settled`: called for a suspended task once Kafka has everything the task has done; `undone`:
    for a task whose dirty values cannot be encoded; `failed`: for a task that ends the worker by
    such values, or by the disk.
    """

    settled: Callable[[Happened], None]
    undone: Callable[[TaskId, ValueRefused | TaskStopped], None]
    failed: Callable[[TaskId, Exception], None]


class Committer:
    """Committer of a worker's tasks; one per worker.

    The commit interval counts from the end of a cycle that had all tasks. Too many dirty bytes cut
    the interval short, and with twice as many no task may make more.

    Args:
        producer: sends the rows of changelogs.
        offsets: commits offsets at the group.
        taken: called with committed offsets.
        limits: limits at which a cycle begins.
        outcomes: called with the outcome for a task.
        patient_until: returns, for the time of a suspension, the time until which the task waits
            for bodies to finish the records at hand; the next owner repeats the rest.
        spawn: starts a job that the worker owns.
        journal: receives commits and errors.
        clock: time of the worker.
    """

    def __init__(
        self,
        *,
        producer: Producer,
        offsets: OffsetSender,
        taken: Taken,
        limits: CommitLimits,
        outcomes: CommitOutcomes,
        patient_until: Callable[[float], float],
        spawn: Callable[..., object],
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._journal = journal
        self._spawn = spawn
        self._producer = producer
        self._offsets = offsets
        self._taken = taken
        self._outcomes = outcomes
        self._patient_until = patient_until
        self._interval_s = limits.interval_s
        self._dirty_bytes_max = limits.dirty_bytes
        self._machine = self._cycles()
        self._in_cycle: dict[TaskId, Active] = {}
        self._goals: dict[TaskId, Goals] = {}
        """Records that must be acknowledged before a sealed task can commit."""
        self._held: dict[TaskId, Active] = {}
        self._number = 0
        self._began = 0.0
        self.due_at = 0.0
        self._ends: Mapping[TopicPartition, int] = {}
        """Next offset of each partition after the last flush."""
        self._suspended: dict[TaskId, tuple[Active, float]] = {}
        """Suspended tasks whose bodies have records at hand, and the time of the suspension."""
        self._open_records = OpenRecords()
        self._regular = True
        """Whether the interval begins anew behind the running cycle: not behind one that is for
        some tasks alone."""
        self._hurry = False
        """Whether a task waits for its first commit: the next cycle begins before the interval
        ends."""
        self._crowded: set[tuple[TaskId, str]] = set()
        """Tasks and topics whose readers' positions did not fit into the metadata, once logged."""
        self.full = False
        """Whether too much is dirty, because the running cycle does not end."""
        self.crowding: Collection[TaskId] = ()
        """Held tasks while too many of their bytes are dirty; they are fed no more."""
        self.held_bytes = 0
        """Bytes in memory that are dirty or on their way to the stores, without held tasks."""

    def _cycles(self) -> CommitCycles:
        return CommitCycles()

    @property
    def stands(self) -> bool:
        """Return whether no task may run."""
        return self._machine.stands

    @property
    def idle(self) -> bool:
        return self._machine.state is commit_cycle.CommitState.IDLE

    @property
    def sealing(self) -> TaskId | None:
        """Return the task that is being sealed and must not run."""
        return self._machine.sealing

    def busy(self, *, leased: bool) -> bool:
        """Return whether there is a slice to seal or write; sealing needs a lease."""
        return bool(self._machine.unwritten) or (leased and self.sealing is not None)

    def offsets_sent(self, task: TaskId) -> bool:
        """Return whether the group may have a newer commit of a task than the last answer shows."""
        committing = self._machine.state is commit_cycle.CommitState.COMMITTING
        return committing and task in self._machine.sealed

    def commits(self, task: TaskId) -> bool:
        """Return whether a task is sealed, and its commit under way."""
        return self._machine.commits(task)

    def failure_waits(self, task: TaskId) -> bool:
        """Return whether a task with a failed record waits for the commit that is under way.

        It goes back to that commit then, and not to the one before.
        """
        return self.commits(task)

    # -- begin of a cycle

    def consider(self, now: float, actives: Collection[Active]) -> None:
        """Begin a cycle when the interval is over, or too much is dirty.

        Tasks that waited for the end of a record, and wait no longer, are sealed in any case.
        """
        self._look_at_held()
        self._settle(now)
        free = [active for active in actives if active.id not in self._machine.held]
        held = self.held_bytes = sum(active.task.dirty_bytes for active in free)
        self.full = held > FULL * self._dirty_bytes_max
        crowded = held > self._dirty_bytes_max
        for active in self._open_records.over(now, free, crowded=crowded):
            self._enter({active.id: active})
            self._step(commit_cycle.TaskWhole(active.id))
        if not self.idle:
            return
        whole = [active for active in free if active.id not in self._open_records]
        hurries = self._hurry or self._machine.wanted
        is_due = crowded or hurries or now >= self.due_at or _is_spread(whole)
        if not is_due or not self._ready(now, free):
            return
        self._hurry = False
        dirty = {active.id: active for active in whole if active.task.dirty}
        self._regular = bool(dirty)
        self.due_at = now + self._interval_s
        self._enter(dirty)
        self._step(commit_cycle.Due(frozenset(dirty)))

    def _ready(self, now: float, actives: Collection[Active]) -> bool:
        """Return whether a cycle that is due may begin."""
        return True

    def rests(self, task: TaskId) -> bool:
        """Return whether a task takes no records, because its seal waits for one at hand."""
        return task in self._open_records

    def _puts_off(self, active: Active) -> bool:
        """Return whether the seal of a task waits for the end of a record."""
        crowded = self.held_bytes > self._dirty_bytes_max
        if active.id in self._suspended and not crowded:
            return active.task.halfway  # `_settle` has it sealed
        return self._open_records.puts_off(self._clock.now(), active, crowded=crowded)

    def _look_at_held(self) -> None:
        """Let held tasks go on whose records have arrived; feed the others while there is room."""
        if not self._machine.held:
            self.crowding = ()
            return
        for task in sorted(self._machine.held):
            if self._producer.arrived(self._goals[task]):
                active = self._held.pop(task)
                LOG.info("Task %s continues: its output takes records again.", task)
                self._enter({task: active})
                self._step(commit_cycle.Arrived(task))
        stores = [store for a in self._held.values() for store in a.task.stores.values()]
        dirty = sum(store.dirty_bytes for store in stores)
        self.crowding = frozenset(self._held) if dirty > self._dirty_bytes_max else ()

    def first(self, active: Active) -> None:
        """Commit the offset at which a task begins, at once, and feed the task nothing before.

        The race without this: a task begins at the end of a topic, and is fed; the worker is
        killed before the first commit; the next owner begins at the topic's new end; the records
        between the two ends are lost.
        """
        active.task.uncommitted()
        active.begins = active.paused = self._hurry = True

    @property
    def room_bytes(self) -> int:
        """Return the number of bytes that may still become dirty."""
        return int(FULL * self._dirty_bytes_max) - self.held_bytes

    def ran(self, active: Active, records: int, before: int) -> None:
        """Account for the bytes that records left in the stores of a task.

        Args:
            active: the task.
            records: how many were processed.
            before: dirty bytes of the task before these records.
        """
        grown = max(0, active.task.dirty_bytes - before)
        active.left(records, grown)
        if active.id in self._machine.held:
            return  # the bytes of held tasks are counted apart, in `crowding`
        self.held_bytes += grown
        self.full = self.full or self.room_bytes <= 0

    def suspend(self, active: Active) -> None:
        """Commit a suspended task, and settle the task once Kafka has all it has done.

        First the bodies finish the records at hand, or their time ends.
        """
        self._open_records.forget(active.id)
        self._end_bodies(active)
        self._suspended[active.id] = active, self._clock.now()
        self._settle(self._clock.now())

    def _end_bodies(self, active: Active) -> None:
        """Let the bodies of a suspended task see nothing behind the record at hand."""
        active.task.cut()

    def _settle(self, now: float) -> None:
        for active, since in list(self._suspended.values()):
            if active.task.busy and now < self._patient_until(since):
                continue
            if active.task.busy and self._gives_up(active):
                return  # all tasks are undone
            del self._suspended[active.id]
            self._enter({active.id: active})
            self._step(commit_cycle.Suspended(active.id, active.task.dirty))

    def _gives_up(self, active: Active) -> bool:
        """Hear that a body is still at work; return whether nothing is committed for that."""
        return False

    def lose(self, task: TaskId) -> None:
        """Take a task out of the cycle; the task commits nothing more."""
        self._suspended.pop(task, None)
        self._open_records.forget(task)
        for by_task in (self._in_cycle, self._held, self._goals):
            by_task.pop(task, None)
        self._step(commit_cycle.TaskLost(task))

    def _enter(self, actives: Mapping[TaskId, Active]) -> None:
        self._in_cycle.update(actives)
        if self.idle:
            self._began = self._clock.now()

    # -- slices

    def seal_slice(self, until: float) -> None:
        """Encode dirty values and send them to the changelogs, until the time `until`."""
        while (task := self.sealing) is not None and self._clock.now() < until:
            active = self._in_cycle[task]
            if self._puts_off(active):
                del self._in_cycle[task]
                self._step(commit_cycle.TaskPutOff(task))
                continue
            try:
                sealed = active.task.seal(SEAL_ROWS)
            except (ValueRefused, TaskStopped) as error:
                self._outcomes.undone(task, error)  # takes the task out of the cycle
            except StreamsxError as error:
                self._outcomes.failed(task, error)  # takes the task out of the cycle
            else:
                if sealed is not None:
                    self._goals[task] = self._producer.sealed(task)
                    self._step(commit_cycle.TaskSealed(task, sealed))

    def write_slice(self, until: float) -> None:
        """Write committed rows into the stores, until the time `until`."""
        while self._machine.unwritten and self._clock.now() < until:
            task = self._machine.unwritten[0]
            try:
                written = self._in_cycle[task].task.write_some(WRITE_ROWS)
            except STORE_FAULTS as error:
                self.lose(task)  # nothing else takes a task that is closing out of the cycle
                self._outcomes.failed(task, error)
                continue
            if not written:
                crash_points.point("during_write")
                continue
            self._step(commit_cycle.TaskWritten(task))
            crash_points.point("after_write")

    # -- answers

    def committed(
        self, number: int, dropped: frozenset[TaskId], denied: Mapping[TaskId, Denial]
    ) -> None:
        """Take the member's answer: Kafka has the offsets that were sent under this number.

        Args:
            number: that of the commit; the answer to an older one is ignored.
            dropped: tasks that are no longer ours.
            denied: tasks whose offsets Kafka refuses, and the reason of each.
        """
        if number != self._number:
            return
        crash_points.point("before_adopt")
        self._number += 1
        for task, why in denied.items():
            if task in self._in_cycle:
                self._deny(self._in_cycle[task], why)
        self._step(commit_cycle.OffsetsCommitted(dropped, frozenset(denied)))

    def _deny(self, active: Active, why: Denial) -> None:
        """Note a denied commit: log the first one; each later cycle tries again.

        A task pauses until a commit succeeds if the reason asks for that, or if the first commit
        was denied.
        """
        if not active.denied:
            self._journal("error", what=why.what, where=f"task {active.id}")
        active.denied = True
        active.paused = why.pauses or active.begins
        active.task.uncommitted()

    def refused(self, number: int) -> None:
        """Take the member's answer that it dropped the commit: none of its tasks is ours."""
        self.committed(number, frozenset(self._machine.sealed), {})

    async def _flush(self) -> None:
        goals = {task: self._goals[task] for task in self._machine.sealed}
        late = await self._producer.settle(goals, FLUSH_PATIENCE_S)
        self._ends = self._producer.ends()
        crash_points.point("after_flush")
        for task in sorted(late & self._machine.sealed.keys()):
            self._hold(task)
        self._step(commit_cycle.Flushed(late, int(self._clock.wall())))

    def _hold(self, task: TaskId) -> None:
        """Hold a task whose records are not acknowledged; it commits with a later cycle."""
        active = self._held[task] = self._in_cycle[task]
        active.task.uncommitted()
        tps = (each.tp for each, goal in self._goals[task] if each.acknowledged < goal)
        LOG.warning(
            "Task %s waits with its commit: %s does not take what it has sent. The other tasks go "
            "on. Is the topic there, and does it have a leader?",
            *(task, ", ".join(sorted(map(str, tps)))),
        )

    def transaction_over(self, number: int, code: int) -> None:
        """Take the member's answer that the transaction of a commit cannot be committed."""
        raise Bug(f"commit {number} without a transaction: {name_of(code)}")

    def aborted(self) -> None:
        """Hear that the transaction of all tasks is aborted; there is none here."""

    # -- effects

    def _step(self, event: commit_cycle.Event) -> None:
        was_idle = self.idle
        for effect in self._machine.step(self._clock.now(), event):
            match effect:
                case commit_cycle.Flush():
                    crash_points.point("after_seal")
                    _ = self._spawn(self._flush(), name="flush")
                case commit_cycle.ReadersLeftOut(task, topic, readers):
                    self._left_out(task, topic, readers)
                case commit_cycle.CommitOffsets(offsets):
                    self._commit(offsets)
                case commit_cycle.EndTransaction():
                    self._end_transaction()
                case commit_cycle.Adopt(sealed):
                    self._adopt(sealed)
                case commit_cycle.SuspendedSettled(task):
                    self._outcomes.settled(Happened(task, TaskEvent.SETTLED))
        if self.idle:
            sealed_next = self._machine.sealed_next
            self._in_cycle = {t: each for t, each in self._in_cycle.items() if t in sealed_next}
        if self.idle and self._regular and not was_idle:
            self.due_at = self._clock.now() + self._interval_s
            self._regular = False

    def _commit(self, offsets: Offsets) -> None:
        self._offsets(self._number, offsets, None)

    def _end_transaction(self) -> None:
        raise Bug("a committer without transactions ends one")

    def _left_out(self, task: TaskId, topic: str, left_out: Mapping[str, int]) -> None:
        """Log once per task and topic that the positions of readers do not fit."""
        if (task, topic) in self._crowded:
            return
        self._crowded.add((task, topic))
        (source,) = (s for s in self._in_cycle[task].task.plan.sources if s.topic == topic)
        names = ", ".join(sorted(source.readers[reader] for reader in left_out))
        LOG.warning(
            "Task %s: %s-%d has no room in the %d bytes beside its offset for the positions of "
            "agents %s. If the task ends now they repeat up to %d records. Let fewer agents read "
            "one topic.",
            task, topic, task.partition, TEXT_BYTES_MAX, names, max(left_out.values()),
        )  # fmt: skip

    def _adopt(self, done: Mapping[TaskId, TaskMetadata]) -> None:
        for task, sealed in done.items():
            active = self._in_cycle[task]
            if active.denied:
                LOG.info("Task %s continues: its commit was taken.", task)
            if active.denied or active.begins:
                active.denied = active.begins = active.paused = False
            self._taken(task, sealed.positions)
            active.task.committed(sealed, active.ends(self._ends))
        took = round((self._clock.now() - self._began) * 1000, 1)
        records = sum(sealed.records for sealed in done.values())
        self._journal("commit", tasks=len(done), records=records, ms=took)


def _is_spread(actives: Collection[Active]) -> bool:
    """Return whether tasks have many dirty rows, and few records that share them."""
    rows = sum(len(store.hot) for active in actives for store in active.task.stores.values())
    return rows > DIRTY_ROWS_MAX and rows >= sum(active.task.records for active in actives)


def patient_until(since: float, revoke_timeout_s: float, leave_by: float | None) -> float:
    """Return the time until which a task suspended at `since` waits for its bodies.

    `leave_by`: deadline of the worker's leave; None for a worker that stays, or has no deadline.
    """
    until = since + PATIENCE_SHARE * revoke_timeout_s
    if leave_by is None:
        return until
    least = since + PATIENCE_SHARE * LAST_COMMIT_S
    return min(until, max(least, leave_by - LAST_COMMIT_S))
