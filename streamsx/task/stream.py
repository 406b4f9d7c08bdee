"""The inbox of an agent, what its `async for` iterates over, and the pump that steps bodies by
hand.

A body awaits things that are already complete (`topic.send`) or its next input; then nothing ever
suspends inside a chunk, and `StepPump` needs no event loop. Whatever else a body awaits is refused
here; `streamsx.engine.pump` allows it.

Not here: which records a task runs next, what becomes of one that fails (`task`).
"""

import contextvars
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from streamsx.errors import TaskFailed
from streamsx.model import Headers, TaskId
from streamsx.state.cache import CachedStore
from streamsx.task.batch import Batch, Chunk
from streamsx.topology.nodes import AgentNode, Decode

Send = Callable[[bytes | None, bytes | None, int, Headers | None], None]
"""Key, value, timestamp in ms, headers; never awaits. Raises RecordTooLarge."""
SendRows = Callable[[Sequence[bytes], Sequence[bytes | None], int], None]
"""Keys and values as columns, one timestamp for all of them."""


class Outbox(Protocol):
    """Where the records of a task go; given by the driver. Bound once per task and topic."""

    def to(self, topic: str, partition: int | None = None) -> Send:
        """Without a partition, the key chooses."""

    def rows(self, topic: str, partition: int) -> SendRows:
        """For changelogs."""


class Host(Protocol):
    """What user code reaches outside of tasks: in timers, commands and pages. Given by the driver.

    Everything here is called on the thread that owns the stores.
    """

    def to(self, topic: str, partition: int | None = None) -> Send:
        """As of an outbox, but no task's commit waits for it."""

    def now_ms(self) -> int:
        """Since 1970."""

    def stores(self, name: str) -> Mapping[int, CachedStore[Any, Any]]:
        """Of the tasks that run here, by partition."""

    def is_leader(self) -> bool:
        """Of the group."""


class NeedInput:
    """What a body waits for when it has used up its inbox."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        yield self


NEED_INPUT: Final = NeedInput()


class Done:
    """What an engine call inside a body returns: already complete.

    Awaiting it runs no Python: `__await__` is the method of an iterator that has ended, and gives
    that iterator. 20 ns each time, against 60 with a generator.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, None, None]: ...
    else:
        __await__ = iter(()).__iter__


DONE: Final = Done()


def need_input() -> Awaitable[None]:
    """How an inbox waits unless its pump says otherwise."""
    return NEED_INPUT


class Inbox:
    """Chunks for one agent instance. `position`: next offset that is safe to commit."""

    __slots__ = (
        "_done", "_passed", "_raws", "_start", "_stop", "batch", "chunks", "index", "undecodable",
        "wait",
    )  # fmt: skip

    def __init__(self, position: int, undecodable: Callable[[Exception], None]) -> None:
        self.chunks: deque[Chunk] = deque()
        self.batch: Batch | None = None
        """Of the record at hand; None between two chunks."""
        self.index = 0
        self.undecodable = undecodable
        self.wait: Callable[[], Awaitable[None]] = need_input
        self._raws: list[bytes | None] = []
        self._start, self._stop, self._done, self._passed = 0, 0, position, 0

    @property
    def ordinal(self) -> int:
        """How many records came before the one at hand, or the next one."""
        return self._passed if self.batch is None else self._passed + self.index - self._start

    @property
    def position(self) -> int:
        """The record at hand is not done until the body asks for the next one."""
        return self._done if self.batch is None else self.batch.offsets[self.index]

    @property
    def timestamp(self) -> int:
        """Of the record at hand, in ms; -1 without one."""
        return -1 if self.batch is None else self.batch.timestamps[self.index]

    def begin(self) -> tuple[Batch, int, list[bytes | None]]:
        """The next chunk: its batch, where in it it begins, and its values."""
        batch, self._start, self._stop = self.chunks.popleft()
        if self._start < self._stop:
            self.batch, self.index = batch, self._start
        self._raws = list(batch.values[self._start : self._stop])
        return batch, self._start, self._raws

    def finish(self, batch: Batch) -> None:
        self._passed += self._stop - self._start
        self.batch, self._done = None, batch.following(self._stop)

    def cut(self) -> None:
        """Hand out nothing behind the record at hand."""
        self.chunks.clear()
        if self.batch is not None:
            self._raws.clear()  # whoever iterates over it is at its end
            self._stop = self.index + 1

    def reset(self, position: int) -> None:
        """Drop what is queued; a record at hand is still done."""
        self.chunks.clear()
        self._done = position

    def skip(self) -> None:
        """Leave the record at hand behind; the rest of its chunk is the next one."""
        assert self.batch is not None, "nothing at hand to skip"
        batch, after = self.batch, self.index + 1
        self._passed += after - self._start
        self.batch, self._done = None, batch.following(after)
        if after < self._stop:
            self.chunks.appendleft(Chunk(batch, after, self._stop))


