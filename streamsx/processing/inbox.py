"""Inbox of an agent, the values that its `async for` iterates, and the context of user code.

A body awaits things that are already complete (`topic.send`), its next input, or something foreign.
Within a chunk, only something foreign suspends the body.

Not here: running bodies (`streamsx.processing.actor`), the choice of the next records and the
handling of failures (`task`).
"""

import contextvars
from _thread import RLock, get_ident  # neither starts a thread nor waits for one
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from itertools import repeat
from operator import length_hint
from typing import Any, Final, NamedTuple, Protocol, cast

from streamsx.errors import DecodeFailed, TaskFailed, WrongThread
from streamsx.model import RECORD_BYTES_MAX, Headers, TaskId, TopicPartition
from streamsx.operators.operator import Counts, Operator
from streamsx.processing.batch import Batch, Chunk
from streamsx.processing.compile import compiled_steps
from streamsx.serde.codec import Decode, Encoders, NoValue
from streamsx.serde.record import BLESSED
from streamsx.state.cache import CachedStore
from streamsx.topology.internal_topics import TopicSpec
from streamsx.topology.nodes import AgentNode, Source


class Send(Protocol):
    """Sender of key, value, timestamp in ms, and headers; never awaits.

    `by` are the bytes that choose the partition in the place of the key.

    Raises:
        RecordTooLarge: the topic does not take a record of this size.
    """

    def __call__(
        self,
        key: bytes | None,
        value: bytes | None,
        at_ms: int,
        headers: Headers | None,
        by: bytes | None = None,
        /,
    ) -> None: ...


def unchecked(*_record: Any) -> None:
    """Check nothing of a record."""


SendRows = Callable[[Sequence[bytes], Sequence[bytes | None], int], None]
"""Sender of rows: keys and values as columns, one timestamp for all of them."""


SendValue = Callable[..., Awaitable[Any]]
"""Sender of a topic, with the keywords `key`, `value` and more."""
UNKNOWN: Final = -1
"""Partition or offset that is not known, as in Kafka's clients."""


class RecordMetadata(NamedTuple):
    """Metadata of an acknowledged record, with the names of Faust and of Kafka's clients.

    `timestamp` is in ms. `partition` and `offset` are -1 where unknown: for a record that a body
    sends on the fast path, and for a batch that Kafka had already.
    """

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int
    timestamp_type: int = 0


class SentRecord(NamedTuple):
    """Record on its way into a batch."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers | None


def metadata_of(topic: str, partition: int, offset: int, at_ms: int) -> RecordMetadata:
    """Return the metadata of a record with this timestamp, in ms."""
    return RecordMetadata(topic, partition, TopicPartition(topic, partition), offset, at_ms)


class Outbox(Protocol):
    """Destination of the records of a task, given by the driver. Bound once per task and topic."""

    closes: bool = False
    """Whether a body that was closed may send nothing more: its task was undone, and the body that
    follows sends all of it."""

    def of_reader(self, operator: str, reaction: Any) -> "Outbox":
        """Return the outbox of an agent or flow with a reaction of its own to refused outputs.

        Without a reaction, and by default, this outbox.
        """
        return self

    def to(self, topic: str, partition: int | None = None) -> Send:
        """Return the sender of a topic. Without a partition, the key chooses one."""

    def check(self, topic: str, partition: int | None = None) -> Send:
        """Return a function that raises what the sender of a topic would raise, and sends nothing.

        By default, a function that raises nothing.
        """
        return unchecked

    def rows(self, topic: str, partition: int) -> SendRows:
        """Return the sender of rows to a changelog."""

    def row_bytes_max(self, topic: str) -> int:
        """Return the maximum size of a row of this changelog: bytes of key and value together."""
        return RECORD_BYTES_MAX

    def bound(
        self, topic: str, keys: Encoders, values: Encoders, running: "TaskContext", rare: SendValue
    ) -> SendValue:
        """Return a faster sender for a body at work, with as few frames as possible.

        The fast sender leaves rare cases to `rare`. An optional fast path; by default returns
        `rare`.
        """
        return rare

    def answer(self, delivery: Awaitable[Any]) -> Awaitable[Any]:
        """Return an awaitable that gives a delivery at once, as a Done does by default."""
        return Done(delivery)

    def last_sent(self, topic: str, at_ms: int) -> "Done":
        """Return the Done of the record that was sent last, to this topic."""
        return sent_to(topic, at_ms)

    def send_unrouted(self, record: "UnroutedRecord") -> "Done":
        """Let a record leave whose topic is looked up: by default now.

        Returns:
            The Done of a record that does not leave before its topic is found.
        """
        record.leave(self)
        return sent_to(record.topic, record.at_ms)


class Host(Protocol):
    """Services that timers and the app's own tasks use outside of stream tasks.

    The driver provides the host. All methods are called on the thread that owns the stores.
    """

    @property
    def thread(self) -> int | None:
        """Return the id of the thread that owns the stores; None while any thread may call."""

    def to(self, topic: str, partition: int | None = None) -> Send:
        """Return a sender as `Outbox.to` does, but no task's commit waits for its records."""

    def last_sent(self, topic: str, at_ms: int) -> "Done":
        """Return the Done of the record that was sent last, as `Outbox.last_sent` does."""

    def send_late(
        self, outbox: "Outbox | Host", spec: TopicSpec, partition: int | None, record: SentRecord
    ) -> "Done":
        """Send to a topic that was unknown when the app began; look the topic up, or create it.

        Raises:
            UsageError: the topic may not be created; raised here or by awaiting the Done.
        """

    def now_ms(self) -> int:
        """Return the time in ms since 1970."""

    def stores(self, name: str) -> Mapping[int, CachedStore]:
        """Return the stores of the tasks that run here, by partition."""

    def look(self, name: str, key: Any) -> Any:
        """Return the value of a key of a table, None where no worker has it. Raises NotHere."""

    def warn_of_part(self, name: str) -> None:
        """Warn once that only a part of a table is here, when all of it is asked for."""

    def is_leader(self) -> bool:
        """Return whether this worker is the leader of the group."""


