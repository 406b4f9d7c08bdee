"""Stage of one transactional id: its requests, the meaning of the answers, and the gate. Pure.

A worker under exactly-once has one transactional id, so all of its tasks share one transaction. The
id passes through three stages:

BEGINNING  InitProducerId is on its way. It aborts the transaction that is open, raises the epoch,
           and fences all requests of the old epoch. Nothing leaves.
OPEN       Batches leave, and belong to the transaction.
SHUT       All batches of the transaction have arrived, and its offsets and its end are on their
           way. Records that are sent now wait for the next transaction.

| stage     | event    | next      |
|-----------|----------|-----------|
| BEGINNING | begun    | OPEN      |
| OPEN      | shut     | SHUT      |
| SHUT      | ended    | OPEN      |
| any       | aborted  | BEGINNING |

No request of a worker aborts a transaction by itself, because an aborted epoch would go on. The
race: a TxnOffsetCommit is given up and is still on its way; the transaction is aborted under the
same epoch (version 1 of the protocol); the request arrives; its offsets are committed with the next
transaction. A producer without offsets, and with nothing on its way, may abort (`transaction`).

Version 2 of the protocol (KIP-890) is used where the brokers have finalized it. A batch and a
TxnOffsetCommit then add their partition and their group to the transaction, and each end raises the
epoch. In version 1 both are added by requests of their own.

Batches leave early, or late. Early, they leave as they are sent. Late, they leave when the
transaction is flushed, which then lasts for milliseconds: a body that works for longer than
`transaction_timeout` does not let the transaction of the other tasks time out.

Not here: connections and repetition (`transactional_producer`), and offsets (`group`).
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, NamedTuple

from streamsx.client.api_versions import VersionRange
from streamsx.client.idempotence import FORGOTTEN, BatchOutcome, Idempotence
from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import RETRIABLE, ErrorCode
from streamsx.protocol.wire import Api, by_topic

FEATURE: Final = "transaction.version"
IMPLICIT_LEVEL: Final = 2
"""Level of the feature from which batches add their partitions by themselves."""
VERSIONS: Final = {
    (Api.PRODUCE, 1): VersionRange(3, 8),
    (Api.PRODUCE, 2): VersionRange(12, 12),
    (Api.TXN_OFFSET_COMMIT, 1): VersionRange(3, 3),
    (Api.TXN_OFFSET_COMMIT, 2): VersionRange(5, 5),
    (Api.END_TXN, 1): VersionRange(1, 3),
    (Api.END_TXN, 2): VersionRange(5, 5),
}
"""Versions of requests, by the version of the protocol. TxnOffsetCommit names the member and its
generation since version 3 (KIP-447)."""
LATE_SHARE: Final = 1 / 5
"""Share of the transaction's time-out. When a body has worked for so long, records leave late."""
LATE_FOR_S: Final = 600.0
FENCES_MAX: Final = 3
FENCES_S: Final = 60.0
OLD_FIELDS: Final = "v3_and_below_"


class TransactionStage(Enum):
    """Stage of a transactional id; the module's docstring explains each."""

    BEGINNING = "beginning"
    OPEN = "open"
    SHUT = "shut"


class TransactionVerdict(Enum):
    """Meaning of an answer of the transaction's coordinator."""

    GOOD = "done"
    AGAIN = "find the coordinator, and ask again"
    SOON = "the transaction before is still being ended: ask again in a moment"
    FENCED = "another producer has begun under this id, or the transaction has timed out"
    ABORT = "the transaction cannot be committed"
    DENIED = "no other try can help"


VERDICTS: Final[dict[int, TransactionVerdict]] = {
    **dict.fromkeys(RETRIABLE, TransactionVerdict.AGAIN),
    ErrorCode.NONE: TransactionVerdict.GOOD,
    ErrorCode.CONCURRENT_TRANSACTIONS: TransactionVerdict.SOON,
    ErrorCode.INVALID_PRODUCER_EPOCH: TransactionVerdict.FENCED,
    ErrorCode.PRODUCER_FENCED: TransactionVerdict.FENCED,
    ErrorCode.INVALID_TXN_STATE: TransactionVerdict.ABORT,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: TransactionVerdict.ABORT,
    ErrorCode.UNKNOWN_PRODUCER_ID: TransactionVerdict.ABORT,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: TransactionVerdict.ABORT,
    ErrorCode.TRANSACTION_ABORTABLE: TransactionVerdict.ABORT,
}
"""Verdict on each code; any other code is DENIED."""
OVER: Final = frozenset(
    code
    for code, verdict in VERDICTS.items()
    if verdict in (TransactionVerdict.FENCED, TransactionVerdict.ABORT)
)
"""Codes after which a transaction cannot be committed."""
assert OVER > FORGOTTEN, "a batch that the broker cannot place ends its transaction"


