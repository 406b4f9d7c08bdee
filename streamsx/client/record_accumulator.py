"""Batches of each partition (open, closed, in flight) and the choice of the next to leave. Pure.

One batch of a partition is in flight at a time. A failed batch keeps its place and its numbers: no
batch overtakes another and no record arrives twice.

A partition that is refused, or has no leader, pauses alone: the others are sent as before. A batch
that is refused for good is replaced by the records left of it (`rejected_batch`).

Not here: numbers of batches and the meaning of an answer (`idempotence`), connections, the lease,
timers. The record path writes straight into `OutputPartition.builder`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from streamsx.client.idempotence import BatchOutcome, Idempotence
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
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import HEADER_BYTES, BatchFormat, Builder, stamp

SEND_BYTES = 64 << 10
"""Size at which an open batch no longer waits for its linger."""
REQUEST_BYTES_MAX = 16 << 20
"""Bytes of all batches in one request.

Kafka closes the connection on a request of 100 MiB, each time that request comes.
"""
REQUEST_TIMEOUT_S = 30.0
ACKS_ALL = -1
BACKOFF_S = 0.1
SOON_S = 0.003
"""Pause until the transaction before has ended, which takes a broker some milliseconds."""
PAUSED_SHARE = 1 / 2
"""Share of the buffer for paused partitions.

