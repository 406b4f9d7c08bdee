"""Numbers of batches, so that a broker takes each batch once and in order (KIP-98). Pure.

A producer has one producer id, and for each partition an epoch and the next sequence. A batch gets
its numbers when it leaves for the first time, and keeps them until acknowledged. If nothing shows
which numbers a broker has, or the broker has forgotten them, a new epoch begins them anew
(KIP-360). The epoch belongs to one partition, because a broker keeps each partition's numbers
separately.

Not here: batches, their order, and the time they leave (`record_accumulator`).
"""

from typing import Final

from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import ErrorCode

SEQUENCES = 1 << 31
EPOCHS = 1 << 15
FORGOTTEN: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}
)
"""Error codes of a broker that does not know this producer any more."""


class Idempotence:
    """Numbers of one producer. A broker gives `producer_id` before any batch leaves."""

    def __init__(self, producer_id: int = -1) -> None:
        self.producer_id = producer_id
        self._next: dict[TopicPartition, tuple[int, int]] = {}

    def number(self, tp: TopicPartition, records: int) -> tuple[int, int, int]:
        """Return producer id, epoch and first sequence of the partition's next batch."""
        epoch, sequence = self._next.get(tp, (0, 0))
        self._next[tp] = epoch, (sequence + records) % SEQUENCES
        return self.producer_id, epoch, sequence

    def give_back(self, tp: TopicPartition, records: int) -> None:
        """Take back the numbers of the newest batch; the broker refused it without using them."""
        epoch, sequence = self._next[tp]
        self._next[tp] = epoch, (sequence - records) % SEQUENCES

    def renew(self, tp: TopicPartition) -> None:
        """Begin a new epoch from sequence 0.

        A broker that has seen the new epoch refuses batches of the old one.
        """
        epoch = self._next[tp][0] + 1
        assert epoch < EPOCHS, f"{tp}: its epochs are used up"
        self._next[tp] = epoch, 0
