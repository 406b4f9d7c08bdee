"""Requests about topics, configs and the broker itself."""

from collections.abc import Iterable
from typing import Any

import pytest

from streamsx.broker.net.client_connection import ConnectionLimits
from streamsx.broker.options import Options
from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.wire import Api
from tests.unit.broker.conftest import Client, Run

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
POLICY, SEGMENT, PREALLOCATE = "cleanup.policy", "segment.bytes", "preallocate"

Change = tuple[str, int, str | None]


async def altered(
    client: Client, *changes: Change, kind: int = TOPIC, name: str = "t", only: bool = False
) -> Any:
    """Change configs of topic `t`; return the answer, and the configs after it."""
    configs = [{"name": n, "config_operation": o, "value": v} for n, o, v in changes]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
    body = {"resources": resources, "validate_only": only}
    (told,) = (await client.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, **body)).responses
    return told, client.broker.service.topics.by_name["t"].configs


async def described(client: Client, kind: int, name: str, keys: Iterable[str] | None = None) -> Any:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    (told,) = (await client.ask(Api.DESCRIBE_CONFIGS, 4, resources=[asked])).results
    return told


# Configurations.


@pytest.mark.parametrize(
    ("change", "code", "then"),
    [
        ((SEGMENT, SET, "500"), E.NONE, {POLICY: "compact", SEGMENT: "500"}),
        ((POLICY, SET, "delete"), E.NONE, {POLICY: "delete"}),
        ((POLICY, DELETE, None), E.NONE, {}),
        ((SEGMENT, DELETE, None), E.NONE, {POLICY: "compact"}),
        ((POLICY, APPEND, "delete"), E.NONE, {POLICY: "compact,delete"}),
        ((POLICY, APPEND, "compact"), E.NONE, {POLICY: "compact"}),
        ((POLICY, SUBTRACT, "compact"), E.NONE, {POLICY: ""}),
        ((POLICY, SUBTRACT, "delete"), E.NONE, {POLICY: "compact"}),
        ((POLICY, APPEND, "forget"), E.INVALID_CONFIG, {POLICY: "compact"}),
        ((SEGMENT, APPEND, "500"), E.INVALID_CONFIG, {POLICY: "compact"}),
        ((SEGMENT, SUBTRACT, "500"), E.INVALID_CONFIG, {POLICY: "compact"}),
        ((SEGMENT, SET, None), E.INVALID_REQUEST, {POLICY: "compact"}),
        (("no.such", SET, "1"), E.INVALID_CONFIG, {POLICY: "compact"}),
        ((POLICY, 9, "delete"), E.INVALID_CONFIG, {POLICY: "compact"}),
        ((POLICY, -1, "delete"), E.INVALID_CONFIG, {POLICY: "compact"}),
        ((POLICY, SET, "compact, delete"), E.NONE, {POLICY: "compact, delete"}),
        ((POLICY, APPEND, " delete "), E.NONE, {POLICY: "compact,delete"}),
        ((PREALLOCATE, SET, " True"), E.NONE, {POLICY: "compact", PREALLOCATE: " True"}),
        (("no.such", DELETE, None), E.NONE, {POLICY: "compact"}),
    ],
)
def test_topic_config_altered_or_refused_with_reason(
    run: Run, change: Change, code: E, then: dict[str, str]
) -> None:
    async def story(client: Client, _: Client) -> None:
        await altered(client, (POLICY, SET, "compact"))
        told, now = await altered(client, change)
        assert (told.resource_type, told.resource_name, told.error_code) == (TOPIC, "t", code)
        assert (change[0] in (told.error_message or "")) == (code != E.NONE)
        assert now == then

    run(story)


def test_config_append_or_subtract_starts_from_default(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        assert (await altered(client, (POLICY, APPEND, "compact")))[1] == {POLICY: "delete,compact"}
        assert (await altered(client, (POLICY, SUBTRACT, "delete")))[1] == {POLICY: "compact"}

    run(story)


def test_config_list_append_drops_duplicates_and_is_limited_in_size(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        name = "leader.replication.throttled.replicas"
        parts = [f"{number:x}" for number in range(3000)]
        half, rest = ",".join(parts), ",".join(f"g{part}" for part in parts)
        assert (await altered(client, (name, SET, half)))[1] == {name: half}
        both = f"{half},{rest}"
        assert (await altered(client, (name, APPEND, f"{rest},{rest}")))[1] == {name: both}
        told, now = await altered(client, (name, APPEND, "h" * 8000))
        assert (told.error_code, now) == (E.INVALID_CONFIG, {name: both})

    run(story)


def test_invalid_or_validate_only_change_leaves_config_unaltered(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        changes = ((SEGMENT, SET, "500"), (POLICY, SET, "big"))
        told, now = await altered(client, *changes)
        assert (told.error_code, now) == (E.INVALID_CONFIG, {})
        told, now = await altered(client, *changes[:1], *changes[:1])
        assert (told.error_code, now) == (E.INVALID_REQUEST, {})
        told, now = await altered(client, *changes[:1], only=True)
        assert (told.error_code, now) == (E.NONE, {})
        assert (await altered(client, *changes[:1]))[1] == {SEGMENT: "500"}

    run(story)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "no", E.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "t", E.INVALID_REQUEST),
        (BROKER_LOGGER, "t", E.INVALID_REQUEST),
    ],
)
def test_alter_configs_refused_for_unknown_topic_or_non_topic(
    run: Run, kind: int, name: str, code: E
) -> None:
    async def story(client: Client, _: Client) -> None:
        told, now = await altered(client, (SEGMENT, SET, "500"), kind=kind, name=name)
        assert (told.resource_type, told.resource_name, told.error_code) == (kind, name, code)
        assert now == {}

    run(story)


