"""Table of Kafka's error codes: the meaning of each code for each kind of request.

Not here: the consequences of a verdict (`member`, `offset_commits`).
"""

from enum import Enum

from streamsx.group.member_events import (
    Heartbeat,
    JoinGroup,
    OffsetCommit,
    Request,
    SyncGroup,
    TxnOffsetCommit,
)
from streamsx.protocol.error_codes import RETRIABLE, ErrorCode


class Verdict(Enum):
    """Reaction of a member to an error code."""

    GOOD = "done"
    FIND = "the coordinator is elsewhere or loading: find it, ask again"
    PAUSE = "join again after a pause, with everything owned"
    REJOIN = "the round is over without us: join the next one, with everything owned"
    IDENTIFY = "ask again with the member id given"
    MOVED = "the group is between two generations or has gone on to the next one"
    FENCE = "out; the member id still counts"
    FORGET = "out; the member id means nothing any more"
    FATAL = "the process must end"
    REFUSE = "these partitions are denied; all else goes on"
    IGNORE = "nothing"
    SOON = "the transaction before is still being ended: ask again in a moment"
    ABORT = "the transaction cannot be committed"


(
    GOOD, FIND, PAUSE, REJOIN, IDENTIFY, MOVED, FENCE, FORGET, FATAL, REFUSE, IGNORE, SOON, ABORT,
) = Verdict  # fmt: skip

COLUMNS: tuple[type[Request], ...] = (
    JoinGroup, SyncGroup, Heartbeat, OffsetCommit, TxnOffsetCommit,
)  # fmt: skip
TABLE: dict[int, tuple[Verdict, ...]] = {
    ErrorCode.NONE: (GOOD, GOOD, GOOD, GOOD, GOOD),
    ErrorCode.REQUEST_TIMED_OUT: (FIND, FIND, FIND, FIND, FIND),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: (FIND, FIND, FIND, FIND, FIND),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (FIND, FIND, FIND, FIND, FIND),
    ErrorCode.NOT_COORDINATOR: (FIND, FIND, FIND, FIND, FIND),
    ErrorCode.ILLEGAL_GENERATION: (PAUSE, REJOIN, FENCE, FENCE, FENCE),
    ErrorCode.UNKNOWN_MEMBER_ID: (FORGET, FORGET, FORGET, FORGET, FORGET),
    ErrorCode.REBALANCE_IN_PROGRESS: (PAUSE, REJOIN, GOOD, MOVED, MOVED),
    ErrorCode.MEMBER_ID_REQUIRED: (IDENTIFY, FATAL, IGNORE, REFUSE, REFUSE),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (PAUSE, FATAL, IGNORE, REFUSE, REFUSE),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (PAUSE, PAUSE, IGNORE, REFUSE, REFUSE),
    ErrorCode.INVALID_GROUP_ID: (FATAL, FATAL, FATAL, FATAL, FATAL),
    ErrorCode.INVALID_SESSION_TIMEOUT: (FATAL, FATAL, FATAL, REFUSE, REFUSE),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (FATAL, FATAL, FATAL, REFUSE, REFUSE),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (FATAL, FATAL, FATAL, FATAL, FATAL),
    ErrorCode.FENCED_INSTANCE_ID: (FATAL, FATAL, FATAL, FATAL, FATAL),
    ErrorCode.CONCURRENT_TRANSACTIONS: (PAUSE, PAUSE, IGNORE, FIND, SOON),
    ErrorCode.INVALID_PRODUCER_EPOCH: (FATAL, FATAL, IGNORE, REFUSE, ABORT),
    ErrorCode.PRODUCER_FENCED: (FATAL, FATAL, IGNORE, REFUSE, ABORT),
    ErrorCode.INVALID_TXN_STATE: (FATAL, FATAL, IGNORE, REFUSE, ABORT),
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: (FATAL, FATAL, IGNORE, REFUSE, ABORT),
    ErrorCode.TRANSACTION_ABORTABLE: (FATAL, FATAL, IGNORE, REFUSE, ABORT),
}
OTHERWISE = (FATAL, FATAL, IGNORE, REFUSE, REFUSE)
"""Verdicts for INCONSISTENT_GROUP_PROTOCOL and for unknown codes."""
PATIENCE = (PAUSE, PAUSE, IGNORE, FIND, FIND)
"""Verdicts for retriable codes that are missing in the table."""

MOVING = {
    (Heartbeat, FENCE): IGNORE,
    (OffsetCommit, FENCE): MOVED,
    (OffsetCommit, FORGET): MOVED,
    (TxnOffsetCommit, FENCE): MOVED,
    (TxnOffsetCommit, FORGET): MOVED,
}
"""Verdicts that change for a member that was not STABLE in one generation from request to answer.
Such a member ignores a fence or retries the commit, because the JoinGroup answer that explains the
refusal is on the way."""


def verdict(request: Request, code: int, *, stayed: bool = True) -> Verdict:
    """Return the verdict on Kafka's error code `code` in the answer to `request`.

    `stayed`: the member was STABLE in one generation from request to answer.
    """
    kind = type(request)
    found = _cell(kind, code)
    return found if stayed else MOVING.get((kind, found), found)


def denies(code: int) -> bool:
    """Return whether a commit's answer with this code refuses the partition for good."""
    return _cell(TxnOffsetCommit, code) is REFUSE


def _cell(kind: type[Request], code: int) -> Verdict:
    column = COLUMNS.index(kind)
    row = TABLE.get(code) or (PATIENCE if code in RETRIABLE else OTHERWISE)
    return row[column]
