"""Batches that are open, closed or on their way to their partitions, and what leaves next. Pure.

One batch of a partition is on its way at a time, and one that failed keeps its place and its
numbers: nothing overtakes it and nothing arrives twice.

A partition that has no leader, or is refused, pauses alone: the others are sent as before.

Not here: who numbers batches (`idempotence`), connections, the lease, timers; the records of the
record path go straight into `OutPartition.builder`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamsx.errors import RecordTooLarge, WorldError
from streamsx.kafka.batch import Builder, stamp
from streamsx.kafka.errors import RETRIABLE, ErrorCode, name_of
from streamsx.lifecycle.idempotence import FORGOTTEN, Idempotence
from streamsx.model import BATCH_BYTES_MAX, Headers, TopicPartition

SEND_BYTES = 64 << 10
"""An open batch of this size does not wait for its linger."""
REQUEST_BYTES_MAX = 16 << 20
"""Of the batches in one request. Kafka hangs up on a request of 100 MiB, each time it comes."""
REQUEST_TIMEOUT_S = 30.0
ACKS_ALL = -1
BACKOFF_S = 0.1


@dataclass(slots=True)
class NumberedBatch:
    """A batch that has left at least once, and waits for its acknowledgement."""

    data: bytearray
    records: int


class OutPartition:
    """The batch that has left, those that are closed behind it, and the open one, in order."""

    __slots__ = (
        "_compression", "_opened", "acknowledged", "builder", "closed", "end", "flying", "left",
        "queue", "retry_at", "since", "tp",
    )  # fmt: skip

    def __init__(
        self,
        tp: TopicPartition,
        compression: str,
        opened: Callable[["OutPartition"], object],
    ) -> None:
        self.tp, self._compression, self._opened = tp, compression, opened
        self.builder: Builder | None = None
        self.queue: deque[Builder] = deque()
        self.left: NumberedBatch | None = None
        """Until it is acknowledged, also while it is not on its way."""
        self.closed = self.acknowledged = 0
        """Batches, ever; a flush waits until so many are acknowledged as were closed."""
        self.flying, self.end = False, -1
        self.since = 0.0
        """When the last batch got its first record."""
        self.retry_at = 0.0
        """Not before; 0 when it does not pause."""

    def open(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """A batch with one record; one over the limit is refused here, where its sender hears."""
        builder = Builder(BATCH_BYTES_MAX, compression=self._compression)
        builder.append(timestamp, key, value, headers)
        if builder.size > BATCH_BYTES_MAX:
            raise RecordTooLarge(
                f"record too large: {self.tp.topic}: {builder.size} bytes, the limit is "
                f"{BATCH_BYTES_MAX}: split it"
            )
        self.builder = builder
        self._opened(self)

    @property
    def closed_bytes(self) -> int:
        """Of what is closed and not acknowledged."""
        size = sum(builder.size for builder in self.queue)
        return size if self.left is None else size + len(self.left.data)

    def close(self) -> int:
        """Nothing more goes into the open batch; its bytes."""
        builder = self.builder
        assert builder is not None, "nothing open to close"
        self.queue.append(builder)
        self.closed += 1
        self.builder = None
        return builder.size

    def drop(self) -> None:
        """What is not acknowledged is gone, and nobody waits for it."""
        self.queue.clear()
        self.builder = self.left = None
        self.acknowledged = self.closed


class Sent(NamedTuple):
    """A batch on its way; an answer is its own, and never one's that took its place."""

    lane: OutPartition
    batch: NumberedBatch


class Acknowledged(NamedTuple):
    """What a broker says of one batch."""

    code: int
    base_offset: int


class SendRefused(NamedTuple):
    """`again`: the same batch goes after a pause, and a leader may have moved; else it is for good,
    and nothing behind that batch may overtake it.
    """

    tp: TopicPartition
    code: int
    again: bool


