"""Groups of the consumer protocol (KIP-848), and the epochs at which a member may commit
(KIP-1251).
"""

from typing import Any

from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.wire import Api
from tests.support.conversation import Consumers, Conversation


def test_nonsensical_consumer_heartbeats_are_refused(talk: Conversation) -> None:
    check, group = talk.check, Consumers(talk)
    for epoch, instance in ((1, None), (-1, None), (-2, "i")):
        told = group.beat("a", epoch, instance_id=instance)
        check(f"absent, {epoch}", told, E.GROUP_ID_NOT_FOUND)
    wrong: dict[str, dict[str, Any]] = {
        "no group id": {"group_id": ""},
        "no member id": {"member_id": ""},
        "no time-out": {"rebalance_timeout": -1},
        "owns nothing it says": {"topic_partitions": None},
        "no subscription": {"subscribed_topic_names": None},
        "no rack": {"rack_id": ""},
        "no instance id": {"instance_id": ""},
    }
    for label, about in wrong.items():
        check(label, group.beat("a", 0, **about), E.INVALID_REQUEST)
    check("owns something", group.beat("a", 0, 1), E.INVALID_REQUEST)
    check("away, but not static", group.beat("a", -2), E.INVALID_REQUEST)
    check("no such epoch", group.beat("a", -3), E.INVALID_REQUEST)
    for name in ("", "best"):
        told = group.beat("a", 0, server_assignor=name)
        check(f"assignor {name!r}", told, E.UNSUPPORTED_ASSIGNOR)
    check("nobody is there", group.listed(), [])
    check("named by the broker", group.beat("", 0, version=0), (2, [0, 1, 2, 3]))


def test_consumers_join_and_leave_a_consumer_group(talk: Conversation) -> None:
    check, group = talk.check, Consumers(talk)
    everything = [0, 1, 2, 3]
    check("first", group.beat("a", 0), (2, everything))
    check("nothing new", group.beat("a", 2), (2, None))
    check("again from the start", group.beat("a", 0), (2, everything))
    full: dict[str, Any] = {"rebalance_timeout": 60_000, "subscribed_topic_names": [group.topic]}
    check("a full one", group.beat("a", 2, *everything, **full), (2, everything))
    check("listed", group.listed(), [("consumer", "Stable", "consumer")])
    check("an epoch to come", group.beat("a", 3), E.FENCED_MEMBER_EPOCH)
    check("second", group.beat("b", 0), (3, []))
    check(
        "described",
        group.described(),
        (E.NONE, "Reconciling", 3, 3, "uniform",
         [("a", None, 2, 1, everything, [0, 1]), ("b", None, 3, 1, [], [2, 3])]),
    )  # fmt: skip
    check("to be revoked", group.beat("a", 2), (2, [0, 1]))
    check("not yet", group.beat("a", 2, 0, 1, 2), (2, None))
    check("not said", group.beat("a", 2), (2, None))
    check("second waits", group.beat("b", 3), (3, None))
    check("revoked", group.beat("a", 2, 0, 1), (3, None))
    check("the answer was lost", group.beat("a", 2, 0, 1), (3, None))
    check("it says what it has not", group.beat("a", 2, 0, 2), E.FENCED_MEMBER_EPOCH)
    check("it does not say", group.beat("a", 2), E.FENCED_MEMBER_EPOCH)
    check("second has it", group.beat("b", 3), (3, [2, 3]))
    check("delete", group.delete(), E.NON_EMPTY_GROUP)
    old = talk.ask(
        Api.DESCRIBE_GROUPS, 6, groups=[group.id], include_authorized_operations=False
    ).groups[0]  # fmt: skip
    check("the other request", (old.error_code, old.group_state), (E.GROUP_ID_NOT_FOUND, "Dead"))
    check("unknown leaves", group.beat("c", -1), E.UNKNOWN_MEMBER_ID)
    check("unknown", group.beat("c", 3), E.UNKNOWN_MEMBER_ID)
    check("leaves", group.beat("b", -1), (-1, None))
    check("to be assigned", group.listed(), [("consumer", "Assigning", "consumer")])
    check("has it all", group.beat("a", 3), (4, everything))
    check("another subscription", group.beat("a", 4, subscribed_topic_names=["no"]), (4, []))
    check("last", group.beat("a", -1), (-1, None))
    check("empty", group.described(), (E.NONE, "Empty", 6, 5, "uniform", []))
    check("gone", group.delete(), E.NONE)
    check("described no more", group.described(), (E.GROUP_ID_NOT_FOUND, "", 0, 0, "", []))


