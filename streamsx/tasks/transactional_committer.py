"""Committer under exactly-once: outputs, changelogs and offsets of all tasks are one transaction.

One cycle, in order:

1. Quiet. Bodies see nothing behind the record at hand, and the cycle waits until all of them have
   done it. The race: a body has sent for a record and waits for something foreign; the cycle
   commits; what was sent is committed, and the record is not.
2. All dirty tasks are sealed, and the producer is flushed. Then the tasks go on; what they send
   from now on waits for the end of the transaction.
3. The member stages the offsets in the transaction, in the group's generation of now.
4. The transaction ends.
5. The rows are written to the stores.

An abort undoes all tasks: each one closes, opens again, and begins where Kafka says that it is.
Memory does not know that place. The race: EndTxn is answered by a fence; the coordinator alone
knows whether the transaction was committed before. An abort has one of these reasons:

| reason | whose work |
|---|---|
| a broker says that the transaction is over (fence, time-out) | of all tasks |
| a task is lost, fails, or is undone: its outputs are in the transaction of all | of that task |
| an offset was not staged, or denied for good: that task stops | of that task |
| an output has no leader for `transaction_timeout`: that task waits for one | of that task |
| a body is still at work when its task, or another one, has to be given back | of that task |

Not here: requests (`client/transactional_producer`, `group`), and the order of steps
(`commit_cycle`).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from streamsx.client.error_advice import Denial
from streamsx.client.transactional_producer import TransactionalProducer
from streamsx.journal import LOG
from streamsx.model import Offsets, TaskId, TopicPartition
from streamsx.tasks import commit_cycle, crash_points
from streamsx.tasks.active_task import Active
from streamsx.tasks.commit_cycle import CommitCycles
from streamsx.tasks.committer import Committer

LEFT_OUT = (
    "{topic}-{partition}: no room in the commit for the positions of all agents that read it, so "
    "some would repeat records: let fewer agents read one topic"
)
NO_LEADER = "{where} has no leader and has taken no records for {patience_s:g} s"
AT_WORK = "the body of an agent of task {task} is still running, and a rebalance moves the task"
DENIED = " (under exactly_once the task tries again when the worker is started again)"
LOST = "a task of the transaction has moved to another worker"

REST = 4
"""Least time for which tasks run between two cycles, as a multiple of the time for which the last
one stopped them.

