"""What an error code means, by request: the table, and the one look into it.

Not here: what follows from a verdict (member.py, commits.py).
"""

from enum import Enum

from streamsx.membership.events import Heartbeat, JoinGroup, OffsetCommit, Request, SyncGroup


class Verdict(Enum):
    """What to do."""

    GOOD = "done"
    FIND = "the coordinator is elsewhere or loading: find it, ask again"
    PAUSE = "join again after a pause, with everything owned"
    FULL = "join again after a long pause"
    REJOIN = "the round is over without us: join the next one, with everything owned"
    IDENTIFY = "ask again with the member id given"
    MOVED = "the group is between two generations or has gone on to the next one"
    FENCE = "out; the member id still counts"
    FORGET = "out; the member id means nothing any more"
    FATAL = "the process must end"
    REFUSE = "this request fails; all else goes on"
    IGNORE = "nothing"


GOOD, FIND, PAUSE, FULL, REJOIN, IDENTIFY, MOVED, FENCE, FORGET, FATAL, REFUSE, IGNORE = Verdict
IMPOSSIBLE = None

COLUMNS: tuple[type[Request], ...] = (JoinGroup, SyncGroup, Heartbeat, OffsetCommit)
TABLE: dict[int, tuple[str, tuple[Verdict | None, ...]]] = {
    0: ("NONE", (GOOD, GOOD, GOOD, GOOD)),
    7: ("REQUEST_TIMED_OUT", (FIND, FIND, FIND, FIND)),
    14: ("COORDINATOR_LOAD_IN_PROGRESS", (FIND, FIND, FIND, FIND)),
    15: ("COORDINATOR_NOT_AVAILABLE", (FIND, FIND, FIND, FIND)),
    16: ("NOT_COORDINATOR", (FIND, FIND, FIND, FIND)),
    22: ("ILLEGAL_GENERATION", (PAUSE, REJOIN, FENCE, FENCE)),
    23: ("INCONSISTENT_GROUP_PROTOCOL", (FATAL, FATAL, IMPOSSIBLE, IMPOSSIBLE)),
    24: ("INVALID_GROUP_ID", (FATAL, FATAL, FATAL, REFUSE)),
    25: ("UNKNOWN_MEMBER_ID", (FORGET, FORGET, FORGET, FORGET)),
    26: ("INVALID_SESSION_TIMEOUT", (FATAL, FATAL, FATAL, REFUSE)),
    27: ("REBALANCE_IN_PROGRESS", (PAUSE, REJOIN, GOOD, MOVED)),
    29: ("TOPIC_AUTHORIZATION_FAILED", (FATAL, FATAL, FATAL, REFUSE)),
    30: ("GROUP_AUTHORIZATION_FAILED", (FATAL, FATAL, FATAL, FATAL)),
    79: ("MEMBER_ID_REQUIRED", (IDENTIFY, IMPOSSIBLE, IMPOSSIBLE, IMPOSSIBLE)),
    81: ("GROUP_MAX_SIZE_REACHED", (FULL, IMPOSSIBLE, IMPOSSIBLE, IMPOSSIBLE)),
    82: ("FENCED_INSTANCE_ID", (FATAL, FATAL, FATAL, FATAL)),
}
OTHERWISE = (FATAL, FATAL, IGNORE, REFUSE)
"""For what is impossible, and for codes that are not in the table."""
REBALANCE_IN_PROGRESS = 27

MOVING = {
    (Heartbeat, FENCE): IGNORE,
    (OffsetCommit, FENCE): MOVED,
    (OffsetCommit, FORGET): MOVED,
}
"""What a refusal means to a member that was not STABLE, in one generation, from question to answer:
the JoinGroup answer that explains it is on its way."""


def verdict(request: Request, code: int, *, stayed: bool = True) -> Verdict:
    """Of Kafka's error code in the answer to this request."""
    kind = type(request)
    column = COLUMNS.index(kind)
    cell = TABLE[code][1][column] if code in TABLE else IMPOSSIBLE
    found = cell or OTHERWISE[column]
    return found if stayed else MOVING.get((kind, found), found)


def name_of(code: int) -> str:
    """As Kafka writes it."""
    return TABLE[code][0] if code in TABLE else f"error {code}"
