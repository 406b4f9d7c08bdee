"""Rare requests and answers of group members, in every version."""

from typing import Any

from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.wire import Api
from tests.support.conversation import KIND, Conversation, Group

SILENCE_S = 0.5


def test_later_join_of_a_member_supersedes_the_waiting_join(
    talk: Conversation, group: Group
) -> None:
    leader, follower = group.first(), str(group.join().member_id)
    first = group.joining(follower)
    group.until_rebalancing(leader, 1)
    again = group.joining(follower)
    asked_elsewhere = first.code(SILENCE_S)
    group.join(leader)
    talk.check("the later one counts", again.answer().generation_id, 2)

    waiting = group.syncing(follower, 2)
    talk.check("a sync waits", waiting.code(SILENCE_S), None)
    group.leave(follower)
    told = asked_elsewhere, waiting.code(SILENCE_S)
    talk.check("requests that are over", told, (None, None))
    short = group.join(session_timeout=1).error_code
    talk.check("a session of a millisecond", short, E.INVALID_SESSION_TIMEOUT)


def test_promised_member_id_is_given_back(talk: Conversation, group: Group) -> None:
    check = talk.check
    leader = group.first()
    promised, follower = (str(group.join().member_id) for _ in range(2))
    waiting = [group.joining(follower)]
    group.until_rebalancing(leader, 1)
    waiting.append(group.joining(leader))
    check("a beat of it", group.beat(promised, -1), E.UNKNOWN_MEMBER_ID)
    check("a sync of it", group.sync(promised, -1).error_code, E.UNKNOWN_MEMBER_ID)
    check("given back", group.leave(promised), (E.NONE, [E.NONE]))
    check("nobody waits for it", {each.answer().generation_id for each in waiting}, {2})
    check("once more", group.leave(promised), (E.NONE, [E.UNKNOWN_MEMBER_ID]))
    other = str(group.join().member_id)
    check("it is not one that joins", group.state(), ("CompletingRebalance", 2))
    check("given back before the sync", group.leave(other), (E.NONE, [E.NONE]))
    check("is a change of the group", group.state(), ("PreparingRebalance", 2))


def described(group: Group, version: int = 5) -> tuple[str, str, list[tuple[Any, ...]]]:
    (told,) = group.talk.ask(Api.DESCRIBE_GROUPS, version, groups=[group.id]).groups
    members = sorted(
        (
            m.member_id, m.client_id, m.client_host, bytes(m.member_metadata),
            bytes(m.member_assignment),
        )
        for m in told.members
    )  # fmt: skip
    return told.group_state, told.protocol_data, members


def test_group_is_described_in_each_state(talk: Conversation, group: Group) -> None:
    check, host = talk.check, "/127.0.0.1"
    member_id = group.first()
    mine = (member_id, "talk", host, b"topics", member_id.encode())
    for version in range(7):
        check(f"stable, {version}", described(group, version), ("Stable", "range", [mine]))
    other = str(group.join().member_id)
    joining = group.joining(other)
    group.until_rebalancing(member_id, 1)
    mine, theirs = (*mine[:3], b"", mine[4]), (other, "talk", host, b"", b"")
    both = sorted([mine, theirs])
    check("while members join", described(group), ("PreparingRebalance", "", both))
    group.join(member_id)
    joining.answer()
    check("between join and sync", described(group), ("CompletingRebalance", "", both))
    group.sync(member_id, 2, assignments={other: b"all"})
    told = sorted([(*mine[:3], b"topics", b""), (*theirs[:3], b"topics", b"all")])
    check("who is given nothing has nothing", described(group), ("Stable", "range", told))
    group.leave(member_id)
    group.leave(other)
    check("left", described(group), ("Empty", "", []))


def test_static_members_use_older_request_versions(talk: Conversation, group: Group) -> None:
    check = talk.check
    one = str(group.join(group_instance_id="one").member_id)
    group.sync(one, 1, group_instance_id="one", assignments={one: b"mine"})
    told = group.join(one, version=4)
    check("without its instance id", (told.error_code, told.generation_id), (E.NONE, 2))
    check("it has it still", group.leave(one, "one"), (E.NONE, [E.NONE]))
    two = group.join(group_instance_id="two")
    check("of another instance", group.beat(two.member_id, 3, "one"), E.UNKNOWN_MEMBER_ID)
    many = [
        {"member_id": "", "group_instance_id": "two"},
        {"member_id": "nobody", "group_instance_id": None},
        {"member_id": "", "group_instance_id": "three"},
    ]
    left = talk.ask(Api.LEAVE_GROUP, 5, group_id=group.id, members=many)
    codes = [(m.group_instance_id, m.error_code) for m in left.members]
    unknown = E.UNKNOWN_MEMBER_ID
    check("several leave", codes, [("two", E.NONE), (None, unknown), ("three", unknown)])


