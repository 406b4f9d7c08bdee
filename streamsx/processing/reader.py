"""Readers of a source: the loop over its branches, and the body of each agent.

Each body and each branch has a position of its own, which commits keep. A reader whose position is
ahead of the task's first offset passes over the records that are done. A chunk is
cut once for that; the record path has no check per record. Each reader also knows the row of
records on which it failed. A reader goes on behind a record that failed, unless the failure ended
the task.

In a careful task a record is a unit of its reader, which is kept or undone as a whole (`careful`).
The text of a loop has the calls for that; of a body, each step to its next record is one. A record
that is to be tried again stays in front of its reader: the loop pauses at its branch, and the inbox
takes it back for the body that follows. It is the task that waits, and lets the reader go on.

Not here: the order of records, and the decision whether a failure ends the task (`task`).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamsx.errors import StreamsxError, TaskFailed
from streamsx.operators.operator import Operator
from streamsx.processing.batch import Batch, Chunk
from streamsx.processing.compile import (
    FOREVER,
    Loop,
    LoopText,
    Units,
    Wiring,
    compiled,
    has_clock,
)
from streamsx.processing.dead_letters import why_not
from streamsx.processing.failure_policy import (
    FailedRecord,
    Failure,
    FailureStreak,
    ResultStreak,
)
from streamsx.processing.inbox import Inbox, Outbox, TaskContext, Values
from streamsx.processing.progress import NOTHING
from streamsx.state.timed_store import TimedStore
from streamsx.topology.nodes import AgentNode, OnFailure, Source, reader_name

if TYPE_CHECKING:
    from streamsx.processing.task import Task


FINISHED: Final = object()


class ReaderPosition(NamedTuple):
    """Progress of a reader: next offset that is safe to commit, and the stream time before it."""

    reader: str
    position: int
    stream_time: int


def failed_record(batch: Batch, index: int) -> FailedRecord:
    """Return the bytes of a record that failed."""
    headers = batch.headers[index] if batch.headers else None
    value = None if batch.error(index) else batch.values[index]
    return FailedRecord(batch.keys[index], value, batch.timestamps[index], headers)


def _writes_below(operator: Operator) -> bool:
    """Return whether results that leave outside of a record reach a store."""
    if operator.code.close is None and operator.code.commit is None:
        return False
    return any(below.stores for each in operator.then for below in each.walk())


class AgentProgress:
    """Position and failures of one agent in one source, in its body or in its branch.

    `begins` is the position of each reader that is ahead of the task at the start. `writes`, and
    `results_write`: whether a record that fails may leave changes in stores, and a result.
    """

    def __init__(
        self,
        agent: str,
        topic: str,
        task: "Task",
        begins: Mapping[str, int],
        on_failure: OnFailure,
        *,
        writes: bool,
        results_write: bool = False,
    ) -> None:
        self._writes = writes
        self._results_write = results_write
        self._agent = agent
        self._policy = replace(task.policy, choices=on_failure)
        self._topic = topic
        self._task = task
        self._streak = FailureStreak(task.policy.consecutive_failures_max)
        self.results = ResultStreak(task.policy.consecutive_failures_max)
        self.reader = reader_name(agent)
        self.begin = max(task.taken[topic], begins.get(self.reader, 0))
        """Offset below which all records are done."""
        self.give_up = self._streak.reset
        care = task.care
        self.left = 0 if care is None else care.reached(topic, self.reader)
        """Offset below which the outputs of a careful task have left already."""
        self.told = Counter[tuple[int, bool]]()
        """Failures that were told, behind the last commit."""
        self._known = Counter(task.order.told.get(topic, {}).get(self.reader, {}))
        """Failures that the task before this one has told."""
        self._buried = -1
        """Offset of the last record that came too late and was sent to the dead letters."""

    @property
    def retries(self) -> bool:
        """Return whether a record that fails is tried again, unless a function has to be asked."""
        return self._policy.retries

    def place(self, ordinal: int, reached: int) -> ReaderPosition:
        """Return the reader's position.

        `ordinal` is that of the record at hand, or of the next one. A streak that lasts holds
        position and stream time; under exactly-once not one with dead letters, which are committed
        with the position behind their record. `reached` counts at most up to the offset that the
        task has taken: after a reset the body may still be in the earlier log.
        """
        streak = self._streak
        if streak.lasts(ordinal) and not (self._policy.whole and streak.buried):
            return ReaderPosition(self.reader, min(streak.first, reached), streak.since)
        position = min(reached, self._task.taken[self._topic])
        return ReaderPosition(self.reader, max(position, self.begin), self._task.stream_time)

    def reset(self, position: int, *, back: bool) -> None:
        """Continue at `position`, or at the reader's own position if that is ahead.

        With `back`, the log went back or is another one, and the reader continues at `position`.
        """
        self._streak.reset()
        self._buried = -1
        self.begin = position if back else max(self.begin, position)

    def failed(
        self,
        batch: Batch,
        index: int,
        ordinal: int,
        error: Exception,
        *,
        decode: bool,
        again: bool = False,
    ) -> bool:
        """Report a failed record. Raise the error if the failure ends the task.

        `again`: whether the reader can stand before the record. Return whether it has to.
        """
        record = failed_record(batch, index)
        offset = batch.offsets[index]
        failure = self._failure(offset, error, decode=decode, record=record)
        if not decode:
            attempt = self._task.attempt(self._topic, self._agent, offset)
            failure = replace(failure, attempt=attempt)
        return self._decide(failure, self._streak, ordinal, writes=self._writes, again=again)

    def result_failed(self, offset: int, error: Exception) -> None:
        """Report a failed result as of the record at an offset; raise if the task ends."""
        failure = self._failure(offset, error, decode=False)
        self._decide(failure, self.results, 0, writes=self._results_write)

    def _decide(
        self,
        failure: Failure,
        streak: FailureStreak,
        ordinal: int,
        *,
        writes: bool,
        again: bool = False,
    ) -> bool:
        """Let the task decide about a failure, and note that it was told, unless it is tried again.

        Return whether it is.
        """
        place = failure.offset, streak is self.results
        known = self._known[place] > 0
        decide = self._task.failed
        about = failure, streak, ordinal, self._policy
        if decide(*about, writes=writes, known=known, again=again):
            return True
        self._known[place] -= known
        self.told[place] += 1
        return False

    def committed(self, position: int) -> None:
        """Forget what was told of records below a position."""
        if self.told:
            self.told = Counter({at: n for at, n in self.told.items() if at[0] >= position})

    def bury(self, batch: Batch, index: int, error: Exception) -> None:
        """Send a late record to the dead letters, once for all of its windows.

        It is no failure: nothing is counted, and no streak begins. A letter that cannot be sent is
        reported.

        Raises:
            NotFound: the dead-letter topic is gone.
        """
        offset = batch.offsets[index]
        if offset == self._buried or offset < self.left:
            return
        self._buried = offset
        record = failed_record(batch, index)
        failure = self._failure(offset, error, decode=False, record=record)
        if why := why_not(failure, self._policy.dead_letters, self._task.outbox):
            self._policy.report(replace(failure, kept=why))

    def _failure(
        self,
        offset: int,
        error: Exception,
        *,
        decode: bool,
        record: FailedRecord | None = None,
    ) -> Failure:
        task = self._task.id
        place = task, self._topic, task.partition, offset, self._agent
        return Failure(*place, decode, error, record=record)

    def lasts(self, ordinal: int) -> bool:
        """Return whether a row of failures holds the position."""
        return self._streak.lasts(ordinal)


class AgentRun:
    """One agent of one task, with its inbox and its actor."""

    def __init__(
        self, agent: AgentNode, source: Source, task: "Task", begins: Mapping[str, int]
    ) -> None:
        self.agent = agent.name
        self.topic = source.topic
        self._task = task
        writes = bool(task.stores)
        self._scope = AgentProgress(
            agent.name, source.topic, task, begins, agent.on_failure, writes=writes
        )
        undecodable = partial(self._tell, decode=True)
        failed = partial(self._tell, decode=False)
        self._inbox = Inbox(self._scope.begin, undecodable, failed)
        tried = (source.topic, agent.name) in task.order.tries
        self._inbox.awaited = tried or self._scope.retries
        self._passes = self._scope.begin > task.taken[source.topic]
        """Whether records that the agent has done may come again, and have to be passed over."""
        decode = source.values.decode
        self._reaction = agent.on_failure.produce_error
        self._context = TaskContext(
            task.id, task.stores, self._outbox(), self._inbox, decode, task.counts
        )
        self.actor = task.start(agent, Values(self._inbox, source), self._context, self._failed)
        self.cut = self._inbox.cut
        self.withhold = self._inbox.withhold
        self._unit: tuple[Batch, int, int] | None = None
        """Record of a careful task that the body has at hand: batch, index and ordinal."""
        self._inbox.units = None if task.care is None else self._units

    @property
    def holds(self) -> bool:
        """Return whether a sent record waits until the topic is known."""
        return self._inbox.holds

    @property
    def halfway(self) -> bool:
        """Return whether the body has begun with a record that is not done.

        A body that connects somewhere ahead of its first record has not.
        """
        return self._inbox.holds or (self._inbox.batch is not None and not self.actor.idle)

    @property
    def reached(self) -> int:
        """Return the next offset that the body has not read, regardless of earlier failures."""
        return self._inbox.position

    @property
    def places(self) -> list[ReaderPosition]:
        return [self._scope.place(self._inbox.ordinal, self._inbox.position)]

    @property
    def scopes(self) -> list[AgentProgress]:
        return [self._scope]

    @property
    def done(self) -> dict[str, int]:
        """Return the offset below which the body has done all, whatever failed."""
        return {self._scope.reader: max(self._inbox.position, self._scope.begin)}

    def run(self, chunk: Chunk) -> None:
        if self._passes:
            begin = self._scope.begin
            reached = chunk.batch.following(chunk.stop)
            self._passes = reached < begin
            if reached <= begin:
                return
            start = bisect_left(chunk.batch.offsets, begin, chunk.start, chunk.stop)
            chunk = chunk._replace(start=start)
        self._inbox.chunks.append(chunk)
        self.actor.wake()

    def give_back(self) -> bool:
        """Go on with what was withheld; return whether there is any."""
        given = self._inbox.give_back()
        if given:
            self.actor.wake()
        return given

    def _units(self, column: Iterator[Any], batch: Batch, index: int) -> Iterator[Any]:
        """Yield a column of a careful task's chunk, from an index on.

        The body asks for a record by taking its item: the record before ends then, and this one
        begins.
        """
        task = self._task
        care = task.care
        inbox = self._inbox
        left = self._scope.left
        offsets = batch.offsets
        ordinal = inbox.number(index)
        assert care is not None, "a unit of a task that is not careful"
        end = care.end
        for item in column:
            unit = self._unit
            if unit is not None and task.ended is None:  # `end_unit`, without its frame
                self._unit = None
                try:
                    end()
                except Exception as error:  # of a codec, or a topic that refuses an output
                    self._refused(unit, error)
            if task.ended is not None:
                inbox.ended = True
                raise task.ended
            self._unit = batch, index, ordinal
            muted = offsets[index] < left
            if muted or care.touched:
                care.begin(muted=muted)
            index += 1
            ordinal += 1
            yield item

    def end_unit(self) -> None:
        """End the record that the body has done: its changes stay, and its outputs leave."""
        unit = self._unit
        care = self._task.care
        self._unit = None
        if unit is None or care is None or self._task.ended is not None:
            return
        try:
            care.end()
        except Exception as error:  # of a codec, or a topic that refuses an output
            self._refused(unit, error)

    def _refused(self, unit: tuple[Batch, int, int], error: Exception) -> None:
        """Report a record that failed at its end; end the task if the failure does."""
        try:
            self._scope.failed(*unit, error, decode=False)
        except StreamsxError as fatal:
            self._task.end(fatal, f"agent {self.agent}")

    def close(self) -> None:
        """End the body where it waits."""
        self._inbox.over = True
        self.actor.close()

    def end_care(self) -> None:
        """Run without units, and send by the task's own outbox, from now on."""
        self._inbox.units = None
        self._context.send_by(self._outbox())

    def _outbox(self) -> Outbox:
        return self._task.sender.of_reader(self.agent, self._reaction)

    def reset(self, position: int, *, back: bool) -> None:
        """Drop the queued chunks and continue as `AgentProgress.reset` does."""
        self._scope.reset(position, back=back)
        self._passes = self._scope.begin > position
        self._inbox.reset(self._scope.begin)

    def give_up(self) -> None:
        """Commit past the row of records on which the agent failed."""
        self._scope.give_up()

    def _failed(self, error: Exception) -> bool:
        """Count the record of an ended body as failed; return whether a new body follows.

        A body that waited for its first record fails with that one if it has not asked for it: a
        connection that it opens ahead of its loop is as likely to fail as one inside.
        """
        where = f"agent {self.agent}"
        inbox = self._inbox
        if self._task.ended is not None or isinstance(error, TaskFailed):
            self._task.end(error, where)
            return False
        if inbox.batch is None:
            if not inbox.awaited:
                self._task.end(error, where)
                return False
            if not inbox.reach():
                return True  # the record was taken away meanwhile: whoever gets it meets the error
        try:
            again = self._tell(error, decode=False, again=True)
        except StreamsxError as fatal:
            self._task.end(fatal, where)
            return False
        if again:
            self._unit = None
            inbox.awaited = True
            inbox.take_back()
        else:
            inbox.skip()
        return True

    def _tell(self, error: Exception, *, decode: bool, again: bool = False) -> bool:
        batch = self._inbox.batch
        index = self._inbox.index
        assert batch is not None, "a failure without a record"
        ordinal = self._inbox.ordinal
        return self._scope.failed(batch, index, ordinal, error, decode=decode, again=again)


