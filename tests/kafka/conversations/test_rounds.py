"""Groups of the classic protocol: the coordinator's state machine, over the wire."""

from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.wire import Api
from tests.support.conversation import KIND, Conversation, Group


def test_group_forms_commits_and_dissolves(talk: Conversation, group: Group) -> None:
    check = talk.check
    promised = group.join()
    check("a member id first", promised.error_code, E.MEMBER_ID_REQUIRED)
    member_id = str(promised.member_id)
    joined = group.join(member_id)
    told = (joined.error_code, joined.generation_id, joined.protocol_name, joined.leader)
    check("alone", told, (E.NONE, 1, "range", member_id))
    check(
        "who is there",
        [(m.member_id, bytes(m.metadata)) for m in joined.members],
        [(member_id, b"topics")],
    )
    check("between join and sync", group.state(), ("CompletingRebalance", 1))
    check("a beat before the sync", group.beat(member_id, 1), E.NONE)
    check(
        "a commit before the sync",
        group.commit(member_id, 1, {("t", 0): 1}),
        [E.UNKNOWN_TOPIC_OR_PARTITION],
    )
    synced = group.sync(member_id, 1, assignments={member_id: b"mine"})
    check("assigned", (synced.error_code, bytes(synced.assignment)), (E.NONE, b"mine"))
    check("assigned again", bytes(group.sync(member_id, 1).assignment), b"mine")
    check("stable", group.state(), ("Stable", 1))
    check("a beat", group.beat(member_id, 1), E.NONE)
    for wrong in (0, 2):
        check(f"a beat at {wrong}", group.beat(member_id, wrong), E.ILLEGAL_GENERATION)
        check(f"a sync at {wrong}", group.sync(member_id, wrong).error_code, E.ILLEGAL_GENERATION)
    for kind, name, code in (
        (KIND, "range", E.NONE),
        (KIND, "sticky", E.INCONSISTENT_GROUP_PROTOCOL),
        ("connect", "range", E.INCONSISTENT_GROUP_PROTOCOL),
        (None, None, E.INCONSISTENT_GROUP_PROTOCOL),
    ):
        found = group.sync(member_id, 1, version=5, protocol_type=kind, protocol_name=name)
        check(f"a sync for {kind}, {name}", found.error_code, code)
    check("a beat of nobody", group.beat("nobody", 1), E.UNKNOWN_MEMBER_ID)
    check("a beat nowhere", Group(talk).beat("nobody", 1), E.UNKNOWN_MEMBER_ID)
    check("a sync nowhere", Group(talk).sync("nobody", 1).error_code, E.UNKNOWN_MEMBER_ID)
    check("leave nowhere", Group(talk).leave("nobody"), (E.NONE, [E.UNKNOWN_MEMBER_ID]))
    check("nobody leaves", group.leave("nobody"), (E.NONE, [E.UNKNOWN_MEMBER_ID]))
    check("delete it", group.delete(), E.NON_EMPTY_GROUP)
    check("the last leaves", group.leave(member_id), (E.NONE, [E.NONE]))
    check("empty", group.state(), ("Empty", 0))
    check("delete it empty", group.delete(), E.NONE)
    check("delete it again", group.delete(), E.GROUP_ID_NOT_FOUND)
    check("dead", group.state(), ("Dead", 0))
    absent = talk.ask(Api.DESCRIBE_GROUPS, 6, groups=[group.id]).groups[0]
    check("absent", (absent.error_code, absent.group_state), (E.GROUP_ID_NOT_FOUND, "Dead"))


