"""Task: batches in, stores changed, records out. No clock, no event loop, no Kafka client.

Drivers: the worker, the test driver, Spark; each feeds the same object in the same order, and each
cut of the input into batches gives the same stores and the same outputs.

Not here: fetching, when to commit, what a role means.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from streamsx.errors import (
    STORE_FAULTS,
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
from streamsx.processing.batch import Batch, Chunk, StreamTimes
from streamsx.processing.failure_policy import Failure, FailureAction, FailureStreak, Policy
from streamsx.processing.inbox import Outbox, SendRows, StartActor
from streamsx.processing.merge import Merge
from streamsx.processing.reader import AgentRun, LoopRun
from streamsx.serde.codec import NoValue
from streamsx.state.cache import CachedStore, Changes
from streamsx.topology.nodes import SubTopology

WIRING_FAULTS = (TopologyError, NotSupported, NotFound)
"""What the app was not wired for the next record meets too, as it does a store's fault."""


class TaskMetadata(NamedTuple):
    """Place at which a commit leaves a task, and another one begins.

    `positions`: next offset of each source topic, that of its slowest reader; `stream_time`: not
    ahead of them, -1 before the first record; `records`: how many were taken since the seal before;
    `high`: of each topic, the highest timestamp taken, which Spark keeps and no worker does;
    `readers`: per topic, the next offset of each reader that is ahead of the position;
    `topic_ids`: the topic that each position is of, where brokers have ids.
    """

    positions: Mapping[str, int]
    stream_time: int = -1
    records: int = 0
    high: Mapping[str, int] = MappingProxyType({})
    readers: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    topic_ids: Mapping[str, str] = MappingProxyType({})


