"""Groups from outside: their offsets, lists of them, and their coordinators."""

import socket
from typing import Any

from streamsx.protocol import wire
from streamsx.protocol.consumer_protocol import Subscription
from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.wire import Api
from tests.support.conversation import ANSWER_S, KIND, Conversation, Group, until


def test_offsets_are_committed_and_fetched(talk: Conversation, group: Group) -> None:
    check, topic = talk.check, talk.topic(2)
    nobody = Group(talk)
    at = (topic, 0)
    check("nothing yet", nobody.committed(), [])
    check(
        "nothing yet, asked",
        nobody.committed([{"name": topic, "partition_indexes": [0]}]),
        [(topic, 0, -1, E.NONE)],
    )
    check("a member of nothing", nobody.commit("m", 1, {at: 1}), [E.ILLEGAL_GENERATION])
    check("since version 9", nobody.commit("m", 1, {at: 1}, version=9), [E.GROUP_ID_NOT_FOUND])
    check("on its own", nobody.commit("", -1, {at: 7}), [E.NONE])
    check("its offset", nobody.committed(), [(topic, 0, 7, E.NONE)])
    check("empty", nobody.state(), ("Empty", 0))
    check("a generation of the empty", nobody.commit("m", 1, {at: 8}), [E.UNKNOWN_MEMBER_ID])
    check(
        "unknown topic",
        nobody.commit("", -1, {at: 8, (f"{topic}-no", 0): 1}),
        [E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION],
    )
    check(
        "unknown partition", nobody.commit("", -1, {(topic, 5): 1}), [E.UNKNOWN_TOPIC_OR_PARTITION]
    )
    check(
        "a long note",
        nobody.commit("", -1, {at: 9}, note="x" * 4097),
        [E.OFFSET_METADATA_TOO_LARGE],
    )
    check(
        "fetch unknown",
        nobody.committed([{"name": f"{topic}-no", "partition_indexes": [0]}]),
        [(f"{topic}-no", 0, -1, E.NONE)],
    )

    leader, follower = group.pair()
    check("between join and sync", group.commit(leader, 2, {at: 1}), [E.REBALANCE_IN_PROGRESS])
    check("alone into a group", group.commit("", -1, {at: 1}), [E.UNKNOWN_MEMBER_ID])
    group.sync(leader, 2)
    check("stable", group.commit(leader, 2, {at: 3}), [E.NONE])
    check("at an old generation", group.commit(leader, 1, {at: 4}), [E.ILLEGAL_GENERATION])
    check("nobody", group.commit("nobody", 2, {at: 4}), [E.UNKNOWN_MEMBER_ID])
    joining = group.joining(follower, protocols=[{"name": "range", "metadata": b"x"}])
    group.until_rebalancing(leader, 2)
    check("while joining", group.commit(leader, 2, {at: 5}), [E.NONE])
    group.leave(leader)
    joining.answer()
    check("the offset", group.committed(), [(topic, 0, 5, E.NONE)])

    talk.ask(Api.DELETE_TOPICS, 5, topic_names=[topic], timeout=5000)
    until(lambda: not nobody.committed(), "offsets of a deleted topic vanish")


