"""Observers: how a tool passes a request to the group, and what it sees."""

from streamsx.assignor.model import (
    Copy,
    CopyRole,
    Decision,
    LeaveRequest,
    Mark,
    MarkState,
    MemberMetadata,
    Rules,
)
from streamsx.assignor.observer import describe, observing
from streamsx.assignor.partition_assignor import (
    Outcome,
    StreamsPartitionAssignor,
    Subtopology,
)
from streamsx.assignor.wire import (
    AssignmentView,
    read_assignment,
    read_join,
    write_assignment,
)
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.consumer_protocol import Assignment, Subscription

COUNTS = {"in": 2}
P0, P1 = TopicPartition("in", 0), TopicPartition("in", 1)
T0, T1 = TaskId(0, 0), TaskId(0, 1)
DECISIONS = (Decision(T0, "cold", "no copy", None, "a", None),)
MARK = Mark(MarkState.LEAVING, 9000, epoch_ms=5)


def assignor(instance: str) -> StreamsPartitionAssignor:
    return StreamsPartitionAssignor(
        MemberMetadata(
            "", instance=instance, process=instance.encode().ljust(16).hex(), version="0.1.0"
        ),
        Rules(),
        [Subtopology(0, ("in",), True, 7)],
    )


def said(data: bytes, *owned: TopicPartition) -> bytes:
    return Subscription(("in",), data, owned, 1).write()


def plan(leader: StreamsPartitionAssignor, metadata: list[tuple[str, bytes]]) -> Outcome:
    return leader.assign(metadata, COUNTS, leader=metadata[0][0], generation=4, now_ms=10)


def test_observer_join_holds_nothing_and_sends_marks() -> None:
    member = read_join(observing({"b": MARK}, nonce=0).user_data(MemberMetadata("", nonce=3)))

    assert (member.observer, member.marks, member.nonce) == (True, {"b": MARK}, 3)


def test_observer_as_leader_moves_nothing_and_marks_are_received() -> None:
    a, b = assignor("a"), assignor("b")
    plan(a, [("1", said(a.user_data(MemberMetadata("", nonce=1))))])
    learns = MemberMetadata(
        "", nonce=1, claims=frozenset({P1}), copies={T0: Copy(CopyRole.LEARNER, 9)}
    )
    metadata = [
        ("tool", said(observing({"b": MARK}, nonce=0).user_data(MemberMetadata("", nonce=1)))),
        ("1", said(a.user_data(MemberMetadata("", nonce=1, claims=frozenset({P0}))), P0)),
        ("2", said(b.user_data(learns), P1)),
    ]

    tool = observing({"b": MARK}, nonce=0)
    outcome = tool.assign(metadata, {}, leader="tool", generation=4, now_ms=10)
    answers = {m: Assignment.read(data) for m, data in outcome.assignments.items()}
    view = b.on_assignment(answers["2"].user_data)

    assert [answers[m].partitions for m in ("tool", "1", "2")] == [(), (P0,), (P1,)]
    assert view.mark == MARK
    assert read_assignment(answers["2"].user_data).learners == {T0}
    words = [read_assignment(answer.user_data) for answer in answers.values()]
    assert {(word.memory.round, word.more) for word in words} == {(1, True)}


def test_group_is_described_from_member_bytes_alone() -> None:
    a, b, c = assignor("a"), assignor("b"), assignor("c")
    lag = {T0: Copy(CopyRole.LEARNER, 90_000)}
    metadata = [
        ("1", said(a.user_data(MemberMetadata("", nonce=1, claims=frozenset({P0, P1}))), P0, P1)),
        ("2", said(b.user_data(MemberMetadata("", nonce=1, copies=lag, leaving=None)))),
        ("3", said(c.user_data(MemberMetadata("", nonce=1, leaving=LeaveRequest(77))))),
        ("4", said(b"\x09\x09")),
        ("tool", said(observing({"a": MARK}, nonce=0).user_data(MemberMetadata("", nonce=1)))),
    ]
    outcome = plan(a, metadata)

    report = describe([(m, data, outcome.assignments[m]) for m, data in metadata])

    assert (report.generation, report.leader, report.withheld) == (4, "1", ())
    assert report.marks == {"a": MARK}
    first, second, third, fourth = report.instances
    assert (first.member.id, first.member.instance, first.member.version) == ("1", "a", "0.1.0")
    assert (first.active, first.member.leaving) == ((T0, T1), LeaveRequest(9000))
    assert (second.active, second.learners) == ((), {T0: 90_000, T1: None})
    assert (third.member.leaving, fourth.member.opaque) == (LeaveRequest(77), True)


def test_instance_sharing_no_subtopology_with_the_leader_is_reported() -> None:
    other = StreamsPartitionAssignor(
        MemberMetadata("", instance="b", process=(b"other".ljust(16)).hex(), version="0.1.0"),
        Rules(),
        [Subtopology(0, ("in",), True, 8)],
    )
    a = assignor("a")
    metadata = [
        ("1", said(a.user_data(MemberMetadata("", nonce=1)))),
        ("2", said(other.user_data(MemberMetadata("", nonce=1)))),
    ]
    outcome = plan(a, metadata)

    report = describe([(m, data, outcome.assignments[m]) for m, data in metadata])

    assert [here.alike for here in report.instances] == [True, False]
    assert [here.same_code for here in report.instances] == [True, False]
    assert [bytes.fromhex(here.member.process).strip() for here in report.instances] == [
        b"a",
        b"other",
    ]
    assert report.labels == {"1": "a", "2": "b"}
    unknown = describe([(m, data, b"") for m, data in metadata])
    assert [here.alike for here in unknown.instances] == [True, True]


def test_plans_are_described_with_the_decisions_of_the_newest_one() -> None:
    a = assignor("a")
    metadata = [("1", said(a.user_data(MemberMetadata("", nonce=1))))]
    plan(a, metadata)
    outcome = plan(a, metadata)

    report = describe([(m, data, outcome.assignments[m]) for m, data in metadata])

    newest, older = report.plans
    assert (newest.generation, newest.at_ms, newest.leader) == (4, 10, "a")
    assert newest.decisions == older.decisions == report.decisions


def test_leader_of_before_plans_were_kept_has_its_newest_one() -> None:
    told = AssignmentView(leader=True, generation=4, decisions=DECISIONS)
    join = said(assignor("a").user_data(MemberMetadata("", nonce=1)))

    report = describe([("1", join, Assignment((), write_assignment(told)).write())])

    (newest,) = report.plans
    assert (newest.generation, newest.at_ms, newest.decisions) == (4, 0, DECISIONS)


def test_withheld_tasks_are_reported() -> None:
    a, b = assignor("a"), assignor("b")
    ready = {T1: Copy(CopyRole.LEARNER, 0)}
    metadata = [
        ("1", said(a.user_data(MemberMetadata("", nonce=1, claims=frozenset({P0, P1}))), P0, P1)),
        ("2", said(b.user_data(MemberMetadata("", nonce=1, copies=ready)))),
    ]
    outcome = plan(a, metadata)

    report = describe([(m, data, outcome.assignments[m]) for m, data in metadata])

    assert report.withheld == (T1,)
    assert [instance.active for instance in report.instances] == [(T0,), ()]


def test_rebalancing_group_is_described_as_empty() -> None:
    report = describe([("1", b"", b"")])

    assert (report.generation, report.leader) == (-1, None)
    assert report.instances[0].member.opaque
