"""State machine of one fetch lane: the next requests, and the answers to keep. Pure.

An answer belongs to the position that was asked for. The race: a batch held here turns out to be
damaged, so its partition goes back to the start of that batch; then the answer to the open request
arrives, from behind that batch. Its records would be taken for the next ones, and the damaged
records would never come again. So each request is kept beside its answer, and an answer to another
position is dropped.

A partition that holds nothing may always ask for a first piece, however much the others hold. The
deadlock otherwise: a task reads a and b in the order of time, and b's broker is away; a's records
fill the whole budget; b's broker comes back; the task waits for b, and b has no room.

A partition that received records moves to the end of the line, because a broker fills its answer
from the front. Partitions without room in one answer are in front next time (Kafka gives a batch
over the limit only to the first partition).

A damaged batch (a wrong checksum, an invalid header) holds up its own partition and no other.
Batches before the damaged one are handed on. The damaged batch is fetched again as long as the
partition is wanted: a replica with a sound copy may become leader, or an operator may give the
records up. A batch with a right checksum holds up nothing: such a batch is read record by record
(`protocol.lenient_records`), and a record that cannot be read is a failure of its own.

Not here: brokers, connections, leaders, the handling of an offset that is out of range.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from streamsx.errors import CorruptRecord
from streamsx.model import Buffer, TopicPartition
from streamsx.processing.batch import Batch
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.lenient_records import odd_records, unread
from streamsx.protocol.record_batch import Piece, columns, pieces

TAKE_RECORDS = 5000
FIRST_BYTES = 64 << 10
"""Bytes that a partition without records may ask for while all together hold too much."""
BACKOFF_S = 0.1
BACKOFF_MAX_S = 5.0
DOUBLINGS_MAX = 6


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of one fetch lane.

    `held_bytes` is per partition, `held_bytes_all` is for all partitions together.
    """

    wait_ms: int = 250
    reply_bytes: int = 16 << 20
    partition_bytes: int = 1 << 20
    held_bytes: int = 1 << 20
    held_bytes_all: int = 64 << 20
    check_crcs: bool = True
    unreadable: bool = False
    """Hand on an unreadable record as an error in the place of its value.

    If False, an unreadable record counts as damage: a store cannot skip a row of its changelog.
    """


@dataclass(slots=True, eq=False)
class FetchedPartition:
    """Fetch state of one partition.

    Attributes:
        position: Next offset to ask for.
        topic_id: Id of the topic that the offset belongs to, if known.
        end: Last stable offset by the newest answer.
        held: Bytes of records that wait to be taken.
    """

    position: int
    topic_id: str | None = None
    end: int = -1
    held: int = 0
    retry_at: float = 0.0
    refused: int = 0
    """Refusals in a row."""
    damaged_at: int = -1
    damaged: int = 0
    """Times in a row that the batch at `damaged_at` came damaged."""
    pieces: deque[Piece] = field(default_factory=deque)


class FetchAsked(NamedTuple):
    """Part of a request for one partition."""

    partition: FetchedPartition
    offset: int
    bytes_max: int