def test_bad_joins_are_refused(talk: Conversation, group: Group) -> None:
    check = talk.check
    group.first()
    two = [{"name": "mine", "metadata": b""}, {"name": "range", "metadata": b""}]
    for label, about, code in (
        ("another type", {"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ("nothing in common", {"protocols": two[:1]}, E.INCONSISTENT_GROUP_PROTOCOL),
        ("something in common", {"protocols": two}, E.MEMBER_ID_REQUIRED),
        ("no protocol", {"protocols": []}, E.INCONSISTENT_GROUP_PROTOCOL),
        ("a long session", {"session_timeout": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
        ("no session", {"session_timeout": 0}, E.INVALID_SESSION_TIMEOUT),
        ("no group", {"group_id": ""}, E.INVALID_GROUP_ID),
        ("an unknown id", {"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
    ):
        check(label, group.join(**about).error_code, code)
    check("an id to no group", Group(talk).join("nobody").error_code, E.UNKNOWN_MEMBER_ID)
    check(
        "no type, no group",
        Group(talk).join(protocol_type="").error_code,
        E.INCONSISTENT_GROUP_PROTOCOL,
    )


def test_members_rebalance_in_join_and_sync(talk: Conversation, group: Group) -> None:
    check = talk.check
    leader, follower = group.pair()
    again = group.join(follower)
    check("told again", (again.generation_id, again.leader, again.members), (2, leader, []))
    parked = group.syncing(follower, 2)
    late = group.joining(str(group.join().member_id))
    check("a newcomer aborts a sync", parked.answer().error_code, E.REBALANCE_IN_PROGRESS)
    group.until_rebalancing(leader, 2)
    check("a sync while joining", group.sync(leader, 2).error_code, E.REBALANCE_IN_PROGRESS)
    joining = group.joining(follower)
    check("three", len(group.join(leader).members), 3)
    check("all at once", {joining.answer().generation_id, late.answer().generation_id}, {3})
    third = group.other(leader, follower)
    waiting = [group.syncing(m, 3) for m in (follower, third)]
    group.sync(leader, 3, assignments={follower: b"f", third: b"t"})
    check("assignments", [bytes(w.answer().assignment) for w in waiting], [b"f", b"t"])

    changed = group.joining(third, protocols=[{"name": "range", "metadata": b"other"}])
    group.until_rebalancing(leader, 3)
    joining = group.joining(follower)
    told = {m.member_id: bytes(m.metadata) for m in group.join(leader).members}
    check("changed metadata", told, {leader: b"topics", follower: b"topics", third: b"other"})
    check(
        "a generation more", {changed.answer().generation_id, joining.answer().generation_id}, {4}
    )

    group.leave(leader)
    group.until_rebalancing(follower, 4)
    joining = group.joining(third, protocols=[{"name": "range", "metadata": b"other"}])
    found = group.join(follower)
    check("another leads", (found.generation_id, found.leader), (5, joining.answer().leader))


def test_static_members_return(talk: Conversation, group: Group) -> None:
    check, fenced = talk.check, E.FENCED_INSTANCE_ID
    old = str(group.join(group_instance_id="one").member_id)
    group.sync(old, 1, group_instance_id="one", assignments={old: b"mine"})
    back = group.join(group_instance_id="one", protocols=[{"name": "range", "metadata": b"new"}])
    told = (back.error_code, back.generation_id, back.leader, back.members)
    check("back", told, (E.NONE, 1, old, []))
    new = str(back.member_id)
    check("no round", group.beat(new, 1, "one"), E.NONE)
    check("its assignment", bytes(group.sync(new, 1, group_instance_id="one").assignment), b"mine")
    check("the old beats", group.beat(old, 1, "one"), fenced)
    check("the old beats without instance", group.beat(old, 1), E.UNKNOWN_MEMBER_ID)
    check("the old syncs", group.sync(old, 1, group_instance_id="one").error_code, fenced)
    check("the old joins", group.join(old, group_instance_id="one").error_code, fenced)
    check("the old leaves", group.leave(old, "one"), (E.NONE, [fenced]))
    topic = talk.topic()
    check("the old commits", group.commit(old, 1, {(topic, 0): 1}, instance="one"), [fenced])
    check("an unknown instance", group.beat(new, 1, "two"), E.UNKNOWN_MEMBER_ID)
    skips = group.join(group_instance_id="one", version=9, reason=None)
    answer = (skips.leader, skips.skip_assignment, len(skips.members))
    check("since version 9 it skips", answer, (skips.member_id, True, 1))
    check("leave by instance", group.leave("", "one"), (E.NONE, [E.NONE]))
    check("leave by unknown instance", group.leave("", "two"), (E.NONE, [E.UNKNOWN_MEMBER_ID]))
    third = group.join(group_instance_id="two")
    check("a new instance", third.error_code, E.NONE)
    check("leave by member id alone", group.leave(third.member_id), (E.NONE, [E.NONE]))


def test_silent_member_is_removed_when_the_session_ends(talk: Conversation, group: Group) -> None:
    check = talk.check
    leader, follower = group.first(), str(group.join(session_timeout=1000).member_id)
    joining = group.joining(follower, session_timeout=1000)
    group.until_rebalancing(leader, 1)
    group.join(leader)
    joining.answer()
    group.sync(leader, 2)
    group.until_rebalancing(leader, 2)
    found = group.join(leader)
    check("who was silent is removed", (found.generation_id, len(found.members)), (3, 1))
    check("and unknown", group.beat(follower, 3), E.UNKNOWN_MEMBER_ID)
