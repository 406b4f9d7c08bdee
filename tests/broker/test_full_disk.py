"""A full disk: each request gets an error, and refused records never appear later.

No file of the broker may grow: for the broker and for RocksDB this is the same as a full disk.
"""

import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.record_batch import Builder
from streamsx.protocol.wire import Api
from streamsx.tools.cli.processes import OURS
from tests.support.apache_kafka import converse
from tests.support.embedded_broker import EmbeddedBroker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process")

KIND = {"session_timeout": 60_000, "rebalance_timeout": 60_000, "protocol_type": "consumer"}
JOIN = {**KIND, "protocols": [{"name": "p"}], "member_id": ""}
NOBODY = {"generation_id_or_member_epoch": -1, "member_id": ""}


def dial(broker: EmbeddedBroker) -> socket.socket:
    host, _, port = broker.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def of_t(**asked: Any) -> dict[str, Any]:
    return {"topics": [{"name": "t", "partitions": [asked]}]}


def batch() -> bytes:
    builder = Builder(1 << 20)
    builder.append(1, None, bytes(1000))
    return bytes(builder.close())


def commit(group: str, offset: int) -> dict[str, Any]:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    return {"group_id": group, **NOBODY, **of_t(**partition)}


def produced(acks: int = 1) -> dict[str, Any]:
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch()}]}]
    return {"acks": acks, "timeout": 1000, "topic_data": data}


def codes(answer: Any) -> set[int]:
    """Return all error codes of an answer but "none", wherever they stand."""
    if isinstance(answer, list):
        return set[int]().union(*map(codes, answer))
    fields = getattr(answer, "__dict__", {})
    return {fields.get("error_code", 0)}.union(*map(codes, fields.values())) - {0}


REFUSED: dict[str, tuple[Api, int, dict[str, Any], E]] = {
    "records": (Api.PRODUCE, 9, produced(), E.KAFKA_STORAGE_ERROR),
    "a topic": (
        Api.CREATE_TOPICS, 5,
        {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]},
        E.KAFKA_STORAGE_ERROR,
    ),
    "a topic that is missed": (
        Api.METADATA, 9, {"topics": [{"name": "new"}], "allow_auto_topic_creation": True},
        E.KAFKA_STORAGE_ERROR,
    ),
    "partitions": (
        Api.CREATE_PARTITIONS, 1, {"topics": [{"name": "t", "count": 3}]}, E.KAFKA_STORAGE_ERROR,
    ),
    "no topic": (Api.DELETE_TOPICS, 5, {"topic_names": ["t"]}, E.KAFKA_STORAGE_ERROR),
    "a configuration": (
        Api.INCREMENTAL_ALTER_CONFIGS, 1,
        {
            "resources": [
                {
                    "resource_type": 2, "resource_name": "t",
                    "configs": [{"name": "retention.ms", "value": "5"}],
                }
            ]
        },
        E.KAFKA_STORAGE_ERROR,
    ),
    "no records": (Api.DELETE_RECORDS, 1, of_t(partition_index=0, offset=1), E.KAFKA_STORAGE_ERROR),
    "an id": (Api.INIT_PRODUCER_ID, 1, {"transactional_id": None}, E.KAFKA_STORAGE_ERROR),
    "an offset": (Api.OFFSET_COMMIT, 3, commit("g", 2), E.COORDINATOR_NOT_AVAILABLE),
    "an offset of a new group": (
        Api.OFFSET_COMMIT, 3, commit("new", 2), E.COORDINATOR_NOT_AVAILABLE,
    ),
    "no offset": (
        Api.OFFSET_DELETE, 0, {"group_id": "g", **of_t(partition_index=0)},
        E.COORDINATOR_NOT_AVAILABLE,
    ),
    "no group": (Api.DELETE_GROUPS, 1, {"groups_names": ["g"]}, E.COORDINATOR_NOT_AVAILABLE),
    "a member": (Api.JOIN_GROUP, 3, {"group_id": "m", **JOIN}, E.COORDINATOR_NOT_AVAILABLE),
}  # fmt: skip


def topics(broker: EmbeddedBroker) -> list[Any]:
    """Return names and partitions, offsets and configs."""
    with dial(broker) as sock:
        found = converse(sock, Api.METADATA, 9, {"topics": None}).topics
        there = [(topic.name, len(topic.partitions)) for topic in found]
        ends = [
            converse(sock, Api.LIST_OFFSETS, 4, of_t(partition_index=0, timestamp=time))
            for time in (-2, -1)
        ]
        resource = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
        (told,) = converse(sock, Api.DESCRIBE_CONFIGS, 1, {"resources": [resource]}).results
    return [
        there,
        [answer.topics[0].partitions[0].offset for answer in ends],
        {config.name: config.value for config in told.configs},
    ]


def state(broker: EmbeddedBroker) -> list[Any]:
    """Return all that a client can see."""
    with dial(broker) as sock:
        groups = converse(sock, Api.LIST_GROUPS, 2, {}).groups
        (kept,) = converse(sock, Api.OFFSET_FETCH, 5, {"group_id": "g", "topics": None}).topics
    return [
        *topics(broker),
        [group.group_id for group in groups],
        [(each.partition_index, each.committed_offset) for each in kept.partitions],
    ]


def test_broker_ending_on_a_full_disk_reports_the_disk(tmp_path: Path) -> None:
    """The log of the broker is a pipe: a file could not grow."""
    command = [*OURS, "broker", "--data", str(tmp_path / "data"), "--port", "0", "--topic", "t:2"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout
        broker = EmbeddedBroker(tmp_path / "data")
        broker.bootstrap = process.stdout.readline().split()[1]
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        for api, version, body, _ in REFUSED.values():
            with dial(broker) as sock:
                assert codes(converse(sock, api, version, body))
        process.terminate()
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert told.splitlines()[-1].startswith(f"error: disk full or broken: {tmp_path}/data: ")
    assert "Traceback" not in told


def limit(broker: EmbeddedBroker, size: int) -> None:
    assert broker.pid is not None
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize("end", ["stop", "kill", "go on"])
def test_requests_refused_by_a_full_disk_leave_no_trace(tmp_path: Path, end: str) -> None:
    with EmbeddedBroker(tmp_path / "data", "--topic", "t:2") as broker:
        with dial(broker) as sock:
            for _ in range(3):
                assert not codes(converse(sock, Api.PRODUCE, 9, produced()))
            assert not codes(converse(sock, Api.OFFSET_COMMIT, 3, commit("g", 1)))
        before = state(broker)
        limit(broker, 0)
        for _ in range(2):
            for what, (api, version, body, code) in REFUSED.items():
                with dial(broker) as sock:
                    assert codes(converse(sock, api, version, body)) == {code}, what
            assert topics(broker) == before[:3], "which are not asked of RocksDB"
        if end == "go on":
            limit(broker, resource.RLIM_INFINITY)
            assert state(broker) == before
            with dial(broker) as sock:
                assert not codes(converse(sock, Api.OFFSET_COMMIT, 3, commit("g", 9)))
                assert not codes(converse(sock, Api.PRODUCE, 9, produced()))
            assert broker.stop() == 0
            broker.start()
            assert (state(broker)[1], state(broker)[4]) == ([0, 4], [(0, 9)])
        else:
            if end == "kill":
                broker.kill()
            else:
                assert broker.stop() == 1
            assert "Traceback" not in broker.told()
            broker.start()
            assert state(broker) == before
        assert broker.stop() == 0
