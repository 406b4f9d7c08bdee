"""The inbox of an agent, what its `async for` iterates over, and what user code in a task reaches.

A body awaits things that are already complete (`topic.send`), its next input, or something foreign.
Within a chunk only the last of these suspends it.

Not here: how bodies get to run (`streamsx.processing.actor`), which records a task runs next, what
becomes of one that fails (`task`).
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
from operator import length_hint
from typing import Any, Final, NamedTuple, Protocol, cast

from streamsx.errors import DecodeFailed, TaskFailed, WrongThread
from streamsx.model import RECORD_BYTES_MAX, Headers, TaskId, TopicPartition
from streamsx.processing.batch import Batch, Chunk
from streamsx.serde.codec import Decode, Encoders, NoValue
from streamsx.serde.record import BLESSED
from streamsx.state.cache import CachedStore
from streamsx.topology.internal_topics import TopicSpec
from streamsx.topology.nodes import AgentNode, Source

Send = Callable[[bytes | None, bytes | None, int, Headers | None], None]
"""Key, value, timestamp in ms, headers; never awaits. Raises RecordTooLarge."""
SendRows = Callable[[Sequence[bytes], Sequence[bytes | None], int], None]
"""Keys and values as columns, one timestamp for all of them."""


SendValue = Callable[..., Awaitable[Any]]
"""Of a topic: keywords `key`, `value` and more."""
UNKNOWN: Final = -1
"""A partition or an offset that is not known, as in Kafka's clients."""


class RecordMetadata(NamedTuple):
    """A record that Kafka has, as Faust and Kafka's clients name its parts.

    `timestamp`: in ms. `partition` and `offset` are -1 where they are not known: of what a body
    sends on the fast path, and of a batch that Kafka had already.
    """

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int
    timestamp_type: int = 0


class SentRecord(NamedTuple):
    """A record on its way into a batch."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers | None


def metadata_of(topic: str, partition: int, offset: int, at_ms: int) -> RecordMetadata:
    """Return it for a record of that time."""
    return RecordMetadata(topic, partition, TopicPartition(topic, partition), offset, at_ms)


class Outbox(Protocol):
    """Where the records of a task go; given by the driver. Bound once per task and topic."""

    def to(self, topic: str, partition: int | None = None) -> Send:
        """Without a partition, the key chooses."""

    def rows(self, topic: str, partition: int) -> SendRows:
        """For changelogs."""

    def row_bytes_max(self, topic: str) -> int:
        """Return the most that key and value of a row of this changelog may have together."""
        return RECORD_BYTES_MAX

    def bound(
        self, topic: str, keys: Encoders, values: Encoders, running: "TaskContext", rare: SendValue
    ) -> SendValue:
        """`rare`, for a body at work, in as few frames as there can be; it does what is left over.

        Without an own one of these, an outbox does not mind.
        """
        return rare

    def last_sent(self, topic: str, at_ms: int) -> "Done":
        """Return the Done of the record that was sent last, to this topic."""
        return sent_to(topic, at_ms)


class Host(Protocol):
    """What timers and the app's own tasks reach, outside of tasks of ours. Given by the driver.

    Everything here is called on the thread that owns the stores.
    """

    @property
    def thread(self) -> int | None:
        """The id of that thread; None while any may call."""

    def to(self, topic: str, partition: int | None = None) -> Send:
        """As of an outbox, but no task's commit waits for it."""

    def last_sent(self, topic: str, at_ms: int) -> "Done":
        """As of an outbox."""

    def send_late(
        self, outbox: "Outbox | Host", spec: TopicSpec, partition: int | None, record: SentRecord
    ) -> "Done":
        """Send to a topic that was not known when the app began; it is looked up, or made.

        Raises UsageError for a topic that may not be made, here or where it is awaited.
        """

    def now_ms(self) -> int:
        """Since 1970."""

    def stores(self, name: str) -> Mapping[int, CachedStore]:
        """Of the tasks that run here, by partition."""

    def look(self, name: str, key: Any) -> Any:
        """Return the value of a key of a table, None where no worker has it. Raises NotHere."""

    def tell_part(self, name: str) -> None:
        """Warn once of a table of which only a part is here, for all of it is asked for."""

    def is_leader(self) -> bool:
        """Of the group."""


