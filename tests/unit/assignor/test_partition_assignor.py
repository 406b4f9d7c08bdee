"""The adapter between Kafka's protocol (topics, bytes) and the assignor (tasks)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsx.assignor import partition_assignor
from streamsx.assignor.model import (
    RUNNING,
    Copy,
    CopyRole,
    Group,
    LeaveRequest,
    Mark,
    MarkState,
    MemberMetadata,
    Memory,
    Plan,
    Rules,
    TaskKind,
)
from streamsx.assignor.observer import observing
from streamsx.assignor.partition_assignor import (
    Outcome,
    StreamsPartitionAssignor,
    Subtopology,
    claims_stay,
)
from streamsx.assignor.wire import (
    AssignmentView,
    ErrorWord,
    read_assignment,
    read_join,
    write_assignment,
)
from streamsx.broker.metadata_rows import GroupKey, GroupValue, MemberValue, row_bytes
from streamsx.errors import IllegalPlan
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.consumer_protocol import Assignment, Subscription

COUNTS = {"left": 3, "right": 2, "counts": 2}
NOTHING = MemberMetadata("", nonce=1)


def assignor(
    instance: str = "a", signature: int = 7, rules: Rules | None = None, process: str = ""
) -> StreamsPartitionAssignor:
    """Return an assignor: sub-topology 0 merges two topics without state, 1 counts."""
    return StreamsPartitionAssignor(
        MemberMetadata(
            "",
            instance=instance,
            process=(process or instance).encode().ljust(16).hex(),
            version="0.1.0",
        ),
        rules or Rules(),
        [
            Subtopology(0, ("left", "right"), False, 1),
            Subtopology(1, ("counts",), True, signature),
        ],
    )


def tps(text: str) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic, int(p)) for topic, _, p in (tp.partition("-") for tp in text.split())
    )


def said(data: bytes, owned: str = "", generation: int = 1) -> bytes:
    return Subscription(tuple(COUNTS), data, tuple(tps(owned)), generation).write()


def lead(
    leader: StreamsPartitionAssignor,
    metadata: Sequence[tuple[str, bytes]],
    partitions: Mapping[str, int] = COUNTS,
    now_ms: int = 0,
) -> Outcome:
    return leader.assign(metadata, partitions, leader="1", generation=5, now_ms=now_ms)


def given_to(outcome: Outcome, member: str) -> frozenset[TopicPartition]:
    return frozenset(Assignment.read(outcome.assignments[member]).partitions)


def word_for(outcome: Outcome, member: str) -> AssignmentView:
    return read_assignment(Assignment.read(outcome.assignments[member]).user_data)


def test_tasks_and_partitions_map_to_each_other() -> None:
    me = assignor()

    assert me.task_of(TopicPartition("right", 1)) == TaskId(0, 1)
    assert me.task_of(TopicPartition("foreign", 1)) is None
    assert me.tasks_of(tps("left-0 right-0 counts-1 foreign-0")) == {TaskId(0, 0), TaskId(1, 1)}
    assert set(me.partitions_of(TaskId(0, 1), COUNTS)) == tps("left-1 right-1")
    assert set(me.partitions_of(TaskId(0, 2), COUNTS)) == tps("left-2")


def test_subtopologies_must_be_numbered_without_gaps() -> None:
    with pytest.raises(AssertionError, match="by position"):
        StreamsPartitionAssignor(
            MemberMetadata("", instance="a", process=bytes(16).hex(), version=""),
            Rules(),
            [Subtopology(1, ("t",), True, 1)],
        )


def test_join_carries_identity_and_copies_beside_claims() -> None:
    copies = {
        TaskId(0, 0): Copy(CopyRole.RUNNING, 0),
        TaskId(0, 1): Copy(CopyRole.RUNNING, 0),
        TaskId(1, 0): Copy(CopyRole.LEARNER, 5),
        TaskId(1, 1): Copy(CopyRole.LEARNER, 6),
    }
    stalled = frozenset({TaskId(1, 0)})
    claims, stopped = tps("left-0 right-0 counts-1"), {TaskId(0, 0): "why"}
    report = MemberMetadata(
        "",
        nonce=4,
        claims=claims,
        copies=copies,
        stalled=stalled,
        leaving=LeaveRequest(9),
        fresh=True,
        stopped=frozenset(stopped),
        reasons=stopped,
    )

    member = read_join(assignor().user_data(report))

    assert member.copies == {
        TaskId(0, 1): Copy(CopyRole.RUNNING, 0),  # it ran until now, and is not claimed
        TaskId(1, 0): Copy(CopyRole.LEARNER, 5),
        TaskId(1, 1): Copy(CopyRole.RESTORING, 6),  # it has become its own since
    }
    assert (member.instance, member.process, member.version) == ("a", b"a".ljust(16).hex(), "0.1.0")
    assert (member.nonce, member.leaving, member.fresh) == (4, LeaveRequest(9), True)
    assert (member.stalled, member.signatures) == (stalled, (1, 7))
    assert member.stopped == stopped.keys()
    assert member.reasons == stopped


def test_join_repeats_the_last_assignment_of_the_leader() -> None:
    me = assignor()
    marks = {"a": Mark(MarkState.LEAVING, 50, epoch_ms=3)}
    promised = frozenset({TaskId(1, 0), TaskId(1, 1)})
    word = AssignmentView(Memory(6, marks=marks), learners=promised, promises=promised)

    view = me.on_assignment(write_assignment(word))
    member = read_join(me.user_data(MemberMetadata("", nonce=1, claims=tps("counts-1"))))

    assert view == replace(word, mark=marks["a"])
    assert (member.round, member.marks) == (6, marks)
    assert member.heirs == {TaskId(1, 0)}


def test_wanted_standby_is_reported_by_the_role_in_the_plan() -> None:
    """The group sees the role of the last plan, whatever the worker has made of the copy since."""
    me, (t, u) = assignor(), (TaskId(1, 0), TaskId(1, 1))
    word = AssignmentView(Memory(6), learners=frozenset({u}), standbys=frozenset({t}))
    me.on_assignment(write_assignment(replace(word, wanted=frozenset({t}))))
    held = {t: Copy(CopyRole.LEARNER, 5), u: Copy(CopyRole.STANDBY, 6)}

    member = read_join(me.user_data(MemberMetadata("", nonce=1, copies=held)))
    claimed = read_join(me.user_data(MemberMetadata("", nonce=2, claims=tps("counts-0"))))

    assert member.copies == {t: Copy(CopyRole.STANDBY, 5), u: Copy(CopyRole.LEARNER, 6)}
    assert member.wanted == {t}
    assert claimed.wanted == frozenset()


def test_unreadable_assignment_changes_nothing_and_is_reported() -> None:
    me = assignor()
    learns = frozenset({TaskId(1, 0)})
    me.on_assignment(write_assignment(AssignmentView(Memory(6), learners=learns)))

    view = me.on_assignment(b"")

    assert (view.learners, view.error) == (learns, ErrorWord.ASSIGNMENT_FAILED)
    assert "ends early" in view.problem
    assert read_join(me.user_data(NOTHING)).round == 6


def test_first_group_gets_all_partitions_of_all_tasks() -> None:
    a, b = assignor("a"), assignor("b")

    outcome = lead(a, [("1", said(a.user_data(NOTHING))), ("2", said(b.user_data(NOTHING)))])

    assert given_to(outcome, "1") == tps("left-0 right-0 left-2 counts-0")
    assert given_to(outcome, "2") == tps("left-1 right-1 counts-1")
    assert outcome.error is ErrorWord.NONE
    assert outcome.notes == ()
    assert outcome.summary.startswith("Plan of round 5: a runs 3, ")


def test_leader_receives_withheld_tasks_and_topics_for_tools() -> None:
    a, b = assignor("a"), assignor("b")
    metadata = [("1", said(a.user_data(NOTHING))), ("2", said(b.user_data(NOTHING), "left-0"))]

    outcome = lead(a, [*metadata, ("3", said(b.user_data(NOTHING), "left-0"))])

    mine, other = word_for(outcome, "1"), word_for(outcome, "2")
    assert (mine.leader, mine.generation) == (True, 5)
    assert mine.withheld == {TaskId(0, 0)}
    assert mine.topics == {0: ("left", "right"), 1: ("counts",)}
    assert (other.leader, other.generation, other.topics) == (False, 0, {})
    assert (mine.more, other.more) == (True, True)


def test_leader_passes_on_its_last_plans_with_joins_and_leaves() -> None:
    a, b = assignor("a"), assignor("b")
    mine = ("1", said(a.user_data(replace(NOTHING, fresh=True))))
    other = ("2", said(b.user_data(replace(NOTHING, fresh=True))))

    def plans(*metadata: tuple[str, bytes], now_ms: int) -> list[tuple[object, ...]]:
        outcome = lead(a, metadata, now_ms=now_ms)
        assert all(not word_for(outcome, m).plans for m, _ in metadata if m != "1")
        found = word_for(outcome, "1").plans
        assert {each.leader for each in found} == {"a"}
        assert not any(each.left for each in found)
        return [(each.at_ms, each.joined, each.gone, bool(each.decisions)) for each in found]

    first = (1, ("a",), (), True)
    second = (2, ("b",), (), True)
    assert plans(mine, now_ms=1) == [(1, ("a",), (), False)]
    assert plans(mine, other, now_ms=2) == [(2, ("b",), (), False), first]
    assert plans(mine, other, now_ms=3) == [(3, (), (), False), second, first], "still fresh"
    assert plans(mine, now_ms=4)[0] == (4, (), ("b",), False)
    back = ("7", said(b.user_data(NOTHING)))
    assert plans(mine, back, now_ms=4)[0] == (4, ("b",), (), False), "its session had ended"
    assert plans(mine, ("8", back[1]), now_ms=4)[0] == (4, (), (), False), "it was fenced"
    assert plans(mine, ("9", other[1]), now_ms=4)[0] == (4, ("b",), (), False), "started again"


def test_plan_explains_that_tasks_stop_when_their_topic_is_gone() -> None:
    a = assignor("a")
    claims = "left-0 right-0 left-1 right-1 left-2 counts-0 counts-1"
    metadata = [("1", said(a.user_data(NOTHING), claims))]

    outcome = lead(a, metadata, {**COUNTS, "counts": 0})

    assert outcome.plan is not None
    why = "stops, because topic counts is not there"
    stops = [(each.task, each.decision, each.why, each.owner) for each in outcome.plan.explain]
    assert stops == [(TaskId(1, n), "topic-gone", why, "1") for n in range(2)]
    decisions = word_for(outcome, "1").decisions
    assert [(each.task, each.owner) for each in decisions] == [
        (TaskId(1, n), "a") for n in range(2)
    ]


def test_plans_tell_a_worker_that_left_from_one_that_was_killed() -> None:
    a, b = assignor("a"), assignor("b")
    leaving = replace(NOTHING, leaving=LeaveRequest())
    mine = ("1", said(a.user_data(NOTHING), "left-0 right-0 left-1 right-1 counts-0 counts-1"))

    def ended(last: MemberMetadata) -> tuple[object, ...]:
        lead(a, [mine, ("2", said(b.user_data(last), "left-2"))])
        plan, *_ = word_for(lead(a, [mine]), "1").plans
        return plan.left, plan.gone

    assert ended(NOTHING) == ((), ("b",))
    assert ended(leaving) == (("b",), ())


def test_leader_of_a_full_record_passes_on_no_past_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    a = assignor("a")
    metadata = [("1", said(a.user_data(NOTHING)))]
    lead(a, metadata)
    assert len(word_for(lead(a, metadata), "1").plans) == 2

    monkeypatch.setattr(partition_assignor, "RECORD_BYTES_NEAR", 10)
    outcome = lead(a, metadata)

    assert len(word_for(outcome, "1").plans) == 1
    assert word_for(outcome, "1").decisions
    assert outcome.record_bytes < lead(assignor("a"), metadata).record_bytes + 20


def test_rounds_continue_while_a_member_learns_or_an_observer_is_present() -> None:
    """Each of these rounds waited for a heartbeat: a leave took 6 to 9 s, not 1 to 3 s."""
    a, b = assignor("a"), assignor("b")
    both = ("1", said(a.user_data(NOTHING), "left-0 right-0 left-1 right-1 counts-0 counts-1"))
    other = ("2", said(b.user_data(NOTHING), "left-2"))
    tool = (
        "tool",
        Subscription((), observing({}, nonce=0).user_data(MemberMetadata("", nonce=1))).write(),
    )

    learns = lead(a, [both, other])
    asked = lead(a, [both, tool])
    calm = lead(a, [both])

    assert word_for(learns, "2").learners
    assert not word_for(learns, "1").withheld
    assert [word_for(outcome, "1").more for outcome in (learns, asked, calm)] == [True, True, False]


@pytest.mark.parametrize("partitions", [COUNTS, {"left": 3}], ids=["plan", "claims stay"])
def test_reason_to_stop_the_app_reaches_all_members_and_is_not_repeated(
    partitions: Mapping[str, int],
) -> None:
    a, b = assignor("a"), assignor("b")
    stops = replace(NOTHING, stops_app="KeyError: 'x'")
    metadata = [("1", said(a.user_data(NOTHING))), ("2", said(b.user_data(stops)))]

    outcome = lead(a, metadata, partitions)
    words = [word_for(outcome, member) for member in ("1", "2")]
    assert [word.stop_app for word in words] == ["KeyError: 'x'"] * 2
    a.on_assignment(Assignment.read(outcome.assignments["1"]).user_data)
    assert read_join(a.user_data(NOTHING)).stops_app == ""


def test_unknown_source_topic_freezes_the_assignment() -> None:
    a, b = assignor("a"), assignor("b")
    metadata = [("1", said(a.user_data(NOTHING), "counts-0")), ("2", said(b.user_data(NOTHING)))]

    outcome = lead(a, metadata, {"left": 3, "counts": 2})

    assert (outcome.error, outcome.plan) == (ErrorWord.SOURCE_TOPIC_MISSING, None)
    assert given_to(outcome, "1") == tps("counts-0")
    word = word_for(outcome, "2")
    assert (word.error, word.memory.round) == (ErrorWord.SOURCE_TOPIC_MISSING, 1)
    assert outcome.notes == (
        "Source topics are not there: right. All tasks stay where they are; create the topics.",
    )


def test_tasks_of_a_deleted_topic_are_dropped_and_others_planned() -> None:
    """Every plan was refused, once every few seconds, for as long as the topic was away."""
    a = assignor()
    claims = "left-0 right-0 left-1 right-1 left-2 counts-0 counts-1"
    metadata = [("1", said(a.user_data(NOTHING), claims))]

    without_state = lead(a, metadata, {**COUNTS, "right": 0})
    assert without_state.error is ErrorWord.NONE
    assert given_to(without_state, "1") == tps("left-0 left-1 left-2 counts-0 counts-1")

    stateful = lead(a, metadata, {**COUNTS, "counts": 0})
    assert given_to(stateful, "1") == tps("left-0 right-0 left-1 right-1 left-2")
    back = lead(a, [("1", said(a.user_data(NOTHING), claims[: claims.index(" counts")]))])
    assert given_to(back, "1") == tps(claims)


def test_stateful_task_needs_all_source_topics() -> None:
    joined = StreamsPartitionAssignor(
        MemberMetadata("", instance="a", process=bytes(16).hex(), version="0.1.0"),
        Rules(),
        [Subtopology(0, ("left", "right"), True, 1, tasks=2)],
    )
    metadata = [("1", said(joined.user_data(NOTHING), "left-0 right-0"))]
    assert given_to(lead(joined, metadata, {"left": 2, "right": 0}), "1") == set()


def test_stateful_subtopology_gets_no_task_for_added_partitions() -> None:
    a = StreamsPartitionAssignor(
        MemberMetadata("", instance="a", process=bytes(16).hex(), version="0.1.0"),
        Rules(),
        [Subtopology(0, ("counts",), True, 1, tasks=2)],
    )
    metadata = [("1", said(a.user_data(NOTHING), "counts-0"))]
    assert given_to(lead(a, metadata, {"counts": 4}), "1") == tps("counts-0 counts-1")


def test_illegal_plan_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def illegal(group: Group, rules: Rules) -> Plan:
        raise IllegalPlan("the story")

    monkeypatch.setattr(partition_assignor, "assign", illegal)
    a = assignor()

    outcome = lead(a, [("1", said(a.user_data(NOTHING), "counts-0"))])

    assert (outcome.error, outcome.plan) == (ErrorWord.ASSIGNMENT_FAILED, None)
    assert given_to(outcome, "1") == tps("counts-0")
    story, given = outcome.notes
    assert story == "the story"
    assert given.startswith("its input: Group(tasks=[PlannedTask(")


def test_eager_member_keeps_undisputed_tasks_without_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The member claims nothing: all its tasks stood still, round after round."""

    def illegal(group: Group, rules: Rules) -> Plan:
        raise IllegalPlan("the story")

    monkeypatch.setattr(partition_assignor, "assign", illegal)
    a, b, c = assignor("a"), assignor("b"), assignor("c")
    ran = [dict.fromkeys((TaskId(1, n) for n in some), RUNNING) for some in ((0, 1, 2), (1,))]
    metadata = [
        ("1", said(a.user_data(replace(NOTHING, copies=ran[0])))),
        ("2", said(b.user_data(replace(NOTHING, copies=ran[1])))),
        ("3", said(c.user_data(NOTHING), "counts-2")),
    ]

    outcome = lead(a, metadata, {**COUNTS, "counts": 3})

    assert given_to(outcome, "1") == tps("counts-0")
    assert given_to(outcome, "2") == set()
    assert given_to(outcome, "3") == tps("counts-2")


