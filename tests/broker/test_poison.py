"""Valid requests that cost far more than their length, if a broker is not careful.

Each is as large as its kind may be. It may be answered or refused; no other client waits for long,
and memory stays as it was. CPU time is what counts: other load changes the wall clock.
"""

import socket
import string
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import pytest

from streamsx.protocol import wire
from streamsx.protocol.record_batch import Builder
from streamsx.protocol.wire import REQUEST_ELEMENTS_MAX, Api
from tests.broker.test_attackers import dial, rss_mib
from tests.support.apache_kafka import converse
from tests.support.cost import cpu_s
from tests.support.embedded_broker import EmbeddedBroker

pytestmark = [
    pytest.mark.perf,
    pytest.mark.skipif(sys.platform != "linux", reason="another process: /proc"),
]

MIB = 1 << 20
CPU_S = 1.0
MEMORY_MIB = 96
MANY = REQUEST_ELEMENTS_MAX - 100
PARTITIONS = 3000
KIND = {"session_timeout": 60_000, "rebalance_timeout": 60_000, "protocol_type": "consumer"}


def names(count: int) -> list[str]:
    """Return the shortest names."""
    letters = string.ascii_letters + string.digits
    every = chain.from_iterable(product(letters, repeat=size) for size in range(1, 5))
    return ["".join(name) for name in islice(every, count)]


def records(count: int) -> bytes:
    builder = Builder(MIB)
    for _ in range(count):
        builder.append(1, None, b"")
    return bytes(builder.close())


def of_t(count: int, **asked: Any) -> dict[str, Any]:
    """Return one partition of t, again and again."""
    return {"topics": [{"name": "t", "topic": "t", "partitions": [asked] * count}]}


def topic(name: str, partitions: int) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": 1}


def committed(group: str) -> dict[str, Any]:
    partitions = [{"partition_index": n, "committed_offset": 1} for n in range(PARTITIONS)]
    return {
        "group_id": group, "generation_id_or_member_epoch": -1,
        "topics": [{"name": "wide", "partitions": partitions}],
    }  # fmt: skip


def resources(count: int) -> list[dict[str, Any]]:
    return [{"resource_type": 2, "resource_name": "t"} for _ in range(count)]


def growing(number: int) -> dict[str, Any]:
    config = {"name": "retention.ms", "value": str(number)}
    return {"resource_type": 2, "resource_name": "t", "configs": [config]}


