"""Batches that are open, closed or on their way to their partitions, and what leaves next. Pure.

One batch of a partition is on its way at a time, and one that failed keeps its place and its
numbers: nothing overtakes it and nothing arrives twice.

A partition that has no leader, or is refused, pauses alone: the others are sent as before. A batch
that is refused for good leaves its place to what is left of it (`refusal`).

Not here: who numbers batches (`idempotence`), connections, the lease, timers; the records of the
record path go straight into `OutPartition.builder`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from streamsx.client.idempotence import FORGOTTEN, Idempotence
from streamsx.client.rejected_batch import (
    OUTSIDE,
    TOO_LARGE,
    BatchRefusal,
    RefusedRecord,
    Run,
    Sender,
    rework,
)
from streamsx.client.topic_limits import ALWAYS_ASKED, SIZE, UNKNOWN, TopicLimits
from streamsx.errors import RecordTooLarge
from streamsx.model import BATCH_BYTES_MAX, Headers, TaskId, TopicPartition
from streamsx.protocol.error_codes import RETRIABLE, ErrorCode
from streamsx.protocol.record_batch import HEADER_BYTES, Builder, stamp

SEND_BYTES = 64 << 10
"""An open batch of this size does not wait for its linger."""
REQUEST_BYTES_MAX = 16 << 20
"""Of the batches in one request. Kafka hangs up on a request of 100 MiB, each time it comes."""
REQUEST_TIMEOUT_S = 30.0
ACKS_ALL = -1
BACKOFF_S = 0.1
PAUSED_SHARE = 1 / 2
"""Of the buffer, for partitions that take nothing: then whose records are there is fed no more."""
REFUSED_MAX: Final = 16
"""Batches of a partition whose refused records are kept for those who await them."""
NO_TASKS: Final = frozenset[TaskId]()


@dataclass(slots=True)
class NumberedBatch:
    """A batch that has left at least once, and waits for its acknowledgement."""

    data: bytearray
    records: int
    runs: list[Run]
    completes: bool
    """Its acknowledgement is that of a batch as it was closed: its whole, or its last part."""
    origins: Sequence[int] | None = None
    """Index of each record in the batch as it was closed; None where nothing has changed."""


class ClosedBatch(NamedTuple):
    """A batch that nothing more goes into, and that has no numbers."""

    builder: Builder
    runs: list[Run]
    completes: bool = True
    origins: Sequence[int] | None = None


class OutputTopic:
    """A topic that is sent to: its partitions, those of its keys, and its limits."""

    __slots__ = ("batch_bytes", "changelog", "known", "lanes", "limits", "name")

    def __init__(self, name: str) -> None:
        self.name, self.changelog = name, False
        self.lanes: list[OutputPartition] = []
        self.known: dict[bytes | None, OutputPartition] = {}
        """Keys that were sent, and where; one memory for all tasks."""
        self.limits, self.batch_bytes = UNKNOWN, BATCH_BYTES_MAX

    def limit(self, limits: TopicLimits) -> None:
        """Keep to these limits from the next batch on."""
        self.limits = limits
        self.batch_bytes = min(BATCH_BYTES_MAX, limits.bytes_max)
        for lane in self.lanes:
            lane.latest = ALWAYS_ASKED

    def too_large(self, size: int, records: int) -> None:
        """Learn from a refusal: of one record the limit, of several a smaller batch."""
        if records == 1:
            self.limits = self.limits.shrunk(size - 1)
        half = (size + HEADER_BYTES) // 2 + 1
        self.batch_bytes = min(self.batch_bytes, half)


class OutputPartition:
    """The batch that has left, those that are closed behind it, and the open one, in order."""

    __slots__ = (
        "_compression", "_opened", "acknowledged", "builder", "closed", "end", "flying", "latest",
        "left", "queue", "refused", "retry_at", "reworked", "runs", "since", "topic", "tp",
        "writer",
    )  # fmt: skip

    def __init__(
        self,
        tp: TopicPartition,
        compression: str,
        opened: Callable[["OutputPartition"], object],
        topic: OutputTopic | None = None,
    ) -> None:
        self.tp, self._compression, self._opened = tp, compression, opened
        self.topic = topic or OutputTopic(tp.topic)
        self.builder: Builder | None = None
        self.runs: list[Run] = []
        """Of the open batch."""
        self.writer: Sender | None = None
        """The sender of the newest record."""
        self.latest = ALWAYS_ASKED
        """Records up to this time need no look at the topic's limits."""
        self.queue: deque[ClosedBatch] = deque()
        self.left: NumberedBatch | None = None
        """Until it is acknowledged, also while it is not on its way."""
        self.closed = self.acknowledged = 0
        """Batches, ever; a flush waits until so many are acknowledged as were closed."""
        self.reworked = 0
        """Number of the newest batch that was refused: offsets in it are not known."""
        self.refused: dict[int, dict[int, int]] = {}
        """Of the newest batches with refused records: number -> index -> the broker's code."""
        self.flying, self.end = False, -1
        self.since = 0.0
        """When the last batch got its first record."""
        self.retry_at = 0.0
        """Not before; 0 when it does not pause."""

    def open(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """Begin a batch with one record. Raise RecordTooLarge for one over the topic's limit."""
        topic = self.topic
        builder = Builder(topic.batch_bytes, compression=self._compression)
        builder.append(timestamp, key, value, headers)
        if builder.size > topic.limits.bytes_max:
            raise RecordTooLarge(
                f"record too large: {self.tp.topic}: {builder.size} bytes, the limit is "
                f"{topic.limits.bytes_max} ({SIZE} of the topic): split it, or raise that"
            )
        self._begin(builder)

    def open_row(self, timestamp: int, key: bytes, value: bytes | None) -> None:
        """Begin a batch with one row of a changelog, whose size its store has looked at."""
        builder = Builder(self.topic.batch_bytes, compression=self._compression)
        builder.append(timestamp, key, value)
        self._begin(builder)

    def _begin(self, builder: Builder) -> None:
        self.builder = builder
        self.runs = [self._run(self.writer or OUTSIDE, 0)]
        self._opened(self)

    def written_by(self, sender: Sender) -> None:
        """Note who sends from the next record on; called when that changes, not for each."""
        self.writer = sender
        if sender.task is not None:  # others seal nothing
            sender.wrote[self] = None
        if self.builder is not None:
            self.runs.append(self._run(sender, self.builder.count))

    def _run(self, sender: Sender, start: int) -> Run:
        at_hand = sender.at_hand
        return Run(start, sender, None if at_hand is None else at_hand())

    @property
    def closed_bytes(self) -> int:
        """Of what is closed and not acknowledged."""
        size = sum(batch.builder.size for batch in self.queue)
        return size if self.left is None else size + len(self.left.data)

    def all_runs(self) -> Iterator[Run]:
        """Give the runs of all batches that are not acknowledged."""
        if self.left is not None:
            yield from self.left.runs
        for batch in self.queue:
            yield from batch.runs
        if self.builder is not None:
            yield from self.runs

    def close(self) -> int:
        """Nothing more goes into the open batch; its bytes."""
        builder = self.builder
        assert builder is not None, "nothing open to close"
        self.queue.append(ClosedBatch(builder, self.runs))
        self.closed += 1
        self.builder = None
        return builder.size

    def refuse(self, codes: Mapping[int, int]) -> None:
        """Keep which records of the batch that has just been refused are not sent, for a while:
        whoever awaits one of them is to know.
        """
        if codes:
            self.refused.setdefault(self.reworked, {}).update(codes)
        if len(self.refused) > REFUSED_MAX:
            del self.refused[next(iter(self.refused))]

    def drop(self) -> None:
        """What is not acknowledged is gone, and nobody waits for it."""
        self.queue.clear()
        self.builder = self.left = None
        self.acknowledged = self.closed


class Sent(NamedTuple):
    """A batch on its way; an answer is its own, and never one's that took its place."""

    lane: OutputPartition
    batch: NumberedBatch


class Acknowledged(NamedTuple):
    """What a broker says of one batch."""

    code: int
    base_offset: int
    named: Mapping[int, str] = MappingProxyType({})
    """Records that it is refused for, by index, and what is said of each."""
    said: str = ""


class SendRefused(NamedTuple):
    """`again`: the same batch goes after a pause, and a leader may have moved; else `records` are
    not sent, and the others of the batch are.
    """

    tp: TopicPartition
    code: int
    again: bool
    records: tuple[RefusedRecord, ...] = ()


class RecordAccumulator:
    """All partitions of one producer. Time is in seconds of a monotonic clock."""

    def __init__(
        self,
        compression: str,
        opened: Callable[[OutputPartition], object],
        numbers: Idempotence,
        *,
        linger_s: float,
        buffer_bytes: int,
    ) -> None:
        """`opened` hears of each batch that gets its first record, and says here when that was."""
        self._compression, self._tell_opened, self._numbers = compression, opened, numbers
        self._linger_s, self._buffer_bytes = linger_s, buffer_bytes
        self.topics: dict[str, OutputTopic] = {}
        self._partitions: dict[TopicPartition, OutputPartition] = {}
        self._waiting: dict[TopicPartition, OutputPartition] = {}
        """With something to send and nothing on its way."""
        self._open: dict[TopicPartition, OutputPartition] = {}
        """With an open batch."""
        self._paused: dict[TopicPartition, OutputPartition] = {}
        """Whose newest try has failed."""
        self._closed_bytes = 0
        self._largest = BATCH_BYTES_MAX
        """The most that an open batch may have; one record may be larger than other batches."""

    # -- what is sent

    def topic(self, name: str) -> OutputTopic:
        """Return the same one each time."""
        if name not in self.topics:
            self.topics[name] = OutputTopic(name)
        return self.topics[name]

    def partition(self, tp: TopicPartition) -> OutputPartition:
        """The same one each time."""
        if tp not in self._partitions:
            topic = self.topic(tp.topic)
            self._partitions[tp] = OutputPartition(tp, self._compression, self._tell_opened, topic)
        return self._partitions[tp]

    def opened(self, lane: OutputPartition, now: float) -> None:
        """It has a batch with a first record."""
        assert lane.builder is not None, "opened without a batch"
        lane.since, self._largest = now, max(self._largest, lane.builder.size)
        self._open[lane.tp] = lane
        if not lane.flying:
            self._waiting[lane.tp] = lane

    def close(self, lane: OutputPartition) -> None:
        """Nothing more goes into its open batch."""
        del self._open[lane.tp]
        self._closed_bytes += lane.close()

    def full(self, *, but_paused: bool = False) -> bool:
        """More is unsent, or sent and not acknowledged, than may be: whoever can wait, waits.

        Timers ask before each record; so few open batches that they could not fill it are not
        looked at. `but_paused`: partitions that pause are left out; whose records wait there waits
        alone (`crowding`).
        """
        room = self._buffer_bytes - self._closed_bytes
        if but_paused and self._paused:
            room += sum(lane.closed_bytes for lane in self._paused.values())
        if len(self._open) * self._largest <= room:
            return False
        left_out = self._paused if but_paused else ()
        builders = [lane.builder for tp, lane in self._open.items() if tp not in left_out]
        return sum(builder.size for builder in builders if builder) > room

    def crowding(self) -> frozenset[TaskId]:
        """Return the tasks with records in partitions that pause, once these hold too much."""
        if not self._paused:
            return NO_TASKS
        lanes = self._paused.values()
        held = sum(lane.closed_bytes + (lane.builder.size if lane.builder else 0) for lane in lanes)
        if held <= self._buffer_bytes * PAUSED_SHARE:
            return NO_TASKS
        runs = [run for lane in lanes for run in lane.all_runs()]
        return frozenset(run.sender.task for run in runs if run.sender.task is not None)

    def flush(self) -> list[tuple[OutputPartition, int]]:
        """Closes what is open; what is to be `acknowledged` for everything to have arrived. Of one
        task alone `Sender.seal` says so."""
        for lane in tuple(self._open.values()):
            self.close(lane)
        lanes = self._partitions.values()
        return [(lane, lane.closed) for lane in lanes if lane.acknowledged < lane.closed]

    def ends(self) -> dict[TopicPartition, int]:
        """The offset behind what was acknowledged last, where it is known."""
        return {tp: lane.end for tp, lane in self._partitions.items() if lane.end >= 0}

    def drop(self, tps: Iterable[TopicPartition]) -> bool:
        """What is not acknowledged of these never leaves; whether something is on its way.

        Whether the numbers of what has left were used nobody knows, so they begin anew.
        """
        lanes = [self._partitions[tp] for tp in tps if tp in self._partitions]
        for lane in lanes:
            if lane.left is not None:
                self._numbers.renew(lane.tp)
            self._closed_bytes -= lane.closed_bytes
            lane.drop()
            self._waiting.pop(lane.tp, None)
            self._open.pop(lane.tp, None)
            self._paused.pop(lane.tp, None)
        return any(lane.flying for lane in lanes)

    # -- requests

    def next_at(self) -> float | None:
        """When something is due that nobody has sent; None while there is nothing."""
        return min(map(self._due_at, self._waiting.values()), default=None)

    def _due_at(self, lane: OutputPartition) -> float:
        if lane.acknowledged < lane.closed:
            return lane.retry_at
        assert lane.builder is not None, "waiting without a batch"
        large = lane.builder.size >= SEND_BYTES
        return lane.retry_at if large else max(lane.retry_at, lane.since + self._linger_s)

    def due(
        self, now: float, leader: Callable[[TopicPartition], int | None]
    ) -> tuple[dict[int, list[OutputPartition]], list[OutputPartition]]:
        """What may leave now, by broker; and what could, if it had a leader: that pauses."""
        by_node: dict[int, list[OutputPartition]] = {}
        leaderless: list[OutputPartition] = []
        for lane in self._waiting.values():
            if self._due_at(lane) > now:
                continue
            node = leader(lane.tp)
            if node is None:
                leaderless.append(lane)
            else:
                by_node.setdefault(node, []).append(lane)
        self.pause(now, leaderless)
        return by_node, leaderless

    def pause(self, now: float, lanes: Iterable[OutputPartition]) -> None:
        """Not at once again."""
        for lane in lanes:
            lane.retry_at = now + BACKOFF_S
            self._paused[lane.tp] = lane

    def _goes_on(self, lane: OutputPartition) -> None:
        """Its broker has answered for its batch: it does not pause."""
        lane.retry_at = 0.0
        self._paused.pop(lane.tp, None)

    def requests(self, lanes: Iterable[OutputPartition]) -> Iterator[list[Sent]]:
        """They leave, the first batch of each, in requests of a size that a broker takes."""
        request, size = list[Sent](), 0
        for lane in lanes:
            lane.flying = True
            del self._waiting[lane.tp]
            batch = lane.left = lane.left or self._first(lane)
            if request and size + len(batch.data) > REQUEST_BYTES_MAX:
                yield request
                request, size = [], 0
            request.append(Sent(lane, batch))
            size += len(batch.data)
        if request:
            yield request

    def _first(self, lane: OutputPartition) -> NumberedBatch:
        """The batch that leaves next; from now on it has its numbers."""
        if not lane.queue:
            self.close(lane)
        builder, runs, completes, origins = lane.queue.popleft()
        records, size = builder.count, builder.size
        data = builder.close(*self._numbers.number(lane.tp, records))
        self._closed_bytes += len(data) - size
        return NumberedBatch(data, records, runs, completes, origins)

    def answered(
        self, now: float, request: Iterable[Sent], answers: Mapping[TopicPartition, Acknowledged],
        now_ms: int = 0,
    ) -> list[SendRefused]:  # fmt: skip
        """What became of a request. Where there is no answer nobody knows what has arrived: the
        same bytes again. `now_ms`: for rows of changelogs that are refused for their time.
        """
        outcomes = list[SendRefused]()
        for lane, batch in request:
            lane.flying = False
            answer = answers.get(lane.tp)
            if answer is None:
                self.pause(now, [lane])
            elif lane.left is batch:  # else it was dropped
                outcomes += self._answered(now, lane, batch, answer, now_ms)
            if not lane.flying and (lane.left or lane.queue or lane.builder):
                self._waiting[lane.tp] = lane
        return outcomes

    def _answered(
        self, now: float, lane: OutputPartition, batch: NumberedBatch, answer: Acknowledged,
        now_ms: int,
    ) -> list[SendRefused]:  # fmt: skip
        code = answer.code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            lane.left = None
            self._goes_on(lane)
            lane.acknowledged += batch.completes
            self._closed_bytes -= len(batch.data)
            known = code == ErrorCode.NONE and answer.base_offset >= 0
            lane.end = answer.base_offset + batch.records if known else -1
            return []
        if code not in FORGOTTEN | RETRIABLE:
            return self._refused(lane, batch, answer, now_ms)
        if code in FORGOTTEN:
            self._numbers.renew(lane.tp)
            stamp(batch.data, *self._numbers.number(lane.tp, batch.records))
        self.pause(now, [lane])
        return [SendRefused(lane.tp, code, again=True)]

    def _refused(
        self, lane: OutputPartition, batch: NumberedBatch, answer: Acknowledged, now_ms: int
    ) -> list[SendRefused]:
        """Put what is left of a refused batch in its place. The broker has none of it, so its
        numbers are free; were it otherwise, it would answer OUT_OF_ORDER_SEQUENCE_NUMBER, and a new
        epoch begin.
        """
        code, topic = answer.code, lane.topic
        lane.left = None
        lane.reworked = lane.acknowledged + 1
        self._goes_on(lane)
        self._numbers.give_back(lane.tp, batch.records)
        self._closed_bytes -= len(batch.data)
        if code in TOO_LARGE:
            topic.too_large(len(batch.data), batch.records)
        refusal = BatchRefusal(code, answer.named, answer.said)
        retimed = any(run.retimed for run in batch.runs)
        when = now_ms if topic.changelog and not retimed else None
        parts, refused = rework(
            batch.data, batch.runs, refusal, self._compression, topic.batch_bytes, when
        )
        origins = batch.origins or range(batch.records)
        gone = {index for record in refused for index in record.indices}
        lane.refuse({origins[index]: code for index in gone})
        left = [origin for index, origin in enumerate(origins) if index not in gone]
        lane.acknowledged += batch.completes and not parts
        for number, (builder, runs) in enumerate(reversed(parts)):
            cut = len(left) - builder.count
            completes = batch.completes and not number
            lane.queue.appendleft(ClosedBatch(builder, runs, completes, left[cut:]))
            self._closed_bytes += builder.size
            left = left[:cut]
        return [SendRefused(lane.tp, code, again=False, records=tuple(refused))]


def sticky(lanes: Sequence[OutputPartition]) -> OutputPartition:
    """Records without a key fill one batch, then that of the partition which waits for longest.

    Those that pause are passed over while there are others: "a partition has no leader; its open
    batch never leaves": it would be filled, and the next one behind it, until no room is left.
    """
    for lane in lanes:
        if lane.builder is not None and not lane.retry_at:
            return lane
    return min(lanes, key=lambda lane: (lane.retry_at > 0, lane.since, lane.tp.partition))


def body_of(request: Iterable[Sent]) -> dict[str, Any]:
    """A produce request."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for lane, batch in request:
        part = {"index": lane.tp.partition, "records": batch.data}
        topics.setdefault(lane.tp.topic, []).append(part)
    return {
        "transactional_id": None,
        "acks": ACKS_ALL,
        "timeout": int(REQUEST_TIMEOUT_S * 1000),
        "topic_data": [{"name": t, "partition_data": parts} for t, parts in topics.items()],
    }