class Task:
    """One sub-topology on one partition number.

    `run` never raises for a record: the policy decides. It raises TaskStopped when too many in a
    row have failed; TaskFailed when the policy is to stop, or when a body ends in a way that no
    record explains; UsageError when a body asks for what its app was not wired for.

    `checked`: until these offsets each value is encoded as it is set, because one of them could not
    be: then its record is known, and counts as failed.
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
        checked: Mapping[str, int] | None = None,
    ) -> None:
        self.id = TaskId(plan.number, partition)
        self.plan, self.stores, self.outbox, self.start = plan, stores, outbox, start
        self.policy, self.stream_time = policy, metadata.stream_time
        self.taken = dict(metadata.positions)
        """Topic -> next offset that is not handed to anybody yet."""
        self.ended: StreamsxError | None = None
        """The next `run` raises it."""
        self._closed = False
        self.committed_at = metadata
        self.topic_ids = dict(metadata.topic_ids)
        self.records = 0
        """Taken since the last seal."""
        self._noted: TaskMetadata | None = None
        """Its place at the last seal; None: what was sealed is to be committed again."""
        self._sealing: Iterator[TaskMetadata | None] | None = None
        self._unsealed: StreamsxError | None = None
        """Why nothing can be sealed any more: the store has let go of what it refused."""
        self._checked = checked or {}
        self._checking = False
        self._queues: dict[str, deque[Chunk]] = {topic: deque() for topic in plan.topics}
        self._merge = Merge(self._queues, metadata.high)
        self._newest: dict[str, StreamTimes] = {}
        """Of the chunk that was taken last, per topic."""
        self.at_hand: Chunk | None = None
        """The records that were handed to its readers last."""
        self.bodies: list[AgentRun] = []
        self._readers: dict[str, list[LoopRun | AgentRun]] = {}
        for source in plan.sources:
            begins = metadata.readers.get(source.topic, {})
            loops = [LoopRun(source, self, begins)] if source.branches else []
            bodies = [AgentRun(agent, source, self, begins) for agent in source.agents]
            self._readers[source.topic] = [*loops, *bodies]
            self.bodies += bodies
        self._changelog_of = {node.name: node.changelog for node in plan.stores}
        self._changelogs = {
            node.name: outbox.rows(node.changelog, partition) for node in plan.stores
        }
        self._limit_rows()
        self._check_values()
        self._noted = self._place()

    # -- records

    def offer(self, batch: Batch) -> None:
        """Into the queue of its topic. Records below the position are passed over."""
        queue, position = self._queues[batch.topic], self.wanted(batch.topic)
        if batch.next_offset <= position:
            return
        start = bisect_left(batch.offsets, position)
        queue.append(Chunk(batch, start, len(batch.offsets)))

    def wanted(self, topic: str) -> int:
        """Return the offset behind all that it was offered of a topic."""
        queue = self._queues[topic]
        return queue[-1].batch.next_offset if queue else self.taken[topic]

    def reset(self, topic: str, offset: int, topic_id: str | None = None) -> None:
        """Go on at another offset: the log does not have the one that was next. `topic_id`: of the
        topic that has the name now. A reader that is ahead stays so, unless the log goes back or is
        another topic's. The next commit says so, whatever was committed before.
        """
        anew = topic_id is not None and topic_id != self.topic_ids.get(topic)
        back = anew or offset < self.taken[topic]
        self._queues[topic].clear()
        self.taken[topic] = offset
        if topic_id is not None:
            self.topic_ids[topic] = topic_id
        self.uncommitted()
        for reader in self._readers[topic]:
            reader.reset(offset, back=back)

    def holds(self, topic: str) -> bool:
        """Tell whether failures in a row hold a reader's position, and no body is at work."""
        taken, readers = self.taken[topic], self._readers[topic]
        held = any(place.position < taken for reader in readers for place in reader.places)
        return held and self.ended is None and not self.busy and not self._queues[topic]

    def give_up(self, topic: str) -> None:
        """Pass over the failures in a row at the end of a topic. Called for a topic that `holds`
        and that has been quiet for QUIET_S.
        """
        for reader in self._readers[topic]:
            reader.give_up()

    def waiting(self, topic: str) -> int:
        """Batches in the queue of a topic."""
        return len(self._queues[topic])

    def run(self, limit: int, caught_up: Collection[str] = ()) -> int:
        """Hand on up to `limit` records in order; how many. `caught_up`: topics read to the end."""
        done = 0
        if self.ended is not None:
            raise self.ended
        while done < limit and not self.busy:
            chunk = self._merge.next(limit - done, caught_up)
            if chunk is None:
                break
            done += chunk.stop - chunk.start
            self._run(chunk)
            if self.ended is not None:
                raise self.ended
        return done

    @property
    def busy(self) -> bool:
        """An agent has not used up its input: it is given no more."""
        if self._closed or self.ended is not None:
            return False  # nobody is at work any more
        return not all(body.actor.idle and not body.holds for body in self.bodies)

    @property
    def positions(self) -> dict[str, int]:
        """Topic -> next offset that is safe to commit: that of its slowest reader."""
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
        return TaskMetadata(positions, readers=readers, topic_ids=dict(self.topic_ids))

    @property
    def passing(self) -> dict[str, dict[str, int]]:
        """Topic -> readers that are ahead of all that was taken, with their positions."""
        readers = self._place().readers
        return {
            topic: ahead
            for topic, taken in self.taken.items()
            if (ahead := {r: at for r, at in readers.get(topic, {}).items() if at > taken})
        }

    @property
    def high(self) -> dict[str, int]:
        """Topic -> highest timestamp taken from it."""
        only = len(self._queues) == 1
        return dict.fromkeys(self._queues, self.stream_time) if only else dict(self._merge.high)

    @property
    def dirty_bytes(self) -> int:
        """Return the memory of what its stores hold until it is committed and written."""
        return sum(store.dirty_bytes for store in self.stores.values())

    @property
    def dirty(self) -> bool:
        """It has something to commit."""
        stores = self.stores.values()
        return self._place() != self._noted or any(store.dirty for store in stores)

    def cut(self) -> None:
        """No body gets to see more than the record that it has at hand."""
        for body in self.bodies:
            body.cut()

    def _run(self, chunk: Chunk) -> None:
        batch, start, stop, _ = chunk
        topic = batch.topic
        times = self._newest[topic] = StreamTimes(batch, start, stop, self.stream_time)
        self.stream_time = times.behind
        self.records += stop - start
        self.taken[topic] = batch.following(stop)
        chunk = self.at_hand = chunk._replace(times=times)
        for reader in self._readers[topic]:
            reader.run(chunk)
            if self.ended is not None:
                return  # what the others did now would be done again

    def _stream_time(self, positions: Mapping[str, int]) -> int:
        """Where a task that goes on from `positions` has to begin: what is read again must not find
        it ahead, in whatever order topics were read.
        """
        found = [self.stream_time]
        for topic, position in positions.items():
            if position < self.taken[topic]:
                found.append(self._newest[topic].below(position))
                readers = self._readers[topic]
                found += (place.stream_time for reader in readers for place in reader.places)
        return min(found)

    def failed(self, failure: Failure, streak: FailureStreak, ordinal: int) -> None:
        """What becomes of a record; `ordinal`: its number with its reader, whose streak it is.

        Raises what ends the task.
        """
        if self.ended is not None:
            raise self.ended
        if isinstance(failure.error, NoValue):
            streak.passed(ordinal)
            self.policy.passed(failure)
            return
        error = no_records_fault(failure.error) or failure.error
        if isinstance(error, WIRING_FAULTS):
            kind = UsageError if isinstance(error, NotFound) else type(error)
            self.ended = kind(f"{error} ({failure.operator}, {failure.place})")
        elif isinstance(error, STORE_FAULTS):
            self.ended = error
        elif self.policy.stops(failure):
            self.ended = TaskFailed(f"{failure}: its policy is stop: mend the record or the code")
        else:
            self.policy.report(failure)
            before = self._newest[failure.topic].below(failure.offset)
            if streak.failed(ordinal, failure.offset, before):
                self.ended = self._stopped(failure, streak.first)
        if self.ended is not None:
            raise self.ended from (None if self.ended is error else error)

    def _stopped(self, last: Failure, first: int) -> TaskStopped:
        kind = type(last.error).__name__
        return TaskStopped(
            f"task stopped: {self.id}, {last.topic}-{last.partition} offset {first}: "
            f"{self.policy.consecutive_failures_max} records in a row failed, the last one at "
            f"{last.offset}, {last.operator}: {kind}: {last.error}: nothing from {first} on is "
            "committed: mend the code and start again, or raise "
            "consecutive_failures_max if they may be skipped"
        )

    def end(self, error: Exception, where: str) -> None:
        """Nothing more may run; `run` raises it, at once or the next time."""
        if not isinstance(error, StreamsxError):
            what = f"{type(error).__name__}: {error}"
            failed = TaskFailed(f"task failed outside of a record: {where}, task {self.id}: {what}")
            failed.__cause__ = error
            error = failed
        self.ended = self.ended or error

    # -- commits

    def seal(self, rows: int) -> TaskMetadata | None:
        """Encode dirty values, then send them to the changelogs, up to `rows` in each call; None
        until all are sent. The positions, and `rows`, are those of the first call.

        Nothing is sent before all are encoded. "A value is sent; the next one cannot be encoded;
        the task goes back to its last commit and passes over their record": the changelog would
        have a row that the store has not.

        Raises for a value that cannot be encoded, by the policy: ValueRefused, when its record is
        to be found; TaskStopped, when that was tried; TaskFailed. Then this task is over.
        """
        if self._unsealed is not None:
            raise self._unsealed
        if self._sealing is None:
            self._sealing = self._seal(rows)
        return next(self._sealing)

    def _seal(self, rows: int) -> Iterator[TaskMetadata | None]:
        place, checked, records = self._place(), self._checking, self.records
        stream_time = self._stream_time(place.positions)
        self.records, self._noted = 0, place
        self._limit_rows()
        self._check_values()
        parts: deque[tuple[SendRows, Changes]] = deque()
        for name, store in sorted(self.stores.items()):
            while (part := self._encoded(store, rows, checked=checked)).keys:
                parts.append((self._changelogs[name], part))
                yield None
        while parts:
            send, part = parts.popleft()
            send(part.keys, part.values, max(stream_time, 0))
            if parts:
                yield None
        self._sealing = None
        yield place._replace(stream_time=stream_time, records=records)

    def _limit_rows(self) -> None:
        """Take the limits of the changelogs: values are checked against them before a seal too."""
        for name, store in self.stores.items():
            store.row_bytes_max = self.outbox.row_bytes_max(self._changelog_of[name])

    def _check_values(self) -> None:
        """From the next seal on; at once where nothing has changed yet."""
        ahead = any(self.positions[topic] < until for topic, until in self._checked.items())
        if ahead is not self._checking:
            self._checking = ahead
            for store in self.stores.values():
                store.check_values(checking=ahead)

    def _encoded(self, store: CachedStore, rows: int, *, checked: bool) -> Changes:
        """`checked`: each value was encoded as it was set."""
        try:
            return store.seal(rows)
        except ValueRefused as error:
            self._unsealed = self._refusal(error, checked=checked)
            raise self._unsealed from error

    def _refusal(self, error: ValueRefused, *, checked: bool) -> StreamsxError:
        done = self.committed_at.positions
        since = [f"{t}-{self.id.partition} {done[t]}-{n - 1}" for t, n in self.taken.items()]
        what = f"{error} (task {self.id}, set since {', '.join(since)})"
        if self.policy.on_error is FailureAction.STOP:
            return TaskFailed(f"{what}: its policy is stop")
        if checked:
            return TaskStopped(
                f"task stopped: {what}: it was changed in place, after it had been set: mend the "
                "code and start again"
            )
        return ValueRefused(what)

    def committed(self, sealed: TaskMetadata, ends: Mapping[str, int]) -> None:
        """Kafka has what was sealed; `ends`: changelog position behind it, per store."""
        self.committed_at = sealed
        for name, store in self.stores.items():
            store.adopt(ends.get(name))

    def uncommitted(self) -> None:
        """What was sealed is not in Kafka: it has that to commit again."""
        self._noted = None

    def write_some(self, rows: int) -> bool:
        """Up to `rows` committed rows of each store into what lies below; True when done."""
        return all(store.write_some(rows) for store in self.stores.values())

    def aborted(self) -> None:
        """The stores are back at the last commit; the driver drops this object."""
        self.close()
        for store in self.stores.values():
            store.aborted()

    def close(self) -> None:
        """Ends the agents' bodies; the stores stay their owner's."""
        self._closed = True
        for body in self.bodies:
            body.actor.close()


def no_records_fault(error: Exception) -> Exception | None:
    """What no other record would spare, bare or as a TaskGroup hands it on, among others."""
    found = error if isinstance(error, ExceptionGroup) else ExceptionGroup("", [error])
    faults: Any = found.subgroup((*STORE_FAULTS, *WIRING_FAULTS))
    while isinstance(faults, ExceptionGroup):
        faults = faults.exceptions[0]
    return faults  # type: ignore[no-any-return]