def test_members_use_every_request_version(talk: Conversation) -> None:
    topic = talk.topic()
    topic_id = talk.topic_id(topic)
    for version in range(10):
        group = Group(talk)
        joined = group.join(version=version)
        if joined.error_code == E.MEMBER_ID_REQUIRED:
            joined = group.join(joined.member_id, version=version)
        told = joined.error_code, joined.generation_id, joined.protocol_name, len(joined.members)
        talk.check(f"JoinGroup {version}", told, (E.NONE, 1, "range", 1))
        me = joined.member_id
        sync = min(version, 5)
        named = {"protocol_type": KIND, "protocol_name": "range"} if sync == 5 else {}
        synced = group.sync(me, 1, version=sync, assignments={me: b"mine"}, **named)
        about = synced.error_code, bytes(synced.assignment)
        talk.check(f"SyncGroup {sync}, joined by {version}", about, (E.NONE, b"mine"))
        mine = {"group_id": group.id, "member_id": me, "generation_id": 1}
        beat = talk.ask(Api.HEARTBEAT, min(version, 4), **mine)
        talk.check(f"Heartbeat {min(version, 4)}, joined by {version}", beat.error_code, E.NONE)

        by, partition = max(version, 2), {"partition_index": 0, "committed_offset": 7}
        asked = [{"name": topic, "topic_id": topic_id, "partitions": [partition]}]
        committed = talk.ask(
            Api.OFFSET_COMMIT, by, group_id=group.id, member_id=me,
            generation_id_or_member_epoch=1, topics=asked,
        )  # fmt: skip
        codes = [p.error_code for t in committed.topics for p in t.partitions]
        talk.check(f"OffsetCommit {by}, joined by {version}", codes, [E.NONE])
        left = talk.ask(
            Api.LEAVE_GROUP, min(version, 5), group_id=group.id, member_id=me,
            members=[{"member_id": me}],
        )  # fmt: skip
        talk.check(f"LeaveGroup {min(version, 5)}, joined by {version}", left.error_code, E.NONE)

        reads = max(version, 1)
        wanted = [{"name": topic, "topic_id": topic_id, "partition_indexes": [0, 1]}]
        one = {"group_id": group.id, "topics": wanted}
        found = talk.ask(Api.OFFSET_FETCH, reads, **one, groups=[one])
        (answer,) = (found.groups[0] if reads >= 8 else found).topics
        offsets = [(p.partition_index, p.committed_offset, p.error_code) for p in answer.partitions]
        label = f"OffsetFetch {reads}, joined by {version}"
        talk.check(label, sorted(offsets), [(0, 7, E.NONE), (1, -1, E.NONE)])


def test_offsets_are_committed_and_fetched_by_topic_id(talk: Conversation, group: Group) -> None:
    check, topic = talk.check, talk.topic()
    topic_id, unknown = talk.topic_id(topic), b"?" * 16
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "note"}
    told = talk.ask(
        Api.OFFSET_COMMIT, 10, group_id=group.id, member_id="", generation_id_or_member_epoch=-1,
        topics=[{"topic_id": i, "partitions": [partition]} for i in (topic_id, unknown)],
    )  # fmt: skip
    codes = {bytes(t.topic_id): t.partitions[0].error_code for t in told.topics}
    check("committed", codes, {topic_id: E.NONE, unknown: E.UNKNOWN_TOPIC_ID})
    asked: list[dict[str, Any]] | None
    for label, asked, expected in (
        ("all", None, {topic_id: (5, "note", E.NONE)}),
        (
            "some", [{"topic_id": i, "partition_indexes": [0]} for i in (topic_id, unknown)],
            {topic_id: (5, "note", E.NONE), unknown: (-1, "", E.UNKNOWN_TOPIC_ID)},
        ),
    ):  # fmt: skip
        groups = [{"group_id": group.id, "topics": asked}]
        (found,) = talk.ask(Api.OFFSET_FETCH, 10, groups=groups).groups
        offsets = {
            bytes(t.topic_id): (p.committed_offset, p.metadata, p.error_code)
            for t in found.topics
            for p in t.partitions
        }
        check(f"fetched: {label}", offsets, expected)


def test_several_groups_are_requested_at_once(talk: Conversation) -> None:
    topic, here, empty, none = talk.topic(), Group(talk), Group(talk), Group(talk)
    here.first()
    empty.commit("", -1, {(topic, 0): 3})
    ids = [here.id, empty.id, none.id]
    told = talk.ask(Api.DESCRIBE_GROUPS, 5, groups=ids).groups
    states = {g.group_id: (g.error_code, g.group_state, g.protocol_type) for g in told}
    expected = dict(zip(ids, [(0, "Stable", KIND), (0, "Empty", ""), (0, "Dead", "")], strict=True))
    talk.check("described", states, expected)
    asked = [{"group_id": i, "topics": None} for i in ids]
    found = talk.ask(Api.OFFSET_FETCH, 8, groups=asked).groups
    offsets = {g.group_id: (g.error_code, len(g.topics)) for g in found}
    talk.check("offsets", offsets, dict(zip(ids, [(0, 0), (0, 1), (0, 0)], strict=True)))
    gone = talk.ask(Api.DELETE_GROUPS, 2, groups_names=ids).results
    codes = {r.group_id: r.error_code for r in gone}
    left = [E.NON_EMPTY_GROUP, E.NONE, E.GROUP_ID_NOT_FOUND]
    talk.check("deleted", codes, dict(zip(ids, left, strict=True)))
    talk.check("deleted: none", talk.ask(Api.DELETE_GROUPS, 2, groups_names=[]).results, [])
