"""A second look of `status` at tasks whose last commit is old although records wait."""

import asyncio
from typing import Any

import pytest

from streamsx.assignor.model import MemberMetadata
from streamsx.assignor.observer import GroupReport, Instance
from streamsx.client.cluster import Cluster
from streamsx.group.admin.describe import GroupDescription
from streamsx.model import TaskId
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from streamsx.tools import status
from tests.support.scripted_broker import NODE, Asked, ScriptedBroker

NOW = 1_700_000_000
HERE = Instance(MemberMetadata("m1", "a"), (TaskId(0, 0),))
SEEN = GroupDescription("Stable", GroupReport(7, "m1", (HERE,), (), {}, {0: ("in",)}))


class Stopped:
    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return float(NOW)


def notes(monkeypatch: pytest.MonkeyPatch, *committed: tuple[int, int]) -> tuple[list[str], int]:
    """Return the notes and the number of looks, by offset and age of the commit at each look."""
    monkeypatch.setattr(status, "SECOND_LOOK_S", 0.0)
    looks = list(committed)

    def offsets(_asked: Asked) -> dict[str, Any]:
        offset, age = looks.pop(0)
        text = OffsetMetadata(committed_s=NOW - age).encode()
        place = {"partition_index": 0, "committed_offset": offset, "metadata": text}
        return {"topics": [{"name": "in", "partitions": [place]}]}

    def bounds(asked: Asked) -> dict[str, Any]:
        (topic,) = asked.body.topics
        end = 9 if topic.partitions[0].timestamp == -1 else 0
        return {"topics": [{"name": "in", "partitions": [{"partition_index": 0, "offset": end}]}]}

    def rebalances(_asked: Asked) -> dict[str, Any]:
        group = {"group_id": "shop", "group_state": "PreparingRebalance", "protocol_data": ""}
        member = {"member_id": "m1"}
        return {"groups": [{**group, "protocol_type": "consumer", "members": [member]}]}

    async def story() -> list[str]:
        answers: dict[int, Any] = {
            Api.OFFSET_FETCH: offsets,
            Api.FETCH: lambda _: {"responses": []},
            Api.LIST_OFFSETS: bounds,
            Api.DESCRIBE_GROUPS: rebalances,
        }
        async with ScriptedBroker(answers, {"in": 1}) as broker:
            where = {"error_code": ErrorCode.NONE, "node_id": NODE, "host": "127.0.0.1"}
            broker.answers[Api.FIND_COORDINATOR] = lambda _: {**where, "port": broker.port}
            cluster = Cluster(broker.bootstrap, tries_for_s=20)
            await cluster.start()
            try:
                found = await status.known(cluster, "shop", Stopped(), SEEN)
            finally:
                await cluster.stop()
            told: list[str] = found["notes"]
            return told

    return asyncio.run(story()), len(committed) - len(looks)


def test_task_that_commits_between_two_looks_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert notes(monkeypatch, (5, 41), (6, 0)) == ([], 2)


def test_task_that_does_not_commit_between_two_looks_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (told,), looks = notes(monkeypatch, (5, 41), (5, 41))
    assert looks == 2
    assert told.startswith("a: records are waiting and its last commit is 41 s old: it may be dead")


def test_fresh_commit_needs_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    assert notes(monkeypatch, (5, 2), (5, 4)) == ([], 1)
    assert notes(monkeypatch, (9, 41), (9, 41)) == ([], 1), "nothing waits"
