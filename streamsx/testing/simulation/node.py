"""The broker of a world: the product's coordinator and codec, with a disk, logs and connections.

One request per connection at a time, in order, as Kafka: what is parked holds up what comes behind.
The disk survives a crash, and so do the logs. A crash may wait for the next write and come right
before or right behind it: two of the points at which seed 001 lets a coordinator fail, in each half
of a round.

Not here: who asks; when it crashes.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamsx.broker import events as b
from streamsx.broker.coordinator import Coordinator
from streamsx.kafka import wire
from streamsx.kafka.errors import ErrorCode
from streamsx.kafka.wire import Api
from streamsx.model import TopicPartition
from streamsx.testing.simulation.heap import Heap, Life
from streamsx.testing.simulation.network import Connection, Network

if TYPE_CHECKING:
    from streamsx.broker.records import Key, Value

GROUP = "app"
LENGTH_BYTES = 4
PEER = b.Peer("", "localhost")
TOLD = ("error_code", "member_id", "generation_id", "generation_id_or_member_epoch", "leader")
"""Of a message, in a story."""
RESTART_S, LOADING_S = 1.0, 0.5
Row = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Frame:
    """A request or an answer, as on the wire."""

    api: Api
    version: int
    data: bytes
    answer: bool = False

    def read(self) -> Any:
        """The message."""
        body = memoryview(self.data)[LENGTH_BYTES:]
        if self.answer:
            return wire.response_decoder(self.api, self.version)(body)
        return wire.request_decoder(self.api, self.version)(body)[1]

    def __str__(self) -> str:
        said = ((name, getattr(self.read(), name, None)) for name in TOLD)
        words = [f"{name}={value}" for name, value in said if value]
        return " ".join([self.api.name, *words])


@dataclass(frozen=True, slots=True)
class Produce:
    """Rows for logs; answered with the next offset of each."""

    rows: tuple[tuple[TopicPartition, tuple[Row, ...]], ...]

    def __str__(self) -> str:
        return "Produce " + " ".join(f"{log}: {len(some)}" for log, some in self.rows)


@dataclass(frozen=True, slots=True)
class Fetch:
    """Rows of one log from an offset on; answered by `Fetched`."""

    log: TopicPartition
    offset: int
    rows_max: int


@dataclass(frozen=True, slots=True)
class Fetched:
    rows: tuple[Row, ...]
    end: int

    def __str__(self) -> str:
        return f"Fetched {len(self.rows)}, end={self.end}"


class Node:
    """`watch_*` are called when something has happened; `host`: whose request it was."""

    def __init__(
        self,
        heap: Heap,
        network: Network,
        coordinator: Callable[[], Coordinator],
        topics: Mapping[str, int],
        *,
        mutes: bool,
    ) -> None:
        self.heap, self.network = heap, network
        self.life, self.host = Life("broker"), ""
        self.disk: dict[Key, Value] = {}
        self.logs: dict[TopicPartition, list[Row]] = {}
        self.watch_events: list[Callable[[b.Event], None]] = []
        self.watch_writes: list[Callable[[b.Persist], None]] = []
        self.watch_logs: list[Callable[[Produce], None]] = []
        self.crash_at: str | None = None
        self._topics = {name: (name.encode().ljust(16), n) for name, n in topics.items()}
        self._coordinator, self._mutes, self._loading_until = coordinator, mutes, 0.0
        network.server = self
        self._load()

    def _load(self) -> None:
        self.machine = self._coordinator()
        self._queues: dict[Connection, deque[tuple[int, object]]] = {}
        self._waiting: dict[int, tuple[Connection, int, Frame]] = {}
        self._wakes: dict[str, int] = {}
        rows = sorted(self.disk.items(), key=lambda row: (type(row[0]).__name__, row[0]))
        self._step(b.Load(tuple(rows)))
        self._step(b.Topics(self._topics))

    # Connections.

    def arrive(self, connection: Connection, number: int, request: object) -> None:
        queue = self._queues.setdefault(connection, deque())
        queue.append((number, request))
        if len(queue) == 1:
            self._handle(connection, number, request)

    def gone(self, connection: Connection) -> None:
        connection.served = False
        if self.life.over:
            return
        self._queues.pop(connection, None)
        for waiter in [w for w, (asker, *_) in self._waiting.items() if asker is connection]:
            del self._waiting[waiter]
            self._step(b.Gone(waiter))

    def _handle(self, connection: Connection, number: int, request: object) -> None:
        self.host = connection.path.life.host
        match request:
            case Frame():
                waiter = self.heap.events
                self._waiting[waiter] = (connection, number, request)
                self._ask(waiter, request)
            case Produce(rows):
                for log, some in rows:
                    self.logs.setdefault(log, []).extend(some)
                for watch in self.watch_logs:
                    watch(request)
                self._done(connection, number, {log: len(self.logs[log]) for log, _ in rows})
            case Fetch(log, offset, rows_max):
                there = self.logs.setdefault(log, [])
                fetched = Fetched(tuple(there[offset : offset + rows_max]), len(there))
                self._done(connection, number, fetched)

    def _done(self, connection: Connection, number: int, answer: object) -> None:
        self.network.reply(connection, number, answer)
        queue = self._queues.get(connection)
        if queue:
            queue.popleft()
            if queue:
                self._handle(connection, *queue[0])

    # The coordinator.

    def _ask(self, waiter: int, frame: Frame) -> None:
        wall_ms, fresh_id = int(self.heap.now * 1000), f"{self.heap.events:06d}"
        request = b.Request(waiter, frame.api, frame.version, PEER, frame.read(), fresh_id, wall_ms)
        if self.heap.now < self._loading_until:
            self._perform([self.machine.refuse(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)])
        else:
            self._step(request)

    def _step(self, event: b.Event) -> None:
        if self._perform(self.machine.step(self.heap.now, event)):
            for watch in self.watch_events:
                watch(event)

    def _perform(self, effects: list[b.Effect]) -> bool:
        """False: it crashed meanwhile."""
        for effect in effects:
            match effect:
                case b.Persist():
                    if not self._persist(effect):
                        return False
                case b.Reply(waiter, body):
                    self._answer(waiter, body)
                case b.Wake(group, at):
                    self._wake(group, at)
                case b.Story(text):
                    self.heap.note(self.life, "", text)
        return True

    def _answer(self, waiter: int, body: b.Body) -> None:
        connection, number, asked = self._waiting.pop(waiter)
        removed = body.get("error_code") == ErrorCode.UNKNOWN_MEMBER_ID
        parked = waiter != self.heap.events
        if self._mutes and removed and parked and asked.api is Api.SYNC_GROUP:
            return
        data = wire.response_encoder(asked.api, asked.version)(0, body)
        self._done(connection, number, Frame(asked.api, asked.version, bytes(data), True))

    def _persist(self, write: b.Persist) -> bool:
        crash_at, self.crash_at = self.crash_at, None
        if crash_at != "before":
            self.disk |= dict(write.puts)
            self.disk = {k: v for k, v in self.disk.items() if k not in write.deletes}
            for watch in self.watch_writes:
                watch(write)
        if crash_at is not None:
            self.crash(RESTART_S, LOADING_S)
        return crash_at is None

    def _wake(self, group: str, at: float) -> None:
        self._wakes[group] = number = self._wakes.get(group, 0) + 1

        def tick() -> None:
            if self._wakes.get(group) == number:
                self._step(b.Tick(group, int(self.heap.now * 1000)))

        self.heap.at(at, self.life, "tick", group, tick)

    def crash(self, down_s: float, loading_s: float) -> None:
        """Connections break; what is not on disk is gone. Then it loads for a while."""

        def restart() -> None:
            self.life = Life("broker")
            self._loading_until = self.heap.now + loading_s
            self._load()

        self.life.over = True
        self.network.server_died()
        self.heap.note(self.life, "crash", f"back in {down_s:.1f} s")
        self.heap.after(down_s, Life("broker"), "restart", None, restart)
