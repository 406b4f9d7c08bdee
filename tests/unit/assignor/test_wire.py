"""Join data and plans as bytes: read as written, by any reader."""

import zlib
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsx.assignor.codec import Unreadable, number, text
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
    DECISIONS_MAX,
    PAST_BYTES_MAX,
    PAST_DECISIONS_MAX,
    PLAN_DECISIONS_MAX,
    PLANS_MAX,
    REASON_CHARS_MAX,
    REASONS_MAX,
    AssignmentView,
    ErrorWord,
    read_assignment,
    read_join,
    write_assignment,
    write_join,
)
from streamsx.model import TaskId

numbers = st.integers(0, 2**40)
ids = st.builds(TaskId, st.integers(0, 300), st.integers(0, 300))
some_ids = st.frozensets(ids, max_size=6)
copies = st.just(Copy(CopyRole.RUNNING, 0)) | st.builds(
    Copy, st.sampled_from(list(CopyRole)[1:]), st.none() | numbers
)
names = st.text(min_size=1, max_size=5)
marks = st.dictionaries(
    names,
    st.builds(Mark, st.sampled_from(MarkState), st.none() | numbers, st.none() | names, numbers),
    max_size=3,
)
members = st.builds(
    MemberMetadata,
    id=st.just(""),
    instance=st.none() | names,
    process=st.just("") | st.binary(min_size=16, max_size=16).map(bytes.hex),
    capacity=st.integers(1, 9),
    tags=st.dictionaries(names, names, max_size=3),
    leaving=st.none() | st.builds(LeaveRequest, st.none() | numbers),
    fresh=st.booleans(),
    eager=st.booleans(),
    observer=st.booleans(),
    copies=st.dictionaries(ids, copies, max_size=6),
    heirs=some_ids,
    wanted=some_ids,
    stalled=some_ids,
    stopped=some_ids,
    reasons=st.dictionaries(ids, st.text(max_size=9), max_size=REASONS_MAX),
    round=numbers,
    marks=marks,
    signatures=st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple),
    stops_app=st.text(max_size=9),
    nonce=numbers,
    version=st.text(max_size=5),
    metrics=st.just({}) | st.floats(0, 1e6, width=32).map(lambda n: dict.fromkeys(METRICS, n)),
)
assignments = st.builds(
    AssignmentView,
    memory=st.builds(Memory, numbers, st.integers(0, 3).map(TaskKind), marks),
    more=st.booleans(),
    no_takers=st.booleans(),
    shared_name=st.booleans(),
    leader=st.booleans(),
    learners=some_ids,
    standbys=some_ids,
    wanted=some_ids,
    promises=some_ids,
    stop_app=st.text(max_size=9),
    error=st.sampled_from(ErrorWord),
    generation=numbers,
    withheld=some_ids,
    decisions=st.lists(
        st.builds(
            Decision, ids, names, names, st.none() | names, st.none() | names, st.none() | numbers
        ),
        max_size=3,
    ).map(tuple),
    topics=st.dictionaries(st.integers(0, 9), st.lists(names, max_size=3).map(tuple), max_size=3),
)
strangers = st.lists(st.tuples(st.integers(100, 10_000), st.binary(max_size=5)), max_size=3).map(
    lambda found: b"".join(number(tag) + number(len(b)) + b for tag, b in found)
)


@given(members, strangers)
def test_join_round_trips_beside_unknown_fields(member: MemberMetadata, strangers: bytes) -> None:
    assert read_join(write_join(member) + strangers) == member
    assert read_join(write_join(member)[:2] + strangers + write_join(member)[2:]) == member


@given(assignments, strangers)
def test_assignment_round_trips_beside_unknown_fields(
    data: AssignmentView, strangers: bytes
) -> None:
    assert read_assignment(write_assignment(data) + strangers) == data


@given(members | assignments, st.data())
def test_damaged_bytes_are_read_or_raise_unreadable(
    said: MemberMetadata | AssignmentView, choose: st.DataObject
) -> None:
    data = bytearray(
        write_join(said) if isinstance(said, MemberMetadata) else write_assignment(said)
    )
    for _ in range(choose.draw(st.integers(1, 3))):
        data[choose.draw(st.integers(0, len(data) - 1))] = choose.draw(st.integers(0, 255))
    cut = bytes(data[: choose.draw(st.integers(0, len(data)))])
    for read in (read_join, read_assignment):
        with suppress(Unreadable):
            read(cut)


def test_reason_to_stop_the_app_is_bounded_and_survives_any_text() -> None:
    why = "\udcff" + "x" * 1000
    told = read_join(write_join(MemberMetadata("", stops_app=why))).stops_app
    assert told == "?" + "x" * 499
    assert read_assignment(write_assignment(AssignmentView(stop_app=why))).stop_app == told