class Done:
    """Answer to a `send`: the record is in a batch, and waiting is optional.

    `await topic.send(...)` returns an awaitable, and awaiting that waits until Kafka has the
    record: `await (await topic.send(...))` returns the RecordMetadata. A Done may also be handed to
    `asyncio.wait`, and to any function that takes an awaitable.
    """

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Awaitable[Any]) -> None:
        self._delivery = delivery

    def __await__(self) -> Generator[Any, None, Any]:
        return _giving(self._delivery)

    # -- as a future that is done

    def done(self) -> bool:
        return True

    def cancelled(self) -> bool:
        return False

    def cancel(self, msg: Any = None) -> bool:  # a future's signature
        """Return False, because the record is on its way."""
        return False

    def result(self) -> Awaitable[RecordMetadata]:
        """Return the same awaitable as `await` does."""
        return self._delivery

    def exception(self) -> BaseException | None:
        """Return None, because a failure raises in `send`."""
        return None

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Any = None) -> None:
        """Call the callback at once."""
        callback(self)

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Return 0, because no callback is pending."""
        return 0


class Delivered:
    """Acknowledgement that is there already: an await does not suspend."""

    def __init__(self, metadata: RecordMetadata) -> None:
        self._metadata = metadata

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return _giving(self._metadata)


def _giving(value: Any) -> Generator[Any, None, Any]:
    """Return the value at the first step."""
    yield from ()
    return value


def sent_to(topic: str, at_ms: int, partition: int = UNKNOWN, offset: int = UNKNOWN) -> Done:
    """Return the Done of a record that needs no acknowledgement."""
    return Done(Delivered(metadata_of(topic, partition, offset, at_ms)))


DONE: Final = sent_to("", UNKNOWN)


class UnroutedRecord:
    """Record for a topic that is looked up: sent when it has left and its topic is found."""

    def __init__(self, topic: str, partition: int | None, record: SentRecord) -> None:
        self.topic = topic
        self.at_ms = record.timestamp
        self._partition = partition
        self._record = record
        self._found = False
        self._outbox: Outbox | Host | None = None
        """Outbox by which the record has left; None until then."""

    def check(self, outbox: Outbox) -> None:
        """Raise what `leave` would raise, and send nothing."""
        if self._found:
            outbox.check(self.topic, self._partition)(*self._record)

    def leave(self, outbox: Outbox | Host) -> Done | None:
        """Let the record leave by an outbox; return its Done, None while the topic is not found."""
        self._outbox = outbox
        if not self._found:
            return None
        outbox.to(self.topic, self._partition)(*self._record)
        return outbox.last_sent(self.topic, self.at_ms)

    def found(self) -> Done | None:
        """Note that the topic is found; return the record's Done, None if it has not left yet."""
        self._found = True
        return None if self._outbox is None else self.leave(self._outbox)


