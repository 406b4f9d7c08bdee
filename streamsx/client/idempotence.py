"""Numbers of batches, so that a broker takes each batch once and in order (KIP-98). Pure.

A producer has one `Idempotence`, and nothing else knows the producer id, the epochs and the
sequences. The producer asks for the fields of InitProducerId; `record_accumulator` asks for the
numbers of each batch, and for the meaning of each answer. A batch gets its numbers when it leaves
for the first time. The broker's answer decides what becomes of these numbers:

| broker's answer for a batch | outcome | numbers of the batch |
|---|---|---|
| NONE, DUPLICATE_SEQUENCE_NUMBER | TAKEN | used |
| retriable (`error_codes.RETRIABLE`) | AGAIN | kept |
| no answer | | kept |
| OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID | RENUMBER | given up: a new epoch begins |
| any other | REFUSED | not used: the next batch gets them |
| any or none, and the batch is dropped | | given up: a new epoch begins |

A new epoch begins the sequences anew (KIP-360). The epoch belongs to one partition, because a
broker keeps each partition's numbers separately.

A producer with a transactional id has a `transactional_id.TransactionalId` in its place.

Not here: batches, their order, and the time they leave (`record_accumulator`).
"""

from enum import Enum
from typing import Any, Final, NamedTuple

from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import RETRIABLE, ErrorCode

SEQUENCES = 1 << 31
EPOCHS = 1 << 15
NO_PRODUCER_ID: Final = -1
FORGOTTEN: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}
)
"""Error codes of a broker that does not know this producer any more."""


class BatchNumbers(NamedTuple):
    """Numbers of one batch; `sequence` is that of the first record."""

    producer_id: int
    epoch: int
    sequence: int


class BatchOutcome(Enum):
    """Meaning of a broker's answer for one batch."""

    TAKEN = "the broker has the batch"
    AGAIN = "the batch goes again, with the same numbers"
    RENUMBER = "the batch goes again, with new numbers"
    REFUSED = "the broker has not taken the batch, and never will"
    SOON = "the transaction before is still being ended: the batch goes again in a moment"
    ABORTED = "the transaction of the batch cannot be committed"


OUTCOMES: Final[dict[int, BatchOutcome]] = {
    **dict.fromkeys(RETRIABLE, BatchOutcome.AGAIN),
    **dict.fromkeys(FORGOTTEN, BatchOutcome.RENUMBER),
    ErrorCode.NONE: BatchOutcome.TAKEN,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: BatchOutcome.TAKEN,
}
"""Outcome of each code; any other code is REFUSED."""


class Idempotence:
    """Numbers of one producer. A broker gives the producer id before any batch leaves."""

    transactional_id: str | None = None

    def __init__(self, producer_id: int = NO_PRODUCER_ID) -> None:
        self._producer_id = producer_id
        self._epoch = 0
        """Epoch with which each partition begins."""
        self._next: dict[TopicPartition, tuple[int, int]] = {}

    def init_request(self) -> dict[str, Any]:
        """Return the fields of InitProducerId."""
        return {
            "transactional_id": self.transactional_id,
            "transaction_timeout": 0,
            "producer_id": NO_PRODUCER_ID,
        }

    def initialised(self, reply: Any) -> int:
        """Take the answer to InitProducerId, and return the broker's error code."""
        code: int = reply.error_code
        if not code:
            self._producer_id = reply.producer_id
        return code

    def number(self, tp: TopicPartition, records: int) -> BatchNumbers:
        """Return the numbers of the partition's next batch."""
        epoch, sequence = self._next.get(tp, (self._epoch, 0))
        self._next[tp] = epoch, (sequence + records) % SEQUENCES
        return BatchNumbers(self._producer_id, epoch, sequence)

    def answered(self, tp: TopicPartition, records: int, code: int) -> BatchOutcome:
        """Take the answer for the partition's newest batch.

        After a refusal the numbers are free, because the broker has taken nothing of the batch. If
        the broker had, the answer to the next batch would be OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        outcome = OUTCOMES.get(code, BatchOutcome.REFUSED)
        if outcome is BatchOutcome.RENUMBER:
            self._renew(tp)
        elif outcome is BatchOutcome.REFUSED:
            epoch, sequence = self._next[tp]
            self._next[tp] = epoch, (sequence - records) % SEQUENCES
        return outcome

    def given_up(self, tp: TopicPartition) -> None:
        """Give up the numbers of a dropped batch: nothing shows whether a broker has the batch."""
        self._renew(tp)

    def _renew(self, tp: TopicPartition) -> None:
        """Begin a new epoch from sequence 0.

        A broker that has seen the new epoch refuses batches of the old one.
        """
        epoch = self._next[tp][0] + 1
        assert epoch < EPOCHS, f"{tp}: its epochs are used up"
        self._next[tp] = epoch, 0
