"""Error codes and their meaning, by request."""

import pytest

from streamsx.group import member_events as e
from streamsx.group.error_table import COLUMNS, TABLE, Verdict, denies, verdict
from streamsx.protocol.error_codes import ErrorCode

JOIN = e.JoinGroup((), -1, 1, False, None, "")
SYNC = e.SyncGroup({})
BEAT = e.Heartbeat()
COMMIT = e.OffsetCommit({})
ALL: tuple[e.Request, ...] = (JOIN, SYNC, BEAT, COMMIT)

V = Verdict


def test_verdict_table_has_a_cell_for_each_request() -> None:
    assert {len(row) for row in TABLE.values()} == {len(COLUMNS)}


@pytest.mark.parametrize(
    ("code", "means"),
    [
        (ErrorCode.NONE, (V.GOOD, V.GOOD, V.GOOD, V.GOOD)),
        (ErrorCode.NOT_COORDINATOR, (V.FIND, V.FIND, V.FIND, V.FIND)),
        (ErrorCode.REBALANCE_IN_PROGRESS, (V.PAUSE, V.REJOIN, V.GOOD, V.MOVED)),
        (ErrorCode.ILLEGAL_GENERATION, (V.PAUSE, V.REJOIN, V.FENCE, V.FENCE)),
        (ErrorCode.UNKNOWN_MEMBER_ID, (V.FORGET, V.FORGET, V.FORGET, V.FORGET)),
        (ErrorCode.MEMBER_ID_REQUIRED, (V.IDENTIFY, V.FATAL, V.IGNORE, V.REFUSE)),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, (V.FATAL, V.FATAL, V.FATAL, V.REFUSE)),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, (V.FATAL, V.FATAL, V.IGNORE, V.REFUSE)),
        (ErrorCode.CORRUPT_MESSAGE, (V.PAUSE, V.PAUSE, V.IGNORE, V.FIND)),
        (9999, (V.FATAL, V.FATAL, V.IGNORE, V.REFUSE)),
    ],
)
def test_error_code_verdict_is_from_table_or_retriable(
    code: int, means: tuple[Verdict, ...]
) -> None:
    assert tuple(verdict(request, code) for request in ALL) == means


@pytest.mark.parametrize(
    ("code", "beat", "commit"),
    [
        (ErrorCode.ILLEGAL_GENERATION, V.IGNORE, V.MOVED),
        (ErrorCode.UNKNOWN_MEMBER_ID, V.FORGET, V.MOVED),
        (ErrorCode.NONE, V.GOOD, V.GOOD),
    ],
)
def test_refusal_between_generations_is_not_held_against_member(
    code: int, beat: Verdict, commit: Verdict
) -> None:
    """The answer to JoinGroup decides."""
    told = verdict(BEAT, code, stayed=False), verdict(COMMIT, code, stayed=False)
    assert told == (beat, commit)
    assert verdict(JOIN, code, stayed=False) is verdict(JOIN, code)


def test_unretriable_code_denies_partition_for_good() -> None:
    codes = (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 9999,
        ErrorCode.NONE, ErrorCode.NOT_COORDINATOR, ErrorCode.CORRUPT_MESSAGE,
    )  # fmt: skip
    assert [denies(code) for code in codes] == [True, True, True, False, False, False]