def test_broker_configs_describe_topic_options(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        told = await described(client, BROKER, "0")
        found = {c.name: (c.value, c.config_type, c.read_only) for c in told.configs}
        assert (told.error_code, found) == (
            E.NONE,
            {
                "auto.create.topics.enable": ("false", 1, True),
                "default.replication.factor": ("1", 3, True),
                "num.partitions": ("3", 3, True),
                "offsets.retention.minutes": ("10080", 3, True),
            },
        )

    run(story, options=Options(auto_create=False, partitions=3))


def test_topic_configs_describe_set_and_default_values(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        await altered(client, (SEGMENT, SET, "500"))
        told = await described(client, TOPIC, "t", [SEGMENT, POLICY])
        found = {c.name: (c.value, c.config_source, c.read_only) for c in told.configs}
        assert found == {POLICY: ("delete", 5, False), SEGMENT: ("500", 1, False)}
        of_no_keys = await described(client, TOPIC, "t", [])
        assert len(of_no_keys.configs) == len((await described(client, TOPIC, "t")).configs) > 2
        for kind, name, code in (
            (TOPIC, "no", E.UNKNOWN_TOPIC_OR_PARTITION), (BROKER_LOGGER, "t", E.INVALID_REQUEST),
        ):  # fmt: skip
            told = await described(client, kind, name)
            assert (told.error_code, told.resource_name, len(told.configs)) == (code, name, 0)

    run(story)


# Topics.


@pytest.mark.parametrize(
    ("about", "code"),
    [
        ({}, E.NONE),
        ({"num_partitions": -1, "replication_factor": -1}, E.NONE),
        ({"num_partitions": 2}, E.NONE),
        ({"name": "t"}, E.TOPIC_ALREADY_EXISTS),
        ({"name": "a b"}, E.INVALID_TOPIC_EXCEPTION),
        ({"num_partitions": 0}, E.INVALID_PARTITIONS),
        ({"num_partitions": -2}, E.INVALID_PARTITIONS),
        ({"num_partitions": 3}, E.POLICY_VIOLATION),
        ({"replication_factor": 2}, E.INVALID_REPLICATION_FACTOR),
        ({"configs": [{"name": "no.such", "value": "1"}]}, E.INVALID_CONFIG),
    ],
)
def test_topic_created_as_requested_or_refused_with_code(
    run: Run, about: dict[str, Any], code: E
) -> None:
    async def story(client: Client, _: Client) -> None:
        topics = client.broker.service.topics
        asked = {"name": "a", "num_partitions": 1, "replication_factor": 1, **about}

        async def made(*, trial: bool) -> Any:
            body = {"topics": [asked], "timeout": 1000, "validate_only": trial}
            (told,) = (await client.ask(Api.CREATE_TOPICS, 7, **body)).topics
            assert (told.name, told.error_code) == (asked["name"], code)
            return told

        await made(trial=True)
        assert set(topics.by_name) == {"t"}
        told = await made(trial=False)
        assert set(topics.by_name) == ({"t", "a"} if code == E.NONE else {"t"})
        if code == E.NONE:
            assert told.topic_id == topics.by_name["a"].id
            count = about.get("num_partitions", 1)
            count = client.broker.service.options.partitions if count == -1 else count
            assert told.num_partitions == len(topics.by_name["a"].logs) == count

    run(story, limits=ConnectionLimits(partitions_max=4), options=Options(partitions=2))


def test_topic_requested_twice_in_one_request_is_not_created(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        asked = [{"name": n, "num_partitions": 1, "replication_factor": 1} for n in "aba"]
        told = await client.ask(Api.CREATE_TOPICS, 7, topics=asked, timeout=1000)
        codes = [(t.name, t.error_code) for t in told.topics]
        assert codes == [("a", E.INVALID_REQUEST), ("b", E.NONE)]
        assert set(client.broker.service.topics.by_name) == {"b", "t"}

    run(story)


def test_topic_deleted_by_name_or_by_id(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        topics = client.broker.service.topics
        ids = {name: topic.id for name, topic in topics.by_name.items()}
        asked = [
            {"name": "t", "topic_id": bytes(16)}, {"name": None, "topic_id": ids["u"]},
            {"name": "v", "topic_id": ids["v"]}, {"name": None, "topic_id": bytes(16)},
        ]  # fmt: skip
        told = await client.ask(Api.DELETE_TOPICS, 6, topics=asked, timeout=1000)
        assert [(r.name, r.topic_id, r.error_code) for r in told.responses] == [
            ("t", ids["t"], E.NONE), ("u", ids["u"], E.NONE),
            ("v", ids["v"], E.INVALID_REQUEST), (None, bytes(16), E.INVALID_REQUEST),
        ]  # fmt: skip
        told = await client.ask(Api.DELETE_TOPICS, 6, topics=asked[:2], timeout=1000)
        assert [(r.name, r.topic_id, r.error_code) for r in told.responses] == [
            ("t", bytes(16), E.UNKNOWN_TOPIC_OR_PARTITION), (None, ids["u"], E.UNKNOWN_TOPIC_ID),
        ]  # fmt: skip
        assert set(topics.by_name) == {"v"}

    run(story, topics={"t": 1, "u": 1, "v": 1})


def test_partitions_not_added_for_validate_only_or_unknown_topic(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        for name, code in (("t", E.NONE), ("no", E.UNKNOWN_TOPIC_OR_PARTITION)):
            body = {"topics": [{"name": name, "count": 3}], "timeout": 1000, "validate_only": True}
            told = (await client.ask(Api.CREATE_PARTITIONS, 2, **body)).results[0]
            assert (told.name, told.error_code) == (name, code)
        assert len(client.broker.service.topics.by_name["t"].logs) == 2

    run(story)


# The broker.


def test_alter_configs_of_broker_refused_with_reason(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        asked = {"resource_type": BROKER, "resource_name": "0", "configs": []}
        body = {"resources": [asked], "validate_only": False}
        told = (await client.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, **body)).responses[0]
        assert told.error_code == E.INVALID_REQUEST
        assert "given when it starts" in told.error_message

    run(story)


@pytest.mark.parametrize("version", [3, 6])
def test_find_coordinator_answers_for_groups_and_transactions_only(run: Run, version: int) -> None:
    """A request may name several since version 4."""
    keys = ["g", "h"] if version >= 4 else []

    async def told(client: Client, kind: int) -> list[Any]:
        about = {"coordinator_keys": keys} if keys else {"key": "g"}
        told = await client.ask(Api.FIND_COORDINATOR, version, **about, key_type=kind)
        assert [c.key for c in told.coordinators] == keys
        return list(told.coordinators or [told])

    async def story(client: Client, _: Client) -> None:
        here = (E.NONE, 0, "127.0.0.1", client.broker.port)
        for c in await told(client, 0):
            assert (c.error_code, c.node_id, c.host, c.port) == here
        assert {(c.error_code, c.node_id) for c in await told(client, 1)} == {(E.NONE, 0)}
        assert {(c.error_code, c.node_id) for c in await told(client, 2)} == {
            (E.INVALID_REQUEST, -1)
        }

    run(story)


def test_init_producer_id_unique_and_kept_by_transactional_id(run: Run) -> None:
    async def story(client: Client, other: Client) -> None:
        about = {"transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
        found = []
        for each, name in ((client, None), (other, None), (client, "tx"), (other, "tx")):
            told = await each.ask(Api.INIT_PRODUCER_ID, 4, transactional_id=name, **about)
            found.append((told.error_code, told.producer_id, told.producer_epoch))
        assert found == [(E.NONE, 0, 0), (E.NONE, 1, 0), (E.NONE, 2, 0), (E.NONE, 2, 1)]

    run(story)


def test_leader_epoch_ends_at_log_end(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        await client.produce(b"a", b"b", partition=1)
        numbers = {"current_leader_epoch": -1, "leader_epoch": 0}
        asked = [{"topic": "t", "partitions": [{"partition": p, **numbers} for p in range(3)]}]
        told = await client.ask(Api.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=asked)
        assert told.topics[0].topic == "t"
        unknown = E.UNKNOWN_TOPIC_OR_PARTITION
        assert [
            (p.partition, p.error_code, p.leader_epoch, p.end_offset)
            for p in told.topics[0].partitions
        ] == [(0, E.NONE, 0, 0), (1, E.NONE, 0, 2), (2, unknown, -1, -1)]

    run(story)


def test_describe_cluster_returns_broker_at_client_address(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        told = await client.ask(Api.DESCRIBE_CLUSTER, 1, endpoint_type=1)
        (broker,) = told.brokers
        assert (broker.broker_id, broker.host, broker.port) == (0, "127.0.0.1", client.broker.port)
        assert (told.controller_id, told.endpoint_type) == (broker.broker_id, 1)

    run(story)
