"""Task of a sub-topology: batches in, stores changed, records out; no clock, no event loop.

The drivers are the worker, the test driver and Spark. Each feeds the same object in the same order,
and any cut of the input into batches gives the same stores and the same outputs.

Not here: any Kafka client, fetching, the time of commits, the meaning of a role.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from streamsx.config import last_word
from streamsx.errors import (
    STORE_FAULTS,
    AppStopped,
    NotFound,
    NotSupported,
    StreamsxError,
    TaskFailed,
    TaskStopped,
    TopologyError,
    UsageError,
    ValueRefused,
)
from streamsx.model import TaskId
from streamsx.operators.operator import Counts
from streamsx.processing.batch import Batch, Chunk, StreamTimes
from streamsx.processing.careful import CALM_RECORDS, Care
from streamsx.processing.compile import SLICE_ROWS
from streamsx.processing.dead_letters import buried
from streamsx.processing.failure_policy import (
    Failure,
    FailureAction,
    FailureStreak,
    FailureVerdict,
    Policy,
    ResultStreak,
)
from streamsx.processing.idle import QuietTime
from streamsx.processing.inbox import Outbox, SendRows, StartActor
from streamsx.processing.merge import Merge, turns_behind
from streamsx.processing.progress import NOTHING, Progress, separated
from streamsx.processing.reader import AgentRun, LoopRun
from streamsx.processing.rerun import (
    NO_RERUN,
    Begins,
    RecordUndone,
    Rerun,
    StoreRows,
    rerun_after,
)
from streamsx.processing.teller import Teller
from streamsx.serde.codec import NoValue
from streamsx.state.cache import CachedStore, Changes
from streamsx.state.layout import store_mark
from streamsx.state.timed_store import TimedStore
from streamsx.topology.nodes import SubTopology
from streamsx.topology.time_links import TimeLinks, Writer

NO_LINKS = TimeLinks()
NO_COUNTS = Counts()
WIRING_FAULTS = (TopologyError, NotSupported, NotFound)
"""Errors of an app that was not wired for a topic or table: the next record would meet them too, as
with a fault of a store."""
STOPS = FailureVerdict(FailureAction.STOP_TASK)


ENDS = {FailureAction.STOP: TaskFailed, FailureAction.STOP_APP: AppStopped}
"""Errors of the reactions that end the worker."""


class TaskMetadata(NamedTuple):
    """Place at which a commit leaves a task, and at which the next owner begins.

    `positions`: next offset of each source topic, that of its slowest reader; `stream_time`: not
    ahead of the positions, -1 before the first record; `records`: number of records taken since the
    previous seal; `high`: highest timestamp taken from each topic, kept by Spark and by no worker;
    `readers`: per topic, the next offset of each reader that is ahead of the position; `closed`:
    stream time up to which the windows of each store have closed, by the mark of the store, which
    may be ahead of the position's stream time; `told`: per topic, the times that its writers had
    told (`progress`); `late`: records that were too late for each store, by the mark of the store;
    `topic_ids`: id of the topic to which each position belongs, where brokers have ids.
    """

    positions: Mapping[str, int]
    stream_time: int = -1
    records: int = 0
    high: Mapping[str, int] = MappingProxyType({})
    readers: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    topic_ids: Mapping[str, str] = MappingProxyType({})
    closed: Mapping[str, int] = MappingProxyType({})
    told: Mapping[str, Mapping[Writer, int | None]] = MappingProxyType({})
    late: Mapping[str, int] = MappingProxyType({})

    @property
    def begins(self) -> Begins:
        """Return the positions of all readers by topic, to compare two places."""
        return {t: (at, dict(self.readers.get(t, {}))) for t, at in self.positions.items()}


def latest(tables: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the latest time of each store; a topic without a newer commit has an older one."""
    found: dict[str, int] = {}
    for table in tables:
        for store, at in table.items():
            found[store] = max(at, found.get(store, at))
    return found