class FetchAnswer(NamedTuple):
    """Broker's answer for one partition; `end` is the last stable offset."""

    code: int
    end: int
    records: Buffer | None
    aborted: Iterable[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class FetchOutOfRange:
    """Offset that the broker does not have.

    The partition is not fetched again before it is added again.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class FetchRefused:
    """Refused fetch; the partition is asked for again after `again_s` seconds."""

    code: int
    again_s: float


@dataclass(frozen=True, slots=True)
class Damaged:
    """Batch that came damaged `times` times in a row; it is asked for again after a pause."""

    offset: int
    why: str
    times: int


FetchTrouble = FetchOutOfRange | FetchRefused | Damaged


class FetchState:
    """Fetch state of all partitions of one lane. Times are in seconds of a monotonic clock."""

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits
        self._partitions: dict[TopicPartition, FetchedPartition] = {}
        """Partitions in the order of requests."""
        self._held = 0

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._partitions)

    def add(self, tp: TopicPartition, offset: int, topic_id: str | None = None) -> None:
        """Fetch a partition from this offset on, and drop the records held of that partition."""
        self.remove(tp)
        self._partitions[tp] = FetchedPartition(offset, topic_id)

    def remove(self, tp: TopicPartition) -> None:
        """Stop fetching a partition; an answer in flight for that partition is dropped."""
        if (partition := self._partitions.pop(tp, None)) is not None:
            self._held -= partition.held

    def end(self, tp: TopicPartition) -> int:
        """Return the end that a reader can reach by the newest answer; -1 before the first."""
        partition = self._partitions.get(tp)
        return -1 if partition is None else partition.end

    def waiting(self, tp: TopicPartition) -> bool:
        """Return whether there are records to take."""
        partition = self._partitions.get(tp)
        return partition is not None and bool(partition.pieces)

    def caught_up(self, tp: TopicPartition) -> bool:
        """Return whether everything up to the end was taken."""
        partition = self._partitions.get(tp)
        return (
            partition is not None
            and not partition.pieces
            and partition.position >= partition.end >= 0
        )

    # -- requests and answers

    def wanted(
        self, now: float, leads: Callable[[TopicPartition], bool]
    ) -> tuple[dict[TopicPartition, FetchAsked], float | None]:
        """Return the requests for the partitions that a broker leads.

        Returns:
            Requests by partition, and the seconds until more may be due. The time is None if only
            taking records, or another partition, can bring more.
        """
        wanted = dict[TopicPartition, FetchAsked]()
        next_at = None
        for tp, partition in self._partitions.items():
            bytes_max = self._room(partition)
            if not bytes_max or not leads(tp):
                continue
            if partition.retry_at <= now:
                wanted[tp] = FetchAsked(partition, partition.position, bytes_max)
            elif next_at is None or partition.retry_at < next_at:
                next_at = partition.retry_at
        return wanted, None if next_at is None else next_at - now

    def _room(self, partition: FetchedPartition) -> int:
        """Return the bytes that a partition may ask for; 0 if it holds enough."""
        limits = self._limits
        crowded = self._held >= limits.held_bytes_all
        if crowded and not partition.held:
            return min(FIRST_BYTES, limits.partition_bytes)
        full = crowded or partition.held >= limits.held_bytes
        return 0 if full else limits.partition_bytes

    def answered(
        self, now: float, tp: TopicPartition, asked: FetchAsked, answer: FetchAnswer
    ) -> FetchTrouble | None:
        """Keep the sound records of an answer, and return what is wrong with the rest.

        Kept records are `waiting` to be taken. An answer is ignored if its partition was removed or
        set back meanwhile.
        """
        partition = asked.partition
        if self._partitions.get(tp) is not partition or partition.position != asked.offset:
            return None
        if answer.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.remove(tp)
            return FetchOutOfRange(asked.offset)
        if answer.code != ErrorCode.NONE:
            partition.refused += 1
            again_s = pause_s(partition.refused)
            partition.retry_at = now + again_s
            return FetchRefused(answer.code, again_s)
        partition.end = answer.end
        partition.refused = 0
        if not (records := answer.records):
            return None
        cut = pieces(records, partition.position, aborted=answer.aborted, records_max=TAKE_RECORDS)
        return self._keep(now, tp, cut)

    def _keep(self, now: float, tp: TopicPartition, cut: Iterable[Piece]) -> Damaged | None:
        partition = self._partitions[tp]
        damaged = None
        before = len(partition.pieces)
        try:
            for piece in cut:
                partition.pieces.append(piece)
                partition.position = piece.next_offset
                self._hold(partition, len(piece.data))
        except CorruptRecord as error:
            damaged = self._damage(now, partition, error)
        if len(partition.pieces) > before:
            self._partitions[tp] = self._partitions.pop(tp)
        elif damaged is None:
            partition.retry_at = now + BACKOFF_S  # no whole batch came: pause before the next try
        return damaged

    def _hold(self, partition: FetchedPartition, size: int) -> None:
        partition.held += size
        self._held += size

    def _damage(self, now: float, partition: FetchedPartition, error: CorruptRecord) -> Damaged:
        """Note a damaged batch at the partition's position, and pause the partition."""
        same = partition.damaged_at == partition.position
        partition.damaged = partition.damaged + 1 if same else 1
        partition.damaged_at = partition.position
        partition.retry_at = now + pause_s(partition.damaged)
        return Damaged(partition.position, str(error), partition.damaged)

    # -- records

    def take(self, now: float, tp: TopicPartition) -> Batch | Damaged | None:
        """Return the next records of a partition, up to a few thousand; None if there are none."""
        partition = self._partitions.get(tp)
        if partition is None or not partition.pieces:
            return None
        piece = partition.pieces.popleft()
        self._hold(partition, -len(piece.data))
        check = self._limits.check_crcs
        try:
            found = columns(piece.data, piece.start, aborted=piece.aborted, check=check)
        except CorruptRecord as error:
            return self._take_sound_batches(now, tp, piece, error)
        return Batch(tp.topic, tp.partition, *found)

    def _take_sound_batches(
        self, now: float, tp: TopicPartition, torn: Piece, error: CorruptRecord
    ) -> Batch | Damaged | None:
        """Hand on batch by batch up to the damaged one, and fetch again from there.

        A batch with a right checksum is as its producer made it, and no replica has a better copy.
        Such a batch is read record by record.
        """
        partition = self._partitions[tp]
        single = list(pieces(torn.data, torn.start, aborted=torn.aborted, records_max=1))
        if len(single) > 1:
            partition.pieces.extendleft(reversed(single))
            self._hold(partition, len(torn.data))
            return self.take(now, tp)
        try:
            return self._one_by_one(tp, torn)
        except CorruptRecord as damage:
            error = damage
        self._hold(partition, -partition.held)
        partition.pieces.clear()
        partition.position = torn.start
        return self._damage(now, partition, error)

    def _one_by_one(self, tp: TopicPartition, piece: Piece) -> Batch:
        """Return the records of a batch that the fast parser refuses.

        Raises:
            CorruptRecord: the batch is damaged, or a record is unreadable and may not be.
        """
        found = columns(piece.data, piece.start, aborted=piece.aborted, slowly=odd_records)
        errors = unread(found)
        if errors and not self._limits.unreadable:
            raise CorruptRecord(f"{tp}: {errors[0]}")
        return Batch(tp.topic, tp.partition, *found, unreadable=bool(errors))


def pause_s(times: int) -> float:
    """Return the pause before the next try, in seconds: doubled each time, up to a limit."""
    return min(BACKOFF_S * (1 << min(times - 1, DOUBLINGS_MAX)), BACKOFF_MAX_S)
