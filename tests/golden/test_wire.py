"""Bytes that members of a group send each other: user data, subscriptions, assignments.

Members of two releases are in one group while it is upgraded, so each reads what the other writes.
"""

import json
import zlib
from dataclasses import replace

import pytest

from streamsx.assignor.codec import Unreadable
from streamsx.assignor.model import (
    METRICS,
    Copy,
    CopyRole,
    Decision,
    LeaveRequest,
    Mark,
    MarkState,
    MemberMetadata,
    Memory,
    PastPlan,
    TaskKind,
)
from streamsx.assignor.wire import (
    AssignmentView,
    ErrorWord,
    read_assignment,
    read_join,
    write_assignment,
    write_join,
)
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.consumer_protocol import Assignment, Subscription

T = TaskId
MARKS = {
    "a": Mark(MarkState.LEAVING, 1_700_000_060_000, "b", 1_700_000_000_000),
    "c": Mark(MarkState.CANCELLED, None, None, 1_700_000_000_001),
}
MEMBER = MemberMetadata(
    id="",
    instance="a",
    process="00112233445566778899aabbccddeeff",
    capacity=3,
    tags={"zone": "eu-1", "host": "h"},
    leaving=LeaveRequest(1_700_000_060_000, "b"),
    fresh=True,
    eager=True,
    observer=True,
    copies={
        T(1, 0): Copy(CopyRole.RUNNING, 0),
        T(1, 2): Copy(CopyRole.RESTORING, 300),
        T(1, 3): Copy(CopyRole.LEARNER, None),
        T(2, 0): Copy(CopyRole.STANDBY, 5),
        T(2, 9): Copy(CopyRole.DORMANT, 90_000),
    },
    heirs=frozenset({T(1, 3)}),
    wanted=frozenset({T(2, 0)}),
    stalled=frozenset({T(1, 3)}),
    stopped=frozenset({T(1, 0)}),
    reasons={T(1, 0): "ValueError: ä"},
    round=7,
    marks=MARKS,
    signatures=(0xDEADBEEF, 1),
    nonce=2**40,
    version="0.1.0",
    metrics=dict.fromkeys(METRICS, 0.0) | {METRICS[0]: 1.5, METRICS[7]: 4.0},
)
JOIN = bytes.fromhex(
    "0101"  # version, oldest reader
    "0110 00112233445566778899aabbccddeeff"  # process
    "0301 03"  # capacity
    "0401 17"  # flags
    "0506 e0a499ffbc31"  # deadline_ms
    "0606 808080808020"  # nonce
    "0811 04686f73740168 047a6f6e650465752d31"  # tags
    "0920 0001010100 010101 01 02ad02 0201010103 00 030102010006 040102010991bf05"  # copies
    "0a04 01010103"  # heirs
    "0b1c 01610162 00 e1a499ffbc31 80d095ffbc31 016300 01 00 81d095ffbc31"  # marks
    "0c01 07"  # round
    "0d08 deadbeef 00000001"  # signatures
    "0e01 61"  # instance
    "0f01 62"  # swap_to
    "1104 01020100"  # wanted
    "1204 01010103"  # stalled
    "1305 302e312e30"  # version
    "1404 01010100"  # stopped
    "1511 0100 0e56616c75654572726f723a20c3a4"  # reasons
    "1638 3fc00000" + "00000000" * 6 + "40800000" + "00000000" * 6  # metrics
)
VIEW = AssignmentView(
    memory=Memory(7, TaskKind.STATEFUL, MARKS),
    more=True,
    no_takers=True,
    shared_name=True,
    leader=True,
    learners=frozenset({T(1, 3)}),
    standbys=frozenset({T(2, 0)}),
    wanted=frozenset({T(2, 0)}),
    promises=frozenset({T(1, 3)}),
    error=ErrorWord.SOURCE_TOPIC_MISSING,
    heard=2**40,
    generation=12,
    withheld=frozenset({T(0, 1)}),
    topics={0: ("orders",), 1: ("changes", "x")},
)
ASSIGNMENT = bytes.fromhex(
    "0101"  # version, oldest reader
    "0101 07"  # round
    "0201 1b"  # flags
    "0304 01020100"  # standbys
    "0404 01010103"  # learners
    "0604 01020100"  # wanted
    "091d 01 01610162 00 e1a499ffbc31 80d095ffbc31 016300 01 00 81d095ffbc31"  # memory
    "0a04 01010103"  # promises
    "0b01 0c"  # generation
    "0c01 01"  # error
    "0e04 01000101"  # withheld
    "0f15 0001066f7264657273 0102076368616e6765730178"  # topics
    "1206 808080808020"  # heard
)
STOPS = "1708 4b65794572726f72", "1308 4b65794572726f72"
"""Fields of a join and of an assignment that stop the app, absent elsewhere."""
DECISIONS = (
    Decision(T(0, 1), "stage", "b is 9 records behind", "a", "b", 9),
    Decision(T(0, 2), "promote", "nobody runs it", None, "b", None),
)
DECISIONS_TEXT = (
    '[["0_1","stage","b is 9 records behind","a","b",9],'
    '["0_2","promote","nobody runs it",null,"b",null]]'
)
TOLD = bytes.fromhex(
    "0101 105a 789c1d8b3d0e80200c46afd274eea06e9c8510034294045b5360f0f682d3f7fbacc5655f91b0367fa6"
    "a1017205039a0ed15821a42b731cbd9f1b927134896da447e59636199620f105ed5c213724eea5fcef699cfb00ce"
    "201ea3"
)
"""Decisions alone; what compresses them may choose other bytes for the same text."""