Tasks stand for a fifth of the time at most, if cycles stop them for less than REST_MAX_S / REST.
Small commits cost more per record: at full load, with 50,000 keys and the interval of 100 ms,
cycles took 97 of every 317 ms.
"""

REST_MAX_S = 1.0
"""Limit of that time. The race: brokers are away for 20 s, and a cycle waits for them; tasks that
rested for 80 s would leave their transaction open until it times out."""

AbortTransaction = Callable[[str, Mapping[TaskId, str]], None]
"""Function that undoes all tasks, for a reason, and stops some of them, each for a reason."""


class TransactionalCommitter(Committer):
    """Committer of a worker's tasks under exactly-once.

    Args:
        producer: has the transaction.
        group: the group whose offsets are staged.
        patience_s: time that an output may take for its records: the transaction's time-out.
        abort: undoes all tasks.
        wake: called when tasks may run again.
        options: as for `Committer`.
    """

    def __init__(
        self,
        *,
        producer: TransactionalProducer,
        group: str,
        patience_s: float,
        abort: AbortTransaction,
        wake: Callable[[], None],
        **options: Any,
    ) -> None:
        super().__init__(producer=producer, **options)
        self._transactional = producer
        self._group = group
        self._patience_s = patience_s
        self._abort = abort
        self._wake = wake
        self._quiet_since = 0.0
        self._rests_until = 0.0
        """Time before which the interval does not end."""
        self._quiet = False
        """Whether bodies see nothing behind the record at hand, because a cycle is due."""
        self._waits: dict[TaskId, set[TopicPartition]] = {}
        """Tasks that wait until these outputs have leaders."""
        self._wanted: dict[TaskId, float] = {}
        """Tasks that the group wants back, and since when."""
        self._at_work: dict[TaskId, float] = {}
        """Tasks with a body at work when the cycle was looked at last, and since when."""

    def _cycles(self) -> CommitCycles:
        return CommitCycles(whole=True)

    @property
    def stands(self) -> bool:
        return self._quiet or super().stands

    def failure_waits(self, task: TaskId) -> bool:
        """Return whether a transaction has all its records, and a failure can wait for its end.

        What cannot wait aborts it: a fence, a lost task, offsets that are denied.
        """
        return self._machine.flushed

    # -- quiet

    def _ready(self, now: float, actives: Collection[Active]) -> bool:
        at_work = [active.id for active in actives if active.task.busy]
        if not self._quiet:
            if not (at_work or any(active.task.dirty for active in actives)):
                self._quiet_since = now
                self._end_what_is_open(actives)
                return True
            self._quiet = True
            self._quiet_since = now
            for active in actives:
                active.task.withhold()
        self._at_work = {task: self._at_work.get(task, now) for task in at_work}
        if at_work:
            self._transactional.worked(now - min(self._at_work.values()))
            self._release_overdue(now, at_work)
        return not at_work

    def _puts_off(self, active: Active) -> bool:
        """Return False: no cycle begins before all bodies are done with their records."""
        return False

    def _end_what_is_open(self, actives: Collection[Active]) -> None:
        """Commit a task at its place again if records of no task's commit have been sent.

        A task tells others that its input is idle, and a body may send outside of a record. Without
        this their transaction is open until it times out, and what they have sent is lost.
        """
        going = (active for active in actives if not active.why)
        if self._transactional.unended and (active := next(going, None)) is not None:
            active.task.uncommitted()

    def _release_overdue(self, now: float, at_work: Sequence[TaskId]) -> None:
        """Abort if a task waits for bodies of others longer than it may for its own.

        Its next owner does its records again. If the group waited longer, it would take all tasks.
        """
        waits = [task for task in self._wanted if self._machine.waits(task)]
        if any(now >= self._patient_until(self._wanted[task]) for task in waits):
            self._abort(AT_WORK.format(task=at_work[0]), {})

    def _end_bodies(self, active: Active) -> None:
        active.task.withhold()
        self._wanted[active.id] = self._clock.now()

    def _gives_up(self, active: Active) -> bool:
        self._abort(AT_WORK.format(task=active.id), {})
        return True

    # -- steps

    def lose(self, task: TaskId) -> None:
        super().lose(task)
        self._quiet = False
        self._wanted.pop(task, None)
        self._at_work.pop(task, None)

    def _step(self, event: commit_cycle.Event) -> None:
        before = self._machine.state
        super()._step(event)
        if isinstance(event, commit_cycle.Due):
            self._quiet = False
        if isinstance(event, commit_cycle.Flushed):
            now = self._clock.now()
            rest = REST * (now - self._quiet_since)
            self._rests_until = now + min(rest, REST_MAX_S, self._patience_s / REST)
        self.due_at = max(self.due_at, self._rests_until)
        if before is not self._machine.state and not self.stands:
            self._wake()

    async def _flush(self) -> None:
        if not self._machine.sealed:
            return  # the transaction was aborted before this job has begun
        number = self._number
        late = await self._producer.settle({}, self._patience_s)
        if number != self._number:
            return
        if late:
            self._wait_for_leaders()
            return
        self._ends = self._producer.ends()
        crash_points.point("after_flush")
        self._step(commit_cycle.Flushed(wall_s=int(self._clock.wall())))

    def _wait_for_leaders(self) -> None:
        """Abort, and let the tasks with outputs without a leader wait; the others go on."""
        waits = self._transactional.leaderless()
        self._waits |= waits
        where = ", ".join(sorted({str(tp) for tps in waits.values() for tp in tps}))
        for task in sorted(waits):
            LOG.warning(
                "Task %s waits: its output %s has no leader. It goes back to its last commit; the "
                "other tasks go on. Is the topic there, and are its brokers up?",
                task, where,
            )  # fmt: skip
        self._abort(NO_LEADER.format(where=where, patience_s=self._patience_s), {})

    def consider(self, now: float, actives: Collection[Active]) -> None:
        """Begin a cycle when one is due; let tasks go on whose outputs have leaders again."""
        for active in actives if self._waits else ():
            tps = self._waits.get(active.id)
            if tps is None:
                continue
            if self._transactional.still_leaderless(tps):
                active.paused = True
                continue
            del self._waits[active.id]
            active.paused = active.begins or active.denied
            LOG.info("Task %s continues: its outputs have leaders again.", active.id)
        super().consider(now, actives)

    def _left_out(self, task: TaskId, topic: str, left_out: Mapping[str, int]) -> None:
        why = LEFT_OUT.format(topic=topic, partition=task.partition)
        self._abort(why, {task: why})

    def _commit(self, offsets: Offsets) -> None:
        if self._machine.sealed:  # else a task of the cycle has just been stopped
            _ = self._spawn(self._stage(self._number, offsets), name="stage offsets")

    async def _stage(self, number: int, offsets: Offsets) -> None:
        if number != self._number:
            return  # the transaction was aborted before this job has begun
        added = await self._transactional.add_group(self._group)
        if added and number == self._number:
            self._offsets(number, offsets, self._transactional.open_transaction)

    def committed(
        self, number: int, dropped: frozenset[TaskId], denied: Mapping[TaskId, Denial]
    ) -> None:
        """Take the member's answer: all offsets are staged, or the transaction is aborted."""
        if number != self._number:
            return
        self._number += 1
        crash_points.point("after_txn_offsets")
        if denied:
            stops = {task: f"{why.what}{DENIED}" for task, why in denied.items()}
            self._abort("; ".join(stops.values()), stops)
        elif dropped & self._machine.sealed.keys():
            self._abort(LOST, {})
        else:
            self._step(commit_cycle.OffsetsCommitted(frozenset()))

    def transaction_over(self, number: int, code: int) -> None:
        """Take the member's answer that the transaction cannot be committed."""
        if number == self._number:
            self._transactional.is_over(code, f"offsets of group {self._group}")

    def _end_transaction(self) -> None:
        _ = self._spawn(self._end(self._number), name="end the transaction")

    async def _end(self, number: int) -> None:
        if number != self._number:
            return  # the transaction was aborted before this job has begun
        asyncio.get_running_loop().call_soon(crash_points.point, "during_end")
        ended = await self._transactional.end()
        if ended and number == self._number:
            self._number += 1
            crash_points.point("before_adopt")
            self._step(commit_cycle.TransactionEnded())

    def aborted(self) -> None:
        """Hear that the transaction is aborted: answers about it count no more."""
        self._number += 1
        self._quiet = False
