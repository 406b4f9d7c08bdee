"""Admin calls for topics, bounds and groups, with their retries, against a scripted broker."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from itertools import chain, repeat
from typing import Any

import pytest

from streamsx.client import admin
from streamsx.client.admin import Bounds, NewTopic
from streamsx.client.api_versions import VersionRange
from streamsx.client.cluster import Cluster
from streamsx.errors import SettingError, StreamsxError, TopicGone, WorldError
from streamsx.model import TopicPartition
from streamsx.protocol import wire
from streamsx.protocol.consumer_protocol import Subscription
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from streamsx.testing import Broker
from tests.support.scripted_broker import NODE, Answer, Asked, ScriptedBroker

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
Story = Callable[[ScriptedBroker, Cluster], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "RETRY_BACKOFF_S", 0.001)


def run(
    story: Story, answers: dict[int, Answer] | None = None, topics: dict[str, int] | None = None
) -> None:
    async def told() -> None:
        async with asyncio.timeout(10), ScriptedBroker(answers, topics) as broker:
            cluster = Cluster(broker.bootstrap)
            await cluster.start()
            try:
                await story(broker, cluster)
            finally:
                await cluster.stop()

    asyncio.run(told())


def codes(*given: int) -> Iterator[int]:
    """Yield these codes, then NONE for ever."""
    return chain(given, repeat(0))


def creates(code: Iterator[int]) -> Answer:
    def answer(asked: Asked) -> wire.Body:
        topics = [
            {"name": t.name, "error_code": next(code), "error_message": "because"}
            for t in asked.body.topics
        ]
        return {"topics": topics}

    return answer


def test_topics_created_with_configs() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        compacted = {"cleanup.policy": "compact"}
        await admin.create_topics(cluster, [NewTopic("a", 3, 1, compacted), NewTopic("b")])
        (asked,) = broker.asked_for(Api.CREATE_TOPICS)
        first, second = asked.body.topics
        assert (first.name, first.num_partitions, first.replication_factor) == ("a", 3, 1)
        assert [(c.name, c.value) for c in first.configs] == [("cleanup.policy", "compact")]
        assert (second.num_partitions, second.replication_factor) == (-1, -1)

    run(story, {Api.CREATE_TOPICS: creates(codes())}, {"a": 3, "b": 1})


def test_create_of_existing_topic_succeeds() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await admin.create_topics(cluster, [NewTopic("a", 2)])
        assert len(broker.asked_for(Api.CREATE_TOPICS)) == 1

    run(story, {Api.CREATE_TOPICS: creates(codes(36))}, {"a": 2})


def test_create_without_topics_sends_no_request() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await admin.create_topics(cluster, [])
        assert broker.asked_for(Api.CREATE_TOPICS) == []

    run(story)


def test_refused_topic_creation_raises_setting_error_of_broker() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(SettingError, match="INVALID_CONFIG: topic b: because"):
            await admin.create_topics(cluster, [NewTopic("a"), NewTopic("b"), NewTopic("c")])

    answer = creates(codes(0, ErrorCode.INVALID_CONFIG, ErrorCode.NOT_CONTROLLER))
    run(story, {Api.CREATE_TOPICS: answer})


def test_retried_creation_accepts_topics_created_before() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await admin.create_topics(cluster, [NewTopic("a"), NewTopic("b")])
        asked = broker.asked_for(Api.CREATE_TOPICS)
        assert [[t.name for t in each.body.topics] for each in asked] == [["a", "b"], ["a", "b"]]

    answer = creates(codes(0, ErrorCode.NOT_CONTROLLER, ErrorCode.TOPIC_ALREADY_EXISTS))
    run(story, {Api.CREATE_TOPICS: answer}, {"a": 1, "b": 1})


def test_lasting_creation_failure_raises_world_error() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        cluster.tries_for_s = 1.0
        says = "NOT_CONTROLLER: topic a: because: tried for 1 s: try again when the brokers are up"
        with pytest.raises(WorldError, match=says):
            await admin.create_topics(cluster, [NewTopic("a")])

    run(story, {Api.CREATE_TOPICS: creates(repeat(41))})


def test_created_topic_awaited_until_in_metadata() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.follow(["a"])
        answers = iter(range(5))

        def knows_it_late(asked: Asked) -> wire.Body:
            if next(answers) == 3:
                broker.topics["a"] = 2
            return broker._metadata(asked)

        broker.answers[Api.METADATA] = knows_it_late
        await admin.create_topics(cluster, [NewTopic("a", 2)])
        assert cluster.partitions("a") == 2

    run(story, {Api.CREATE_TOPICS: creates(codes())})


def test_created_topic_awaited_with_limited_tries() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        before = len(broker.asked_for(Api.METADATA))
        await admin.create_topics(cluster, [NewTopic("a", 2)])
        assert len(broker.asked_for(Api.METADATA)) - before == admin.KNOWN_TRIES + 1

    run(story, {Api.CREATE_TOPICS: creates(codes())})


def test_metadata_polls_for_created_topic_pause_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sleeps are counted: on a busy machine the requests alone take longer."""
    rests: list[float] = []
    sleep = asyncio.sleep

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        await sleep(0)

    monkeypatch.setattr(admin, "KNOWN_TRIES", 5)
    monkeypatch.setattr(admin, "RETRY_BACKOFF_S", 0.0625)

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        monkeypatch.setattr(asyncio, "sleep", rest)
        await admin.create_topics(cluster, [NewTopic("a", 2)])
        assert rests.count(0.0625) == 5

    run(story, {Api.CREATE_TOPICS: creates(codes())})


