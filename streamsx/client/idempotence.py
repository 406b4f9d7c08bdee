"""Who numbers batches, so that a broker takes each of them once and in order (KIP-98). Pure.

One producer id, and of each partition an epoch and the next sequence. A batch is numbered when it
leaves for the first time, and keeps its numbers until it is acknowledged. Where nobody knows which
of them a broker has, or the broker has forgotten them, a new epoch begins them anew (KIP-360); it
is that partition's, for a broker keeps each partition's numbers by itself.

Not here: batches, their order, and when they leave (`produce`).
"""

from typing import Final

from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import ErrorCode

SEQUENCES = 1 << 31
EPOCHS = 1 << 15
FORGOTTEN: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}
)
"""What a broker says that does not know this producer any more."""


class Idempotence:
    """Of one producer. `producer_id`: a broker gives it, before anything leaves."""

    def __init__(self, producer_id: int = -1) -> None:
        self.producer_id = producer_id
        self._next: dict[TopicPartition, tuple[int, int]] = {}

    def number(self, tp: TopicPartition, records: int) -> tuple[int, int, int]:
        """Producer id, epoch and first sequence of the partition's next batch."""
        epoch, sequence = self._next.get(tp, (0, 0))
        self._next[tp] = epoch, (sequence + records) % SEQUENCES
        return self.producer_id, epoch, sequence

    def give_back(self, tp: TopicPartition, records: int) -> None:
        """Take back the numbers of the newest batch: the broker refused it, and has not used
        them.
        """
        epoch, sequence = self._next[tp]
        self._next[tp] = epoch, (sequence - records) % SEQUENCES

    def renew(self, tp: TopicPartition) -> None:
        """A new epoch, from 0 on. A broker that has heard of it refuses what comes of the old."""
        epoch = self._next[tp][0] + 1
        assert epoch < EPOCHS, f"{tp}: its epochs are used up"
        self._next[tp] = epoch, 0
