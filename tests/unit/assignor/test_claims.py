"""Claims: which of them count, and members that cannot be read."""

from dataclasses import replace

from streamsx.assignor.claims import read_members
from streamsx.assignor.model import Copy, CopyRole, MemberMetadata
from streamsx.assignor.wire import write_join
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.consumer_protocol import Subscription

A, B, C = (TopicPartition("t", p) for p in range(3))
T = TaskId(0, 0)


def said(
    *owned: TopicPartition,
    generation: int = 1,
    member: MemberMetadata | None = None,
    data: bytes = b"",
) -> bytes:
    user_data = data or write_join(member or MemberMetadata(""))
    return Subscription(("t",), user_data, owned, generation).write()


def claims(**metadata: bytes) -> dict[str, frozenset[TopicPartition]]:
    return {member.id: member.claims for member in read_members(list(metadata.items()))[0]}


def test_claims_of_highest_generation_win() -> None:
    found = claims(old=said(A, B, generation=4), new=said(B, C, generation=5))

    assert found == {"old": {A}, "new": {B, C}}


def test_older_undisputed_claim_counts() -> None:
    """The SyncGroup of the member failed: it is in the group and still runs its tasks."""
    assert claims(old=said(A, generation=4), new=said(generation=9))["old"] == {A}


def test_claims_of_one_generation_all_count() -> None:
    assert claims(a=said(A), b=said(A)) == {"a": {A}, "b": {A}}


def test_member_with_unreadable_user_data_is_opaque_and_keeps_claims() -> None:
    members, notes = read_members([("damaged", said(A, data=b"\x01\x01\x03"))])

    (note,) = notes
    assert members == (MemberMetadata("damaged", opaque=True, claims=frozenset({A})),)
    assert note.startswith("a member that cannot be read: damaged: user data ends early")


def test_member_with_unreadable_subscription_claims_nothing() -> None:
    members, notes = read_members([("lost", b"\xff")])

    assert members == (MemberMetadata("lost", opaque=True),)
    assert len(notes) == 2


def test_member_is_read_as_written_with_claims() -> None:
    member = MemberMetadata(
        "", instance="x", capacity=2, copies={T: Copy(CopyRole.LEARNER, 5)}, nonce=3
    )

    assert read_members([("m", said(A, member=member))])[0] == (
        replace(member, id="m", claims=frozenset({A})),
    )


def test_promise_of_an_older_plan_is_dropped() -> None:
    member = MemberMetadata("", heirs=frozenset({T}), round=7)
    newer = replace(member, heirs=frozenset(), round=8)

    alone = read_members([("m", said(member=member))])[0]
    late = read_members([("m", said(member=member)), ("n", said(member=newer))])[0]

    assert alone[0].heirs == {T}
    assert late[0].heirs == frozenset()


def test_member_knows_subtopologies_with_the_leaders_signatures() -> None:
    def knows(theirs: tuple[int, ...]) -> frozenset[int] | None:
        metadata = [("m", said(member=MemberMetadata("", signatures=theirs)))]
        return read_members(metadata, (7, 8, 9))[0][0].knows

    assert knows((7, 5, 9)) == frozenset({0, 2})
    assert knows((7,)) == frozenset({0})
    assert knows(()) is None