class Task:
    """Task: one sub-topology on one partition number.

    `run` never raises for a record, because the policy decides. `run` raises TaskStopped when too
    many records in a row have failed; TaskFailed when the policy is to stop, or when a body ends
    for a reason other than a record; UsageError when a body uses a topic or table that its app was
    not wired for; RecordUndone, under a policy that undoes, when the first record has failed that
    may have changed a store.

    A task that waits to try a record again runs nothing, and can be sealed. The driver measures the
    wait: it asks `waits` ahead of each `run`.

    `rerun` is the order of the task that ended before this one at the same commit, if any. A task
    does not obey its `stop`: the driver does. `tables` are the global tables by
    name, which tasks only read.
    """

    def __init__(
        self,
        plan: SubTopology,
        partition: int,
        stores: Mapping[str, CachedStore],
        outbox: Outbox,
        start: StartActor,
        policy: Policy,
        metadata: TaskMetadata,
        rerun: Rerun = NO_RERUN,
        links: TimeLinks = NO_LINKS,
        tables: Mapping[str, CachedStore] = MappingProxyType({}),
    ) -> None:
        self.id = TaskId(plan.number, partition)
        self.plan = plan
        self.stores = stores
        self.tables = tables
        self.outbox = outbox
        self.start = start
        self.policy = policy
        self.stream_time = metadata.stream_time
        self.taken = dict(metadata.positions)
        """Topic -> next offset that no reader has been given yet."""
        self.progress = {t: Progress(w, metadata.told.get(t)) for t, w in links.writers.items()}
        """Topic -> times that its writers have told."""
        self._teller = Teller(links, outbox)
        self.ended: StreamsxError | None = None
        """Error that the next `run` raises."""
        self._closed = False
        self.committed_at = metadata
        self._late_before = metadata.late
        self.topic_ids = dict(metadata.topic_ids)
        self.records = 0
        """Number of records taken since the last seal."""
        self._noted: TaskMetadata | None = None
        """Place at the last seal; None if the sealed rows have to be committed again."""
        self._sealing: Iterator[TaskMetadata | None] | None = None
        self._stop: tuple[Failure, FailureStreak] | None = None
        """Failure that stops the task, and its row."""
        self._unsealed: StreamsxError | None = None
        """Reason why no more seals are possible: the store has dropped a value that it refused."""
        self.order = rerun
        """Order of the task before this one."""
        self._begin_care(metadata)
        self._put_back = self._unsent = rerun.rows_at(metadata.begins)
        """Committed rows below which the restored ones are newer: until a commit, until sent."""
        self._rows_left = bool(self._put_back)
        """Whether the changelogs may have rows that are newer than the last commit."""
        self._resume_stores(metadata.closed)
        self._begin_queues(metadata)
        self.bodies: list[AgentRun] = []
        self.counts: dict[str, Counts] = {}
        """Records that operators did not take, by the name of their store."""
        self._loops: list[LoopRun] = []
        self._readers: dict[str, list[LoopRun | AgentRun]] = {}
        self._make_readers(metadata.readers)
        self._changelog_of = {node.name: node.changelog for node in plan.stores}
        self._changelogs = {n.name: outbox.rows(n.changelog, partition) for n in plan.stores}
        self._limit_rows()
        self._noted = None if self._put_back else self._place()

    def _begin_care(self, metadata: TaskMetadata) -> None:
        """Begin to run carefully, if the task before this one has ordered that."""
        self._careful = self.order.lasts or self.order.careful_at(metadata.positions)
        self.pending: dict[int, dict[Any, Any]] = {}
        """Results that wait for a commit, by operator. Loops over several topics share them: the
        newest result of a key leaves, whichever topic it came from."""
        self.care = (
            Care(
                self.stores.values(),
                self.pending,
                self.outbox,
                self.order.reached,
                whole=self.policy.whole,
                shares=any(len(source.branches) > 1 for source in self.plan.sources),
            )
            if self._careful
            else None
        )
        """Care of a careful task; None for others."""
        self.sender = self.outbox if self.care is None else self.care.outbox
        """Outbox of the readers."""
        self._waiting = deque[LoopRun | AgentRun]()
        """Readers of a careful task that have not been given the chunk at hand yet."""
        self._unit: AgentRun | None = None
        """Reader of a careful task that has been given the chunk at hand last."""
        self.stops_ahead = False
        """Whether the task has stopped ahead of a record of which nothing is left: all that came
        before may be committed, also with other tasks in one transaction."""
        self._tries = dict(self.order.tries)
        self.wait_s = self.order.wait_s
        """Duration of the wait ahead of the next try of a record, in seconds; 0 without one."""
        self.wait_ends: float | None = None
        """Time of the driver at which the wait is over; None until the driver has asked."""
        for store in self.stores.values():
            store.check_values(checking=self._careful, at_set=not self.order.lasts)

    def _begin_queues(self, metadata: TaskMetadata) -> None:
        self._withholds = False
        self._reported: dict[str, Counts] = {}
        self._sealed_counts: dict[str, Counts] = {}
        self._queues: dict[str, deque[Chunk]] = {topic: deque() for topic in self.plan.topics}
        same = self.order.begins == metadata.begins
        high = metadata.high or (self.order.high if same else {})
        turns = turns_behind(self.order.turns, metadata.positions)
        self._merge = Merge(self._queues, high, turns)
        self._sealed_high = self._committed_high = dict(self._merge.high)
        """Highest timestamp taken from each topic before the last seal, and the last commit."""
        self._newest: dict[str, StreamTimes] = {}
        """Stream times of the chunk that was taken last, per topic."""
        self.at_hand: Chunk | None = None
        """Chunk that was handed to the readers last."""

    def _resume_stores(self, closed: Mapping[str, int]) -> None:
        """Go on closing where the stores have closed, with the rows that the rerun puts back."""
        for name, store in self.stores.items():
            if isinstance(store, TimedStore):
                store.resume(closed.get(store_mark(name), -1))
        for name, rows in self._put_back.items():
            self.stores[name].put_back(rows)  # before a body reads them

    def _make_readers(self, ahead: Mapping[str, Mapping[str, int]]) -> None:
        """Make the readers of all sources. `ahead` are the positions of those that are ahead."""
        for source in self.plan.sources:
            begins = ahead.get(source.topic, {})
            loops = [LoopRun(source, self, begins)] if source.branches else []
            bodies = [AgentRun(agent, source, self, begins) for agent in source.agents]
            self._readers[source.topic] = [*loops, *bodies]
            self._loops += loops
            self.bodies += bodies
        self._quiet = {topic: QuietTime() for topic in self.plan.topics}
        self._inputs = self.plan.inputs
        """Topics whose records reach a store, by the name of the store."""
        idles = any(each.idle_ms for each in self.plan.operators)
        self._idles = idles or bool(self._teller.idle_ms)
        self._fed = {
            topic: [
                each
                for each in self._teller.idle_ms
                if any(loop.topic == topic and loop.feeds(each) for loop in self._loops)
            ]
            for topic in self.plan.topics
        }
        """Per source, the topics that are told when it is idle and when it has input."""

    # -- records

    def offer(self, batch: Batch) -> None:
        """Put a batch into the queue of its topic. Records below the position are passed over."""
        queue = self._queues[batch.topic]
        position = self.wanted(batch.topic)
        if batch.next_offset <= position:
            return
        if batch.topic in self.progress:
            batch = separated(batch)
        start = bisect_left(batch.offsets, position)
        queue.append(Chunk(batch, start, len(batch.offsets)))

    def wanted(self, topic: str) -> int:
        """Return the offset behind all records of a topic that the task was offered."""
        queue = self._queues[topic]
        return queue[-1].batch.next_offset if queue else self.taken[topic]

    def reset(self, topic: str, offset: int, topic_id: str | None = None) -> None:
        """Continue at another offset, because the log does not have the next one.

        `topic_id` is the id of the topic that has the name now. A reader that is ahead stays ahead,
        unless the log goes back or belongs to another topic. The next commit contains the new
        position, regardless of earlier commits.
        """
        anew = topic_id is not None and topic_id != self.topic_ids.get(topic)
        back = anew or offset < self.taken[topic]
        self._queues[topic].clear()
        self._merge.reset(topic)
        if self.at_hand is not None and self.at_hand.batch.topic == topic:
            self._waiting.clear()
            self._end_wait()
        self.taken[topic] = offset
        if topic_id is not None:
            self.topic_ids[topic] = topic_id
        self._tries = {place: each for place, each in self._tries.items() if place[0] != topic}
        self.uncommitted()
        for reader in self._readers[topic]:
            reader.reset(offset, back=back)

    def holds(self, topic: str) -> bool:
        """Return whether a row of failures holds a reader's position, and no body is at work."""
        taken = self.taken[topic]
        readers = self._readers[topic]
        held = any(place.position < taken for reader in readers for place in reader.places)
        held = held and not self._waiting and not self.wait_s
        return held and self.ended is None and not self.busy and not self._queues[topic]

    def give_up(self, topic: str) -> None:
        """Pass over the row of failures at the end of a topic.

        To be called for a topic for which `holds` is true and that has been quiet for QUIET_S.
        """
        for reader in self._readers[topic]:
            reader.give_up()

    def look_for_idle(
        self, now: float, caught_up: Collection[str] | None, *, ended: bool = False
    ) -> bool:
        """Close what waits for input that does not come, and tell readers of this task's topics.

        The driver calls this regularly, with the time in seconds and the topics read to the end;
        with None while it does not feed the task, whose input is not idle then. With `ended` no
        task ahead of this one sends any more, whatever it has told.

        Nothing is closed while a seal waits for the end of a record. The results would have left,
        and the next record may fail: the task would go back behind them, and they leave again.

        Returns:
            Whether anything was closed or told.
        """
        if not self._idles or self.ended is not None:
            return False
        # Closing would keep half of a record, and a task that waits is not idle.
        if caught_up is None or self._unit is not None or self.wait_s:
            for each in self._quiet.values():
                each.pause()
            return False
        quiet: dict[str, float] = {}
        for loop in self._loops:
            topic = loop.topic
            read = topic in caught_up and not self._queues[topic] and not loop.paused
            at_end = read and (ended or self._writers_rest(topic))
            quiet[topic] = self._quiet[topic].ms(now, loop.mark, at_end=at_end)
        if self._withholds:
            return False
        by_store = {n: min(quiet[t] for t in topics) for n, topics in self._inputs.items()}
        newest = self.stream_time if self.progress else NOTHING
        closed = False
        for loop in self._loops:
            if not self.paused:  # two loops may close one store
                closed = loop.close_idle(by_store, newest) or closed
        if self.ended is not None:
            raise self.ended
        return closed or self._tell_idle(quiet)

    def _writers_rest(self, topic: str) -> bool:
        """Return whether all tasks that tell a topic their time are idle.

        The race without this: a task ahead of the topic stops at a bad record, or is restored for
        a while; nothing comes through the topic; windows close; the task goes on, and its records
        are late.
        """
        progress = self.progress.get(topic)
        return progress is None or progress.idle

    def _tell_idle(self, quiet: Mapping[str, float]) -> bool:
        """Tell topics that this task is idle, with the next commit if there is one to come."""
        told = False
        for topic, idle_ms in self._teller.idle_ms.items():
            feeds = [loop for loop in self._loops if loop.feeds(topic)]
            if min(quiet[loop.topic] for loop in feeds) < idle_ms:
                continue
            if any(loop.told(topic) is None for loop in feeds):
                continue  # a row of failures may come again
            if self._teller.rests(topic):
                told = True
                if not self.dirty:
                    self._tell(topic)
        return told

    def _tell(self, topic: str) -> None:
        self._teller.tell(topic, [loop.told(topic) for loop in self._loops])

    def waiting(self, topic: str) -> int:
        """Return the number of batches in the queue of a topic."""
        return len(self._queues[topic])

    def run(self, limit: int, caught_up: Collection[str] = ()) -> int:
        """Run up to `limit` records in order. `caught_up` are the topics read to the end.

        A run ends at a pause, behind each slice of results that closed: they take other time than
        records.

        Returns:
            The work done, in records: a slice of results counts as SLICE_ROWS, a pause as one.

        Raises:
            StreamsxError: the task has ended; the class describes the kinds.
        """
        done = 0
        if self.ended is not None:
            raise self.ended
        if self.wait_s:
            return 0
        if self._withholds:
            self._give_back()
            if self.ended is not None:
                raise self.ended
        if self._loops and not self.busy and self._go_on():
            return SLICE_ROWS
        done = self._give_on()
        while done < limit and not (self.wait_s or self.busy):
            chunk = self._merge.next(limit - done, caught_up)
            if chunk is None:
                break
            done += chunk.work
            self._run(chunk)
            if self.paused:
                return max(done, 1)
        return done

    def waits(self, now: float) -> bool:
        """Return whether the task still waits to try a record again; let it go on if not.

        `now` is the driver's time in seconds. A wait begins when the driver asks first.
        """
        if not self.wait_s:
            return False
        if self.wait_ends is None:
            self.wait_ends = now + self.wait_s
        if now < self.wait_ends:
            return True
        self._end_wait()
        self._withholds = True  # the inbox of an agent holds the record
        return False

    def _end_wait(self) -> None:
        self.wait_s = 0.0
        self.wait_ends = None

    def attempt(self, topic: str, operator: str, offset: int) -> int:
        """Return the number of the try of a record, from 1."""
        at, tries = self._tries.get((topic, operator), (-1, 0))
        return tries + 1 if at == offset else 1

    @property
    def paused(self) -> bool:
        """Return whether a chunk is not finished.

        Many results leave at one record, or a record is to be tried again.
        """
        return bool(self._loops) and any(loop.paused for loop in self._loops)

    def _go_on(self) -> bool:
        """Go on with a paused chunk; return False if there is none, or if it waits for a try."""
        if self.wait_s:
            return False
        paused = next((loop for loop in self._loops if loop.paused), None)
        if paused is None:
            return False
        paused.go_on()
        if self.ended is not None:
            raise self.ended
        return True

    @property
    def busy(self) -> bool:
        """Return whether an agent has unused input; such a task gets no more records."""
        if self._closed or self.ended is not None:
            return False  # no body is at work any more
        # Asked 5 times a chunk: 140 ns, and 360 with `any`, which makes a generator.
        for body in self.bodies:  # noqa: SIM110
            if not body.actor.idle or body.holds:
                return True
        return False

    @property
    def halfway(self) -> bool:
        """Return whether a seal that begins now would take a part of what a record at hand changes.

        The seals of a careful task leave that record out. A task without stores has no part to
        take, and one that has ended is not sealed in the middle.
        """
        if self.care is not None or not self.stores or self._sealing is not None or not self.busy:
            return False
        return any(body.halfway for body in self.bodies)

    @property
    def positions(self) -> dict[str, int]:
        """Return topic -> next offset that is safe to commit: that of the slowest reader."""
        return dict(self._place().positions)

    def _place(self) -> TaskMetadata:
        """Return the positions, and those of readers that are ahead of them."""
        positions: dict[str, int] = {}
        readers: dict[str, dict[str, int]] = {}
        for topic, taken in self.taken.items():
            places = [place for reader in self._readers[topic] for place in reader.places]
            slowest = positions[topic] = min([taken, *(place.position for place in places)])
            if ahead := {p.reader: p.position for p in places if p.position > slowest}:
                readers[topic] = ahead
        stores = self.stores.items()
        closed = {store_mark(n): s.closed for n, s in stores if isinstance(s, TimedStore)}
        told = {topic: dict(progress.times) for topic, progress in self.progress.items()}
        return TaskMetadata(
            positions, readers=readers, topic_ids=dict(self.topic_ids), closed=closed, told=told
        )

    @property
    def passing(self) -> dict[str, dict[str, int]]:
        """Return topic -> readers that are ahead of all records taken, with their positions."""
        readers = self._place().readers
        return {
            topic: ahead
            for topic, taken in self.taken.items()
            if (ahead := {r: at for r, at in readers.get(topic, {}).items() if at > taken})
        }

    @property
    def high(self) -> dict[str, int]:
        """Return topic -> highest timestamp taken from the topic, in ms."""
        only = len(self._queues) == 1
        return dict.fromkeys(self._queues, self.stream_time) if only else dict(self._merge.high)

    @property
    def dirty_bytes(self) -> int:
        """Return the memory held by uncommitted or unwritten rows of the stores, in bytes."""
        return sum(store.dirty_bytes for store in self.stores.values())

    @property
    def dirty(self) -> bool:
        """Return whether a cycle has to seal the task.

        The task has something to commit, or has ended so that its seal raises the error. The race
        without the latter, under exactly-once: a body sends, and sleeps; a commit is due, and waits
        for the body; the body raises. The task stands where it stood, so the cycle would leave it
        out, and commit what the body has sent.
        """
        if not self.sealable or self._place() != self._noted:
            return True
        return any(store.dirty for store in self.stores.values())

    def cut(self) -> None:
        """Let no body see more records than the one at hand."""
        for body in self.bodies:
            body.cut()

    def withhold(self) -> None:
        """Let no body see more records than the one at hand, until the next `run`."""
        self._withholds = True
        for body in self.bodies:
            body.withhold()

    def give_back(self) -> None:
        """Let the bodies of a busy task that are not at work see what was withheld from them."""
        if self._withholds and self.care is None:
            self._give_back()

    def _give_back(self) -> None:
        self._withholds = False
        for body in self.bodies:
            if body.give_back() and self.care is not None:
                self._unit = body

    def again(self) -> Rerun:
        """Return the order for a task that begins anew here because another one goes back.

        A task may wait with a failed record of its own. The race: two records fail behind one
        flush; the first one aborts the transaction. The second one keeps its tries and its wait,
        and its task is careful at once, or stops at once; without that its failure would be told
        again, and would abort the next transaction.
        """
        if isinstance(self.ended, (RecordUndone, TaskStopped)) and not self.sealable:
            return self.rerun(self.ended, puts_back=False)
        if self.care is None:
            return replace(self.order, tries={}, wait_s=0.0)
        begins = self.committed_at.begins
        order = Rerun(dict(self.taken), careful=True, begins=begins, lasts=self.order.lasts)
        return replace(order, tries=self._tries, wait_s=self.wait_s)

    def _run(self, chunk: Chunk) -> None:
        batch, start, stop, _ = chunk
        topic = batch.topic
        times = self._newest[topic] = StreamTimes(batch, start, stop, self.stream_time)
        self.stream_time = times.behind
        self.records += stop - start
        if fed := self._fed[topic]:
            self._teller.awake(fed)
        self.taken[topic] = batch.following(stop)
        chunk = self.at_hand = Chunk(batch, start, stop, times)
        if self.care is not None:
            self.care.calm += stop - start
        self._waiting.extend(self._readers[topic])
        self._give_on()

    def _give_on(self) -> int:
        """Give the chunk at hand to the readers that wait for it; return whether one has run."""
        return self._give_on_in_turn() if self.care is not None else self._give_on_at_once()

    def _give_on_at_once(self) -> int:
        """Give the chunk at hand to its readers, but not beside a loop that pauses in it.

        The race: results of a window leave, and the loop pauses; a body gets the chunk too, and
        fails; the task goes back, and does not know that these results have left.
        """
        given = 0
        while self._waiting and not self.paused:
            given = 1
            reader = self._waiting.popleft()
            assert self.at_hand is not None, "readers wait without a record"
            reader.run(self.at_hand)
            if self.ended is not None:
                raise self.ended  # work of the other readers would be done again
        return given

    def _give_on_in_turn(self) -> int:
        """Give the chunk at hand of a careful task to its readers, one behind the other.

        A reader waits until the one before has come to the end of the chunk. "Two agents change a
        row; the first one awaits, and fails": the change of the second one would go with it.

        Returns:
            Whether a reader has run.

        Raises:
            StreamsxError: the task has ended.
        """
        given = 0
        while self.ended is None and not (self.wait_s or self.busy or self.paused):
            if self._unit is not None:
                self._unit.end_unit()
                self._unit = None
            elif self._waiting:
                given = 1
                reader = self._waiting.popleft()
                assert self.at_hand is not None, "readers wait without a record"
                reader.run(self.at_hand)
                if isinstance(reader, AgentRun):
                    self._unit = reader
            else:
                break
        if self.ended is not None:
            raise self.ended
        return given

    def _stream_time(self, positions: Mapping[str, int]) -> int:
        """Return the stream time at which a task that continues from `positions` has to begin.

        Records that are read again must not find stream time ahead of them, in whatever order the
        topics were read.
        """
        found = [self.stream_time]
        for topic, position in positions.items():
            if position < self.taken[topic]:
                found.append(self._newest[topic].below(position))
                readers = self._readers[topic]
                found += (place.stream_time for reader in readers for place in reader.places)
        return min(found)

    def failed(
        self,
        failure: Failure,
        streak: FailureStreak,
        ordinal: int,
        policy: Policy,
        *,
        writes: bool = False,
        known: bool = False,
        again: bool = False,
    ) -> bool:
        """Decide about a failed record: try it again, count it, pass over it, or end the task.

        `streak` and `policy` are those of the reader, and `ordinal` the record's number with that
        reader. `writes`: whether the reader may have changed stores. A careful task undoes that.
        Another one ends, if it may go back, and nobody is told: the record will fail again.
        `known`: whether the failure was told by the task before this one. `again`: whether the
        reader can stand in front of the record.

        Returns:
            Whether the reader has to do that, and to try it again when the wait is over.

        Raises:
            StreamsxError: the error that ends the task.
        """
        if self.ended is not None:
            raise self.ended
        if isinstance(failure.error, NoValue):
            streak.passed(ordinal)
            self.policy.passed(failure)
            return False
        error = no_records_fault(failure.error) or failure.error
        if isinstance(error, WIRING_FAULTS):
            kind = UsageError if isinstance(error, NotFound) else type(error)
            self.ended = kind(f"{error} ({failure.operator}, {failure.place})")
            if isinstance(self.ended, TaskStopped):
                self._stop_ahead_of(failure, streak, ordinal, policy, writes=writes)
        elif isinstance(error, STORE_FAULTS):
            self.ended = error
        else:
            verdict = policy.verdict(failure, again=again, known=known)
            failed_again = verdict.action is FailureAction.RETRY
            seen = writes or policy.whole or verdict.clean
            seen = seen and not failure.decode  # else nobody has seen it
            if failed_again:
                self._begin_wait(failure, verdict)
            goes_back = seen and self._has_to_go_back(verdict, policy)
            if goes_back or self._would_end_uncommitted(verdict, policy):
                self.ended = RecordUndone(str(failure))
            elif failed_again:
                return True
            else:
                self._react(failure, streak, ordinal, verdict.action, known=known)
        if self.ended is not None:
            raise self.ended from (None if self.ended is error else error)
        return False

    def _stop_ahead_of(
        self, failure: Failure, streak: FailureStreak, ordinal: int, policy: Policy, *, writes: bool
    ) -> None:
        """Stop the task in front of a record, of which nothing may stay.

        Where it has changed stores the task goes back first, and meets the record again.
        """
        if writes and self._has_to_go_back(STOPS, policy):
            self.ended = RecordUndone(str(failure))
            return
        times = self._newest.get(failure.topic)
        before = self.stream_time if times is None else times.below(failure.offset)
        streak.stop(ordinal, failure.offset, before)

    def _begin_wait(self, failure: Failure, verdict: FailureVerdict) -> None:
        """Wait for the next try of a record, here or in the task that follows this one."""
        self.wait_s = verdict.wait_s
        self._tries[failure.topic, failure.operator] = failure.offset, failure.attempt
        failure = replace(failure, action=verdict.action, wait_s=verdict.wait_s)
        self.policy.noted(failure)
        self.policy.retried(failure)

    def _has_to_go_back(self, verdict: FailureVerdict, policy: Policy) -> bool:
        """Undo what a failed record has done in stores; return whether that takes going back.

        It does not in a careful task, nor where no row has changed since the last commit, unless
        outputs are to be undone too.
        """
        if self.care is not None:
            self.care.undo()
            return False
        if not policy.undoes or verdict.action is FailureAction.STOP:
            return False
        if policy.whole or verdict.clean:
            return True
        return any(self.pending.values()) or not all(
            store.drop_clean() for store in self.stores.values()
        )

    def _would_end_uncommitted(self, verdict: FailureVerdict, policy: Policy) -> bool:
        """Return whether a failure would end the worker, and abort what all of its tasks have done.

        Under exactly-once only a careful task can commit what is in front of the record. Without
        that, a worker that is started again and again gets no further in any task.
        """
        whole = policy.undoes and policy.whole
        return whole and self.care is None and verdict.action in ENDS

    def _react(
        self,
        failure: Failure,
        streak: FailureStreak,
        ordinal: int,
        action: FailureAction,
        *,
        known: bool,
    ) -> None:
        """Do what the policy says about a failed record; `ended` is set if the task ends."""
        failure = replace(failure, action=action)
        self.policy.noted(failure)
        times = self._newest.get(failure.topic)  # none for a result of a task without a record yet
        before = self.stream_time if times is None else times.below(failure.offset)
        if end := ENDS.get(action):
            word = action.value
            self.ended = end(f"{failure}: its policy is {word}: fix the code, or the record")
            if self.policy.whole and self._can_stop_ahead(streak):
                self.stops_ahead = True
                streak.stop(ordinal, failure.offset, before)
                streak.stand_at(failure.offset, before)
            return
        if action is FailureAction.STOP_TASK:
            streak.stop(ordinal, failure.offset, before)
        stops = action is FailureAction.STOP_TASK or streak.failed(ordinal, failure.offset, before)
        buries = action is FailureAction.DLQ
        if stops and self.policy.whole:
            # The letters in front are committed. The next start meets this record again.
            buries = False
            streak.stand_at(failure.offset, before)
        if not known and not self._tell_of(failure, buries=buries, stops=stops):
            return
        if stops:
            self._stop = failure, streak
            self.ended = self._stopped(failure, streak)
        streak.buried = streak.buried or buries

    def _tell_of(self, failure: Failure, *, buries: bool, stops: bool) -> bool:
        """Report a failure, and bury its record; return False if that ends the task."""
        if buries:
            try:
                failure = buried(failure, self.policy.dead_letters, self.outbox)
            except NotFound as error:
                self.ended = UsageError(f"{error} ({failure})")
                return False
        self.policy.report(replace(failure, action=FailureAction.STOP_TASK) if stops else failure)
        return True

    def _stopped(self, last: Failure, streak: FailureStreak) -> TaskStopped:
        """Return the end of a task that stops because records, or results, have failed.

        Records are not committed from the first one on, results from the last commit on. Under
        exactly-once a task that is not careful goes back to that commit too.
        """
        results = isinstance(streak, ResultStreak)
        self.stops_ahead = self._can_stop_ahead(streak)
        why = f"its policy is stop_task, offset {last.offset} failed"
        more = ""
        if last.action is not FailureAction.STOP_TASK:
            what = "results" if results else "records"
            count = self.policy.consecutive_failures_max
            why = f"{count} {what} in a row failed, the last one at {last.offset}"
            more = ", or raise consecutive_failures_max if they may be skipped"
        begin = streak.first
        if results or (self.policy.whole and not self.stops_ahead):
            begin = self.committed_at.positions[last.topic]
        return TaskStopped(
            f"task stopped: {self.id}, {last.topic}-{last.partition} offset {begin}: {why}, "
            f"{last.operator}: {last.reason}: records from {begin} on are not committed: fix the "
            f"code and start the workers again{more}"
        )

    def _can_stop_ahead(self, streak: FailureStreak) -> bool:
        """Return whether the task holds nothing of the failed record, and can commit the rest."""
        return self.care is not None and not isinstance(streak, ResultStreak)

    def end(self, error: Exception, where: str) -> None:
        """End the task with an error. `run` raises that error, at once or at the next call."""
        if not isinstance(error, StreamsxError):
            what = f"{type(error).__name__}: {error}"
            failed = TaskFailed(f"task failed outside of a record: {where}, task {self.id}: {what}")
            failed.__cause__ = error
            error = failed
        self.ended = self.ended or error

    # -- commits

    @property
    def stopped_uncommitted(self) -> bool:
        """Return whether the task has stopped ahead of a record, and has more to commit."""
        return self.stops_ahead and self._place().begins != self.committed_at.begins

    @property
    def sealable(self) -> bool:
        """Return whether a commit may have all that the task has done.

        A task that has ended is sealed only if it has stopped. Under exactly-once it must have
        stopped ahead of its record, alone or with its worker, and no other body may be in the
        middle of one.
        """
        if self.ended is None or self.stops_ahead:
            return True
        return isinstance(self.ended, TaskStopped) and not self.policy.whole

    def seal(self, rows: int) -> TaskMetadata | None:
        """Encode dirty values, then send them to the changelogs, up to `rows` in each call.

        The positions, and `rows`, are those of the first call.

        No row is sent before all are encoded. "A value is sent; the next one cannot be encoded; the
        task goes back to its last commit and passes over their record": the changelog would have a
        row that the store does not have.

        Returns:
            The place to commit, once all rows are sent; None before.

        Raises:
            RecordUndone: a record has failed, and what it has changed must not be sealed.
            StreamsxError: the task has ended, and is not `sealable`.
            ValueRefused: a value cannot be encoded, and its record can be found by running again.
            TaskStopped: a value cannot be encoded, and that search was already made.
            TaskFailed: a value cannot be encoded, and the policy is to stop.

        After any of these errors the task is over.
        """
        if self._unsealed is not None:
            raise self._unsealed
        if self.ended is not None and not self.sealable:
            raise self.ended
        if self._sealing is None:
            self._sealing = self._seal(rows)
        try:
            return next(self._sealing)
        except StreamsxError as error:
            self._unsealed = error
            raise

    def _seal(self, rows: int) -> Iterator[TaskMetadata | None]:
        while self._go_on():
            yield None
        if self.care is None:
            self._give_results()
        else:
            self._end_unit(self.care)
            self.care.interrupt(self._give_results, waits=self._unit is not None)
        for topic in self._teller.topics:
            self._tell(topic)
        place = self._place()
        self._sealed_counts = {store: replace(counts) for store, counts in self.counts.items()}
        searched = self._careful and not self.order.lasts
        records = self.records
        stream_time = self._stream_time(place.positions)
        self.records = 0
        self._noted = place
        self._sealed_high = dict(self._merge.high)
        self._limit_rows()
        if self.care is not None and not self._stays_careful(place.positions):
            self._end_care()
        parts = deque(self._rows_to_put_back(rows))
        for name, store in sorted(self.stores.items()):
            while (part := self._encoded(store, rows, searched=searched)).keys:
                parts.append((self._changelogs[name], part))
                yield None
        self._unsent = {}
        while parts:
            self._rows_left = True
            send, part = parts.popleft()
            send(part.keys, part.values, max(stream_time, 0))
            if parts:
                yield None
        self._sealing = None
        yield place._replace(stream_time=stream_time, records=records, late=self._late_records())

    def _end_unit(self, care: Care) -> None:
        """End the record at hand of a careful task, unless a body is still at work."""
        if self.ended is not None:
            care.undo()  # what a body has done while it ended is no part of a record
        elif self._unit is None or self.busy:
            return
        else:
            self._unit.end_unit()
        self._unit = None

    def _late_records(self) -> Mapping[str, int]:
        """Return the late records of each store up to the seal, by the mark of the store."""
        found = dict(self._late_before)
        for store, counts in self._sealed_counts.items():
            if counts.late:
                mark = store_mark(store)
                found[mark] = self._late_before.get(mark, 0) + counts.late
        return found

    def _give_results(self) -> None:
        """Give on the results that waited for a commit."""
        for loop in self._loops:
            loop.commit()

    def _report_counts(self) -> None:
        """Report the records that operators did not take since the last commit.

        A task that goes back to that commit meets them again.
        """
        for store, counts in self._sealed_counts.items():
            known = self._reported.get(store, NO_COUNTS)
            if counts != known:
                self._reported[store] = counts
                more = Counts(counts.skipped - known.skipped, counts.late - known.late)
                self.policy.untaken(self.id, store, more)

    def _rows_to_put_back(self, limit: int) -> Iterator[tuple[SendRows, Changes]]:
        """Yield the rows that the task before this one has overwritten, up to `limit` at a time."""
        for name, rows in sorted(self._unsent.items()):
            keys = list(rows)
            for at in range(0, len(keys), limit):
                some = keys[at : at + limit]
                written = self.stores[name].changelog_keys([key[1:] for key in some])
                part = Changes(written, [*map(rows.get, some)])
                yield self._changelogs[name], part

    def _limit_rows(self) -> None:
        """Take the row limits of the changelogs; they hold for checks before a seal too."""
        for name, store in self.stores.items():
            store.row_bytes_max = self.outbox.row_bytes_max(self._changelog_of[name])

    def _stays_careful(self, positions: Mapping[str, int]) -> bool:
        """Return whether the next records are run carefully too."""
        at_work = self._unit is not None or self._waiting or self.wait_s
        if at_work or self.order.careful_at(positions):
            return True
        return self.order.lasts and self.care is not None and self.care.calm < CALM_RECORDS

    def _end_care(self) -> None:
        """Run as any task from now on. To be called in a seal, ahead of the seals of the stores."""
        self.care = None
        self._careful = False
        self.sender = self.outbox
        for operator, results in self.pending.items():
            self.pending[operator] = dict(results)
        for readers in self._readers.values():
            for reader in readers:
                reader.end_care()
        for store in self.stores.values():
            store.check_values(checking=False)

    def _encoded(self, store: CachedStore, rows: int, *, searched: bool) -> Changes:
        """Encode up to `rows` dirty rows. `searched`: whether each value was encoded when set."""
        try:
            return store.seal(rows)
        except ValueRefused as error:
            raise self._refusal(error, searched=searched) from error

    def _refusal(self, error: ValueRefused, *, searched: bool) -> StreamsxError:
        done = self.committed_at.positions
        since = [f"{t}-{self.id.partition} {done[t]}-{n - 1}" for t, n in self.taken.items()]
        what = f"{error} (task {self.id}, set since {', '.join(since)})"
        usual = self.policy.on_error
        own = any(each.error for source in self.plan.sources for each in source.on_failures)
        if not own and not callable(usual):  # a function is asked about the record
            last = FailureAction(last_word(usual))
            if end := ENDS.get(last):
                return end(f"{what}: its policy is {last.value}")
        if searched:
            return TaskStopped(
                f"task stopped: {what}: the value was changed in place, after it had been set: "
                "fix the code and start the workers again"
            )
        return ValueRefused(what)

    def committed(self, sealed: TaskMetadata, ends: Mapping[str, int]) -> None:
        """Adopt a commit. `ends` is, per store, the changelog position behind the sealed rows."""
        self.committed_at = sealed
        self._committed_high = self._sealed_high
        self._merge.committed(sealed.positions)
        for topic, position in sealed.positions.items():
            for reader in self._readers[topic]:
                for scope in reader.scopes:
                    scope.committed(position)
        self._report_counts()
        self._rows_left = False
        self._put_back = {}
        if self._stop is not None and not self.stops_ahead:
            self.ended = self._stopped(*self._stop)  # its text names this commit
        for name, store in self.stores.items():
            store.adopt(ends.get(name))

    def uncommitted(self) -> None:
        """Mark the sealed rows as missing in Kafka: the task has to commit them again."""
        self._noted = None

    def write_some(self, rows: int) -> bool:
        """Write up to `rows` committed rows of each store to its backend; return True when done."""
        return all(store.write_some(rows) for store in self.stores.values())

    def rerun(self, why: ValueRefused | TaskStopped, *, puts_back: bool = True) -> Rerun:
        """Return the order for the task that begins anew, because this one ends for `why`.

        To be called before `aborted`. With `puts_back`, committed rows are read where newer ones
        may be in the changelogs (6 us a row). Mostly nothing has left since the commit.
        """
        rows: StoreRows = {}
        if self._rows_left and puts_back:
            rows = {
                name: {**store.committed_rows(), **self._put_back.get(name, {})}
                for name, store in self.stores.items()
            }
        return replace(self._order_after(why, rows), tries=self._tries, wait_s=self.wait_s)

    def _order_after(self, why: ValueRefused | TaskStopped, rows: StoreRows) -> Rerun:
        begins = self.committed_at.begins
        if self.policy.whole:  # nothing has left, and nobody was told
            return rerun_after(why, self.taken, rows, begins, high=self._committed_high)
        reached = {
            topic: {reader: at for each in readers for reader, at in each.done.items()}
            for topic, readers in self._readers.items()
        }
        told = {
            topic: {scope.reader: scope.told for each in readers for scope in each.scopes}
            for topic, readers in self._readers.items()
        }
        if not self._merge.keeps_all:
            reached = {}  # in another order the outputs may be others
        order = rerun_after(why, self.taken, rows, begins, reached, self._committed_high, told)
        return replace(order, turns=tuple(self._merge.turns))

    def aborted(self) -> None:
        """Set the stores back to the last commit; the driver drops this task."""
        self.close()
        for store in self.stores.values():
            store.aborted()

    def close(self) -> None:
        """End the agents' bodies; the stores still belong to their owner."""
        self._closed = True
        for body in self.bodies:
            body.close()


def no_records_fault(error: Exception) -> Exception | None:
    """Return the fault that every record would meet; None if only this record fails.

    The fault may be bare, or in an ExceptionGroup as a TaskGroup raises it, among other errors.
    """
    if not isinstance(error, ExceptionGroup):
        return error if isinstance(error, (*STORE_FAULTS, *WIRING_FAULTS)) else None
    faults: Any = error.subgroup((*STORE_FAULTS, *WIRING_FAULTS))
    while isinstance(faults, ExceptionGroup):
        faults = faults.exceptions[0]
    return faults  # type: ignore[no-any-return]