def test_late_commit_is_accepted_while_the_member_owns_the_partition(talk: Conversation) -> None:
    check, group = talk.check, Consumers(talk)
    commit = group.commit
    group.beat("a", 0)
    check("own epoch", commit("a", 2, 0, 1), {E.NONE})
    check("epoch to come", commit("a", 3, 0), {E.STALE_MEMBER_EPOCH})
    check("epoch before", commit("a", 1, 0), {E.STALE_MEMBER_EPOCH})
    check("no epoch", commit("a", -1, 0), {E.STALE_MEMBER_EPOCH})
    check("nobody", commit("", -1, 0), {E.UNKNOWN_MEMBER_ID})
    check("unknown", commit("x", 2, 0), {E.UNKNOWN_MEMBER_ID})
    check("an old request", commit("a", 2, 0, version=8), {E.UNSUPPORTED_VERSION})
    group.beat("b", 0)
    group.beat("a", 2)
    check("to be revoked", commit("a", 2, 2), {E.NONE})
    group.beat("a", 2, 0, 1)
    check("kept", commit("a", 2, 0, 1), {E.NONE})
    check("given up", commit("a", 2, 2), {E.STALE_MEMBER_EPOCH})
    check("mixed", commit("a", 2, 0, 2), {E.STALE_MEMBER_EPOCH})
    partly = {E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION}
    check("kept, and not there", commit("a", 2, 0, 9), partly)
    check("not its own, own epoch", commit("a", 3, 2), {E.NONE})
    check("not there", commit("a", 2, 9), {E.UNKNOWN_TOPIC_OR_PARTITION})
    group.beat("b", 3)
    check("its own", commit("b", 3, 2), {E.NONE})
    check("before it had it", commit("b", 2, 2), {E.STALE_MEMBER_EPOCH})
    group.beat("b", -1)
    check("back", group.beat("a", 3), (4, [0, 1, 2, 3]))
    check("bounced", commit("a", 2, 2) | commit("a", 3, 2), {E.STALE_MEMBER_EPOCH})
    check("never lost", commit("a", 2, 0), {E.NONE})
    fetched = [group.fetch("a", 4), group.fetch(None, -1), group.fetch("a", 3)]
    check("fetch", fetched, [E.NONE, E.NONE, E.STALE_MEMBER_EPOCH])
    unknown = [group.fetch("x", 4), group.fetch("", -1)]
    check("fetch of unknown", unknown, [E.UNKNOWN_MEMBER_ID] * 2)
    group.beat("a", -1)
    check("empty", commit("", -1, 0), {E.NONE})
    check("empty, of a member", commit("a", 4, 0), {E.UNKNOWN_MEMBER_ID})


def test_admin_removes_consumers_from_a_group(talk: Conversation) -> None:
    check, group = talk.check, Consumers(talk)

    def put_out(*who: tuple[str, str | None]) -> list[tuple[str, str | None, E]]:
        members = [{"member_id": name, "group_instance_id": static} for name, static in who]
        told = talk.ask(Api.LEAVE_GROUP, 5, group_id=group.id, members=members)
        answers = [(m.member_id, m.group_instance_id, E(m.error_code)) for m in told.members]
        return [("", None, E(told.error_code)), *answers]

    group.beat("a", 0)
    group.beat("b", 0, instance_id="i")
    check("nobody", put_out(("x", None), ("", "j"), ("b", "j"), ("a", "i")),
          [("", None, E.NONE), ("x", None, E.UNKNOWN_MEMBER_ID), ("", "j", E.UNKNOWN_MEMBER_ID),
           ("b", "j", E.UNKNOWN_MEMBER_ID), ("a", "i", E.FENCED_INSTANCE_ID)])  # fmt: skip
    check("both", put_out(("a", None), ("", "i")),
          [("", None, E.NONE), ("a", None, E.NONE), ("", "i", E.NONE)])  # fmt: skip
    check("they hear", [group.beat("a", 2), group.beat("b", 3, instance_id="i")],
          [E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID])  # fmt: skip
    check("empty", group.listed(), [("consumer", "Empty", "consumer")])