class Done:
    """The answer to a `send`: the record is in its batch, and nobody has to wait.

    `await topic.send(...)` gives an awaitable, and awaiting that waits until Kafka has the record:
    `await (await topic.send(...))` gives its RecordMetadata. A Done may also be handed to
    `asyncio.wait`, and to whatever takes an awaitable.
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

    def cancel(self, msg: Any = None) -> bool:  # a future's
        """Return False: the record is on its way."""
        return False

    def result(self) -> Awaitable[RecordMetadata]:
        """Return what `await` gives."""
        return self._delivery

    def exception(self) -> BaseException | None:
        """Return None: what fails raises in `send`."""
        return None

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Any = None) -> None:
        """Call it at once."""
        callback(self)

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Return 0: none waits for its call."""
        return 0


class Delivered:
    """An acknowledgement that nobody has to wait for."""

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


class OwnedLock(Protocol):
    """What we use of an RLock. `_is_owned` is also what `threading.Condition` asks of it."""

    def acquire(self, blocking: bool = True) -> bool: ...
    def release(self) -> None: ...
    def _is_owned(self) -> bool: ...


AT_WORK: Final = cast("OwnedLock", RLock())
"""The lock of the thread whose body is at work; taken without waiting.

Tables and topics keep what they found for that body in attributes, which every thread can see.
"A pool's thread writes into a table while a body is at work": it would write into that body's
store, in the middle of a change. So whoever uses such an attribute asks first whether its thread
holds the lock: `_is_owned`, called as a method, takes 20 ns. As a function kept in a variable it
takes 40, and the thread's id, compared, 50.
"""


BOUND_MAX: Final = 64
"""Tables and topics of a body; it may use more, and look them up each time."""
SKIPPED: Final = object()
"""Instead of a value that cannot be decoded."""