def test_reasons_are_bounded_and_survive_any_text() -> None:
    reasons = {TaskId(0, number): "\udcff{}" + "x" * 1000 for number in range(60)}
    told = read_join(write_join(MemberMetadata("", reasons=reasons))).reasons
    assert list(told) == [TaskId(0, number) for number in range(REASONS_MAX)]
    assert set(told.values()) == {"?{}" + "x" * (REASON_CHARS_MAX - 3)}


def test_join_bytes_are_stable() -> None:
    """Members of other versions read the bytes: a change here is a change of the format."""
    member = MemberMetadata(
        "",
        instance="a",
        process="ab" * 16,
        tags={"zone": "x"},
        leaving=LeaveRequest(300),
        nonce=2,
        copies={TaskId(0, 1): Copy(CopyRole.LEARNER, 4), TaskId(0, 3): Copy(CopyRole.RUNNING, 0)},
        heirs=frozenset({TaskId(0, 1)}),
        wanted=frozenset({TaskId(0, 2)}),
        marks={"b": Mark(MarkState.CANCELLED, None, None, 7)},
        round=3,
        signatures=(1,),
        version="0.1",
        reasons={TaskId(1, 2): "w"},
    )

    fields = [
        "0110" + "ab" * 16,
        "040101",
        "0502ac02",
        "060102",
        "0807" + "047a6f6e65" + "0178",
        "090b" + "0001000103" + "020100010105",
        "0a0401000101",
        "0b06016200010007",
        "0c0103",
        "0d0400000001",
        "0e0161",
        "110401000102",
        "1303302e31",
        "1504" + "01020177",
    ]  # fmt: skip
    assert write_join(member).hex() == "0101" + "".join(fields)


def test_assignment_bytes_are_stable() -> None:
    data = AssignmentView(
        memory=Memory(9, TaskKind.STATELESS, {"b": Mark(MarkState.LEAVING, 4, "c", 7)}),
        more=True,
        leader=True,
        learners=frozenset({TaskId(2, 0)}),
        standbys=frozenset({TaskId(2, 1)}),
        wanted=frozenset({TaskId(2, 1)}),
        promises=frozenset({TaskId(2, 0)}),
        generation=5,
        error=ErrorWord.ASSIGNMENT_FAILED,
        withheld=frozenset({TaskId(2, 0)}),
        topics={0: ("in", "x")},
    )

    fields = [
        "010109",
        "020109",
        "030401020101",
        "040401020100",
        "060401020101",
        "09080201620163000507",
        "0a0401020100",
        "0b0105",
        "0c0102",
        "0e0401020100",
        "0f07000202696e0178",
    ]  # fmt: skip
    assert write_assignment(data).hex() == "0101" + "".join(fields)


OLD_JOIN = (
    "010101"
    "10abababababababababababababababab0301020401050502ac020601030912010101"
    "01020a0201000101050401010100000a04010001010b060162000006060c01070d0800000001000000020e0161"
    "1204010001011305302e312e30"
)
"""As 833c08b wrote it, which knew of no task that had stopped."""
LATER = "1404010101021506010203776879"
"""What 1273d67 wrote behind it."""
OLD_ASSIGNMENT = (
    "01010101080201090404010001010907010162000100090a04010001010b01040e04010101010f05000102696e"
)


@pytest.mark.parametrize("later", [False, True], ids=["833c08b", "1273d67"])
def test_join_of_an_older_version_is_read(*, later: bool) -> None:
    read = read_join(bytes.fromhex(OLD_JOIN + LATER * later))

    learned = frozenset({TaskId(0, 1)})
    copies = {
        TaskId(0, 1): Copy(CopyRole.LEARNER, 4),
        TaskId(1, 0): Copy(CopyRole.DORMANT, None),
        TaskId(1, 2): Copy(CopyRole.RESTORING, 9),
    }
    member = MemberMetadata(
        "", instance="a", process="ab" * 16, capacity=2, leaving=LeaveRequest(300), fresh=True,
        copies=copies, heirs=learned, stalled=learned, round=7,
        marks={"b": Mark(MarkState.LEAVING, 5, None, 6)}, signatures=(1, 2), nonce=3,
        version="0.1.0",
    )  # fmt: skip
    if later:
        stopped = {TaskId(1, 2): "why"}
        member = replace(member, stopped=frozenset(stopped), reasons=stopped)
    assert read == member