@pytest.mark.parametrize(
    ("members", "near", "too_large"), [(100, False, False), (120, True, False), (150, True, True)]
)
def test_group_too_large_for_a_record_moves_nothing_with_a_remedy(
    members: int, near: bool, too_large: bool
) -> None:
    """The coordinator refused the plan, and all members joined again, for ever."""
    long = tuple(f"topic-{n}-{'x' * 100}" for n in range(64))
    me = assignor()
    said_ = [
        (f"m{n}", Subscription(long, me.user_data(replace(NOTHING, claims=frozenset()))).write())
        for n in range(members)
    ]

    outcome = me.assign(said_, COUNTS, leader="m0", generation=5, now_ms=0)

    assert (outcome.plan is None) is too_large
    if too_large:
        assert outcome.error is ErrorWord.ASSIGNMENT_FAILED
        assert "shorter names of topics" in outcome.notes[-1]
        assert all(not Assignment.read(data).partitions for data in outcome.assignments.values())
    else:
        assert outcome.alarm.startswith("The group's record nears its limit: ") is near


@pytest.mark.parametrize("instance", [None, "p" * 20, "p" * 249], ids=["none", "short", "long"])
def test_record_size_estimate_is_an_upper_bound(instance: str | None) -> None:
    """The estimate counts as Kafka writes; the id of a static member begins with its
    instance id.
    """
    me = assignor()
    ids = [f"{instance or 'aiokafka-0.14.0'}-{UUID(int=n)}" for n in range(20)]
    said_ = [(member, said(me.user_data(NOTHING))) for member in ids]

    outcome = me.assign(said_, COUNTS, leader=ids[0], generation=5, now_ms=0)

    members = tuple(
        MemberValue(
            member, instance, "aiokafka-0.14.0", "/255.255.255.255", 60_000, 45_000, subscription,
            outcome.assignments[member], (),
        )
        for member, subscription in said_
    )  # fmt: skip
    value = GroupValue("consumer", 5, "streamsx", ids[0], 0, members, True)
    _, row = row_bytes(GroupKey("g"), value)
    assert len(row) <= outcome.record_bytes <= len(row) + 100 * len(ids)