class Sending:
    """All partitions of one producer. Time is in seconds of a monotonic clock."""

    def __init__(
        self,
        compression: str,
        opened: Callable[[OutPartition], object],
        numbers: Idempotence,
        *,
        linger_s: float,
        buffer_bytes: int,
    ) -> None:
        """`opened` hears of each batch that gets its first record, and says here when that was."""
        self._compression, self._tell_opened, self._numbers = compression, opened, numbers
        self._linger_s, self._buffer_bytes = linger_s, buffer_bytes
        self._partitions: dict[TopicPartition, OutPartition] = {}
        self._waiting: dict[TopicPartition, OutPartition] = {}
        """With something to send and nothing on its way."""
        self._open: dict[TopicPartition, OutPartition] = {}
        """With an open batch."""
        self._closed_bytes = 0

    # -- what is sent

    def partition(self, tp: TopicPartition) -> OutPartition:
        """The same one each time."""
        if tp not in self._partitions:
            self._partitions[tp] = OutPartition(tp, self._compression, self._tell_opened)
        return self._partitions[tp]

    def opened(self, lane: OutPartition, now: float) -> None:
        """It has a batch with a first record."""
        lane.since = now
        self._open[lane.tp] = lane
        if not lane.flying:
            self._waiting[lane.tp] = lane

    def close(self, lane: OutPartition) -> None:
        """Nothing more goes into its open batch."""
        del self._open[lane.tp]
        self._closed_bytes += lane.close()

    def full(self) -> bool:
        """More is unsent, or sent and not acknowledged, than may be: whoever can wait, waits.

        Timers ask before each record; so few open batches that they could not fill it are not
        looked at.
        """
        room = self._buffer_bytes - self._closed_bytes
        if len(self._open) * BATCH_BYTES_MAX <= room:
            return False
        builders = [lane.builder for lane in self._open.values()]
        return sum(builder.size for builder in builders if builder) > room

    def flush(self) -> list[tuple[OutPartition, int]]:
        """Closes what is open; what is to be `acknowledged` for everything to have arrived."""
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
        return any(lane.flying for lane in lanes)

    # -- requests

    def next_at(self) -> float | None:
        """When something is due that nobody has sent; None while there is nothing."""
        return min(map(self._due_at, self._waiting.values()), default=None)

    def _due_at(self, lane: OutPartition) -> float:
        if lane.acknowledged < lane.closed:
            return lane.retry_at
        assert lane.builder is not None, "waiting without a batch"
        large = lane.builder.size >= SEND_BYTES
        return lane.retry_at if large else max(lane.retry_at, lane.since + self._linger_s)

    def due(
        self, now: float, leader: Callable[[TopicPartition], int | None]
    ) -> tuple[dict[int, list[OutPartition]], list[OutPartition]]:
        """What may leave now, by broker; and what could, if it had a leader: that pauses."""
        by_node: dict[int, list[OutPartition]] = {}
        leaderless: list[OutPartition] = []
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

    def pause(self, now: float, lanes: Iterable[OutPartition]) -> None:
        """Not at once again."""
        for lane in lanes:
            lane.retry_at = now + BACKOFF_S

    def requests(self, lanes: Iterable[OutPartition]) -> Iterator[list[Sent]]:
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

    def _first(self, lane: OutPartition) -> NumberedBatch:
        """The batch that leaves next; from now on it has its numbers."""
        if not lane.queue:
            self.close(lane)
        builder = lane.queue.popleft()
        records, size = builder.count, builder.size
        data = builder.close(*self._numbers.number(lane.tp, records))
        self._closed_bytes += len(data) - size
        return NumberedBatch(data, records)

    def answered(
        self, now: float, request: Iterable[Sent], answers: Mapping[TopicPartition, Acknowledged]
    ) -> list[SendRefused]:
        """What became of a request. Where there is no answer nobody knows what has arrived: the
        same bytes again.
        """
        outcomes = list[SendRefused]()
        for lane, batch in request:
            lane.flying = False
            answer = answers.get(lane.tp)
            if answer is None:
                self.pause(now, [lane])
            elif lane.left is batch:  # else it was dropped
                outcomes += self._answered(now, lane, batch, answer)
            if not lane.flying and (lane.left or lane.queue or lane.builder):
                self._waiting[lane.tp] = lane
        return outcomes

    def _answered(
        self, now: float, lane: OutPartition, batch: NumberedBatch, answer: Acknowledged
    ) -> list[SendRefused]:
        code = answer.code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            lane.left, lane.retry_at = None, 0.0
            lane.acknowledged += 1
            self._closed_bytes -= len(batch.data)
            known = code == ErrorCode.NONE and answer.base_offset >= 0
            lane.end = answer.base_offset + batch.records if known else -1
            return []
        if code not in FORGOTTEN | RETRIABLE:
            lane.flying = True  # for good
            return [SendRefused(lane.tp, code, again=False)]
        if code in FORGOTTEN:
            self._numbers.renew(lane.tp)
            stamp(batch.data, *self._numbers.number(lane.tp, batch.records))
        self.pause(now, [lane])
        return [SendRefused(lane.tp, code, again=True)]


def sticky(lanes: Sequence[OutPartition]) -> OutPartition:
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


def refusal(tp: TopicPartition, code: int) -> WorldError:
    """What no other try can change."""
    advice = "see the broker's log"
    if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        advice = f"raise max.message.bytes of the topic to {BATCH_BYTES_MAX} or more"
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        advice = "let the user of this worker write to the topic"
    return WorldError(f"records refused: {tp}: {name_of(code)}: {advice}")
