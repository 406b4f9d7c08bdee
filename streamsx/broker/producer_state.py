"""Idempotence of one partition (KIP-98): which producer wrote what last, and what may come next.

Kept in memory alone: batch headers hold all of it, so it is rebuilt by reading them, and a batch
that is sent again after a crash of the broker is recognised. Transactions are not here yet.
"""

from collections import deque
from typing import NamedTuple

from streamsx.broker.refusal import Refused
from streamsx.kafka.batch import Header
from streamsx.kafka.errors import ErrorCode

BATCHES_KEPT = 5
"""As many requests as a producer may have under way, so that each can be sent again."""
PRODUCERS_MAX = 10_000
"""Per partition; beyond it the one that was silent longest is forgotten, and then believed."""
SEQUENCE_MASK = 0x7FFF_FFFF
"""After 2**31 - 1 comes 0."""


class ProducerEntry(NamedTuple):
    """The current epoch of a producer id, and (first, last sequence, offset) of its batches."""

    epoch: int
    batches: deque[tuple[int, int, int]]


class ProducerState:
    """By producer id, the one that wrote last at the end."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}

    def duplicate_of(self, header: Header) -> int | None:
        """The offset at which this batch was appended before; None if it is to be appended now.

        Raises Refused: 47 for an old epoch, 45 for a sequence that does not follow; also for one
        far behind, which Kafka never calls a duplicate. Nothing is known of a new producer id,
        since its first batches may have been deleted: any sequence will do.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch < producer.epoch:
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH)
        first, last = sequences(header)
        if header.producer_epoch > producer.epoch:
            expected = 0
        else:
            for known_first, known_last, offset in producer.batches:
                if (known_first, known_last) == (first, last):
                    return offset
            expected = (producer.batches[-1][1] + 1) & SEQUENCE_MASK
        if first != expected:
            raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return None

    def note(self, header: Header) -> None:
        """This batch stands in the log, at its base offset."""
        if header.producer_id < 0:
            return
        producer = self._producers.pop(header.producer_id, None)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = ProducerEntry(header.producer_epoch, deque(maxlen=BATCHES_KEPT))
        producer.batches.append((*sequences(header), header.base_offset))
        self._producers[header.producer_id] = producer
        if len(self._producers) > PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]


def sequences(header: Header) -> tuple[int, int]:
    """Of the first and the last record."""
    first = header.base_sequence
    return first, (first + header.last_offset_delta) & SEQUENCE_MASK