def test_claims_of_no_task_are_returned_unless_their_topic_is_deleted() -> None:
    a = assignor()
    metadata = [("1", said(a.user_data(NOTHING), "counts-2 foreign-0 deleted-0"))]

    outcome = lead(a, metadata, {**COUNTS, "deleted": 0})

    assert given_to(outcome, "1") & tps("counts-2 foreign-0 deleted-0") == tps("counts-2 foreign-0")
    (note,) = outcome.notes
    assert note.startswith(
        "Worker a keeps partitions that belong to no task of this app: counts-2, foreign-0;"
    )


def test_claim_of_no_task_made_twice_goes_to_neither_member() -> None:
    a, b = assignor("a"), assignor("b")
    data = [said(me.user_data(NOTHING), "foreign-0") for me in (a, b)]

    outcome = lead(a, [("1", data[0]), ("2", data[1])])

    assert not (given_to(outcome, "1") | given_to(outcome, "2")) & tps("foreign-0")


def test_member_with_another_signature_gets_no_task_of_the_subtopology() -> None:
    a, b = assignor("a"), assignor("b", signature=8)

    outcome = lead(a, [("1", said(a.user_data(NOTHING))), ("2", said(b.user_data(NOTHING)))])

    assert given_to(outcome, "1") >= tps("counts-0 counts-1")