def test_offsets_are_deleted(talk: Conversation, group: Group) -> None:
    check, topic, other = talk.check, talk.topic(2), talk.topic()

    def delete(of: Group, *places: tuple[str, int]) -> tuple[int, list[int]]:
        topics = [
            {"name": name, "partitions": [{"partition_index": p} for n, p in places if n == name]}
            for name in dict.fromkeys(name for name, _ in places)
        ]
        found = talk.ask(Api.OFFSET_DELETE, 0, group_id=of.id, topics=topics)
        codes = [p.error_code for t in found.topics for p in t.partitions]
        return found.error_code, codes

    nobody = Group(talk)
    check("of no group", delete(nobody, (topic, 0)), (E.GROUP_ID_NOT_FOUND, []))
    nobody.commit("", -1, {(topic, 0): 7, (topic, 1): 8, (other, 0): 9})
    check("one", delete(nobody, (topic, 0)), (E.NONE, [E.NONE]))
    check("once more", delete(nobody, (topic, 0)), (E.NONE, [E.NONE]))
    check(
        "what is not there",
        delete(nobody, (f"{topic}-no", 0), (topic, 5)),
        (E.NONE, [E.UNKNOWN_TOPIC_OR_PARTITION] * 2),
    )
    left = sorted([(topic, 1, 8, E.NONE), (other, 0, 9, E.NONE)])
    check("the others are there", nobody.committed(), left)

    reads = Subscription((topic,)).write()
    joining: dict[str, Any] = {
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": reads}],
    }  # fmt: skip
    member = str(group.join(**joining).member_id)
    group.join(member, **joining)
    group.sync(member, 1, assignments={member: b""})
    check("of members", group.commit(member, 1, {(topic, 0): 1, (other, 0): 1}), [E.NONE] * 2)
    told = delete(group, (topic, 0), (other, 0))
    check("what they read", told, (E.NONE, [E.GROUP_SUBSCRIBED_TO_TOPIC, E.NONE]))
    check("is left", group.committed(), [(topic, 0, 1, E.NONE)])
    group.leave(member)
    check("behind the last one", delete(group, (topic, 0)), (E.NONE, [E.NONE]))
    check("nothing", group.committed(), [])

    strange = Group(talk)
    strange.first()
    check("of strangers", delete(strange, (topic, 0)), (E.NON_EMPTY_GROUP, []))


def test_groups_are_listed(talk: Conversation, group: Group) -> None:
    check, topic = talk.check, talk.topic()
    group.first()
    alone = Group(talk)
    alone.commit("", -1, {(topic, 0): 1})

    def listed(**filters: list[str]) -> set[tuple[str, str, str, str]]:
        body = {"states_filter": [], "types_filter": [], **filters}
        return {
            (g.group_id, g.protocol_type, g.group_state, g.group_type)
            for g in talk.ask(Api.LIST_GROUPS, 5, **body).groups
            if g.group_id in (group.id, alone.id)
        }

    stable = (group.id, KIND, "Stable", "classic")
    empty = (alone.id, "", "Empty", "classic")
    check("all", listed(), {stable, empty})
    check("by state", listed(states_filter=["stable"]), {stable})
    check("by type", listed(types_filter=["Classic"]), {stable, empty})
    check("by another type", listed(types_filter=["consumer"]), set())


def test_broker_describes_the_cluster_coordinator_and_api_versions(talk: Conversation) -> None:
    check, port = talk.check, int(talk.bootstrap.rpartition(":")[2])
    cluster = talk.ask(Api.DESCRIBE_CLUSTER, 1, endpoint_type=1)
    check("brokers", [(b.host, b.port) for b in cluster.brokers], [("127.0.0.1", port)])
    found = talk.ask(Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["a", "b"])
    told = [(c.key, c.error_code, c.host, c.port) for c in found.coordinators]
    check("coordinators", told, [(key, E.NONE, "127.0.0.1", port) for key in ("a", "b")])
    first = talk.ask(Api.FIND_COORDINATOR, 3, key="a", key_type=0)
    check("a coordinator", (first.error_code, first.port), (E.NONE, port))
    versions = talk.ask(
        Api.API_VERSIONS, 3, client_software_name="talk", client_software_version="1"
    )
    check("versions", versions.error_code, E.NONE)
    host = talk.bootstrap.rpartition(":")[0]
    with socket.create_connection((host, port), ANSWER_S) as sock, sock.makefile("rb") as stream:
        sock.sendall(bytes.fromhex("0000000b 0012 0063 00000001 ffff 00"))
        frame = stream.read(int.from_bytes(stream.read(4)))
    newer = wire.response_decoder(Api.API_VERSIONS, 0)(frame)[1]
    check("a version to come", newer.error_code, E.UNSUPPORTED_VERSION)
    check("what it would know", Api.API_VERSIONS in {k.api_key for k in newer.api_keys}, True)