async def values(inbox: Inbox, decode: Decode) -> AsyncIterator[Any]:
    """The decoded values of an inbox, for as long as its agent lives."""
    while True:
        while not inbox.chunks:
            await inbox.wait()
        batch, start, raws = inbox.begin()
        for inbox.index, raw in enumerate(raws, start):  # its slot, no new name
            try:
                value = decode(raw)
            except Exception as error:  # any codec's
                inbox.undecodable(error)
                continue
            yield value
        inbox.finish(batch)


class Running:
    """What user code in a task reaches: its stores, its outbox, the record at hand."""

    __slots__ = ("inbox", "outbox", "sends", "stores", "task")

    def __init__(
        self, task: TaskId, stores: Mapping[str, Any], outbox: Outbox, inbox: Inbox
    ) -> None:
        self.task, self.stores, self.outbox, self.inbox = task, stores, outbox, inbox
        self.sends: dict[str, Send] = {}

    def to(self, topic: str) -> Send:
        """The bound sender of a topic."""
        send = self.sends.get(topic)
        if send is None:
            send = self.sends[topic] = self.outbox.to(topic)
        return send


RUNNING: Final[contextvars.ContextVar[Running]] = contextvars.ContextVar("streamsx running task")
"""Set once per agent instance."""


class Instance(Protocol):
    """A living body."""

    idle: bool
    """It waits for input. False: it is at work, or waits for something foreign."""

    def wake(self) -> None:
        """There is input. By hand: used up on return. In a loop: `idle` says when."""

    def close(self) -> None:
        """Ends the body where it waits."""


class Pump(Protocol):
    """How bodies get to run; one per task."""

    def start(
        self,
        agent: AgentNode,
        stream: AsyncIterator[Any],
        running: Running,
        failed: Callable[[Exception], None],
    ) -> Instance:
        """A body that is not yet woken. `failed` is called once, with what ended it."""


class StepInstance:
    """A body that `coroutine.send` moves on, in a context of its own."""

    def __init__(
        self,
        agent: AgentNode,
        stream: AsyncIterator[Any],
        running: Running,
        failed: Callable[[Exception], None],
    ) -> None:
        self.idle = True
        self._name, self._failed = agent.name, failed
        self._context = contextvars.copy_context()
        self._context.run(RUNNING.set, running)
        self._coroutine = agent.body(stream)

    def wake(self) -> None:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)  # a running loop must not adopt what is stepped by hand
        try:
            asked = self._context.run(self._coroutine.send, None)
        except StopIteration:
            self._failed(returned(self._name))
        except Exception as error:  # the body's own
            self._failed(error)
        else:
            if asked is not NEED_INPUT:
                raise TaskFailed(
                    f"agent waits for something foreign: {self._name}: {asked!r}: "
                    "it needs the event loop of a worker"
                )
        finally:
            sys.set_asyncgen_hooks(*hooks)

    def close(self) -> None:
        self._coroutine.close()


def returned(agent: str) -> TaskFailed:
    """For a body that ends by itself."""
    return TaskFailed(f"agent ended: {agent}: its body returned: let it loop over its stream")


class StepPump:
    """Bodies stepped by hand: tests, Spark, the discovery of derived topics."""

    def start(
        self,
        agent: AgentNode,
        stream: AsyncIterator[Any],
        running: Running,
        failed: Callable[[Exception], None],
    ) -> StepInstance:
        return StepInstance(agent, stream, running, failed)