def test_leader_continues_balancing_begun_by_the_last_plan() -> None:
    """Two tasks on one member and none on the other are within the tolerance of a group at rest."""
    rules = Rules(imbalance_percentage=1)
    a, b = assignor("a", rules=rules), assignor("b", rules=rules)
    metadata = [
        ("1", said(a.user_data(NOTHING), "counts-0 counts-1")),
        ("2", said(b.user_data(NOTHING))),
    ]

    assert word_for(lead(a, metadata), "2").learners == frozenset()
    a.on_assignment(write_assignment(AssignmentView(Memory(6, TaskKind.STATEFUL))))
    assert word_for(lead(a, metadata), "2").learners == {TaskId(1, 0)}


def test_mark_reaches_every_member_and_sets_an_eviction_deadline() -> None:
    a, b = assignor("a"), assignor("b")
    mark = Mark(MarkState.LEAVING, 2000, epoch_ms=9)
    tool = said(observing({"b": mark}, nonce=0).user_data(MemberMetadata("", nonce=1)))

    outcome = lead(
        a,
        [("1", said(a.user_data(NOTHING))), ("2", said(b.user_data(NOTHING))), ("tool", tool)],
    )
    view = b.on_assignment(Assignment.read(outcome.assignments["2"]).user_data)

    assert outcome.evictions == {"2": 7000}
    assert view.mark == mark
    assert given_to(outcome, "tool") == frozenset()
    assert word_for(outcome, "tool").memory == word_for(outcome, "1").memory