def test_static_consumer_returns_to_the_same_assignment(talk: Conversation) -> None:
    check, group = talk.check, Consumers(talk)
    i: dict[str, Any] = {"instance_id": "i"}
    everything = [0, 1, 2, 3]
    check("joins", group.beat("a", 0, **i), (2, everything))
    check("held", group.beat("b", 0, **i), E.UNRELEASED_INSTANCE_ID)
    check("held by itself", group.beat("a", 0, **i), E.UNRELEASED_INSTANCE_ID)
    check("of another", group.beat("b", 2, **i), E.FENCED_INSTANCE_ID)
    check("unknown", group.beat("a", 2, instance_id="j"), E.UNKNOWN_MEMBER_ID)
    check("another leaves", group.beat("b", -2, **i), E.FENCED_INSTANCE_ID)
    check("away", group.beat("a", -2, **i), (-2, None))
    away = (E.NONE, "Reconciling", 2, 2, "uniform", [("a", "i", -2, 1, everything, everything)])
    check("described", group.described(), away)
    check("speaks while away", group.beat("a", 2, **i), E.FENCED_MEMBER_EPOCH)
    check("commits while away", group.commit("a", 2, 0), {E.STALE_MEMBER_EPOCH})
    check("returns", group.beat("b", 0, **i), (2, everything))
    check("fenced", group.beat("a", 2, **i), E.FENCED_INSTANCE_ID)
    check("without its name", group.beat("a", 2), E.UNKNOWN_MEMBER_ID)
    check("commits", group.commit("a", 2, 0), {E.UNKNOWN_MEMBER_ID})
    check("any epoch", group.commit("b", 0, 0) | group.commit("b", 1, 3), {E.NONE})
    check("for good", group.beat("b", -1, **i), (-1, None))
    check("empty", group.described(), (E.NONE, "Empty", 3, 2, "uniform", []))


RANGE: dict[str, Any] = {"server_assignor": "range"}


def test_consumer_with_more_to_revoke_stays_at_the_same_epoch(talk: Conversation) -> None:
    check, group = talk.check, Consumers(talk)
    check("first", group.beat("z", 0, **RANGE), (2, [0, 1, 2, 3]))
    group.beat("y", 0, **RANGE)
    check("is to give up two", group.beat("z", 2), (2, [2, 3]))
    told = [(name, sorted(has), sorted(wanted)) for name, *_, has, wanted in group.described()[5]]
    check("has them until then", told, [("y", [], [0, 1]), ("z", [0, 1, 2, 3], [2, 3])])
    group.beat("x", 0, **RANGE)
    check("and one more", group.beat("z", 2, 2, 3), (2, [3]))
    check("commits that", group.commit("z", 2, 2, 3), {E.NONE})
    check("not at an epoch between", group.commit("z", 3, 3), {E.STALE_MEMBER_EPOCH})
    check("has given up all", group.beat("z", 2, 3), (4, None))
    check("second has one", group.beat("y", 3, -1), (4, [2]))


def test_partitions_to_revoke_are_regained_when_no_longer_needed(talk: Conversation) -> None:
    check, group = talk.check, Consumers(talk)
    group.beat("a", 0)
    group.beat("b", 0)
    check("is to give up two", group.beat("a", 2), (2, [0, 1]))
    group.beat("b", -1)
    check("has, and has them again", group.beat("a", 2, 0, 1), (4, [0, 1, 2, 3]))


def test_consumer_waiting_at_a_new_epoch_is_fenced_at_the_old_epoch(talk: Conversation) -> None:
    check, group = talk.check, Consumers(talk)
    nothing: dict[str, Any] = {"topic_partitions": []}
    group.beat("a", 0, **RANGE)
    group.beat("b", 0, **RANGE)
    group.beat("c", 0, **RANGE)
    check("has nothing yet", group.beat("b", 3, **nothing), (4, None))
    check("its answer was lost", group.beat("b", 3, **nothing), (4, None))
    check("waits", group.beat("b", 4, **nothing), (4, None))
    check("had heard of it", group.beat("b", 3, **nothing), E.FENCED_MEMBER_EPOCH)


def test_unsubscribing_consumer_revokes_at_once(talk: Conversation) -> None:
    check, group, other = talk.check, Consumers(talk), talk.topic(2)
    group.beat("a", 0, **RANGE)
    group.beat("b", 0, **RANGE)
    check("is to give up two", group.beat("a", 2), (2, [0, 1]))
    check("wants others", group.beat("a", 2, subscribed_topic_names=[other]), (2, []))
    check("has given up some", group.beat("a", 2, 0, 1), (2, None))


def test_range_assignor_assigns_static_members_first(talk: Conversation) -> None:
    check, group = talk.check, Consumers(talk, 10)
    group.beat("a", 0, **RANGE)
    group.beat("b", 0, **RANGE)
    group.beat("c", 0, instance_id="z", **RANGE)
    group.beat("d", 0, instance_id="y", **RANGE)
    told = {name: wanted for name, *_, wanted in group.described()[5]}
    expected = {"d": [0, 1, 2], "c": [3, 4, 5], "a": [6, 7], "b": [8, 9]}
    check("targets", {name: sorted(wanted) for name, wanted in told.items()}, expected)