class Inbox:
    """Chunks for one agent instance. `position`: next offset that is safe to commit."""

    __slots__ = (
        "_chunk", "_done", "_held", "_keys", "_passed", "_raws", "_start", "_stop", "batch",
        "chunks", "ended", "gate", "index", "undecodable",
    )  # fmt: skip

    def __init__(self, position: int, undecodable: Callable[[Exception], None]) -> None:
        self.chunks: deque[Chunk] = deque()
        self.batch: Batch | None = None
        """Of the record at hand; None between two chunks."""
        self.index = 0
        self.undecodable = undecodable
        self.ended = False
        """`undecodable` has raised: that failure was one too many."""
        self.gate: Awaitable[None]
        """Where its reader waits for the next chunk; set by whoever opens it."""
        self._chunk: Chunk
        self._raws: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._start, self._stop, self._done, self._passed = 0, 0, position, 0
        self._held: list[int] = []

    @property
    def ordinal(self) -> int:
        """How many records came before the one at hand, or the next one."""
        return self._passed if self.batch is None else self._passed + self.index - self._start

    @property
    def position(self) -> int:
        """The record at hand is not done until the body asks for the next one, and one that is held
        not until it is let go.
        """
        reached = self._done if self.batch is None else self.batch.offsets[self.index]
        return min(self._held, default=reached)

    @property
    def holds(self) -> bool:
        """A record is held: its reader is to be given no more chunks."""
        return bool(self._held)

    def hold(self) -> Callable[[], None]:
        """Keep the position at the record at hand until what this returns is called, once."""
        if self.batch is None:
            return lambda: None
        offset = self.batch.offsets[self.index]
        self._held.append(offset)
        return partial(self._held.remove, offset)

    @property
    def stream_time(self) -> int:
        """That which the record at hand finds, in ms: the highest timestamp of all that its task
        has taken, up to and with its own. -1 without one.
        """
        times = self._chunk.times if self.batch is not None else None
        return -1 if times is None else times.at(self.index)

    def begin(self) -> list[bytes | None]:
        """The next chunk: its values. The list is emptied when nothing more of it may be read."""
        chunk = self._chunk = self.chunks.popleft()
        self._start, self._stop, self.index = chunk.start, chunk.stop, chunk.start - 1
        if chunk.start < chunk.stop:
            self.batch = chunk.batch
        self._raws = list(chunk.batch.values[chunk.start : chunk.stop])
        return self._raws

    def keys(self) -> list[bytes | None]:
        """Of the chunk that was begun; emptied with its values."""
        self._keys = list(self._chunk.batch.keys[self._start : self._stop])
        return self._keys

    def checked(self, decode: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
        """Return `decode` for the chunk that was begun: one that raises for a record that could not
        be read, where its batch has some.
        """
        if not self._chunk.batch.unreadable:
            return decode

        def readable(raw: Any) -> Any:
            _raise_unreadable(raw)
            return raw if decode is None else decode(raw)

        return readable

    def slowly(self, decode: Decode, decode_key: Decode | None = None) -> Any:
        """What the decoder proper makes of the value at hand, with its key where that is asked for;
        SKIPPED, and told, if nothing.
        """
        batch = self._chunk.batch
        try:
            _raise_unreadable(batch.values[self.index])
            key = decode_key and _key(decode_key, batch.keys[self.index])
            value = decode(batch.values[self.index])
            return (key, value) if decode_key else value
        except Exception as error:  # any codec's
            self.ended = True
            self.undecodable(error)
            self.ended = False
            return SKIPPED

    def finish(self, raws: list[bytes | None]) -> None:
        """What `begin` gave is read; if another loop has gone on with it, so is its last record.

        Raises LookupError where it is not: a codec's StopIteration has ended whoever reads.
        """
        if raws is not self._raws:
            self.leave()
            return
        if self.index + 1 < self._stop:
            raise LookupError("records are left")
        self._passed += self._stop - self._start
        self.batch, self._done = None, self._chunk.batch.following(self._stop)

    def leave(self) -> None:
        """A loop was left at a record, or had one failure too many, and another one begins."""
        self.ended = False
        if self.batch is not None:
            self.skip()

    def cut(self) -> None:
        """Hand out nothing behind the record at hand."""
        self.chunks.clear()
        if self.batch is not None:
            self._end()
            self._stop = self.index + 1

    def reset(self, position: int) -> None:
        """Drop what is queued; a record at hand is still done."""
        self.chunks.clear()
        self._done = position

    def skip(self) -> None:
        """Leave the record at hand behind; the rest of its chunk is the next one."""
        assert self.batch is not None, "nothing at hand to skip"
        batch, after = self.batch, self.index + 1
        self._end()
        self._raws = []
        self._passed += after - self._start
        self.batch, self._done = None, batch.following(after)
        if after < self._stop:
            self.chunks.appendleft(Chunk(batch, after, self._stop, self._chunk.times))

    def _end(self) -> None:
        """Whoever iterates over the chunk is at its end, of both columns: a key without a value
        would still be decoded, fail, and be looked at with its record.
        """
        self._raws.clear()
        self._keys.clear()


def _key(decode: Decode, data: bytes | None) -> Any:
    """Decode a key. A missing one of a Record is a fault of the record, as no missing value is."""
    try:
        return decode(data)
    except NoValue as error:
        raise DecodeFailed(f"key of a record: {error}") from error


class Values:
    """The decoded values of an inbox: what a body's stream gives. Each loop over it goes on behind
    the record where the one before was left, or cancelled.

    Decoded one by one, lazily, by functions without a frame of ours: a value that is dropped before
    the next one is made leaves its memory to it. By the chunk it is 30-90 % dearer.
    """

    __slots__ = ("_inbox", "_source")

    def __init__(self, inbox: Inbox, source: Source) -> None:
        self._inbox, self._source = inbox, source

    async def __aiter__(self) -> AsyncIterator[Any]:
        inbox, decode = self._inbox, self._source.values.decode
        loads, blessed = self._source.values.quick
        inbox.leave()
        while True:
            while not inbox.chunks:
                await inbox.gate
            raws = inbox.begin()
            left = iter(raws)
            decode_each = inbox.checked(loads)
            values: Iterator[Any] = left if decode_each is None else map(decode_each, left)
            while True:
                first = inbox.index + 1
                try:
                    for inbox.index, value in enumerate(values, first):  # its slot, no new name
                        if not blessed or type(value) is not dict or BLESSED not in value:
                            yield value
                        elif (model := inbox.slowly(decode)) is not SKIPPED:
                            yield model
                    inbox.finish(raws)
                    break
                except Exception:  # any codec's, over the next one
                    if inbox.ended:
                        raise
                    inbox.index += 1
                if (value := inbox.slowly(decode)) is not SKIPPED:
                    yield value

    async def items(self) -> AsyncIterator[tuple[Any, Any]]:
        """Keys with values. A key that cannot be decoded counts as such a record does."""
        inbox, source = self._inbox, self._source
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
            keys, left = iter(inbox.keys()), iter(raws)
            decode = inbox.checked(loads) or loads
            pairs = zip(map(decode_key, keys), map(decode, left), strict=False)
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
    """Raise the error that stands in the place of a value that could not be read."""
    if isinstance(raw, DecodeFailed):
        raise DecodeFailed(str(raw))


def _align(keys: Iterator[Any], values: Iterator[Any]) -> None:
    """A key that could not be decoded is gone from its column, and its value is still there."""
    if length_hint(keys) < length_hint(values):
        next(values)


class TaskContext:
    """What user code in a task reaches: its stores, its outbox, the record at hand.

    While a body is in our turn (`resumed` until `paused`), nobody else runs. So what it uses may
    keep what it found here in an attribute of its own (`bind`), until the pause: a look-up of the
    context and two of dicts less each time.
    """

    __slots__ = (
        "_bound", "at_work", "inbox", "outbox", "sends", "stores", "task", "thread", "tracked",
        "turn",
    )  # fmt: skip

    def __init__(
        self, task: TaskId, stores: Mapping[str, Any], outbox: Outbox, inbox: Inbox
    ) -> None:
        self.task, self.stores, self.outbox, self.inbox = task, stores, outbox, inbox
        self.sends: dict[str, Send] = {}
        self.at_work = False
        self.turn = cast("OwnedLock", RLock())
        """The thread of this body holds it while this body is at work; see AT_WORK."""
        self.thread = get_ident()
        """Of its body."""
        self.tracked: set[str] = set()
        """Topics whose records are awaited until Kafka has them."""
        self._bound: dict[tuple[Any, str], Any] = {}

    def resumed(self) -> None:
        """Bind what the body uses; not while a body of another thread is at work."""
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
        """`thing.name` is `value`, at work; else what its class says. Who has put something of his
        own there, a test its spy, keeps it. So many things and no more: a body that makes a topic
        for each record would find all of them again at each wake.
        """
        if name not in vars(thing) and len(self._bound) < BOUND_MAX:
            self._bound[thing, name] = value
            setattr(thing, name, value)

    def track(self, topic: str) -> None:
        """Send to this topic without the fast path from now on: it knows no offsets."""
        self.tracked.add(topic)
        for thing, name in tuple(self._bound):
            if name == "send" and thing.name == topic:
                value = self._bound.pop((thing, name))
                if vars(thing).get(name) is value:
                    delattr(thing, name)

    def check_thread(self, kind: str, name: str) -> None:
        """Raise WrongThread unless the thread that asks is that of the body."""
        if self.thread != get_ident():
            raise wrong_thread(f"{kind} {name}, task {self.task}")

    def to(self, topic: str) -> Send:
        """The bound sender of a topic."""
        send = self.sends.get(topic)
        if send is None:
            send = self.sends[topic] = self.outbox.to(topic)
        return send


RUNNING: Final[contextvars.ContextVar[TaskContext]] = contextvars.ContextVar(
    "streamsx running task"
)
"""Set once per agent instance."""


def wrong_thread(what: str) -> WrongThread:
    """Make the error of a thread that uses what belongs to the event loop's."""
    return WrongThread(
        f"used from another thread: {what}: tables and topics belong to the thread of the event "
        "loop: let the thread return what it has made, and send or store that behind its await"
    )


class Actor(Protocol):
    """A living agent, in its body."""

    idle: bool
    """It waits for input. False: it is at work, or waits for something foreign."""

    def wake(self) -> None:
        """There is input."""

    def close(self) -> None:
        """Ends the body where it waits."""


BodyFailed = Callable[[Exception], bool]
"""Told of what ended a body; whether another one follows."""
StartActor = Callable[[AgentNode, Values, TaskContext, BodyFailed], Actor]
"""Given by the driver; it gives the inbox its gate."""


def returned(agent: str) -> TaskFailed:
    """For a body that ends by itself."""
    return TaskFailed(f"agent ended: {agent}: its body returned: let it loop over its stream")
