"""Groups that change from the classic protocol to the consumer protocol, and back."""

from typing import Any

from streamsx.model import TopicPartition
from streamsx.protocol.consumer_protocol import Assignment, Subscription
from streamsx.protocol.error_codes import ErrorCode as E
from tests.support.conversation import KIND, Consumers, Conversation, Group


def test_group_converts_to_the_consumer_protocol_and_back(talk: Conversation) -> None:
    """A classic member stays in the group all the time."""
    check, new = talk.check, Consumers(talk)
    old = Group(talk)
    old.id = new.id

    def join(member: str, generation: int, *owned: int, **about: Any) -> Any:
        held = tuple(TopicPartition(new.topic, p) for p in owned)
        said = Subscription((new.topic,), owned=held, generation=generation).write()
        offered = [{"name": "range", "metadata": said}]
        return old.join(member, protocol_type="consumer", protocols=offered, **about)

    def sync(member: str, generation: int, **about: Any) -> Any:
        told = old.sync(member, generation, **about)
        return told.error_code or [
            tp.partition for tp in Assignment.read(told.assignment).partitions
        ]

    member = str(join("", -1).member_id)
    check("first round", join(member, -1).generation_id, 1)
    everything = tuple(TopicPartition(new.topic, p) for p in range(4))
    check(
        "all", sync(member, 1, assignments={member: Assignment(everything).write()}), [0, 1, 2, 3]
    )

    check("goes over", new.beat("n", 0), (2, []))
    check("described", new.described()[:4], (E.NONE, "Reconciling", 2, 2))
    types = sorted((m[3], m[2], m[4]) for m in new.described()[5])
    check("members", types, [(0, 1, [0, 1, 2, 3]), (1, 2, [])])
    check("is to come", old.beat(member, 1), E.REBALANCE_IN_PROGRESS)
    check("commits", old.commit(member, 1, {(new.topic, 3): 5}), [E.NONE])
    check("of another generation", old.beat(member, 2), E.ILLEGAL_GENERATION)
    told = join(member, 1, 0, 1, 2, 3)
    check("is to revoke", (told.error_code, told.generation_id, told.leader), (E.NONE, 1, ""))
    check("is told so", sync(member, 1), [0, 1])
    check("is to come again", old.beat(member, 1), E.REBALANCE_IN_PROGRESS)
    check("commits what it revokes", old.commit(member, 1, {(new.topic, 3): 6}), [E.NONE])
    check("has revoked", join(member, 1, 0, 1).generation_id, 2)
    check("as before", sync(member, 2), [0, 1])
    check("in its place", old.beat(member, 2), E.NONE)
    check("the other has it", new.beat("n", 2), (2, [2, 3]))
    check("commits what it kept", old.commit(member, 1, {(new.topic, 0): 5}), [E.NONE])
    check("what is gone", old.commit(member, 1, {(new.topic, 3): 7}), [E.ILLEGAL_GENERATION])
    check("of another type", old.join("x", protocol_type=KIND).error_code, 23)
    check("a stranger", old.beat("x", 2), E.UNKNOWN_MEMBER_ID)
    check("of the other protocol", old.beat("n", 2), E.UNKNOWN_MEMBER_ID)
    other = [{"name": "sticky", "metadata": Subscription((new.topic,)).write()}]
    told = old.join(member, protocol_type="consumer", protocols=other)
    check("with another protocol than before", told.error_code, E.INCONSISTENT_GROUP_PROTOCOL)
    check("is first given an id", join("", -1).error_code, E.MEMBER_ID_REQUIRED)

    second = join("", -1, version=3)
    check("a second one", (second.error_code, second.generation_id), (E.NONE, 3))
    check("waits", sync(second.member_id, 3), [])
    check("first is to come", old.beat(member, 2), E.REBALANCE_IN_PROGRESS)
    check("second leaves", old.leave(second.member_id), (E.NONE, [E.NONE]))
    check("static", join("", -1, group_instance_id="i").generation_id, 5)
    told = join("x", -1, group_instance_id="j")
    check("an id of no static member", told.error_code, E.UNKNOWN_MEMBER_ID)
    check("the newcomer leaves", new.beat("n", -1), (-1, None))
    check("classic again", new.listed(), [("consumer", "PreparingRebalance", "classic")])


def test_refused_join_does_not_convert_an_empty_group(talk: Conversation) -> None:
    check, new = talk.check, Consumers(talk)
    old = Group(talk)
    old.id = new.id
    new.beat("n", 0)
    new.beat("n", -1)
    check("no session", old.join("", session_timeout=2**31 - 1).error_code, 26)
    check("is as it was", new.described()[:3], (E.NONE, "Empty", 3))
    check("an id of nobody", old.join("x").error_code, E.UNKNOWN_MEMBER_ID)
    check("is still", new.described()[:3], (E.NONE, "Empty", 3))


def test_group_of_another_protocol_type_is_not_converted(group: Group, talk: Conversation) -> None:
    group.first()
    new = Consumers(talk)
    new.id = group.id
    talk.check("another type", new.beat("n", 0), E.GROUP_ID_NOT_FOUND)