Request = tuple[Api, int, dict[str, Any]]
POISON: dict[str, Request] = {
    "a name of a megabyte": (Api.API_VERSIONS, 3, {"client_software_name": "a" * 900_000}),
    "one topic, again and again": (Api.METADATA, 5, {"topics": [{"name": "wide"}] * 50_000}),
    "more topics than there is room for": (
        Api.METADATA, 5,
        {"topics": [{"name": name} for name in names(11_000)], "allow_auto_topic_creation": True},
    ),
    "a thousand topics": (
        Api.CREATE_TOPICS, 4, {"topics": [topic(f"c{name}", 1) for name in names(1000)]},
    ),
    "all of these are deleted": (
        Api.DELETE_TOPICS, 3, {"topic_names": [f"c{name}" for name in names(1000)]},
    ),
    "more partitions than there may be": (Api.CREATE_TOPICS, 4, {"topics": [topic("w", 9999)]}),
    "a topic that grows and grows": (
        Api.CREATE_PARTITIONS, 1, {"topics": [{"name": "t", "count": n} for n in range(2, 900)]},
    ),
    "a topic that is told and told": (Api.DESCRIBE_CONFIGS, 1, {"resources": resources(50_000)}),
    "a topic that is changed and changed": (
        Api.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [growing(n) for n in range(15_000)]},
    ),
    "one partition by its time": (Api.LIST_OFFSETS, 4, of_t(MANY, timestamp=1)),
    "one partition by its youngest": (Api.LIST_OFFSETS, 7, of_t(50_000, timestamp=-3)),
    "records that go one by one": (
        Api.DELETE_RECORDS, 1,
        {"topics": [{"name": "t", "partitions": [{"offset": n} for n in range(1, 4000)]}]},
    ),
    "one partition is read": (
        Api.FETCH, 11,
        {"max_wait": 0, "max_bytes": 50 * MIB, **of_t(30_000, partition_max_bytes=1)},
    ),
    "negative numbers are read": (
        Api.FETCH, 11,
        {"max_wait": -1, "min_bytes": -1, "max_bytes": -1, **of_t(9, partition_max_bytes=-1)},
    ),
    "one batch, again and again": (
        Api.PRODUCE, 9,
        {
            "acks": 1, "timeout": 1,
            "topic_data": [{"name": "t", "partition_data": [{"records": records(1)}] * MANY}],
        },
    ),
    "more parts than there may be": (
        Api.PRODUCE, 9, {"topic_data": [{"name": "t", "partition_data": [{}] * 1_000_000}]},
    ),
    "one offset is committed": (
        Api.OFFSET_COMMIT, 3,
        {
            "group_id": "g", "generation_id_or_member_epoch": -1,
            **of_t(MANY, committed_offset=1, committed_metadata=""),
        },
    ),
    "a group with a long name commits": (Api.OFFSET_COMMIT, 3, committed("g" * 32_000)),
    "a group commits": (Api.OFFSET_COMMIT, 3, committed("g")),
    "that group is asked for": (
        Api.OFFSET_FETCH, 8, {"groups": [{"group_id": "g", "topics": None}] * 20_000},
    ),
    "an offset is asked for": (
        Api.OFFSET_FETCH, 5,
        {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0] * MANY}]},
    ),
    "groups of which a transaction may hold something": (
        Api.OFFSET_FETCH, 8,
        {
            "require_stable": True,
            "groups": [{"group_id": name, "topics": []} for name in names(50_000)],
        },
    ),
    "all offsets are deleted": (
        Api.OFFSET_DELETE, 0,
        {
            "group_id": "g0",
            "topics": [
                {"name": "wide", "partitions": [{"partition_index": n} for n in range(PARTITIONS)]}
            ],
        },
    ),
    "an offset is deleted": (
        Api.OFFSET_DELETE, 0, {"group_id": "g", **of_t(MANY, partition_index=0)},
    ),
    "a coordinator": (Api.FIND_COORDINATOR, 4, {"coordinator_keys": ["a"] * MANY}),
    "more coordinators than there may be": (
        Api.FIND_COORDINATOR, 4, {"coordinator_keys": ["a"] * 400_000},
    ),
    "a fat group is told": (Api.DESCRIBE_GROUPS, 5, {"groups": ["fat"] * MANY}),
    "no group is deleted": (Api.DELETE_GROUPS, 2, {"groups_names": ["x"] * MANY}),
    "states that there are none of": (Api.LIST_GROUPS, 4, {"states_filter": ["x"] * MANY}),
    "nobody leaves": (
        Api.LEAVE_GROUP, 4,
        {"group_id": "many", "members": [{"member_id": "", "group_instance_id": "n"}] * MANY},
    ),
    "thousands of protocols": (
        Api.JOIN_GROUP, 3,
        {"group_id": "p", **KIND, "protocols": [{"name": name} for name in names(60_000)]},
    ),
    "no protocol, again and again": (
        Api.JOIN_GROUP, 3, {"group_id": "p", **KIND, "protocols": [{"name": ""}] * MANY},
    ),
    "nobody is assigned anything": (
        Api.SYNC_GROUP, 3,
        {"group_id": "many", "generation_id": 1, "assignments": [{"member_id": "x"}] * 1_000_000},
    ),
    "ends of one partition": (
        Api.OFFSET_FOR_LEADER_EPOCH, 4, of_t(MANY, partition=0),
    ),
    "a member that reads everything": (
        Api.CONSUMER_GROUP_HEARTBEAT, 1,
        {
            "group_id": "c", "member_id": "one", "member_epoch": 0, "rebalance_timeout": 1000,
            "topic_partitions": [], "subscribed_topic_names": ["wide", *names(60_000)],
        },
    ),
    "a member that has everything": (
        Api.CONSUMER_GROUP_HEARTBEAT, 1,
        {
            "group_id": "c", "member_id": "one", "member_epoch": 1, "rebalance_timeout": 1000,
            "topic_partitions": [{"partitions": list(range(MANY - 1))}],
        },
    ),
    "it is told": (Api.CONSUMER_GROUP_DESCRIBE, 0, {"group_ids": ["c"] * MANY}),
    "a transaction of one partition": (
        Api.ADD_PARTITIONS_TO_TXN, 3,
        {
            "v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 1,
            "v3_and_below_topics": [{"name": "wide", "partitions": [0] * MANY}],
        },
    ),
    "many transactions": (
        Api.ADD_PARTITIONS_TO_TXN, 4,
        {
            "transactions": [
                {"transactional_id": "x", "topics": [{"name": "wide", "partitions": [0]}]}
            ] * (MANY // 3)
        },
    ),
    "an offset of a transaction": (
        Api.TXN_OFFSET_COMMIT, 3,
        {
            "group_id": "g", "transactional_id": "x",
            **of_t(MANY, committed_offset=1, committed_metadata=""),
        },
    ),
    "an id for no time at all": (Api.INIT_PRODUCER_ID, 4, {"transaction_timeout": -5}),
}  # fmt: skip


