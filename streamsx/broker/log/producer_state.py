"""Producer state of one partition (KIP-98): next sequences, open and aborted transactions.

The state lives in memory only: batch headers and markers contain everything that is needed to
rebuild the state. A batch that is sent again after a crash of the broker is therefore recognised as
a duplicate. Not here: whether a transaction may write, and how a transaction ends (the transaction
coordinator).
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
"""Number of requests that a producer may have in flight, so that each of them can be sent again."""
PRODUCERS_MAX = 10_000
"""Limit per partition. Beyond the limit the producer that was silent longest is forgotten; its next
batch is accepted with any sequence.
"""
SEQUENCE_MASK = 0x7FFF_FFFF
"""Sequences wrap around: 0 follows 2**31 - 1."""


class ProducerEntry(NamedTuple):
    """Current epoch of a producer id, and (first sequence, last sequence, offset) of its last
    batches.

    `unknown`: only a marker was found, so its batches may have been deleted.
    """

    epoch: int
    batches: deque[tuple[int, int, int]]
    unknown: bool


class OpenTransaction(NamedTuple):
    """Transaction without a marker: `first` is the offset of its first record, `position` the
    number of bytes appended before that record.
    """

    first: int
    position: int
    epoch: int


class AbortedTransaction(NamedTuple):
    """Aborted transaction, from its first record to its marker. All transactions that ended later
    begin at `stable` or behind.
    """

    producer_id: int
    first: int
    last: int
    stable: int


class ProducerState:
    """Producers of one partition by producer id; the one that wrote last is at the end."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        self.open: dict[int, OpenTransaction] = {}
        """Open transactions by producer id, in the order of their first records."""
        self.aborted: list[AbortedTransaction] = []
        """Aborted transactions in the order of their markers."""
        self._ended: deque[tuple[int, OpenTransaction]] = deque()
        """Marker offset and transaction of ended transactions that a failed flush may still reopen.
        """

    def duplicate_of(self, header: Header) -> int | None:
        """Return the offset at which this batch was appended before; None for a new batch.

        The first batches of a new producer id may have been deleted, so any sequence is accepted
        there.

        Raises:
            Refused: 47 for an old epoch; 48 for a batch outside the open transaction; 45 for a
                sequence that does not follow, and also for a batch far behind, which Kafka never
                calls a duplicate.
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
        """Note a batch that stands in the log at the header's base offset, behind `position`
        appended bytes.

        `commits` is the outcome in a marker, None for records. The epoch of a marker fences all
        earlier epochs.
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
            still = next(iter(self.open.values()), None)
            at = header.base_offset
            self._ended.append((at, ended))
            if not commits:
                stable = still.first if still else at
                self.aborted.append(AbortedTransaction(producer_id, ended.first, at, stable))
        self._producers[producer_id] = producer
        if len(self._producers) > PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]

    def settle(self, offset: int) -> None:
        """Treat markers before this offset as durable."""
        while self._ended and self._ended[0][0] < offset:
            self._ended.popleft()

    @property
    def first_unstable(self) -> OpenTransaction | None:
        """Return the first transaction that readers of committed records may not see yet, as no
        durable marker has ended that transaction.
        """
        begun = next(iter(self.open.values()), None)
        ended = min((each for _, each in self._ended), default=None)
        return ended if begun is None or (ended is not None and ended < begun) else begun

    def aborted_from(self, offset: int) -> Iterator[AbortedTransaction]:
        """Return the aborted transactions whose marker is at this offset or behind."""
        index = bisect_left(self.aborted, offset, key=attrgetter("last"))
        return (self.aborted[i] for i in range(index, len(self.aborted)))

    def aborted_within(self, offset: int, data: bytes) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions that overlap `data`.

        A transaction whose marker stands before `data`, in a damaged part, is left out: a reader
        would never see its end.

        Raises:
            CorruptRecord: The first batch is damaged.
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
        """Forget open transactions that began at this offset or behind: no reader can read their
        first records, so they need no marker.
        """
        self.open = {key: begun for key, begun in self.open.items() if begun.first < since}

    def forget_aborted(self, before: int) -> None:
        """Forget aborted transactions whose marker is before this offset: none of their records is
        left.
        """
        self.aborted = list(self.aborted_from(before))


def span(data: bytes) -> tuple[int, int]:
    """Return the first and the last offset of the complete batches, up to a damaged one.

    Raises:
        CorruptRecord: The first batch is damaged.
    """
    start = end = -1
    try:
        for *_, header in scan(data, check=False):
            start = header.base_offset if start < 0 else start
            end = header.last_offset
    except CorruptRecord:
        if start < 0:
            raise
    return start, end


def sequences(header: Header) -> tuple[int, int]:
    """Return the sequences of the first and the last record."""
    first = header.base_sequence
    return first, (first + header.last_offset_delta) & SEQUENCE_MASK
