"""What producers wrote to one partition (KIP-98): what may come next, what is open or was aborted.

Kept in memory alone: batch headers and markers hold all of it, so it is rebuilt by reading them,
and a batch that is sent again after a crash of the broker is recognised. Whether a transaction may
write, and how it ends, is the coordinator's to say.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from streamsx.broker.refusal import Refused
from streamsx.errors import CorruptRecord
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import Header, scan

BATCHES_KEPT = 5
"""As many requests as a producer may have under way, so that each can be sent again."""
PRODUCERS_MAX = 10_000
"""Per partition; beyond it the one that was silent longest is forgotten, and then believed."""
SEQUENCE_MASK = 0x7FFF_FFFF
"""After 2**31 - 1 comes 0."""


class ProducerEntry(NamedTuple):
    """The current epoch of a producer id, and (first, last sequence, offset) of its batches.

    `unknown`: there was but a marker, they may have been deleted.
    """

    epoch: int
    batches: deque[tuple[int, int, int]]
    unknown: bool


class OpenTransaction(NamedTuple):
    """`first`: the offset of its first record; `position`: the bytes appended before it."""

    first: int
    position: int
    epoch: int


class AbortedTransaction(NamedTuple):
    """From its first record to its marker; those that ended later begin at `stable` or later."""

    producer_id: int
    first: int
    last: int
    stable: int


class ProducerState:
    """By producer id, the one that wrote last at the end."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        self.open: dict[int, OpenTransaction] = {}
        """By producer id, in the order of their first records."""
        self.aborted: list[AbortedTransaction] = []
        """In the order of their markers."""
        self._ended: deque[tuple[int, OpenTransaction]] = deque()
        """By their markers, those which a failed flush may take back still."""

    def duplicate_of(self, header: Header) -> int | None:
        """The offset at which this batch was appended before; None if it is to be appended now.

        Raises Refused: 47 for an old epoch, 48 for what is not of the transaction that is open, 45
        for a sequence that does not follow; also for one far behind, which Kafka never calls a
        duplicate. Nothing is known of a new producer id, since its first batches may have been
        deleted: any sequence will do.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch < producer.epoch:
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH)
        if header.producer_id in self.open and not header.transactional:
            raise Refused(ErrorCode.INVALID_TXN_STATE)
        first, last = sequences(header)
        if header.producer_epoch > producer.epoch or not producer.batches:
            if header.producer_epoch == producer.epoch and producer.unknown:
                return None
            expected = 0
        else:
            for known_first, known_last, offset in producer.batches:
                if (known_first, known_last) == (first, last):
                    return offset
            expected = (producer.batches[-1][1] + 1) & SEQUENCE_MASK
        if first != expected:
            raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return None

    def note(self, header: Header, commits: bool | None, position: int) -> None:
        """This batch stands in the log, at its base offset, behind so many bytes. `commits`: what a
        marker says; None for records. The epoch of a marker fences those before it.
        """
        if (producer_id := header.producer_id) < 0:
            return
        producer = self._producers.pop(producer_id, None)
        if producer is None or producer.epoch != header.producer_epoch:
            unknown = producer is None and commits is not None
            producer = ProducerEntry(header.producer_epoch, deque(maxlen=BATCHES_KEPT), unknown)
        if commits is None:
            producer.batches.append((*sequences(header), header.base_offset))
            if header.transactional and producer_id not in self.open:
                begun = OpenTransaction(header.base_offset, position, header.producer_epoch)
                self.open[producer_id] = begun
        elif (ended := self.open.pop(producer_id, None)) is not None:
            still, at = next(iter(self.open.values()), None), header.base_offset
            self._ended.append((at, ended))
            if not commits:
                stable = still.first if still else at
                self.aborted.append(AbortedTransaction(producer_id, ended.first, at, stable))
        self._producers[producer_id] = producer
        if len(self._producers) > PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]

    def settle(self, offset: int) -> None:
        """Markers before this offset stand for good."""
        while self._ended and self._ended[0][0] < offset:
            self._ended.popleft()

    @property
    def first_unstable(self) -> OpenTransaction | None:
        """What nobody may read yet who reads what is committed: no end of it stands for good."""
        begun = next(iter(self.open.values()), None)
        ended = min((each for _, each in self._ended), default=None)
        return ended if begun is None or (ended is not None and ended < begun) else begun

    def aborted_from(self, offset: int) -> Iterator[AbortedTransaction]:
        """Those that end there or later."""
        index = bisect_left(self.aborted, offset, key=attrgetter("last"))
        return (self.aborted[i] for i in range(index, len(self.aborted)))

    def aborted_within(self, offset: int, data: bytes) -> list[tuple[int, int]]:
        """(producer id, first offset) of those that reach into what was read there: of one whose
        marker stands before that, in what is damaged, a reader would never hear the end. Raises
        CorruptRecord if already the first batch is damaged.
        """
        found = list[tuple[int, int]]()
        if not (data and self.aborted and self.aborted[-1].last >= offset):
            return found
        start, end = span(data)
        for each in self.aborted_from(max(offset, start)):
            if each.first <= end:
                found.append((each.producer_id, each.first))
            if each.stable > end:
                break
        return found

    def forget_open(self, since: int) -> None:
        """Nobody can read what they began with, there or later: they need no end."""
        self.open = {key: begun for key, begun in self.open.items() if begun.first < since}

    def forget_aborted(self, before: int) -> None:
        """Nothing of them is there any more before this offset, if they end there."""
        self.aborted = list(self.aborted_from(before))


def span(data: bytes) -> tuple[int, int]:
    """The first and the last offset of whole batches, up to one that is damaged. Raises
    CorruptRecord if that is the first one.
    """
    start = end = -1
    try:
        for *_, header in scan(data, check=False):
            start, end = (header.base_offset if start < 0 else start), header.last_offset
    except CorruptRecord:
        if start < 0:
            raise
    return start, end


def sequences(header: Header) -> tuple[int, int]:
    """Of the first and the last record."""
    first = header.base_sequence
    return first, (first + header.last_offset_delta) & SEQUENCE_MASK