Beyond that share, tasks with records in paused partitions are fed no more.
"""
REFUSED_MAX: Final = 16
"""Batches of a partition for which refused records are remembered, for callers that await them."""
NO_TASKS: Final = frozenset[TaskId]()


@dataclass(slots=True)
class NumberedBatch:
    """Batch that has left at least once and waits for its acknowledgement."""

    data: bytearray
    records: int
    runs: list[Run]
    completes: bool
    """Whether the acknowledgement completes a closed batch.

    True for the whole of a closed batch, and for the last part of one that was split.
    """
    origins: Sequence[int] | None = None
    """Index of each record in the batch as it was closed; None if nothing has changed."""


class ClosedBatch(NamedTuple):
    """Batch that takes no more records and has no numbers yet."""

    builder: Builder
    runs: list[Run]
    completes: bool = True
    origins: Sequence[int] | None = None


class OutputTopic:
    """Output topic: its partitions, the partitions of known keys, and its limits."""

    __slots__ = ("batch_bytes", "changelog", "known", "limits", "name", "partitions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.changelog = False
        self.partitions: list[OutputPartition] = []
        self.known: dict[bytes | None, OutputPartition] = {}
        """Partitions of keys sent before; one memory for all tasks."""
        self.limits = UNKNOWN
        self.batch_bytes = BATCH_BYTES_MAX

    def limit(self, limits: TopicLimits) -> None:
        """Apply these limits from the next batch on."""
        self.limits = limits
        self.batch_bytes = min(BATCH_BYTES_MAX, limits.bytes_max)
        for partition in self.partitions:
            partition.latest = ALWAYS_ASKED

    def too_large(self, size: int, records: int) -> None:
        """Learn from a refusal: one record gives the limit, several give a smaller batch."""
        if records == 1:
            self.limits = self.limits.shrunk(size - 1)
        half = (size + HEADER_BYTES) // 2 + 1
        self.batch_bytes = min(self.batch_bytes, half)


class OutputPartition:
    """Batches of one partition, in order: the one that has left, the closed ones, the open one."""

    __slots__ = (
        "_batches", "_opened", "acknowledged", "builder", "closed", "end", "flying", "latest",
        "left", "queue", "refused", "retry_at", "reworked", "runs", "since", "topic", "tp",
        "writer",
    )  # fmt: skip

    def __init__(
        self,
        tp: TopicPartition,
        batches: BatchFormat,
        opened: Callable[["OutputPartition"], object],
        topic: OutputTopic | None = None,
    ) -> None:
        self.tp = tp
        self._batches = batches
        self._opened = opened
        self.topic = topic or OutputTopic(tp.topic)
        self.builder: Builder | None = None
        self.runs: list[Run] = []
        """Runs of the open batch."""
        self.writer: Sender | None = None
        """Sender of the newest record."""
        self.latest = ALWAYS_ASKED
        """Time up to which records need no check against the topic's limits."""
        self.queue: deque[ClosedBatch] = deque()
        self.left: NumberedBatch | None = None
        """Batch that has left, until acknowledged, also while not in flight."""
        self.closed = self.acknowledged = 0
        """Batches closed and acknowledged, ever. A flush waits until both counts are equal."""
        self.reworked = 0
        """Number of the newest batch that was refused: offsets in that batch are not known."""
        self.refused: dict[int, dict[int, int]] = {}
        """Refused records of the newest such batches: number -> index -> the broker's code."""
        self.flying = False
        self.end = -1
        self.since = 0.0
        """Time at which the last batch got its first record."""
        self.retry_at = 0.0
        """Earliest time of the next try; 0 if the partition does not pause."""

    def open(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """Begin a batch with one record.

        Raises:
            RecordTooLarge: the record is over the topic's limit.
        """
        self._begin(self.checked(timestamp, key, value, headers))

    def checked(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> Builder:
        """Return a batch with one record, which is not that of the partition yet.

        Raises:
            RecordTooLarge: the record is over the topic's limit.
        """
        topic = self.topic
        builder = self._batches.builder(topic.batch_bytes)
        builder.append(timestamp, key, value, headers)
        if builder.size > topic.limits.bytes_max:
            raise RecordTooLarge(
                f"record too large: {self.tp.topic}: {builder.size} bytes, the limit is "
                f"{topic.limits.bytes_max} ({SIZE} of the topic): split it, or raise that"
            )
        return builder

    def open_row(self, timestamp: int, key: bytes, value: bytes | None) -> None:
        """Begin a batch with one row of a changelog; the row's store has checked the size."""
        builder = self._batches.builder(self.topic.batch_bytes)
        builder.append(timestamp, key, value)
        self._begin(builder)

    def _begin(self, builder: Builder) -> None:
        self.builder = builder
        self.runs = [self._run(self.writer or OUTSIDE, 0)]
        self._opened(self)

    def written_by(self, sender: Sender) -> None:
        """Note the sender of the records from here on.

        Called when the sender changes, not for each record.
        """
        self.writer = sender
        if sender.task is not None:  # user code outside of tasks seals nothing
            sender.wrote[self] = None
        if self.builder is not None:
            self._widen()
            self.runs.append(self._run(sender, self.builder.count))

    def _run(self, sender: Sender, start: int) -> Run:
        at_hand = sender.at_hand
        return Run(start, sender, None if at_hand is None else at_hand())

    def _widen(self) -> None:
        """Extend the source of the newest run, which may have grown over several chunks."""
        run = self.runs[-1]
        now = None if run.sender.at_hand is None else run.sender.at_hand()
        if now is not None and run.source is not None and now is not run.source:
            self.runs[-1] = run._replace(source=run.source.until(now))

    @property
    def closed_bytes(self) -> int:
        """Return the bytes of closed batches that are not acknowledged."""
        size = sum(batch.builder.size for batch in self.queue)
        return size if self.left is None else size + len(self.left.data)

    def all_runs(self) -> Iterator[Run]:
        """Yield the runs of all batches that are not acknowledged."""
        if self.left is not None:
            yield from self.left.runs
        for batch in self.queue:
            yield from batch.runs
        if self.builder is not None:
            yield from self.runs

    def close(self) -> int:
        """Close the open batch, and return its bytes."""
        builder = self.builder
        assert builder is not None, "nothing open to close"
        self._widen()
        self.queue.append(ClosedBatch(builder, self.runs))
        self.closed += 1
        self.builder = None
        return builder.size

    def refuse(self, codes: Mapping[int, int]) -> None:
        """Remember, for a while, which records of the batch just refused are not sent.

        Callers that await one of these records get an error.
        """
        if codes:
            self.refused.setdefault(self.reworked, {}).update(codes)
        if len(self.refused) > REFUSED_MAX:
            del self.refused[next(iter(self.refused))]

    def drop(self) -> None:
        """Drop everything that is not acknowledged; no caller waits for dropped batches."""
        self.queue.clear()
        self.builder = self.left = None
        self.acknowledged = self.closed


class Sent(NamedTuple):
    """Batch in flight. An answer belongs to this batch, never to one that took its place."""

    partition: OutputPartition
    batch: NumberedBatch


class Acknowledged(NamedTuple):
    """Broker's answer for one batch."""

    code: int
    base_offset: int
    named: Mapping[int, str] = MappingProxyType({})
    """Messages about the records at fault, by index."""
    message: str = ""


class SendRefused(NamedTuple):
    """Refusal of a batch.

    With `again`, the same batch goes again after a pause, and a leader may have moved. With `over`,
    the batch's transaction cannot be committed. Otherwise `records` are not sent, and the other
    records of the batch are.
    """

    tp: TopicPartition
    code: int
    again: bool
    records: tuple[RefusedRecord, ...] = ()
    over: bool = False


class RecordAccumulator:
    """Batches of all partitions of one producer. Times are in seconds of a monotonic clock."""

    def __init__(
        self,
        compression: str,
        opened: Callable[[OutputPartition], object],
        numbers: Idempotence,
        *,
        linger_s: float,
        buffer_bytes: int,
    ) -> None:
        """Set up an accumulator without partitions.

        `opened` is called with each partition whose open batch gets its first record; the callee
        passes the time on to `RecordAccumulator.opened`.
        """
        self._batches = BatchFormat(compression, numbers.transactional_id is not None)
        self._on_opened = opened
        self._numbers = numbers
        self._linger_s = linger_s
        self._buffer_bytes = buffer_bytes
        self.topics: dict[str, OutputTopic] = {}
        self._partitions: dict[TopicPartition, OutputPartition] = {}
        self._waiting: dict[TopicPartition, OutputPartition] = {}
        """Partitions with something to send and nothing in flight."""
        self._open: dict[TopicPartition, OutputPartition] = {}
        """Partitions with an open batch."""
        self._paused: dict[TopicPartition, OutputPartition] = {}
        """Partitions for which the newest try has failed."""
        self._closed_bytes = 0
        self._largest = BATCH_BYTES_MAX
        """Largest size of an open batch; one record may be larger than other batches."""

    # -- partitions and batches

    def topic(self, name: str) -> OutputTopic:
        """Return the topic of this name, the same object each time."""
        if name not in self.topics:
            self.topics[name] = OutputTopic(name)
        return self.topics[name]

    def partition(self, tp: TopicPartition) -> OutputPartition:
        """Return the partition, the same object each time."""
        if tp not in self._partitions:
            topic = self.topic(tp.topic)
            self._partitions[tp] = OutputPartition(tp, self._batches, self._on_opened, topic)
        return self._partitions[tp]

    def opened(self, partition: OutputPartition, now: float) -> None:
        """Note that a partition has an open batch with a first record."""
        assert partition.builder is not None, "opened without a batch"
        partition.since = now
        self._largest = max(self._largest, partition.builder.size)
        self._open[partition.tp] = partition
        if not partition.flying:
            self._waiting[partition.tp] = partition

    def close(self, partition: OutputPartition) -> None:
        """Close the open batch of a partition."""
        del self._open[partition.tp]
        self._closed_bytes += partition.close()

    def full(self, *, but_paused: bool = False) -> bool:
        """Return whether more is unacknowledged, sent or not, than the buffer may hold.

        Callers that can wait do so. Timers ask before each record, so open batches too few to fill
        the buffer are not examined. `but_paused` leaves out paused partitions; senders with records
        there wait alone (`crowding`).
        """
        room = self._buffer_bytes - self._closed_bytes
        if but_paused and self._paused:
            room += sum(each.closed_bytes for each in self._paused.values())
        if len(self._open) * self._largest <= room:
            return False
        left_out = self._paused if but_paused else ()
        builders = [each.builder for tp, each in self._open.items() if tp not in left_out]
        return sum(builder.size for builder in builders if builder) > room

    def crowding(self) -> frozenset[TaskId]:
        """Return the tasks with records in paused partitions, once these hold too much."""
        if not self._paused:
            return NO_TASKS
        partitions = self._paused.values()
        opened = sum(each.builder.size for each in partitions if each.builder)
        held = opened + sum(each.closed_bytes for each in partitions)
        if held <= self._buffer_bytes * PAUSED_SHARE:
            return NO_TASKS
        runs = [run for each in partitions for run in each.all_runs()]
        return frozenset(run.sender.task for run in runs if run.sender.task is not None)

    def flush(self) -> list[tuple[OutputPartition, int]]:
        """Close all open batches.

        `Sender.seal` returns the goals of one task alone.

        Returns:
            Partitions, each with the number of batches to be `acknowledged` for everything to have
            arrived.
        """
        for partition in tuple(self._open.values()):
            self.close(partition)
        partitions = self._partitions.values()
        return [(each, each.closed) for each in partitions if each.acknowledged < each.closed]

    def ends(self) -> dict[TopicPartition, int]:
        """Return the offset behind the last acknowledged batch of each partition, where known."""
        return {tp: each.end for tp, each in self._partitions.items() if each.end >= 0}

    @property
    def flying(self) -> bool:
        """Return whether a batch is in flight."""
        return any(each.flying for each in self._partitions.values())

    def drop_all(self) -> None:
        """Drop everything unacknowledged of all partitions."""
        self.drop(tuple(self._partitions))

    def unsent(self, chosen: Callable[[TopicPartition], bool]) -> dict[TaskId, set[TopicPartition]]:
        """Return the tasks with unacknowledged records in some partitions, and these partitions."""
        found: dict[TaskId, set[TopicPartition]] = {}
        for tp, partition in self._partitions.items():
            for run in partition.all_runs() if chosen(tp) else ():
                if run.sender.task is not None:
                    found.setdefault(run.sender.task, set()).add(tp)
        return found

    def drop(self, tps: Iterable[TopicPartition]) -> bool:
        """Drop everything unacknowledged of these partitions; return whether a batch is in flight.

        The numbers of a batch that has left are given up too.
        """
        partitions = [self._partitions[tp] for tp in tps if tp in self._partitions]
        for partition in partitions:
            if partition.left is not None:
                self._numbers.given_up(partition.tp)
            self._closed_bytes -= partition.closed_bytes
            partition.drop()
            self._waiting.pop(partition.tp, None)
            self._open.pop(partition.tp, None)
            self._paused.pop(partition.tp, None)
        return any(each.flying for each in partitions)

    # -- requests

    def next_at(self) -> float | None:
        """Return the time at which the next batch is due; None if there is nothing to send."""
        return min(map(self._due_at, self._waiting.values()), default=None)

    def _due_at(self, partition: OutputPartition) -> float:
        if partition.acknowledged < partition.closed:
            return partition.retry_at
        assert partition.builder is not None, "waiting without a batch"
        if partition.builder.size >= SEND_BYTES:
            return partition.retry_at
        return max(partition.retry_at, partition.since + self._linger_s)

    def due(
        self, now: float, leader: Callable[[TopicPartition], int | None]
    ) -> tuple[dict[int, list[OutputPartition]], list[OutputPartition]]:
        """Return the partitions that may send now, by broker, and the due ones without a leader.

        Partitions without a leader pause.
        """
        by_node: dict[int, list[OutputPartition]] = {}
        leaderless: list[OutputPartition] = []
        for partition in self._waiting.values():
            if self._due_at(partition) > now:
                continue
            node = leader(partition.tp)
            if node is None:
                leaderless.append(partition)
            else:
                by_node.setdefault(node, []).append(partition)
        self.pause(now, leaderless)
        return by_node, leaderless

    def pause(self, now: float, partitions: Iterable[OutputPartition]) -> None:
        """Pause partitions for BACKOFF_S seconds."""
        for partition in partitions:
            partition.retry_at = now + BACKOFF_S
            self._paused[partition.tp] = partition

    def _goes_on(self, partition: OutputPartition) -> None:
        """End the pause of a partition: its broker has answered for its batch."""
        partition.retry_at = 0.0
        self._paused.pop(partition.tp, None)

    def requests(self, partitions: Iterable[OutputPartition]) -> Iterator[list[Sent]]:
        """Yield requests with the first batch of each partition, of a size that a broker takes.

        The batches count as in flight from here on.
        """
        request = list[Sent]()
        size = 0
        for partition in partitions:
            partition.flying = True
            del self._waiting[partition.tp]
            batch = partition.left = partition.left or self._first(partition)
            if request and size + len(batch.data) > REQUEST_BYTES_MAX:
                yield request
                request = []
                size = 0
            request.append(Sent(partition, batch))
            size += len(batch.data)
        if request:
            yield request

    def _first(self, partition: OutputPartition) -> NumberedBatch:
        """Return the batch that leaves next, and give that batch its numbers."""
        if not partition.queue:
            self.close(partition)
        builder, runs, completes, origins = partition.queue.popleft()
        records = builder.count
        size = builder.size
        data = builder.close(*self._numbers.number(partition.tp, records))
        self._closed_bytes += len(data) - size
        return NumberedBatch(data, records, runs, completes, origins)

    def answered(
        self, now: float, request: Iterable[Sent], answers: Mapping[TopicPartition, Acknowledged],
        now_ms: int = 0,
    ) -> list[SendRefused]:  # fmt: skip
        """Handle the answers to a request, and return the refusals.

        Without an answer it is unknown what has arrived, so the same bytes go again. `now_ms` is a
        new time for changelog rows that are refused for their time.
        """
        outcomes = list[SendRefused]()
        for partition, batch in request:
            partition.flying = False
            answer = answers.get(partition.tp)
            if answer is None:
                self.pause(now, [partition])
            elif partition.left is batch:  # else the batch was dropped
                outcomes += self._answered(now, partition, batch, answer, now_ms)
            if not partition.flying and (partition.left or partition.queue or partition.builder):
                self._waiting[partition.tp] = partition
        return outcomes

    def _answered(
        self, now: float, partition: OutputPartition, batch: NumberedBatch, answer: Acknowledged,
        now_ms: int,
    ) -> list[SendRefused]:  # fmt: skip
        code = answer.code
        outcome = self._numbers.answered(partition.tp, batch.records, code)
        if outcome is BatchOutcome.REFUSED:
            return self._refused(partition, batch, answer, now_ms)
        if outcome is BatchOutcome.TAKEN:
            partition.left = None
            self._goes_on(partition)
            partition.acknowledged += batch.completes
            self._closed_bytes -= len(batch.data)
            known = code == ErrorCode.NONE and answer.base_offset >= 0
            partition.end = answer.base_offset + batch.records if known else -1
            return []
        if outcome is BatchOutcome.SOON:
            partition.retry_at = now + SOON_S
            return []
        if outcome is BatchOutcome.ABORTED:
            self.pause(now, [partition])
            return [SendRefused(partition.tp, code, again=False, over=True)]
        if outcome is BatchOutcome.RENUMBER:
            stamp(batch.data, *self._numbers.number(partition.tp, batch.records))
        self.pause(now, [partition])
        return [SendRefused(partition.tp, code, again=True)]

    def _refused(
        self, partition: OutputPartition, batch: NumberedBatch, answer: Acknowledged, now_ms: int
    ) -> list[SendRefused]:
        """Put the records left of a refused batch in its place."""
        code = answer.code
        topic = partition.topic
        partition.left = None
        partition.reworked = partition.acknowledged + 1
        self._goes_on(partition)
        self._closed_bytes -= len(batch.data)
        if code in TOO_LARGE:
            topic.too_large(len(batch.data), batch.records)
        refusal = BatchRefusal(code, answer.named, answer.message)
        retimed = any(run.retimed for run in batch.runs)
        when = now_ms if topic.changelog and not retimed else None
        parts, refused = rework(
            batch.data, batch.runs, refusal, self._batches, topic.batch_bytes, when
        )
        origins = batch.origins or range(batch.records)
        gone = {index for record in refused for index in record.indices}
        partition.refuse({origins[index]: code for index in gone})
        left = [origin for index, origin in enumerate(origins) if index not in gone]
        partition.acknowledged += batch.completes and not parts
        for number, (builder, runs) in enumerate(reversed(parts)):
            cut = len(left) - builder.count
            completes = batch.completes and not number
            partition.queue.appendleft(ClosedBatch(builder, runs, completes, left[cut:]))
            self._closed_bytes += builder.size
            left = left[:cut]
        return [SendRefused(partition.tp, code, again=False, records=tuple(refused))]


def sticky(partitions: Sequence[OutputPartition]) -> OutputPartition:
    """Return the partition for records without a key.

    Such records fill one batch, then the batch of the partition that has waited for longest. Paused
    partitions are passed over while there are others. Otherwise: a partition has no leader, and its
    open batch never leaves; records fill that batch and the ones behind, until no room is left.
    """
    for partition in partitions:
        if partition.builder is not None and not partition.retry_at:
            return partition
    return min(partitions, key=lambda each: (each.retry_at > 0, each.since, each.tp.partition))


def body_of(request: Iterable[Sent], transactional_id: str | None) -> dict[str, Any]:
    """Return the body of a produce request."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition, batch in request:
        part = {"index": partition.tp.partition, "records": batch.data}
        topics.setdefault(partition.tp.topic, []).append(part)
    return {
        "transactional_id": transactional_id,
        "acks": ACKS_ALL,
        "timeout": int(REQUEST_TIMEOUT_S * 1000),
        "topic_data": [{"name": t, "partition_data": parts} for t, parts in topics.items()],
    }