@given(st.data())
def test_damaged_member_bytes_do_not_stop_the_leader(choose: st.DataObject) -> None:
    a, b = assignor("a"), assignor("b")
    copies = {TaskId(1, 0): Copy(CopyRole.LEARNER, 5), TaskId(1, 1): Copy(CopyRole.DORMANT, None)}
    data = bytearray(
        said(
            b.user_data(MemberMetadata("", nonce=1, claims=tps("left-0 right-0"), copies=copies)),
            "left-0 right-0",
        )
    )
    for _ in range(choose.draw(st.integers(1, 4))):
        data[choose.draw(st.integers(0, len(data) - 1))] = choose.draw(st.integers(0, 255))
    cut = bytes(data[: choose.draw(st.integers(0, len(data)))])

    outcome = lead(a, [("1", said(a.user_data(NOTHING), "counts-0")), ("2", cut)])

    assert set(outcome.assignments) == {"1", "2"}
    assert outcome.error is ErrorWord.NONE


def test_workers_sharing_a_name_across_directories_are_notified() -> None:
    """Other workers are not notified; a process that died and its successor have one directory."""
    members = [("a", "p1"), ("b", "p2"), ("a", "p3"), ("c", "p4"), ("c", "p4")]
    made = [assignor(instance, process=process) for instance, process in members]
    metadata = [(str(n), said(it.user_data(NOTHING))) for n, it in enumerate(made, 1)]

    outcome = lead(made[0], metadata)

    told = [word_for(outcome, member).shared_name for member, _ in metadata]
    assert told == [True, False, True, False, False]


