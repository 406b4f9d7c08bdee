"""One lane of fetching: what to ask of the brokers next, what to keep of their answers. Pure.

An answer belongs to the position that was asked for. "A batch held here turns out to be damaged, so
its partition goes back to where that began; the answer to the request that is out comes, from
behind it": what it brings would be taken for the next records, and the damaged ones never come
again. So what was asked stands beside the answer, and what does not fit is dropped.

Whoever holds nothing may always ask for a first piece, however much the others hold: "a task reads
a and b in the order of time, and b's broker is away; a's records fill all there is; b's broker is
back": the task waits for b, and nobody makes room for it.

Who was given records goes to the end of the line, for a broker fills its answer from the front:
what no longer fits (Kafka gives a batch over the limit only to the first) is in front next time.

A damaged batch (a wrong checksum, a header that is none) holds up its own partition and nothing
else. What stands before it is handed on. It is asked for again as long as it is wanted: a sound
copy may come to lead, or somebody gives the records up. A batch whose checksum is right holds up
nothing: it is read record by record (`kafka.odd_records`), and one that cannot be read is a failure
of its own.

Not here: brokers, connections, who leads what; what becomes of an offset that is out of range.
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
"""Asked for where all together hold too much, and this one holds nothing."""
BACKOFF_S = 0.1
BACKOFF_MAX_S = 5.0
DOUBLINGS_MAX = 6


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Of one lane. `held_bytes`: per partition, and of all together."""

    wait_ms: int = 250
    reply_bytes: int = 16 << 20
    partition_bytes: int = 1 << 20
    held_bytes: int = 1 << 20
    held_bytes_all: int = 64 << 20
    check_crcs: bool = True
    unreadable: bool = False
    """Hand on a record that cannot be read as an error in the place of its value. Otherwise it
    counts as damage: a store cannot pass over a row of its changelog."""


@dataclass(slots=True, eq=False)
class FetchedPartition:
    """`position`: next offset to ask for; `end`: last stable offset by the newest answer;
    `topic_id`: of the topic that the offset is of, where that is known.
    """

    position: int
    topic_id: str | None = None
    end: int = -1
    held: int = 0
    retry_at: float = 0.0
    refused: int = 0
    """In a row."""
    damaged_at: int = -1
    damaged: int = 0
    """How often the batch there came, and was damaged each time."""
    pieces: deque[Piece] = field(default_factory=deque)


class FetchAsked(NamedTuple):
    """What a request asks of one partition."""

    partition: FetchedPartition
    offset: int
    bytes_max: int


