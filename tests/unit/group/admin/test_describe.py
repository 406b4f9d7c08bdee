"""DescribeGroups: what it shows, and when it shows too little."""

import asyncio
from itertools import count
from typing import Any

import pytest

from streamsx.assignor.model import MemberMetadata, Rules
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor, Subtopology
from streamsx.client.cluster import Cluster
from streamsx.errors import ForeignProtocol, NotFound
from streamsx.group.admin import describe as look
from streamsx.group.admin.describe import GroupDescription, settled
from streamsx.model import TaskId
from streamsx.protocol.consumer_protocol import Subscription
from streamsx.protocol.wire import Api, Body
from tests.support.scripted_broker import NODE, Asked, ScriptedBroker

GROUP = "shop"


def told(state: str, protocol: str = "streamsx", **member: bytes) -> Body:
    """Return a group of one member as a coordinator describes it."""
    members = [{"member_id": "m1", "client_id": "c", "client_host": "h", **member}]
    return {
        "group_id": GROUP, "group_state": state, "protocol_type": "consumer",
        "protocol_data": protocol, "members": members if state not in ("Empty", "Dead") else [],
    }  # fmt: skip


def stable() -> Body:
    leader = StreamsPartitionAssignor(
        MemberMetadata("", instance="a", process=bytes(16).hex(), version="0.1.0"),
        Rules(),
        [Subtopology(0, ("in",), True, 7)],
    )
    said = Subscription(("in",), leader.user_data(MemberMetadata("", nonce=1))).write()
    plan = leader.assign([("m1", said)], {"in": 1}, leader="m1", generation=4, now_ms=1)
    return told("Stable", member_metadata=said, member_assignment=plan.assignments["m1"])


class Looks:
    """Clock on which a second passes between two looks."""

    def __init__(self) -> None:
        self._seconds = count()

    def now(self) -> float:
        return next(self._seconds)

    wall = now


def seen(*groups: Body, limit_s: float = 5.0) -> tuple[GroupDescription, list[str]]:
    """Return what `settled` finds, and the states that it skipped. The last answer is repeated."""
    answers = list(groups)

    def describe(_: Asked) -> Body:
        return {"groups": [answers.pop(0) if len(answers) > 1 else answers[0]]}

    async def asks() -> tuple[GroupDescription, list[str]]:
        broker = ScriptedBroker({Api.DESCRIBE_GROUPS: describe})
        where: dict[str, Any] = {"node_id": NODE, "host": "127.0.0.1"}
        broker.answers[Api.FIND_COORDINATOR] = lambda _: {**where, "port": broker.port}
        states: list[str] = []
        async with asyncio.timeout(10), broker:
            cluster = Cluster(broker.bootstrap)
            await cluster.start()
            found = await settled(
                cluster, Looks(), GROUP, limit_s, lambda look: states.append(look.state)
            )
            await cluster.stop()
        return found, states

    return asyncio.run(asks())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "LOOK_EVERY_S", 0.001)


def test_stable_group_reported_with_assignments() -> None:
    found, states = seen(stable())

    assert (found.state, found.report.generation, states) == ("Stable", 4, [])
    assert found.report.instances[0].active == (TaskId(0, 0),)


def test_look_repeated_during_rebalance() -> None:
    """During a rebalance Kafka shows old assignments, but without names."""
    old = {"member_assignment": stable()["members"][0]["member_assignment"]}

    found, states = seen(
        told("PreparingRebalance", "", **old), told("CompletingRebalance", ""), stable()
    )

    assert found.report.settled
    assert states == ["PreparingRebalance", "CompletingRebalance"]


def test_unsettled_group_reported_after_limit() -> None:
    found, states = seen(told("PreparingRebalance", ""), limit_s=3)

    assert (found.state, found.report.settled) == ("PreparingRebalance", False)
    assert [here.member.id for here in found.report.instances] == ["m1"]
    assert len(states) == 2, "the third look is the last one"


def test_empty_group_reported_as_settled() -> None:
    found, _ = seen(told("Empty", ""))

    assert (found.state, found.report.settled, found.report.instances) == ("Empty", True, ())


def test_absent_group_raises_not_found() -> None:
    with pytest.raises(NotFound, match="no such app: shop: this cluster has no group of that id"):
        seen(told("Dead", ""))


@pytest.mark.parametrize("other", [{"protocol_data": "range"}, {"protocol_type": "connect"}])
def test_group_of_another_program_raises_foreign_protocol(other: Body) -> None:
    with pytest.raises(ForeignProtocol, match="not an app of streamsx: shop: a group of type"):
        seen({**stable(), **other})