class OwnedLock(Protocol):
    """Part of an RLock that is used here. `threading.Condition` uses `_is_owned` too."""

    def acquire(self, blocking: bool = True) -> bool: ...
    def release(self) -> None: ...
    def _is_owned(self) -> bool: ...


AT_WORK: Final = cast("OwnedLock", RLock())
"""Lock of the thread whose body is at work; acquired without waiting.

Tables and topics cache lookups for that body in attributes, which every thread can see. "A thread
of a pool writes into a table while a body is at work": the thread would write into that body's
store, in the middle of a change. So a user of such an attribute first checks that its own thread
holds the lock: `_is_owned`, called as a method, takes 20 ns. As a function kept in a variable it
takes 40 ns, and comparing the thread's id 50 ns.
"""


BOUND_MAX: Final = 64
"""Number of tables and topics that a body binds; further ones are looked up at each use."""
SKIPPED: Final = object()
"""Marker that replaces a value that cannot be decoded."""


UnitSteps = Callable[[Iterator[Any], Batch, int], Iterator[Any]]
"""Function that returns a column of a chunk, from an index of the batch on, in whose steps records
begin and end."""


class Inbox:
    """Chunks for one agent instance. `position` is the next offset that is safe to commit."""

    __slots__ = (
        "_chunk", "_done", "_held", "_keys", "_passed", "_raws", "_start", "_stop", "_withheld",
        "awaited", "batch", "chunks", "ended", "failed", "gate", "index", "over", "undecodable",
        "units",
    )  # fmt: skip

    def __init__(
        self,
        position: int,
        undecodable: Callable[[Exception], object],
        failed: Callable[[Exception], object] | None = None,
    ) -> None:
        self.chunks: deque[Chunk] = deque()
        self.batch: Batch | None = None
        """Batch of the record at hand; None between two chunks."""
        self.index = 0
        self.undecodable = undecodable
        self.failed = failed or undecodable
        """Report of a record that failed in a step ahead of the body."""
        self.ended = False
        """Whether a report has raised: that failure was one too many."""
        self.over = False
        """Whether the task has ended: its next life does the held records again."""
        self.awaited = False
        """Whether each body begins when its first record is here, and fails with that record."""
        self.units: UnitSteps | None = None
        """In a careful task, the function that tells of each record when the body asks for it."""
        self.gate: Awaitable[None]
        """Gate at which the reader waits for the next chunk; set by the actor that opens it."""
        self._chunk: Chunk
        self._raws: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._start = 0
        self._stop = 0
        self._done = position
        self._passed = 0
        self._held: list[int] = []
        self._withheld: list[Chunk] = []
        """Chunks that the body does not see before `give_back`."""

    @property
    def ordinal(self) -> int:
        """Return the number of records before the one at hand, or before the next one."""
        return self._passed if self.batch is None else self._passed + self.index - self._start

    @property
    def position(self) -> int:
        """Return the next offset that is safe to commit.

        The record at hand is not done until the body asks for the next one. A held record is not
        done until it is released.
        """
        reached = self._done if self.batch is None else self.batch.offsets[self.index]
        return min(self._held, default=reached)

    @property
    def holds(self) -> bool:
        """Return whether a record is held: its reader gets no more chunks."""
        return bool(self._held)

    def hold(self) -> Callable[[], None]:
        """Hold the position at the record at hand.

        Returns:
            A function that releases the position; to be called once.
        """
        if self.batch is None:
            return lambda: None
        offset = self.batch.offsets[self.index]
        self._held.append(offset)
        return partial(self._held.remove, offset)

    @property
    def stream_time(self) -> int:
        """Return the stream time at the record at hand, in ms.

        Stream time is the highest timestamp of all records that the task has taken, up to and
        including the record at hand. -1 without such a record.
        """
        times = self._chunk.times if self.batch is not None else None
        return -1 if times is None else times.at(self.index)

    def begin(self) -> list[bytes | None]:
        """Begin the next chunk and return its values.

        The list is emptied when no more of the chunk may be read.
        """
        chunk = self._chunk = self.chunks.popleft()
        self._start = chunk.start
        self._stop = chunk.stop
        self.index = chunk.start - 1
        if chunk.start < chunk.stop:
            self.batch = chunk.batch
        self._raws = list(chunk.batch.values[chunk.start : chunk.stop])
        return self._raws

    def keys(self) -> list[bytes | None]:
        """Return the keys of the chunk that was begun; the list is emptied with the values."""
        self._keys = list(self._chunk.batch.keys[self._start : self._stop])
        return self._keys

    def steps(self, left: Iterator[Any]) -> Iterator[Any]:
        """Return the rest of a column of the chunk that was begun, in steps of the body."""
        if self.units is None:
            return left
        return self.units(left, self._chunk.batch, self._start)

    def number(self, index: int) -> int:
        """Return the ordinal of a record of the chunk at hand."""
        return self._passed + index - self._start

    def checked(self, decode: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
        """Return `decode` for the chunk that was begun.

        If the batch has records that could not be read, the returned function raises for them.
        """
        if not self._chunk.batch.unreadable:
            return decode

        def readable(raw: Any) -> Any:
            _raise_unreadable(raw)
            return raw if decode is None else decode(raw)

        return readable

    def slowly(self, decode: Decode, decode_key: Decode | None = None) -> Any:
        """Decode the value at hand with the full decoder, and its key if `decode_key` is given.

        Returns:
            The value, or (key, value); SKIPPED after a failure, which was reported.
        """
        batch = self._chunk.batch
        try:
            _raise_unreadable(batch.values[self.index])
            key = decode_key and _key(decode_key, batch.keys[self.index])
            value = decode(batch.values[self.index])
            return (key, value) if decode_key else value
        except Exception as error:  # raised by any codec
            self._report(self.undecodable, error)
            return SKIPPED

    def _report(self, report: Callable[[Exception], object], error: Exception) -> None:
        self.ended = True
        report(error)
        self.ended = False

    def records(self) -> Iterator[tuple[bytes | None, bytes | None, int, Headers | None]]:
        """Return the records of the chunk that was begun, for a compiled loop."""
        batch = self._chunk.batch
        cut = slice(self._start, self._stop)
        headers = batch.headers[cut] if batch.headers else repeat(None)
        raws = self.steps(iter(self._raws))
        return zip(batch.keys[cut], raws, batch.timestamps[cut], headers, strict=False)

    def step_failed(
        self, index: int, error: Exception, branch: int | None, *, again: bool = False
    ) -> None:
        """Report a record of `records()`; a `branch` of None stands for an undecodable value.

        The loop goes on with the next record whatever `again` says.
        """
        self.index = self._start + index
        self._report(self.undecodable if branch is None else self.failed, error)

    def with_key(self, decode_key: Decode, key: bytes | None, value: Any) -> Any:
        """Return (key, value); SKIPPED if the key cannot be decoded, which was reported."""
        try:
            return _key(decode_key, key), value
        except Exception as error:  # raised by any codec
            self._report(self.undecodable, error)
            return SKIPPED

    def finish(self, raws: list[bytes | None], *, drops: bool = False) -> None:
        """Mark the list that `begin` returned as read.

        If another loop has gone on with the chunk, the last record is done as well. With `drops`,
        the steps of the loop may have dropped the records behind the one at hand.

        Raises:
            LookupError: records are left, because a codec's StopIteration ended the iteration.
        """
        if raws is not self._raws:
            self.leave()
            return
        if drops:
            self.index = self._stop - 1
        if self.index + 1 < self._stop:
            raise LookupError("records are left")
        self._passed += self._stop - self._start
        self.batch = None
        self._done = self._chunk.batch.following(self._stop)

    def leave(self) -> None:
        """Prepare for a new loop: leave the record at which the previous one stopped or failed."""
        self.ended = False
        if self.batch is not None:
            self.skip()

    def cut(self) -> None:
        """Hand out no record behind the one at hand."""
        self.chunks.clear()
        self._withheld.clear()
        if self.batch is not None:
            self._empty_columns()
            self._stop = self.index + 1

    def withhold(self) -> None:
        """Hand out no record behind the one at hand until `give_back`."""
        if self.batch is not None and self.index + 1 < self._stop:
            rest = Chunk(self.batch, self.index + 1, self._stop, self._chunk.times)
            self._withheld.append(rest)
            self._empty_columns()
            self._stop = self.index + 1
        self._withheld += self.chunks
        self.chunks.clear()

    def give_back(self) -> bool:
        """Hand out what was withheld; return whether there is any."""
        self.chunks.extendleft(reversed(self._withheld))
        self._withheld.clear()
        return bool(self.chunks)

    def reset(self, position: int) -> None:
        """Drop the queued chunks; a record at hand still gets done."""
        self.chunks.clear()
        self._withheld.clear()
        self._done = position

    def skip(self) -> None:
        """Leave the record at hand behind; the rest of the chunk becomes the next chunk."""
        assert self.batch is not None, "nothing at hand to skip"
        batch = self.batch
        after = self.index + 1
        self._empty_columns()
        self._raws = []
        self._passed += after - self._start
        self.batch = None
        self._done = batch.following(after)
        if after < self._stop:
            self.chunks.appendleft(Chunk(batch, after, self._stop, self._chunk.times))

    def reach(self) -> bool:
        """Take the next record at hand in place of a body that ended ahead of it.

        What is withheld stays so behind that record. Return False if no record waits.
        """
        withheld = not self.chunks and self.give_back()
        while self.chunks:
            raws = self.begin()
            if self.batch is None:
                self.finish(raws)
                continue
            self.index += 1
            if withheld:
                self.withhold()
            return True
        return False

    def take_back(self) -> None:
        """Take back the record at hand with all behind it, until `give_back`."""
        assert self.batch is not None, "nothing at hand to take back"
        rest = Chunk(self.batch, self.index, self._stop, self._chunk.times)
        self._passed += self.index - self._start
        self._done = self.batch.offsets[self.index]
        self.batch = None
        self._empty_columns()
        self._raws = []
        self._withheld = [rest, *self._withheld, *self.chunks]
        self.chunks.clear()

    def _empty_columns(self) -> None:
        """Empty both columns, so that an iterator over the chunk is at the end.

        A key left without its value would still be decoded, fail, and be reported for its record.
        """
        self._raws.clear()
        self._keys.clear()


def _key(decode: Decode, data: bytes | None) -> Any:
    """Decode a key. A missing key of a Record is a fault of the record; a missing value is none."""
    try:
        return decode(data)
    except NoValue as error:
        raise DecodeFailed(f"key of a record: {error}") from error


class Values:
    """Decoded values of an inbox, as a body's stream yields them.

    Each loop over the values goes on behind the record at which the previous loop was left or
    cancelled.

    Values are decoded one by one, lazily, by functions without a Python frame of this package: a
    value that is dropped before the next one is made leaves its memory to the next. Decoding by
    the chunk costs 30-90 % more.
    """

    __slots__ = ("_inbox", "_source", "_steps")

    def __init__(self, inbox: Inbox, source: Source, steps: tuple[Operator, ...] = ()) -> None:
        self._inbox = inbox
        self._source = source
        self._steps = steps

    def behind(self, *steps: Operator) -> "Values":
        """Return the values that leave these steps, behind the steps that there are."""
        return Values(self._inbox, self._source, (*self._steps, *steps))

    def anew(self) -> "Values":
        """Return the values without steps, because a topic in between has taken the steps."""
        return Values(self._inbox, self._source)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._of_steps(keyed=False) if self._steps else self._plain()

    async def _plain(self) -> AsyncIterator[Any]:
        inbox = self._inbox
        decode = self._source.values.decode
        loads, blessed = self._source.values.quick
        inbox.leave()
        while True:
            while not inbox.chunks:
                await inbox.gate
            raws = inbox.begin()
            left = inbox.steps(iter(raws))
            decode_each = inbox.checked(loads)
            values: Iterator[Any] = left if decode_each is None else map(decode_each, left)
            while True:
                first = inbox.index + 1
                try:
                    for inbox.index, value in enumerate(values, first):  # sets inbox.index
                        if not blessed or type(value) is not dict or BLESSED not in value:
                            yield value
                        elif (model := inbox.slowly(decode)) is not SKIPPED:
                            yield model
                    inbox.finish(raws)
                    break
                except Exception:  # raised by any codec, over the next value
                    if inbox.ended:
                        raise
                    inbox.index += 1
                if (value := inbox.slowly(decode)) is not SKIPPED:
                    yield value

    def items(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield keys with values. An undecodable key counts as an undecodable record."""
        return self._of_steps(keyed=True) if self._steps else self._plain_items()

    async def _of_steps(self, *, keyed: bool) -> AsyncIterator[Any]:
        """Yield what the steps give, as values or as keys with values."""
        inbox = self._inbox
        source = self._source
        decode = source.values.decode
        run_all = compiled_steps(self._steps, source, decode)
        inbox.leave()
        while True:
            while not inbox.chunks:
                await inbox.gate
            raws = inbox.begin()
            readable = inbox.checked(decode)
            run = run_all if readable is decode else compiled_steps(self._steps, source, readable)
            first = inbox.index + 1
            for index, key, value in run(inbox.records(), inbox.step_failed):
                inbox.index = first + index
                if not keyed:
                    yield value
                elif (both := inbox.with_key(source.keys.decode, key, value)) is not SKIPPED:
                    yield both
            inbox.finish(raws, drops=True)

    async def _plain_items(self) -> AsyncIterator[tuple[Any, Any]]:
        inbox = self._inbox
        source = self._source
        slow = source.values.decode, source.keys.decode
        quick_key, blessed_key = source.keys.quick
        quick, blessed = source.values.quick
        decode_key = source.keys.decode if blessed_key or quick_key is None else quick_key
        loads = quick or source.values.decode
        inbox.leave()
        while True:
            while not inbox.chunks:
                await inbox.gate
            raws = inbox.begin()
            keys = iter(inbox.keys())
            left = iter(raws)
            decode = inbox.checked(loads) or loads
            pairs = zip(map(decode_key, inbox.steps(keys)), map(decode, left), strict=False)
            while True:
                first = inbox.index + 1
                try:
                    for inbox.index, pair in enumerate(pairs, first):
                        if not blessed or type(pair[1]) is not dict or BLESSED not in pair[1]:
                            yield pair
                        elif (both := inbox.slowly(*slow)) is not SKIPPED:
                            yield both
                    inbox.finish(raws)
                    break
                except Exception:
                    if inbox.ended:
                        raise
                    inbox.index += 1
                _align(keys, left)
                if (both := inbox.slowly(*slow)) is not SKIPPED:
                    yield both


def _raise_unreadable(raw: object) -> None:
    """Raise the error that replaces a value that could not be read."""
    if isinstance(raw, DecodeFailed):
        raise DecodeFailed(str(raw))


def _align(keys: Iterator[Any], values: Iterator[Any]) -> None:
    """Drop the value whose key could not be decoded; that key has left its column already."""
    if length_hint(keys) < length_hint(values):
        next(values)


class TaskContext:
    """Context of user code in a task: its stores, its outbox, the record at hand.

    While a body is within the data loop's turn (from `resumed` to `paused`), no other body runs.
    So tables and topics may keep in an attribute (`bind`) the objects they looked up here, until
    the pause. Each use then saves one look-up of the context and two of dicts.
    """

    __slots__ = (
        "_bound", "_decode", "at_work", "closed", "counts", "inbox", "outbox", "sends", "stores",
        "task", "thread", "tracked", "turn",
    )  # fmt: skip

    def __init__(
        self,
        task: TaskId,
        stores: Mapping[str, Any],
        outbox: Outbox,
        inbox: Inbox,
        decode: Decode | None = None,
        counts: dict[str, Counts] | None = None,
    ) -> None:
        self.task = task
        self._decode = decode
        self.stores = stores
        self.counts = {} if counts is None else counts
        """Records that were not taken, by the name of the store; the task reports them."""
        self.outbox = outbox
        self.inbox = inbox
        self.sends: dict[str, Send] = {}
        self.closed = False
        """Whether the body was closed, and is on its way out."""
        self.at_work = False
        self.turn = cast("OwnedLock", RLock())
        """Lock that the thread of this body holds while this body is at work; see AT_WORK."""
        self.thread = get_ident()
        """Id of the thread of the body."""
        self.tracked: set[str] = set()
        """Topics whose records user code awaits until Kafka has them."""
        self._bound: dict[tuple[Any, str], Any] = {}

    def resumed(self) -> None:
        """Bind the attributes that the body uses, unless a body of another thread is at work."""
        self.thread = get_ident()
        self.at_work = AT_WORK.acquire(blocking=False)
        if not self.at_work:
            return
        self.turn.acquire()
        for (thing, name), value in self._bound.items():
            if name not in vars(thing):
                setattr(thing, name, value)

    def paused(self) -> None:
        if not self.at_work:
            return
        self.at_work = False
        for (thing, name), value in self._bound.items():
            if vars(thing).get(name) is value:
                delattr(thing, name)
        self.turn.release()
        AT_WORK.release()

    def bind(self, thing: Any, name: str, value: Any) -> None:
        """Set `thing.name` to `value` while the body is at work; else the class's attribute counts.

        An attribute that someone else has set, such as a test's spy, stays. At most BOUND_MAX
        attributes are bound: a body that makes a topic for each record would bind all of them again
        at each wake.
        """
        if name not in vars(thing) and len(self._bound) < BOUND_MAX:
            self._bound[thing, name] = value
            setattr(thing, name, value)

    @property
    def silenced(self) -> bool:
        """Return whether what the body sends goes nowhere."""
        return self.closed and self.outbox.closes

    @property
    def value_at_hand(self) -> Any:
        """Return the value of the record at hand, decoded anew."""
        batch = self.inbox.batch
        assert batch is not None, f"{self.task}: no record at hand"
        assert self._decode is not None, f"{self.task}: no decoder"
        return self._decode(batch.values[self.inbox.index])

    def track(self, topic: str) -> None:
        """Send to this topic without the fast path from now on, because that knows no offsets."""
        self.tracked.add(topic)
        for thing, name in tuple(self._bound):
            if name == "send" and thing.name == topic:
                self._unbind(thing, name)

    def send_by(self, outbox: Outbox) -> None:
        """Send by another outbox from now on."""
        self.outbox = outbox
        self.sends.clear()
        for thing, name in tuple(self._bound):
            if name == "send":
                self._unbind(thing, name)

    def _unbind(self, thing: Any, name: str) -> None:
        value = self._bound.pop((thing, name))
        if vars(thing).get(name) is value:
            delattr(thing, name)

    def check_thread(self, kind: str, name: str) -> None:
        """Raise WrongThread unless the calling thread is that of the body."""
        if self.thread != get_ident():
            raise wrong_thread(f"{kind} {name}, task {self.task}")

    def to(self, topic: str) -> Send:
        """Return the bound sender of a topic."""
        send = self.sends.get(topic)
        if send is None:
            send = self.sends[topic] = self.outbox.to(topic)
        return send


RUNNING: Final[contextvars.ContextVar[TaskContext]] = contextvars.ContextVar(
    "streamsx running task"
)
"""Context of the running task, set once per agent instance."""


def wrong_thread(what: str) -> WrongThread:
    """Return the error for a thread that uses an object of the event loop's thread."""
    return WrongThread(
        f"used from another thread: {what}: tables and topics belong to the thread of the event "
        "loop: let the thread return what it has made, and send or store that behind its await"
    )


class Actor(Protocol):
    """Living agent, in its body."""

    idle: bool
    """Whether the actor waits for input. False while at work, or waiting for something foreign."""

    def wake(self) -> None:
        """Run the body on new input."""

    def close(self) -> None:
        """End the body where it waits."""

    def lines(self) -> Iterator[tuple[str, int]]:
        """Yield file and line of each coroutine that waits, beginning with the body's own."""


BodyFailed = Callable[[Exception], bool]
"""Callback with the error that ended a body; returns whether a new body follows."""
StartActor = Callable[[AgentNode, Values, TaskContext, BodyFailed], Actor]
"""Function of the driver that starts an actor, and gives the inbox its gate."""


def returned(agent: str) -> TaskFailed:
    """Return the error for a body that ends by itself."""
    return TaskFailed(f"agent ended: {agent}: its body returned: let it loop over its stream")