class FetchAnswer(NamedTuple):
    """What a broker says of one partition; `end`: its last stable offset."""

    code: int
    end: int
    records: Buffer | None
    aborted: Iterable[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class FetchOutOfRange:
    """The broker does not have this offset; the partition is fetched when it is added again."""

    offset: int


@dataclass(frozen=True, slots=True)
class FetchRefused:
    """It is asked for again after a pause."""

    code: int
    again_s: float


@dataclass(frozen=True, slots=True)
class Damaged:
    """The batch at this offset, for the `times`-th time in a row; asked for again after a pause."""

    offset: int
    why: str
    times: int


FetchTrouble = FetchOutOfRange | FetchRefused | Damaged


class FetchState:
    """All partitions of one lane. Time is in seconds of a monotonic clock."""

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits
        self._partitions: dict[TopicPartition, FetchedPartition] = {}
        """In the order in which they are asked for."""
        self._held = 0

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._partitions)

    def add(self, tp: TopicPartition, offset: int, topic_id: str | None = None) -> None:
        """From this offset on; what was held of it is dropped."""
        self.remove(tp)
        self._partitions[tp] = FetchedPartition(offset, topic_id)

    def remove(self, tp: TopicPartition) -> None:
        """What is in flight for it never surfaces."""
        if (partition := self._partitions.pop(tp, None)) is not None:
            self._held -= partition.held

    def end(self, tp: TopicPartition) -> int:
        """What a reader can reach by the newest answer; -1 before the first."""
        partition = self._partitions.get(tp)
        return -1 if partition is None else partition.end

    def waiting(self, tp: TopicPartition) -> bool:
        """There is something to take."""
        partition = self._partitions.get(tp)
        return partition is not None and bool(partition.pieces)

    def caught_up(self, tp: TopicPartition) -> bool:
        """Everything up to the end was taken."""
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
        """What to ask a broker that leads these; and how long until there may be more to ask.

        The time is None where only taking, or another partition, can bring more.
        """
        wanted, next_at = dict[TopicPartition, FetchAsked](), None
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
        """How many bytes it may ask for; 0 if it holds enough."""
        limits = self._limits
        crowded = self._held >= limits.held_bytes_all
        if crowded and not partition.held:
            return min(FIRST_BYTES, limits.partition_bytes)
        full = crowded or partition.held >= limits.held_bytes
        return 0 if full else limits.partition_bytes

    def answered(
        self, now: float, tp: TopicPartition, asked: FetchAsked, answer: FetchAnswer
    ) -> FetchTrouble | None:
        """What is wrong with an answer; what is right of it is `waiting` to be taken. Nothing
        becomes of one whose partition was removed or set back meanwhile.
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
        partition.end, partition.refused = answer.end, 0
        if not (records := answer.records):
            return None
        cut = pieces(records, partition.position, aborted=answer.aborted, records_max=TAKE_RECORDS)
        return self._keep(now, tp, cut)

    def _keep(self, now: float, tp: TopicPartition, cut: Iterable[Piece]) -> Damaged | None:
        partition = self._partitions[tp]
        damaged, before = None, len(partition.pieces)
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
            partition.retry_at = now + BACKOFF_S  # nothing whole came: not at once again
        return damaged

    def _hold(self, partition: FetchedPartition, size: int) -> None:
        partition.held += size
        self._held += size

    def _damage(self, now: float, partition: FetchedPartition, error: CorruptRecord) -> Damaged:
        """Of the batch at its position."""
        same = partition.damaged_at == partition.position
        partition.damaged = partition.damaged + 1 if same else 1
        partition.damaged_at = partition.position
        partition.retry_at = now + pause_s(partition.damaged)
        return Damaged(partition.position, str(error), partition.damaged)

    # -- what came

    def take(self, now: float, tp: TopicPartition) -> Batch | Damaged | None:
        """The next records of a partition, up to a few thousand; None when nothing is there."""
        partition = self._partitions.get(tp)
        if partition is None or not partition.pieces:
            return None
        piece = partition.pieces.popleft()
        self._hold(partition, -len(piece.data))
        check = self._limits.check_crcs
        try:
            found = columns(piece.data, piece.start, aborted=piece.aborted, check=check)
        except CorruptRecord as error:
            return self._take_what_is_sound(now, tp, piece, error)
        return Batch(tp.topic, tp.partition, *found)

    def _take_what_is_sound(
        self, now: float, tp: TopicPartition, torn: Piece, error: CorruptRecord
    ) -> Batch | Damaged | None:
        """Hand on batch by batch up to the damaged one; fetch again from there on.

        A batch whose checksum is right is as its producer made it, and no other replica has a
        better one: it is read record by record.
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
        """Return the records of a batch that the fast parser refuses. Raises CorruptRecord."""
        found = columns(piece.data, piece.start, aborted=piece.aborted, slowly=odd_records)
        errors = unread(found)
        if errors and not self._limits.unreadable:
            raise CorruptRecord(f"{tp}: {errors[0]}")
        return Batch(tp.topic, tp.partition, *found, unreadable=bool(errors))


def pause_s(times: int) -> float:
    """Before the next try: twice as long each time, up to a limit."""
    return min(BACKOFF_S * (1 << min(times - 1, DOUBLINGS_MAX)), BACKOFF_MAX_S)