def test_unchanged_assignment_keeps_claims_learners_and_promises() -> None:
    task, (a, b, c) = TaskId(0, 0), sorted(tps("left-0 left-1 left-2"))
    copies = {task: Copy(CopyRole.LEARNER, 5), TaskId(0, 1): Copy(CopyRole.DORMANT, 5)}
    followed = TaskId(0, 2)
    copies[followed] = Copy(CopyRole.STANDBY, 5)
    members = (
        MemberMetadata(
            "a",
            claims=frozenset({a, b}),
            copies=copies,
            heirs=frozenset({task, followed}),
            wanted=frozenset({task, followed}),
        ),
        MemberMetadata("b", claims=frozenset({b, c})),
    )
    memory = Memory(3, marks={"x": Mark(MarkState.LEAVING)})

    outcome = claims_stay(Group((), members, memory), ErrorWord.SOURCE_TOPIC_MISSING)

    assert {member: given_to(outcome, member) for member in outcome.assignments} == {
        "a": {a},
        "b": {c},
    }
    word = word_for(outcome, "a")
    assert word.learners == {task}
    assert word.standbys == word.wanted == {followed}
    assert word.promises == {task, followed}
    assert (word.memory, word.error) == (replace(memory, round=4), ErrorWord.SOURCE_TOPIC_MISSING)
    assert word_for(outcome, "b").learners == frozenset()