class TransactionIdentity(NamedTuple):
    """Transaction in which offsets are staged. `version` is that of the protocol, 1 or 2."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int


class TransactionalId(Idempotence):
    """Numbers of batches and stage of the transaction of one producer.

    Attributes:
        version: version of the protocol, 1 or 2.
        added: partitions that the open transaction has, in version 1.

    Args:
        transactional_id: the id.
        timeout_s: time after which brokers abort the transaction.
    """

    transactional_id: str

    def __init__(self, transactional_id: str, timeout_s: float) -> None:
        super().__init__()
        self.transactional_id = transactional_id
        self.timeout_s = timeout_s
        self.stage = TransactionStage.BEGINNING
        self.version = 1
        self.added: set[TopicPartition] = set()
        self._flushing = False
        self._late_until = 0.0
        self._opened_at: float | None = None
        """Time at which the first batch of the transaction left; None before."""
        self._fenced_at = deque[float](maxlen=FENCES_MAX)

    # -- the gate

    def leaves(self, now: float) -> bool:
        """Return whether batches may leave."""
        if self.stage is not TransactionStage.OPEN:
            return False
        return self._flushing or now >= self._late_until

    def left(self, now: float) -> None:
        """Note that a batch leaves."""
        if self._opened_at is None:
            self._opened_at = now

    def flush(self) -> None:
        """Let all batches leave, late ones too, until `shut`."""
        self._flushing = True

    def shut(self) -> None:
        """Let nothing more leave, because all batches of the transaction have arrived."""
        assert self.stage is TransactionStage.OPEN, f"shut while {self.stage.value}"
        self.stage = TransactionStage.SHUT
        self._flushing = False

    def worked(self, now: float, seconds: float) -> bool:
        """Note for how long a body is at work; return whether records leave late from now on."""
        if seconds < self.timeout_s * LATE_SHARE:
            return False
        begins = now >= self._late_until
        self._late_until = now + LATE_FOR_S
        return begins

    def aborted(self) -> None:
        """Give up the transaction; the next one has to be begun."""
        self.stage = TransactionStage.BEGINNING
        self._flushing = False

    def fenced(self, now: float) -> bool:
        """Note a fence; return whether it is one too many.

        Brokers answer for a transaction that has timed out as for a fence. Such a transaction is
        open for as long as its time-out, and does not count.
        """
        opened_at = self._opened_at
        if opened_at is not None and now - opened_at >= self.timeout_s:
            return False
        self._fenced_at.append(now)
        several = len(self._fenced_at) == FENCES_MAX
        return several and now - self._fenced_at[0] < FENCES_S

    @property
    def opened(self) -> bool:
        """Return whether batches have left since the last end."""
        return self._opened_at is not None

    # -- requests and answers

    @property
    def open_transaction(self) -> TransactionIdentity:
        return TransactionIdentity(
            self.transactional_id, self._producer_id, self._epoch, self.version
        )

    def versions(self, api: Api) -> VersionRange | None:
        """Return the versions of a request; None for the usual ones."""
        return VERSIONS.get((api, self.version))

    def init_request(self) -> dict[str, Any]:
        """Return the fields of InitProducerId."""
        timeout_ms = int(self.timeout_s * 1000)
        return {**super().init_request(), "transaction_timeout": timeout_ms, "producer_epoch": -1}

    def initialised(self, reply: Any) -> int:
        """Take the answer to InitProducerId, and return the broker's error code."""
        code = super().initialised(reply)
        if not code:
            self._begin(reply.producer_epoch)
            self._next.clear()
        return code

    def add_request(self, tps: Iterable[TopicPartition]) -> dict[str, Any]:
        """Return the fields of AddPartitionsToTxn, in the versions that clients use."""
        about = {
            "transactional_id": self.transactional_id,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
            "topics": by_topic((tp, tp.partition) for tp in sorted(tps)),
        }
        return {OLD_FIELDS + name: value for name, value in about.items()}

    def group_request(self, group: str) -> dict[str, Any]:
        """Return the fields of AddOffsetsToTxn."""
        return {**self._about(), "group_id": group}

    def end_request(self) -> dict[str, Any]:
        """Return the fields of EndTxn for a commit."""
        return {**self._about(), "committed": True}

    def abort_request(self) -> dict[str, Any]:
        """Return the fields of EndTxn for an abort, by a producer that does nothing behind it."""
        return {**self._about(), "committed": False}

    def ended(self, reply: Any) -> None:
        """Take the answer to EndTxn: the transaction is committed."""
        assert self.stage is TransactionStage.SHUT, f"ended while {self.stage.value}"
        if self.version > 1 and reply.producer_id >= 0:
            self._producer_id = reply.producer_id
            self._next.clear()
            self._begin(reply.producer_epoch)
        else:
            self._begin(self._epoch)

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self.stage = TransactionStage.OPEN
        self.added.clear()
        self._opened_at = None

    def _about(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
        }

    # -- batches

    def answered(self, tp: TopicPartition, records: int, code: int) -> BatchOutcome:
        """Take the answer for the partition's newest batch."""
        if code in OVER:
            return BatchOutcome.ABORTED
        if code == ErrorCode.CONCURRENT_TRANSACTIONS:
            return BatchOutcome.SOON
        return super().answered(tp, records, code)

    def given_up(self, tp: TopicPartition) -> None:
        """Keep the numbers: batches are dropped when their transaction is aborted."""


def error_code(reply: Any) -> int:
    """Return the first refusal in an answer; 0 if there is none."""
    topics = getattr(reply, "results_by_topic_v3_and_below", ())
    codes = [p.partition_error_code for t in topics for p in t.results_by_partition]
    passed = (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)
    found = next((code for code in codes if code not in passed), reply.error_code)
    return int(found)


def denied_partitions(reply: Any) -> dict[TopicPartition, int]:
    """Return the partitions of AddPartitionsToTxn that no other try can add, with their codes."""
    return {
        TopicPartition(topic.name, part.partition_index): part.partition_error_code
        for topic in reply.results_by_topic_v3_and_below
        for part in topic.results_by_partition
        if part.partition_error_code not in (*VERDICTS, ErrorCode.OPERATION_NOT_ATTEMPTED)
    }