def begin(sock: socket.socket, number: int) -> None:
    """Begin a transaction that stays open; some hold offsets."""
    asked = {"transactional_id": f"open {number}", "transaction_timeout": 900_000}
    given = converse(sock, Api.INIT_PRODUCER_ID, 4, asked)
    owner = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
    body = {**asked, **owner, **committed("h"), "generation_id": -1}
    assert not converse(sock, Api.ADD_OFFSETS_TO_TXN, 3, body).error_code
    if number < 10:
        told = converse(sock, Api.TXN_OFFSET_COMMIT, 3, body)
        assert not told.topics[0].partitions[0].error_code


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Start a broker with a topic of many partitions, records, a member with large metadata, and a
    group of many members.
    """
    folder = tmp_path_factory.mktemp("poison")
    options = ("--topic", "t:1", "--topic", f"wide:{PARTITIONS}")
    with EmbeddedBroker(folder / "broker", *options) as broker, dial(broker) as sock:
        part = [{"name": "t", "partition_data": [{"records": records(4000)}]}]
        converse(sock, Api.PRODUCE, 9, {"acks": 1, "timeout": 1000, "topic_data": part})
        fat = {"group_id": "fat", "protocols": [{"name": "p", "metadata": bytes(60_000)}]}
        member = converse(sock, Api.JOIN_GROUP, 3, {**KIND, **fat, "member_id": ""}).member_id
        mine = [{"member_id": member, "assignment": bytes(60_000)}]
        synced = {"group_id": "fat", "member_id": member, "generation_id": 1, "assignments": mine}
        converse(sock, Api.SYNC_GROUP, 3, synced)
        for number in range(300):
            static = {"group_id": "many", "group_instance_id": str(number), "member_id": ""}
            body = {**KIND, **static, "protocols": [{"name": "p"}]}
            sock.sendall(wire.request_encoder(Api.JOIN_GROUP, 5)(1, body, "poison"))
        for number in range(20):
            with dial(broker) as other:
                converse(other, Api.OFFSET_COMMIT, 3, committed(f"g{number}"))
        with dial(broker) as other:
            for number in range(400):
                begin(other, number)
        yield broker
        assert "Traceback" not in broker.told()
        assert broker.stop() == 0


@pytest.mark.parametrize("what", POISON)
def test_poison_request_costs_bounded_cpu_and_memory(broker: EmbeddedBroker, what: str) -> None:
    api, version, body = POISON[what]
    frame = wire.request_encoder(api, version)(1, body, "poison")
    assert broker.pid is not None
    with dial(broker) as sock, dial(broker) as other:
        converse(other, Api.FIND_COORDINATOR, 4, {"coordinator_keys": []})
        Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # the peak begins anew
        memory, before = rss_mib(broker.pid), cpu_s(broker.pid)
        sock.settimeout(30)
        with suppress(ConnectionError):
            sock.sendall(frame)
            size = int.from_bytes(sock.recv(4))
            while size > 0 and (got := len(sock.recv(MIB))):
                size -= got
        assert converse(other, Api.FIND_COORDINATOR, 4, {"coordinator_keys": ["g"]}).coordinators
        assert cpu_s(broker.pid) - before < CPU_S
        assert rss_mib(broker.pid, "VmHWM") < memory + MEMORY_MIB