def test_assignment_of_an_older_leader_is_read() -> None:
    learned = frozenset({TaskId(0, 1)})
    memory = Memory(8, TaskKind.STATEFUL, {"b": Mark(MarkState.CANCELLED, None, None, 9)})
    assert read_assignment(bytes.fromhex(OLD_ASSIGNMENT)) == AssignmentView(
        memory, more=True, leader=True, learners=learned, promises=learned, generation=4,
        withheld=frozenset({TaskId(1, 1)}), topics={0: ("in",)},
    )  # fmt: skip


def test_decisions_are_bounded_when_written() -> None:
    told = tuple(
        Decision(TaskId(0, n), "stage", f"b is {n} records behind (limit 10); a runs", "a", "b", n)
        for n in range(3000)
    )
    data = write_assignment(AssignmentView(decisions=told))
    assert read_assignment(data).decisions == told[:DECISIONS_MAX]


def test_decisions_with_long_names_are_cut_to_the_readable_size() -> None:
    """With all decisions the leader could not read its own assignment."""
    name = "w" * 249
    why = f"{name} is 9 records behind and restores; {name} is 7 records behind and goes on"
    told = tuple(
        Decision(TaskId(0, n), "overtake", why, name, name, 7) for n in range(DECISIONS_MAX)
    )
    data = write_assignment(AssignmentView(decisions=told))
    found = read_assignment(data).decisions
    assert found == told[: len(found)]
    assert len(found) >= DECISIONS_MAX // 4
    assert len(data) < 16_000


def test_plans_name_workers_that_are_gone_and_skip_what_a_later_release_adds() -> None:
    killed = PastPlan(1, 2, "a", left=("c",), gone=("b",))
    assert read_assignment(write_assignment(AssignmentView(plans=(killed,)))).plans == (killed,)

    rows = b'[[1,2,"a",[],["c"],[]],[1,2,"a",[],["c"],[],["b"],"later"]]'
    data = zlib.compress(rows)
    found = read_assignment(b"\x01\x01\x18" + bytes([len(data)]) + data).plans
    assert found == (replace(killed, gone=()), killed)


def test_oldest_plans_are_left_out_beyond_each_limit() -> None:
    rng = Random(1)
    few = tuple(PastPlan(100 - n, n + 1, "a") for n in range(PLANS_MAX + 5))
    assert read_assignment(write_assignment(AssignmentView(plans=few))).plans == few[:PLANS_MAX]

    one = Decision(TaskId(0, 0), "cold", "why", None, "a", 0)
    many = tuple(PastPlan(n, 1, "a", decisions=(one,) * (PLAN_DECISIONS_MAX + 1)) for n in range(9))
    found = read_assignment(write_assignment(AssignmentView(plans=many))).plans
    assert {len(each.decisions) for each in found} == {PLAN_DECISIONS_MAX}
    assert len(found) == PAST_DECISIONS_MAX // PLAN_DECISIONS_MAX

    long = tuple(
        PastPlan(n, 1, "a", joined=(rng.randbytes(PAST_BYTES_MAX // 8).hex(),)) for n in range(20)
    )
    made = write_assignment(AssignmentView(plans=long))
    kept = read_assignment(made).plans
    assert 4 < len(kept) < 20
    assert kept == long[: len(kept)]
    assert len(made) < PAST_BYTES_MAX + 10


@pytest.mark.parametrize("rows", [b"7", b"[[1]]", b'[[1,2,"a",7,[],[]]]', b"{", b'["x"]'])
def test_plans_that_cannot_be_read_make_the_assignment_unreadable(rows: bytes) -> None:
    data = zlib.compress(rows)
    with pytest.raises(Unreadable):
        read_assignment(b"\x01\x01\x18" + bytes([len(data)]) + data)


def test_error_word_numbers_are_stable() -> None:
    assert {word.name: word.value for word in ErrorWord} == {
        "NONE": 0,
        "SOURCE_TOPIC_MISSING": 1,
        "ASSIGNMENT_FAILED": 2,
    }


def test_unknown_roles_and_mark_states_are_skipped_and_error_words_mapped() -> None:
    role = bytes.fromhex("0101") + bytes.fromhex("0906090100010005")
    mark = text("x") + text("") + number(7) + number(0) + number(1)
    told = bytes.fromhex("0101") + number(11) + number(len(mark)) + mark

    assert read_join(role) == MemberMetadata("")
    assert read_join(told) == MemberMetadata("")
    assert read_assignment(bytes.fromhex("01010c0109")).error is ErrorWord.ASSIGNMENT_FAILED


def test_member_without_capacity_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="capacity"):
        read_join(write_join(replace(MemberMetadata(""), capacity=0)))


def test_copy_role_numbers_are_stable() -> None:
    numbers = {"RUNNING": 0, "RESTORING": 1, "LEARNER": 2, "STANDBY": 3, "DORMANT": 4}
    assert {role.name: role.value for role in CopyRole} == numbers
