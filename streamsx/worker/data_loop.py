"""Data loop: each turn runs every task a little, advances commits and restores, and yields.

The turn has a time budget, and a task has none. Chunks are planned from the moving average of each
task's cost per record, and the next turn continues with the task after the last one. With a budget
of 5 ms for each of eight tasks, fetch, produce and commit got one step in 40 ms, and a commit took
0.9 s instead of 0.25 s. A single slow record cannot be interrupted; the control thread exists for
that case.

The order of a turn: seal slices, tasks round robin, write slices, restore slices, batches out, then
`sleep(0)`, in which replies arrive and woken bodies run. The sleep is longer after a record that
has blocked the loop. An idle loop waits for data or for the next due time. Without a lease nothing
is processed, sealed or sent.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping

from streamsx.client.fetcher import Fetcher
from streamsx.client.producer import Producer
from streamsx.clock import Clock
from streamsx.errors import StreamsxError, TaskStopped
from streamsx.event_loops import wait
from streamsx.journal import LOG
from streamsx.metrics import MetricRegistry
from streamsx.model import TaskId
from streamsx.processing.rerun import RecordUndone
from streamsx.tasks import crash_points
from streamsx.tasks.active_task import Active
from streamsx.tasks.committer import Committer
from streamsx.tasks.handovers import Handovers
from streamsx.tasks.restorer import Restorer
from streamsx.tasks.task_driver import TaskDriver
from streamsx.worker.slow_code import SlowCode
from streamsx.worker.throughput_log import ThroughputLog

TURN_S = 0.010
CHUNK_S = 0.005
CHUNK_MIN_S = 0.002
"""Least time left of a turn in which another chunk begins. What a chunk costs beside its records is
the same for few and for many: without this limit a word count takes 2.7 % more CPU time."""
CHUNK_RECORDS_MAX = 5000
TIME_STANDS = (
    "Windows of task %s stay open: tasks on partitions %s have never sent a time to %s, because "
    "they had no record. Write idle= on the window or the join to continue without them."
)
PASSED_MAX = 20
"""Turns after which a task is overdue, 0.2 s: it no longer waits for tasks that are behind in event
time, only for tasks that have waited longer."""
BATCHES_WAITING_MAX = 1
"""Batches in a task's queue per source, beside those of the fetcher: as columns a batch takes twice
the memory."""
PRELOAD_ROWS = 1000
REPORT_EVERY_S = 0.05
TICK_EVERY_S = 1.0
LOOK_FOR_IDLE_EVERY_S = 0.25
"""Input counts as idle from the look behind its last record on, and closes at another look: windows
close at most 0.5 s late."""
IDLE_MIN_S = 0.001
IDLE_MAX_S = 0.25
"""Longest idle wait: a lease can run out while nothing arrives."""
URGENT_SHARE = 0.5
"""Share of the time for restores of tasks that no worker processes, while others have input."""
CALM_SHARE = 0.2
"""Share of the time for learners, while tasks have input."""
HELD_S = 0.1
BREATH_SHARE = 0.02
"""Share of a turn longer than `HELD_S` that is left to the rest of the event loop. The reason: each
record takes 1 s, and a task arrives. Reading its positions and bounds takes 29 steps of the loop,
which is 29 s, but a connection has 5 s or less."""


class RestoreShare:
    """Time budget of restores beside tasks with input."""

    def __init__(self, slice_s: float) -> None:
        self._slice_s = slice_s
        self._earned_s = 0.0
        self._at = 0.0

    def allowed(self, now: float, share: float) -> float:
        """Return the seconds that a restore may take now; savings are limited to one slice."""
        self._earned_s = min(self._slice_s, self._earned_s + (now - self._at) * share)
        self._at = now
        return self._earned_s if self._earned_s >= self._slice_s / 2 else 0.0

    def spent(self, seconds: float) -> None:
        self._earned_s -= seconds


def in_turn(active: Active) -> tuple[bool, int]:
    """Return the place of a task among those that tell their time, the first one lowest.

    Overdue tasks are first, and among them the one that has waited longest. By event time instead:
    a turn runs one task of 24, because a record takes 9 ms; 21 of them are overdue at each turn;
    the three that are ahead in event time never run.
    """
    if active.passed >= PASSED_MAX:
        return False, -active.passed
    return True, active.task.stream_time


class DataLoop:
    """Loop that runs the tasks and stores of a worker, and owns them.

    Args:
        tasks: driver of the tasks.
        committer: commits, which the loop seals and writes in slices.
        restorer: restores, which the loop runs in slices.
        fetcher: fetcher of sources.
        producer: producer of the tasks.
        handovers: hand-overs that end with the first record.
        arrived: set when there is work.
        report: publishes the state of the tasks for the next join.
        throughput: line in the log, now and then, about processed records.
        metrics: registry for the lag of the sources.
        slice_s: time of one slice.
        clock: time of the worker.
    """

    def __init__(
        self,
        *,
        tasks: TaskDriver,
        committer: Committer,
        restorer: Restorer,
        fetcher: Fetcher,
        producer: Producer,
        handovers: Handovers,
        arrived: asyncio.Event,
        report: Callable[[], None],
        throughput: ThroughputLog,
        slow_code: SlowCode,
        metrics: MetricRegistry,
        slice_s: float,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._slice_s = slice_s
        self._tasks = tasks
        self._committer = committer
        self._restorer = restorer
        self._fetcher = fetcher
        self._producer = producer
        self._handovers = handovers
        self._arrived = arrived
        self._report = report
        self._throughput = throughput
        self._slow_code = slow_code
        self._lag = metrics.gauge(
            "input_lag_records",
            "Records of sources that are not done.",
            self._behind,
            unit="records",
        )
        self._order = deque[TaskId]()
        self._restore_share = RestoreShare(self._slice_s)
        self._report_at = 0.0
        self._tick_at = 0.0
        self._look_at = 0.0
        self._leased = False
        self._crowding: Collection[TaskId] = frozenset()
        self._records = 0
        """Number of records processed in this turn."""
        """Tasks with too many unsent or uncommitted records; they receive no more records
        meanwhile."""
        self._held_s = 0.0
        """Duration of the seals and tasks of this turn, in seconds."""

    async def run(self, ended: Callable[[], bool]) -> None:
        """Run turns until `ended` returns True."""
        while not ended():
            self._arrived.clear()
            if self.turn():
                await asyncio.sleep(self._held_s * BREATH_SHARE if self._held_s >= HELD_S else 0)
            else:
                await wait(self._arrived, self._idle_s())

    def turn(self) -> bool:
        """Run one turn and return whether there was work to do."""
        now = self._clock.now()
        self._leased = self._producer.follow_lease()
        worked = False
        if self._leased:
            self._committer.consider(now, self._tasks.actives.values())
            self._committer.seal_slice(now + self._slice_s)
            self._records = 0
            done = self._run_tasks()
            self._throughput.processed(self._records)
            worked = done > 0
        ran = self._clock.now()
        self._held_s = ran - now
        self._committer.write_slice(ran + self._slice_s)
        worked = self._restore(busy=worked) or worked
        self._producer.push()
        self._regularly(now)
        return worked or self._committer.busy(leased=self._leased)

    def _regularly(self, now: float) -> None:
        self._slow_code.turn(now)
        if self._tasks.changed or (now >= self._report_at and len(self._restorer)):
            self._tasks.changed = False
            self._report_at = now + REPORT_EVERY_S
            self._handovers.complete_idle()
            self._report()
        if now >= self._look_at and not self._committer.stands:
            self._look_at = now + LOOK_FOR_IDLE_EVERY_S
            self._look_for_idle(now)
        if now >= self._tick_at:
            self._tick_at = now + TICK_EVERY_S
            self._handovers.complete_idle()
            if not self._committer.stands:
                self._pass_over(now)
            self._slow_code.look(now, (each.task for each in self._tasks.actives.values()))
            if self._tasks.actives:
                self._throughput.regularly(now, self._lag.value)

    def _pass_over(self, now: float) -> None:
        """Let running tasks pass over failed records at the end of a quiet topic."""
        for active in self._tasks.actives.values():
            if not self._leased or self._stands(active):
                active.held.clear()
            else:
                active.pass_over(now, self._fetcher.caught_up)

    def _look_for_idle(self, now: float) -> None:
        """Let tasks close what waits for input. Tasks that are not fed are not idle."""
        for active in list(self._tasks.actives.values()):
            stands = not self._leased or active.suspended or active.paused
            ends = [t.topic for t in active.sources if self._fetcher.caught_up(t)]
            if active.id == self._committer.sealing:
                continue
            try:
                for topic, partitions in active.silences(now):
                    LOG.warning(TIME_STANDS, active.id, partitions, topic)
                active.task.look_for_idle(now, None if stands else ends)
            except StreamsxError as error:
                self._ended(active.id, error)

    def _behind(self) -> int:
        """Return the number of records that are not done.

        Failed records in a row that are held count too, as in `status`. A stopped task fetches no
        more.
        """
        return sum(
            max(self._fetcher.end(tp), active.task.taken[tp.topic]) - positions[tp.topic]
            for active in self._tasks.actives.values()
            for positions in (active.task.positions,)
            for tp in active.sources
        )

    def _idle_s(self) -> float:
        now = self._clock.now()
        due = [now + IDLE_MAX_S]
        if self._leased and self._committer.idle and not self._committer.stands:
            due.append(self._committer.due_at)
        if len(self._restorer):
            due.append(self._report_at)
        actives = self._tasks.actives.values()
        due += [each.task.wait_ends for each in actives if each.task.wait_ends is not None]
        return max(IDLE_MIN_S, min(due) - now)

    # -- tasks

    def _run_tasks(self) -> int:
        """Run tasks until the turn's time is over, and return the work done, in records.

        Tasks run round robin: the first one is the one after the last task of the previous turn.
        Of a sub-topology that tells its time to others, overdue tasks run first, then the task that
        is behind in event time (`in_turn`).
        """
        actives = self._tasks.actives
        if self._producer.full_elsewhere() or self._committer.full or self._committer.stands:
            return 0
        self._crowding = {*self._producer.crowding(), *self._committer.crowding}
        if len(self._order) != len(actives) or any(task not in actives for task in self._order):
            self._order = deque(sorted(actives))
        until = self._clock.now() + TURN_S
        done = 0
        turns = self._by_time(actives)
        for active in turns:
            active.passed += 1
        for active in turns:
            self._order.rotate(-1)
            active.passed = 0
            done += self._run(active, until)
            if self._clock.now() > until - CHUNK_MIN_S or self._committer.full:
                break
        return done

    def _by_time(self, actives: Mapping[TaskId, Active]) -> list[Active]:
        """Return tasks in order; those of a sub-topology that tells its time by their times."""
        turns = [actives[task] for task in self._order]
        if not any(active.task.plan.tells for active in turns):
            return turns
        places = defaultdict[int, list[Active]](list)
        for active in turns:
            places[active.id.subtopology].append(active)
        for stage in places.values():
            if stage[0].task.plan.tells:
                stage.sort(key=in_turn, reverse=True)
            else:
                stage.reverse()
        return [places[active.id.subtopology].pop() for active in turns]

    def _stands(self, active: Active) -> bool:
        """Return whether a task is given no records."""
        stands = active.suspended or active.paused or active.id in self._crowding
        return stands or self._committer.rests(active.id)

    def _run(self, active: Active, until: float) -> int:
        task = active.task
        if self._stands(active) or task.id == self._committer.sealing:
            return 0
        if task.busy:
            task.give_back()
            return 0
        if task.wait_s and task.waits(self._clock.now()):
            return 0
        more = self._feed(active)
        several = len(active.sources) > 1  # a task of one topic needs no order of its sources
        caught_up = [tp.topic for tp in active.sources if several and self._fetcher.caught_up(tp)]
        try:
            if not active.preloaded:
                self._preload(active)
            began = self._clock.now()
            dirty = task.dirty_bytes
            limit = min(CHUNK_RECORDS_MAX, active.affords(min(CHUNK_S, until - began)))
            limit = min(limit, active.fills(self._committer.room_bytes))
            taken = task.records
            work = task.run(limit, caught_up)
            while task.paused and self._clock.now() < min(until, began + CHUNK_S):
                if not (more_work := task.run(1, caught_up)):
                    break  # a body is at work
                work += more_work
            self._records += task.records - taken
        except StreamsxError as error:
            self._ended(active.id, error)
            return 0
        if work:
            now = self._clock.now()
            self._committer.ran(active, work, dirty)
            if not task.busy:
                active.took(work, now - began)
            more = more or any(task.waiting(tp.topic) for tp in active.sources)
            self._handovers.processed(active, now, more=more)
            crash_points.point("processing")
        return work

    def _ended(self, task: TaskId, error: StreamsxError) -> None:
        """Stop a task, let it go back to its last commit, or fail it, as its error demands."""
        if isinstance(error, TaskStopped):
            self._tasks.halted(task, error)
        elif isinstance(error, RecordUndone):
            self._tasks.undone(task, error)
        else:
            self._tasks.failed(task, error)

    def _feed(self, active: Active) -> bool:
        """Move fetched batches into the task's queues, and return whether the fetcher has more."""
        more = False
        for tp in active.sources:
            while active.task.waiting(tp.topic) < BATCHES_WAITING_MAX:
                batch = self._fetcher.take(tp)
                if batch is None:
                    break
                active.task.offer(batch)
                if batch.timestamps:
                    age_s = self._clock.wall() - batch.timestamps[0] / 1000
                    active.gap.waits(self._clock.now(), age_s)
            more = more or self._fetcher.waiting(tp)
        return more

    def _preload(self, active: Active) -> None:
        stores = active.task.stores.values()
        active.preloaded = all(store.preload_some(PRELOAD_ROWS) for store in stores)

    # -- restores

    def _restore(self, *, busy: bool) -> bool:
        """Restore for one slice, or beside tasks with input for the share that is due."""
        if not len(self._restorer):
            return False
        now = self._clock.now()
        allowed = self._slice_s
        if busy:
            share = URGENT_SHARE if self._restorer.urgent() else CALM_SHARE
            allowed = self._restore_share.allowed(now, share)
        if allowed <= 0:
            return True
        worked = self._restorer.slice(now + allowed)
        if busy:
            self._restore_share.spent(self._clock.now() - now)
        return worked