def deletes(code: Iterator[int]) -> Answer:
    def answer(asked: Asked) -> wire.Body:
        names = asked.body.topic_names
        return {"responses": [{"name": name, "error_code": next(code)} for name in names]}

    return answer


def test_retried_deletion_accepts_topics_deleted_before() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await admin.delete_topics(cluster, ["b", "a", "c"])
        asked = broker.asked_for(Api.DELETE_TOPICS)
        assert [each.body.topic_names for each in asked] == [["a", "b", "c"]] * 2

    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = deletes(codes(0, ErrorCode.NOT_CONTROLLER, 0, gone, 0, gone))
    run(story, {Api.DELETE_TOPICS: answer})


def test_deletion_of_absent_topic_succeeds() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await admin.delete_topics(cluster, ["a"])
        assert len(broker.asked_for(Api.DELETE_TOPICS)) == 1

    run(story, {Api.DELETE_TOPICS: deletes(codes(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))})


def test_unauthorized_topic_deletion_raises_setting_error() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(SettingError, match="TOPIC_AUTHORIZATION_FAILED: topic b"):
            await admin.delete_topics(cluster, ["a", "b"])

    refuses = deletes(codes(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    run(story, {Api.DELETE_TOPICS: refuses})


def test_partition_counts_returned_for_existing_topics() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        assert await admin.partition_counts(cluster, ["a", "b", "c"]) == {"a": 2, "c": 1}

    run(story, topics={"a": 2, "c": 1})


def test_topic_configs_returned_for_existing_topics() -> None:
    def describes(asked: Asked) -> wire.Body:
        configs = [{"name": "retention.ms", "value": "5"}, {"name": "secret", "value": None}]
        return {
            "results": [
                {"resource_name": "a", "configs": configs},
                {"resource_name": "b", "error_code": 3},
            ]
        }

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        told = await admin.topic_configs(cluster, ["b", "a"])
        assert told == {"a": {"retention.ms": "5", "secret": None}}
        (asked,) = broker.asked_for(Api.DESCRIBE_CONFIGS)
        asked_for = [(r.resource_type, r.resource_name) for r in asked.body.resources]
        assert asked_for == [(2, "a"), (2, "b")]
        assert [r.configuration_keys for r in asked.body.resources] == [None, None]

    run(story, {Api.DESCRIBE_CONFIGS: describes})


def offsets(code: Iterator[int]) -> Answer:
    """Answer that partition p begins at p and ends at 100 + p."""

    def answer(asked: Asked) -> wire.Body:
        def one(p: Any) -> wire.Body:
            offset = p.partition_index + (0 if p.timestamp == admin.EARLIEST else 100)
            return {
                "partition_index": p.partition_index,
                "offset": offset,
                "error_code": next(code),
            }

        return {
            "topics": [
                {"name": topic.name, "partitions": [one(p) for p in topic.partitions]}
                for topic in asked.body.topics
            ]
        }

    return answer


def test_bounds_take_two_requests_per_leader() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        told = await admin.bounds(cluster, [B0, A1, A0])
        assert told == {A0: Bounds(0, 100), A1: Bounds(1, 101), B0: Bounds(0, 100)}
        asked = broker.asked_for(Api.LIST_OFFSETS)
        assert len(asked) == 2
        assert {(each.body.replica_id, each.body.isolation_level) for each in asked} == {(-1, 0)}
        lanes = {each.connection for each in broker.asked_for(Api.METADATA)}
        assert {each.connection for each in asked}.isdisjoint(lanes)

    run(story, {Api.LIST_OFFSETS: offsets(codes())}, {"a": 2, "b": 1})


def test_bounds_requested_again_for_partition_without_leader() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        told = await admin.bounds(cluster, [A0, A1])
        assert told == {A0: Bounds(0, 100), A1: Bounds(1, 101)}
        asked = broker.asked_for(Api.LIST_OFFSETS)
        again = [[p.partition_index for p in each.body.topics[0].partitions] for each in asked]
        assert again == [[0, 1]] * 4

    answer = offsets(codes(0, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    run(story, {Api.LIST_OFFSETS: answer}, {"a": 2})


def test_bounds_of_absent_topic_raise_topic_gone() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        cluster.tries_for_s = 1.0
        with pytest.raises(TopicGone, match="UNKNOWN_TOPIC_OR_PARTITION: b-0"):
            await admin.bounds(cluster, [A0, B0])

    run(story, {Api.LIST_OFFSETS: offsets(codes())}, {"a": 1})


def test_unauthorized_bounds_not_retried() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(SettingError, match="TOPIC_AUTHORIZATION_FAILED: a-0"):
            await admin.bounds(cluster, [A0])
        assert len(broker.asked_for(Api.LIST_OFFSETS)) == 2

    run(story, {Api.LIST_OFFSETS: offsets(repeat(29))}, {"a": 1})


def test_bounds_without_partitions_send_no_request() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        assert await admin.bounds(cluster, []) == {}

    run(story)


def test_delete_records_returns_first_offsets() -> None:
    def deletes(asked: Asked) -> wire.Body:
        partitions = asked.body.topics[0].partitions
        answers = [
            {"partition_index": p.partition_index, "low_watermark": p.offset} for p in partitions
        ]
        return {"topics": [{"name": "a", "partitions": answers}]}

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        assert await admin.delete_records(cluster, {A0: 5, A1: 7}) == {A0: 5, A1: 7}

    run(story, {Api.DELETE_RECORDS: deletes}, {"a": 2})


def test_delete_records_beyond_end_raises() -> None:
    def refuses(asked: Asked) -> wire.Body:
        return {"topics": [{"name": "a", "partitions": [{"partition_index": 0, "error_code": 1}]}]}

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(StreamsxError, match="OFFSET_OUT_OF_RANGE: a-0"):
            await admin.delete_records(cluster, {A0: 5})

    run(story, {Api.DELETE_RECORDS: refuses}, {"a": 1})


def test_group_described_with_member_bytes_once_coordinator_is_ready() -> None:
    loading = codes(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)

    def describes(asked: Asked) -> wire.Body:
        members = [
            {"member_id": "m2", "group_instance_id": "i"},
            {"member_id": "m1", "member_metadata": b"meta", "member_assignment": b"given"},
        ]
        group = {
            "group_id": "g",
            "error_code": next(loading),
            "group_state": "Stable",
            "protocol_type": "consumer",
            "protocol_data": "streamsx",
            "members": members,
        }
        return {"groups": [group]}

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        found = {"node_id": NODE, "host": "127.0.0.1", "port": broker.port}
        broker.answers[Api.FIND_COORDINATOR] = lambda asked: found
        group = await admin.describe_group(cluster, "g")
        assert (group.state, group.protocol_type, group.protocol) == (
            "Stable",
            "consumer",
            "streamsx",
        )
        assert group.members == (("m1", b"meta", b"given"), ("m2", b"", b""))

    run(story, {Api.DESCRIBE_GROUPS: describes})


def test_committed_topics_retried_until_coordinator_is_ready() -> None:
    loading = codes(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def fetches(asked: Asked) -> wire.Body:
        assert (asked.body.group_id, asked.body.topics) == ("g", None)
        code, part = next(loading), {"partition_index": 1, "committed_offset": 7}
        topics = [{"name": "a", "partitions": [part]}]
        return {"error_code": code, "topics": [] if code else topics}

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        found = {"node_id": NODE, "host": "127.0.0.1", "port": broker.port}
        broker.answers[Api.FIND_COORDINATOR] = lambda asked: found
        assert await admin.committed_topics(cluster, "g") == {"a"}
        assert await admin.committed(cluster, "g") == {A1: (7, "")}

    run(story, {Api.OFFSET_FETCH: fetches})


def test_committed_now_returns_stable_offsets_and_error() -> None:
    told: list[wire.Body] = []

    def fetches(asked: Asked) -> wire.Body:
        assert asked.body.require_stable
        assert [(t.name, t.partition_indexes) for t in asked.body.topics] == [("a", [0, 1])]
        return told.pop(0)

    def answer(*given: int, error_code: int = 0) -> None:
        parts = [
            {"partition_index": n, "error_code": c, "committed_offset": 10 + n, "metadata": None}
            for n, c in enumerate(given)
        ]
        told.append({"error_code": error_code, "topics": [{"name": "a", "partitions": parts}]})

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        found = {"node_id": NODE, "host": "127.0.0.1", "port": broker.port}
        broker.answers[Api.FIND_COORDINATOR] = lambda asked: found
        answer(0, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        some, why = await admin.committed_now(cluster, "g", [A1, A0])
        assert some == {A0: (10, "")}
        assert str(why) == "offsets refused: UNSTABLE_OFFSET_COMMIT"
        answer(0, 0)
        every = {A0: (10, ""), A1: (11, "")}
        assert await admin.committed_now(cluster, "g", [A0, A1]) == (every, None)
        answer(0, 0, error_code=ErrorCode.NOT_COORDINATOR)
        some, why = await admin.committed_now(cluster, "g", [A0, A1])
        assert (some, str(why)) == ({}, "offsets refused: NOT_COORDINATOR")

    run(story, {Api.OFFSET_FETCH: fetches})


def test_topic_ids_returned_with_none_for_absent_topics() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        told = {
            "topics": [
                {"name": "a", "topic_id": b"i" * 16},
                {"name": "b", "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
                {"name": "c", "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED},
            ]
        }
        broker.answers[Api.METADATA] = lambda _: told
        assert await admin.topic_ids(cluster, "abc") == {"a": b"i" * 16, "b": None}

    run(story)


def test_topic_ids_are_zero_from_broker_without_ids() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        assert await admin.topic_ids(cluster, ["a", "b"]) == {"a": bytes(16), "b": None}

    async def told() -> None:
        async with ScriptedBroker({}, {"a": 1}) as broker:
            broker.ranges[Api.METADATA] = (0, 8)
            cluster = Cluster(broker.bootstrap)
            await cluster.start()
            await story(broker, cluster)
            await cluster.stop()

    asyncio.run(told())


def test_running_groups_have_the_topics_of_their_members() -> None:
    member = {
        "member_id": "m",
        "member_metadata": Subscription(("a", "b")).write(),
        "member_assignment": b"",
    }

    def listed(_: Asked) -> wire.Body:
        kinds = {"shop": "consumer", "empty": "consumer", "connect": "connect"}
        return {"groups": [{"group_id": g, "protocol_type": kind} for g, kind in kinds.items()]}

    def described(asked: Asked) -> wire.Body:
        assert asked.body.groups == ["shop", "empty"]
        groups = [{"group_id": "shop", "members": [member]}, {"group_id": "empty"}]
        return {"groups": groups}

    async def story(_: ScriptedBroker, cluster: Cluster) -> None:
        assert await admin.running_groups(cluster) == {"shop": frozenset("ab")}

    run(story, {Api.LIST_GROUPS: listed, Api.DESCRIBE_GROUPS: described})


BEATS = VersionRange(0, 0)


def beats(group: str, topics: list[str]) -> dict[str, Any]:
    """Return the request by which a member joins a group of the newer protocol."""
    return {
        "group_id": group, "member_id": "m", "member_epoch": 0, "instance_id": None,
        "rack_id": None, "rebalance_timeout": 60_000, "subscribed_topic_names": topics,
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip


def test_running_group_of_the_newer_protocol_has_its_topics() -> None:
    async def story(bootstrap: str) -> None:
        cluster = Cluster(bootstrap)
        await cluster.start()
        try:
            connection = await cluster.open(await cluster.coordinator("new"), admin.LANE)
            joins = beats("new", ["a"])
            told = await connection.ask(Api.CONSUMER_GROUP_HEARTBEAT, joins, versions=BEATS)
            assert told.error_code == 0
            assert await admin.running_groups(cluster) == {"new": frozenset("a")}
            leaves = joins | {"member_id": told.member_id, "member_epoch": -1}
            await connection.ask(Api.CONSUMER_GROUP_HEARTBEAT, leaves, versions=BEATS)
            assert await admin.running_groups(cluster) == {}
        finally:
            await cluster.stop()

    with Broker(topics={"a": 1}) as broker:
        asyncio.run(story(broker.bootstrap))


@pytest.mark.parametrize(
    ("offsets", "code", "found"),
    [(["a"], 0, {"a"}), ([], 0, None), ([], ErrorCode.GROUP_ID_NOT_FOUND, None)],
)
def test_running_group_that_is_not_described_has_its_committed_topics(
    offsets: list[str], code: int, found: set[str] | None
) -> None:
    def listed(_: Asked) -> wire.Body:
        states = {"runs": "Stable", "over": "Empty", "gone": "Dead", "old": ""}
        about = {"protocol_type": "share"}
        return {"groups": [{"group_id": g, "group_state": s, **about} for g, s in states.items()]}

    def described(asked: Asked) -> wire.Body:
        return {"groups": [{"group_id": g, "group_state": "Dead"} for g in asked.body.groups]}

    def committed(_: Asked) -> wire.Body:
        part = {"partition_index": 0, "committed_offset": 1}
        return {"error_code": code, "topics": [{"name": t, "partitions": [part]} for t in offsets]}

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        here = {"node_id": NODE, "host": "127.0.0.1", "port": broker.port}
        broker.answers[Api.FIND_COORDINATOR] = lambda asked: here
        assert await admin.running_groups(cluster) == {"runs": found}

    answers: dict[int, Answer] = {
        Api.LIST_GROUPS: listed,
        Api.DESCRIBE_GROUPS: described,
        Api.CONSUMER_GROUP_DESCRIBE: lambda _: {"groups": []},
        Api.OFFSET_FETCH: committed,
    }
    run(story, answers)


def test_all_topics_are_described() -> None:
    async def story(_: ScriptedBroker, cluster: Cluster) -> None:
        found = await admin.all_topics(cluster)
        assert {name: facts.partitions for name, facts in found.items()} == {"a": 2, "b": 1}

    run(story, topics={"a": 2, "b": 1})