def test_join_is_written_as_these_bytes() -> None:
    assert write_join(MEMBER).hex(" ") == JOIN.hex(" ")


def test_join_is_read_from_these_bytes() -> None:
    assert read_join(JOIN) == MEMBER


def test_join_that_says_nothing_is_two_bytes() -> None:
    assert write_join(MemberMetadata(id="")) == b"\x01\x01"
    assert read_join(b"\x01\x01") == MemberMetadata(id="")


def test_assignment_is_written_as_these_bytes() -> None:
    assert write_assignment(VIEW).hex(" ") == ASSIGNMENT.hex(" ")


def test_assignment_is_read_from_these_bytes() -> None:
    assert read_assignment(ASSIGNMENT) == VIEW


def test_assignment_that_says_nothing_is_two_bytes() -> None:
    assert write_assignment(AssignmentView()) == b"\x01\x01"
    assert read_assignment(b"\x01\x01") == AssignmentView()


def test_decisions_are_read_from_these_bytes() -> None:
    assert read_assignment(TOLD) == AssignmentView(decisions=DECISIONS)


def test_decisions_are_written_as_this_text_compressed() -> None:
    made = write_assignment(AssignmentView(decisions=DECISIONS))
    assert made[:3] == b"\x01\x01\x10"
    assert zlib.decompress(made[4:]).decode() == DECISIONS_TEXT
    assert len(json.loads(DECISIONS_TEXT)) == len(DECISIONS)


def test_reason_to_stop_the_app_has_these_bytes() -> None:
    join, assignment = map(bytes.fromhex, STOPS)
    assert write_join(replace(MEMBER, stops_app="KeyError")) == JOIN + join
    stopped = write_assignment(replace(VIEW, stop_app="KeyError"))
    assert stopped == ASSIGNMENT + assignment
    assert read_assignment(stopped).stop_app == "KeyError"


def test_words_for_the_log_have_these_bytes() -> None:
    """They came later: a reader without them skips the tags, and bytes without them are read."""
    view = replace(
        VIEW, led_by="a", leader_leaves=True, differs=frozenset({0, 200}), idle="4 tasks"
    )
    flagged = ASSIGNMENT.hex().replace("02011b", "02013b", 1)
    later = bytes.fromhex(flagged + "140161" + "150300c801" + "160734207461736b73")
    assert write_assignment(view).hex(" ") == later.hex(" ")
    assert read_assignment(later) == view
    assert read_assignment(ASSIGNMENT).led_by == ""


@pytest.mark.parametrize("data", [JOIN, ASSIGNMENT], ids=["join", "assignment"])
def test_user_data_of_a_later_version_for_old_readers_is_read(data: bytes) -> None:
    later = b"\x09\x01" + data[2:] + b"\x7f\x02\xab\xcd"
    if data is JOIN:
        assert read_join(later) == MEMBER
    else:
        assert read_assignment(later) == VIEW


@pytest.mark.parametrize("read", [read_join, read_assignment])
def test_user_data_for_a_later_reader_is_refused(read: object) -> None:
    assert callable(read)
    with pytest.raises(Unreadable, match="user data of format 3: needs a reader of 2"):
        read(b"\x03\x02")


@pytest.mark.parametrize(
    ("enum", "numbers"),
    [
        (CopyRole, {"RUNNING": 0, "RESTORING": 1, "LEARNER": 2, "STANDBY": 3, "DORMANT": 4}),
        (TaskKind, {"STATEFUL": 1, "STATELESS": 2}),
        (MarkState, {"LEAVING": 0, "CANCELLED": 1}),
        (ErrorWord, {"NONE": 0, "SOURCE_TOPIC_MISSING": 1, "ASSIGNMENT_FAILED": 2}),
    ],
    ids=["roles", "kinds", "marks", "errors"],
)
def test_numbers_on_the_wire_stay_with_their_names(
    enum: type[CopyRole] | type[TaskKind] | type[MarkState] | type[ErrorWord],
    numbers: dict[str, int],
) -> None:
    assert {name: int(value) for name, value in enum.__members__.items()} == numbers