class LoopRun:
    """Branches of a source, record by record; each has a position and failures of its own."""

    def __init__(self, source: Source, task: "Task", begins: Mapping[str, int]) -> None:
        topic = source.topic
        self._progress_of = task.progress.get(topic)
        if self._progress_of is None:  # a driver that does not link tasks goes by the records
            source = replace(source, writers=())
        self._source = source
        self._task = task
        self.scopes = [
            AgentProgress(
                each.agent, topic, task, begins, each.on_failure,
                writes=any(operator.stores for operator in each.first.walk()),
                results_write=any(_writes_below(operator) for operator in each.first.walk()),
            )
            for each in source.branches
        ]  # fmt: skip
        self._all = tuple(range(len(self.scopes)))
        tells = task.plan.tells
        begin = task.stream_time if self._progress_of is None else NOTHING
        named = list(zip(source.branches, self.scopes, strict=True))
        self._muting: list[AgentProgress] = []
        """Branches some of whose outputs have left before the careful task began."""
        self._mute(task.taken[topic])
        self._wiring = Wiring(
            task.sender.to,
            task.stores,
            task.pending,
            task.counts,
            clocks={},
            results={each.agent: scope.results for each, scope in named},
            tells=tells,
            tables=task.tables,
            stream_time=begin,
            units=self._units(),
            bury={each.agent: partial(self._bury, scope) for each, scope in named},
            sends_of=self._sends_of(),
        )
        self._loop = compiled(source, task.plan.number, self._wiring)
        self.topic = topic
        self._operators = LoopText(source.branches).operators
        self._clocked = [each for each in source.branches if has_clock(each, tells)]
        self._move_clocks()
        self._passed = 0
        """Number of records read so far."""
        self._reached = task.taken[topic]
        self._passes = any(scope.begin > self._reached for scope in self.scopes)
        """Whether a branch may have to pass over records that are done."""
        self._failing: tuple[Batch, int, int, int] | None = None
        """Batch, index and ordinal of the record that fails, and the number of the branch."""
        self._result_at: tuple[Batch, int, int] | None = None
        """Batch and index of the record at which a result fails, and the number of the branch."""
        self._part: tuple[Batch, int, tuple[int, ...]]
        """Batch, index of the first record, and branches of the part that the loop runs."""
        self._at: tuple[Batch, int] | None = None
        """Batch, and index of its record that is the first of the loop's input."""
        self._left: Iterator[None] | None = None
        """Rest of a chunk that is paused."""

    def _sends_of(self) -> dict[str, Callable[[str], Any]]:
        """Return the senders of branches with a reaction of their own to refused outputs."""
        outbox = self._task.sender
        reactions = {each.agent: each.on_failure.produce_error for each in self._source.branches}
        return {
            agent: outbox.of_reader(agent, reaction).to
            for agent, reaction in reactions.items()
            if reaction is not None
        }

    def _some(self, numbers: tuple[int, ...]) -> Loop:
        """Compile a loop over some branches, while the others pass over records they have done."""
        branches = tuple(self._source.branches[number] for number in numbers)
        source = replace(self._source, branches=branches)
        task = self._task
        part = "".join(f", {branch.agent}" for branch in branches)
        return compiled(source, task.plan.number, self._wiring, part)

    @property
    def places(self) -> list[ReaderPosition]:
        return [scope.place(*self._progress(n)) for n, scope in enumerate(self.scopes)]

    def _progress(self, number: int) -> tuple[int, int]:
        """Return the ordinal and the offset of the next record of a branch."""
        if self._failing is None:
            return self._passed, self._reached
        batch, index, ordinal, branch = self._failing
        done = number < branch
        return ordinal + done, batch.following(index + done)

    @property
    def done(self) -> dict[str, int]:
        """Return per branch the offset below which all is done, whatever failed."""
        found: dict[str, int] = {}
        for number, scope in enumerate(self.scopes):
            reached = self._progress(number)[1]
            if self._result_at is not None:
                batch, index, failing = self._result_at
                reached = batch.following(index + (number < failing))
            found[scope.reader] = max(reached, scope.begin)
        return found

    def _units(self) -> Units | None:
        care = self._task.care
        if care is None:
            return None
        return Units(self._begin_unit, care.end, care.touched, self._muting)

    def _mute(self, reached: int) -> None:
        """Note the branches whose outputs have left further than to an offset."""
        self._muting[:] = [scope for scope in self.scopes if scope.left > reached]

    def _begin_unit(self, index: int | None, branch: int) -> None:
        """Begin a record or result of a careful task, by its index and branch in the loop."""
        care = self._task.care
        assert care is not None, "a unit of a task that is not careful"
        if index is None:
            care.begin(muted=self.scopes[branch] in self._muting)
            return
        batch, start, numbers = self._part
        care.begin(muted=batch.offsets[start + index] < self.scopes[numbers[branch]].left)

    def end_care(self) -> None:
        """Run the loop without units, by the task's own outbox, from now on."""
        task = self._task
        self._wiring = self._wiring._replace(
            send_to=task.sender.to, units=None, sends_of=self._sends_of()
        )
        self._loop = compiled(self._source, task.plan.number, self._wiring)

    def run(self, chunk: Chunk) -> None:
        """Run a chunk, up to the first pause."""
        self._left = self._chunk(chunk)
        self.go_on()

    @property
    def paused(self) -> bool:
        """Return whether a chunk is not finished, because many results leave at one record."""
        return self._left is not None

    def go_on(self) -> None:
        """Go on with a paused chunk, up to the next pause."""
        left = self._left
        self._left = None
        if left is not None and next(left, FINISHED) is not FINISHED:
            self._left = left

    def _chunk(self, chunk: Chunk) -> Iterator[None]:
        """Run a chunk; between its records stream time moves as the writers of the topic tell."""
        for index, told in chunk.batch.marks:
            if chunk.start <= index <= chunk.stop:
                yield from self._records(chunk._replace(stop=index))
                chunk = chunk._replace(start=index)
                assert self._progress_of is not None, self._source.topic
                if self._progress_of.tell(told):
                    self._move_clocks()
                    yield from self._advance({})
        yield from self._records(chunk)

    def _move_clocks(self) -> None:
        """Move the clocks of the branches to the time that the writers of the topic have told."""
        if self._progress_of is not None:
            for branch in self._clocked:
                clock = self._wiring.clock(branch)
                clock.now = max(clock.now, self._progress_of.time)

    def _advance(self, ahead: Mapping[int, int], newest: int = FOREVER) -> Iterator[None]:
        """Close what is due without a record.

        `ahead`: later times for some operators; `newest`: latest time of a result.
        """
        if self._loop.advance is not None:
            yield from self._loop.advance(ahead, self._failed_last, newest)

    def _failed_last(self, error: Exception, branch: int) -> None:
        """Report a failed result outside of a record as that of the last record."""
        self.scopes[branch].result_failed(max(self._reached - 1, 0), error)

    def _bury(self, scope: AgentProgress, index: int | None, error: Exception) -> None:
        """Send a late record to the dead letters. A late result has none: no record is to blame."""
        if index is not None:
            assert self._at is not None, "a late record without a batch"
            batch, start = self._at
            scope.bury(batch, start + index, error)

    def close_idle(self, quiet_ms: Mapping[str, float], newest: int) -> bool:
        """Close everything in operators whose input is idle; return whether there is any.

        `quiet_ms`: for how long the input of each store has been quiet; `newest`: newest timestamp.
        """
        if self.paused or self._loop.advance is None:
            return False
        ahead: dict[int, int] = {}
        newest = max([newest, *(clock.now for clock in self._wiring.clocks.values())])
        latest_result = newest
        for n, operator in enumerate(self._operators):
            names = [node.name for node in operator.stores.values()]
            if operator.idle_ms is None or min(quiet_ms[each] for each in names) < operator.idle_ms:
                continue
            stores = [self._task.stores[name] for name in names]
            timed = [store for store in stores if isinstance(store, TimedStore)]
            if not ahead and not any(next(store.items(), None) for store in timed):
                continue  # after a restart, time is where the store has closed
            end = max(store.all_closed(newest) for store in timed)
            if newest >= 0 and end > max(store.closed for store in timed):
                ahead[n] = newest = end
        if ahead:
            self._left = self._advance(ahead, latest_result)
            self.go_on()
        return bool(ahead)

    @property
    def mark(self) -> int:
        """Return a value that changes with each record."""
        return self._passed

    def feeds(self, topic: str) -> bool:
        """Return whether records go from here to a topic."""
        return any(each.topic == topic for each in self._operators)

    def told(self, topic: str) -> int | None:
        """Return the stream time of the records that have been sent to a topic.

        None if a row of failures holds one of the branches: its records may come again.
        """
        times = [NOTHING]
        for number, branch in enumerate(self._source.branches):
            if any(each.topic == topic for each in branch.first.walk()):
                if self.scopes[number].lasts(self._passed):
                    return None
                times.append(self._wiring.clock(branch).now)
        return max(times)

    def _records(self, chunk: Chunk) -> Iterator[None]:
        if chunk.start == chunk.stop < len(chunk.batch.offsets):
            return
        if self._passes:
            for part, numbers in self._parts(chunk):
                loop = self._some(numbers) if numbers else None
                yield from self._run(part, loop, numbers)
            reached = chunk.batch.following(chunk.stop)
            self._passes = any(scope.begin > reached for scope in self.scopes)
        else:
            yield from self._run(chunk, self._loop, self._all)

    def _parts(self, chunk: Chunk) -> Iterator[tuple[Chunk, tuple[int, ...]]]:
        """Cut a chunk where a branch begins; yield each part with the branches that read it."""
        offsets = chunk.batch.offsets
        start = chunk.start
        begins = [scope.begin for scope in self.scopes]
        cuts = {bisect_left(offsets, begin, start, chunk.stop) for begin in begins}
        for stop in sorted(cuts | {chunk.stop}):
            numbers = tuple(n for n in self._all if start < stop and begins[n] <= offsets[start])
            yield chunk._replace(start=start, stop=stop), numbers
            start = stop

    def _run(self, chunk: Chunk, loop: Loop | None, numbers: tuple[int, ...]) -> Iterator[None]:
        """Run a chunk through some branches; record by record if some values cannot be read."""
        batch = chunk.batch
        if not batch.unreadable:
            yield from self._run_part(batch, chunk.start, chunk.stop, loop, numbers)
            return
        for at in range(chunk.start, chunk.stop):
            yield from self._run_part(batch, at, at + 1, loop, numbers)

    def _run_part(
        self, batch: Batch, start: int, stop: int, loop: Loop | None, numbers: tuple[int, ...]
    ) -> Iterator[None]:
        """Run records `start` to `stop`: a single one if some values cannot be read."""

        def failed(
            index: int,
            error: Exception,
            branch: int | None,
            *,
            result: bool = False,
            again: bool = False,
        ) -> bool:
            at = start + index
            if result:
                assert branch is not None
                self._result_at = batch, at, numbers[branch]
                self.scopes[numbers[branch]].result_failed(batch.offsets[at], error)
                self._result_at = None
                return False
            about = batch, at, self._passed + index
            for number in numbers if branch is None else [numbers[branch]]:
                self._failing = *about, number
                decode = branch is None
                if self.scopes[number].failed(*about, error, decode=decode, again=again):
                    return True  # the reader stands there: the branches ahead are done
            self._failing = None
            return False

        self._part = batch, start, numbers
        if (error := batch.error(start)) is not None:
            failed(0, error, None)
        elif loop is not None:
            self._at = batch, start
            columns = (batch.keys, batch.values, batch.timestamps)
            headers = batch.headers[start:stop] if batch.headers else repeat(None)
            cut = (column[start:stop] for column in columns)
            pauses = loop.run(zip(*cut, headers, strict=False), failed)  # headers may be endless
            for pause in pauses or ():
                yield pause
                self._failing = None
        self._passed = self._passed + stop - start
        self._reached = batch.following(stop)
        if self._muting:
            self._mute(self._reached)
            if (care := self._task.care) is not None:
                care.outbox.muted = False  # a record that was passed over ends no unit

    def commit(self) -> None:
        """Give on the results that waited for a commit. A failure is that of the last record.

        None of them has left. "A task goes back before any commit; its careful run takes so long
        that a commit comes in the middle": what waits leaves there for the first time.
        """
        if self._loop.commit is None:
            return
        muting = [*self._muting]
        self._muting.clear()
        for _ in self._loop.commit(self._failed_last) or ():
            pass  # a loop that pauses between slices does not pause here
        self._muting += muting

    def reset(self, position: int, *, back: bool) -> None:
        """Continue as `AgentProgress.reset` does; a record that waits for a try is gone."""
        if self._failing is not None:
            self._left = self._failing = None
        self._reached = position
        self._mute(position)
        for scope in self.scopes:
            scope.reset(position, back=back)
        self._passes = any(scope.begin > position for scope in self.scopes)

    def give_up(self) -> None:
        """Commit past the row of records on which a branch failed."""
        for scope in self.scopes:
            scope.give_up()