@pytest.mark.parametrize(
    ("member", "flags"),
    [
        (MemberMetadata(id="", leaving=LeaveRequest()), "040101"),
        (MemberMetadata(id="", eager=True), "040102"),
        (MemberMetadata(id="", fresh=True), "040104"),
        (MemberMetadata(id="", observer=True), "040110"),
    ],
    ids=["leaving", "eager", "fresh", "observer"],
)
def test_flag_of_a_join_has_its_bit(member: MemberMetadata, flags: str) -> None:
    assert write_join(member).hex() == "0101" + flags


@pytest.mark.parametrize(
    ("view", "flags"),
    [
        (AssignmentView(more=True), "020101"),
        (AssignmentView(no_takers=True), "020102"),
        (AssignmentView(leader=True), "020108"),
        (AssignmentView(shared_name=True), "020110"),
    ],
    ids=["more", "no_takers", "leader", "shared_name"],
)
def test_flag_of_an_assignment_has_its_bit(view: AssignmentView, flags: str) -> None:
    assert write_assignment(view).hex() == "0101" + flags


def test_metrics_travel_in_this_order() -> None:
    assert METRICS == (
        "partitions-revoked-latency-avg", "partitions-revoked-latency-max",
        "partitions-assigned-latency-avg", "partitions-assigned-latency-max",
        "partitions-lost-latency-avg", "partitions-lost-latency-max",
        "rebalance-rate-per-hour", "rebalance-total", "rebalance-latency-avg",
        "rebalance-latency-max", "rebalance-latency-total", "failed-rebalance-rate-per-hour",
        "failed-rebalance-total", "last-rebalance-seconds-ago",
    )  # fmt: skip


# -- Kafka's own Subscription and Assignment around the user data

SUBSCRIPTION = Subscription(
    ("lines", "words"),
    b"\x01\x01",
    (TopicPartition("lines", 0), TopicPartition("words", 0), TopicPartition("words", 1)),
    9,
    "r1",
)
HEAD = "00000002 00056c696e6573 0005776f726473 00000002 0101"
OWNED = "00000002 00056c696e6573 00000001 00000000 0005776f726473 00000002 00000000 00000001"
SUBSCRIPTIONS = {
    0: (f"0000 {HEAD}", replace(SUBSCRIPTION, owned=(), generation=-1, rack=None)),
    1: (f"0001 {HEAD} {OWNED}", replace(SUBSCRIPTION, generation=-1, rack=None)),
    2: (f"0002 {HEAD} {OWNED} 00000009", replace(SUBSCRIPTION, rack=None)),
    3: (f"0003 {HEAD} {OWNED} 00000009 00027231", SUBSCRIPTION),
}
PLACES = Assignment((TopicPartition("lines", 0), TopicPartition("words", 1)), b"\x01\x01")
PLACES_REST = (
    "00000002 00056c696e6573 00000001 00000000 0005776f726473 00000001 00000001 00000002 0101"
)


def test_subscription_is_written_as_version_3() -> None:
    assert SUBSCRIPTION.write().hex(" ") == bytes.fromhex(SUBSCRIPTIONS[3][0]).hex(" ")


@pytest.mark.parametrize("version", SUBSCRIPTIONS)
def test_subscription_of_each_version_is_read(version: int) -> None:
    data, expected = SUBSCRIPTIONS[version]
    assert Subscription.read(bytes.fromhex(data)) == expected


def test_assignment_around_user_data_is_written_as_version_0() -> None:
    assert PLACES.write().hex(" ") == bytes.fromhex("0000" + PLACES_REST).hex(" ")


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_assignment_of_each_version_is_read(version: int) -> None:
    assert Assignment.read(bytes.fromhex(f"000{version}" + PLACES_REST)) == PLACES


TIMES = "1802 904e 1902 e807"
"""Fields of a join: a session of 10 s and a commit each second, absent where they are not known."""
PLANS = (
    PastPlan(12, 1_700_000_000_000, "a", joined=("c",), left=("b",)),
    PastPlan(11, 1_600_000_000_000, "a", decisions=DECISIONS),
)
PLANS_TEXT = (
    f'[[12,1700000000000,"a",["c"],["b"],[]],[11,1600000000000,"a",[],[],{DECISIONS_TEXT}]]'
)


def test_session_timeout_and_commit_interval_in_a_join_are_these_bytes() -> None:
    made = MemberMetadata(id="", session_ms=10_000, commit_ms=1000)
    assert write_join(made) == bytes.fromhex("0101" + TIMES)
    assert read_join(bytes.fromhex("0101" + TIMES)) == made


def test_past_plans_are_written_as_this_text_compressed() -> None:
    made = write_assignment(AssignmentView(plans=PLANS))
    assert made[:3] == b"\x01\x01\x18"
    assert zlib.decompress(made[made.index(b"x") :]).decode() == PLANS_TEXT
    assert read_assignment(made) == AssignmentView(plans=PLANS)
