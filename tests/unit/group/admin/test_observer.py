"""A tool that joins the group, gets its answer and leaves, under failures of broker and members."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from streamsx.assignor.model import Mark, MarkState, MemberMetadata, Memory, Rules
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor, Subtopology
from streamsx.assignor.wire import AssignmentView, read_join, write_assignment
from streamsx.broker.groups.group import GroupConfig
from streamsx.broker.net.server import BrokerServer
from streamsx.client.admin import describe_group
from streamsx.client.cluster import Cluster
from streamsx.client.connection import Connection
from streamsx.clock import SystemClock
from streamsx.errors import (
    ForeignProtocol,
    GroupError,
    NotFound,
    SettingError,
    StreamsxError,
    WorldError,
)
from streamsx.group import member as machine
from streamsx.group import requests
from streamsx.group.admin import describe, observer
from streamsx.group.admin.observer import send_marks
from streamsx.model import TopicPartition
from streamsx.protocol.consumer_protocol import Assignment, Subscription
from streamsx.protocol.wire import Api
from tests.support.scripted_broker import NODE, Answer, Asked, ScriptedBroker

GROUP = "shop"
MARK = Mark(MarkState.LEAVING, 9_000, epoch_ms=5)
MARKS = {"b": MARK}
P0, P1 = TopicPartition("in", 0), TopicPartition("in", 1)


class Worker:
    """Member that does what the test says, without heartbeats."""

    def __init__(self, cluster: Cluster, name: str, *claims: TopicPartition) -> None:
        self.cluster, self.claims = cluster, claims
        self.id, self.nonce, self.protocol = "", 0, StreamsPartitionAssignor.name
        self.view, self.given = AssignmentView(), claims
        self.assignor = StreamsPartitionAssignor(
            MemberMetadata(
                "", instance=name, process=name.encode().ljust(16).hex(), version="0.1.0"
            ),
            Rules(),
            [Subtopology(0, ("in",), True, 7)],
        )

    async def lane(self, name: str) -> Connection:
        node = await self.cluster.coordinator(GROUP)
        return await self.cluster.open(node, f"{name} {id(self)}")

    async def round(self) -> None:
        """Join, lead if elected, and sync."""
        self.nonce += 1
        connection, claims = await self.lane("round"), frozenset(self.claims)
        user_data = self.assignor.user_data(MemberMetadata("", nonce=self.nonce, claims=claims))
        said = Subscription(("in",), user_data, self.claims, 1).write()
        body = {
            "session_timeout": 6_000, "rebalance_timeout": 6_000, "protocol_type": "consumer",
            "protocols": [{"name": self.protocol, "metadata": said}],
        }  # fmt: skip
        while True:
            who = requests.identity(GROUP, self.id, None)
            joined = await connection.ask(Api.JOIN_GROUP, who | body)
            self.id = joined.member_id
            if not joined.error_code:
                break
        given: Mapping[str, bytes] = {}
        if joined.leader == self.id:
            metadata = [(m.member_id, bytes(m.metadata)) for m in joined.members]
            outcome = self.assignor.assign(
                metadata, {"in": 2}, leader=self.id, generation=joined.generation_id, now_ms=10
            )
            given = outcome.assignments
        body = requests.identity(GROUP, self.id, None) | {
            "generation_id": joined.generation_id,
            "assignments": [{"member_id": m, "assignment": a} for m, a in given.items()],
        }
        synced = await connection.ask(Api.SYNC_GROUP, body)
        assert not synced.error_code
        assignment = Assignment.read(bytes(synced.assignment))
        self.view = self.assignor.on_assignment(assignment.user_data)
        self.given = assignment.partitions

    async def leave(self) -> None:
        await (await self.lane("leave")).ask(Api.LEAVE_GROUP, requests.leave(GROUP, self.id))


Story = Callable[[Cluster], Awaitable[None]]


def embedded(story: Story, folder: Path, groups: GroupConfig | None = None) -> None:
    async def told() -> None:
        broker = BrokerServer(folder, topics={"in": 2}, groups=groups or GroupConfig())
        async with asyncio.timeout(10), broker:
            cluster = Cluster(broker.bootstrap)
            await cluster.start()
            try:
                await story(cluster)
            finally:
                await cluster.stop()

    asyncio.run(told())


def tool(cluster: Cluster, timeout_s: float = 5.0) -> "asyncio.Task[bool]":
    told = send_marks(cluster, SystemClock(), GROUP, MARKS, timeout_s)
    return asyncio.create_task(told, name="tool")


async def members(cluster: Cluster) -> int:
    return len((await describe_group(cluster, GROUP)).members)


async def joined(cluster: Cluster, count: int) -> None:
    """Wait until this many are in the group, or wait to be."""
    while await members(cluster) != count:  # noqa: ASYNC110  # the broker tells nobody
        await asyncio.sleep(0.01)


def test_marks_received_by_all_members_and_tool_leaves(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        a, b = Worker(cluster, "a", P0), Worker(cluster, "b", P1)
        await a.round()
        second = asyncio.create_task(b.round(), name="b")
        await joined(cluster, 2)
        await asyncio.gather(a.round(), second)
        visit = tool(cluster)
        await joined(cluster, 3)

        await asyncio.gather(a.round(), b.round())
        await visit

        assert (a.view.memory.marks, b.view.mark, b.given) == (MARKS, MARK, (P1,))
        assert (a.view.more, b.view.more) == (True, True)
        assert await members(cluster) == 2

    embedded(story, tmp_path)


def test_tool_elected_leader_moves_nothing_and_delivers_marks(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        a, b = Worker(cluster, "a"), Worker(cluster, "b", P0, P1)
        await a.round()
        visit = tool(cluster)
        await joined(cluster, 2)
        third = asyncio.create_task(b.round(), name="b")  # behind the tool
        await joined(cluster, 3)

        await a.leave()
        await asyncio.gather(third, visit)

        assert (b.view.mark, b.given, b.view.more) == (MARK, (P0, P1), True)
        assert await members(cluster) == 1

    embedded(story, tmp_path)


def test_tool_adapts_to_minimum_session_timeout_of_broker(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await tool(cluster)

    embedded(story, tmp_path / "10", GroupConfig(session_timeout_min_ms=10_000))
    with pytest.raises(SettingError, match="INVALID_SESSION_TIMEOUT: group shop"):
        embedded(story, tmp_path / "60", GroupConfig(session_timeout_min_ms=60_000))


def test_tool_cancelled_while_waiting_leaves_group(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await Worker(cluster, "a").round()
        visit = tool(cluster)
        await joined(cluster, 2)

        visit.cancel()

        with pytest.raises(asyncio.CancelledError):
            await visit
        assert await members(cluster) == 1

    embedded(story, tmp_path)


def test_tool_cancelled_twice_leaves_group(tmp_path: Path) -> None:
    """The members would wait for the tool until its session ends."""

    async def story(cluster: Cluster) -> None:
        await Worker(cluster, "a").round()
        visit = tool(cluster)
        await joined(cluster, 2)
        for _ in range(2):
            visit.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await visit
        assert await members(cluster) == 1

    embedded(story, tmp_path)


def test_tool_leaves_group_not_ready_in_time(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await Worker(cluster, "a").round()

        with pytest.raises(GroupError, match=r"did not confirm the request in 0\.2 s: shop: does"):
            await tool(cluster, 0.2)
        assert await members(cluster) == 1

    embedded(story, tmp_path)


def test_tool_refuses_group_of_another_program(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        with pytest.raises(NotFound, match="no such app: shop"):
            await describe.look(cluster, GROUP)
        stranger = Worker(cluster, "a")
        stranger.protocol = "range"
        await stranger.round()

        with pytest.raises(ForeignProtocol, match="protocol 'range': give the id of an app"):
            await describe.look(cluster, GROUP)
        with pytest.raises(
            ForeignProtocol,
            match="group shop: its members are not workers of streamsx: give the id",
        ):
            await tool(cluster)

    embedded(story, tmp_path)


# What real brokers do rarely.


class Coordinator:
    """Coordinator of a group with a leader elsewhere.

    Each request is answered with the next of its codes, then with none; `knows`: the marks that it
    hands out.
    """

    def __init__(self, **codes: tuple[int, ...]) -> None:
        self.codes = {api: chain(told, repeat(0)) for api, told in codes.items()}
        self.knows: list[dict[str, Mark]] = [MARKS]
        self.port = 0

    def answers(self) -> dict[int, Answer]:
        return {
            Api.FIND_COORDINATOR: self.find,
            Api.JOIN_GROUP: self.join,
            Api.SYNC_GROUP: self.sync,
            Api.LEAVE_GROUP: self.leave,
            Api.HEARTBEAT: lambda _: {"error_code": 0},
        }

    def code(self, api: str) -> int:
        codes: Iterator[int] = self.codes.get(api, repeat(0))
        return next(codes)

    def find(self, asked: Asked) -> dict[str, Any]:
        where = {"node_id": NODE, "host": "127.0.0.1", "port": self.port}
        return {"error_code": self.code("find"), **where}

    def join(self, asked: Asked) -> dict[str, Any] | None:
        if (code := self.code("join")) == HANGS_UP:
            return None
        member_id = asked.body.member_id or f"tool-{asked.correlation_id}"
        return {
            "error_code": code, "member_id": member_id, "leader": "m1", "generation_id": 4,
            "protocol_name": "streamsx", "members": [],
        }  # fmt: skip

    def sync(self, asked: Asked) -> dict[str, Any]:
        marks = self.knows.pop(0) if len(self.knows) > 1 else self.knows[0]
        told = write_assignment(AssignmentView(Memory(marks=marks)))
        return {"error_code": self.code("sync"), "assignment": Assignment((), told).write()}

    def leave(self, asked: Asked) -> dict[str, Any]:
        return {"error_code": self.code("leave"), "members": []}


HANGS_UP = -9


def visited(
    coordinator: Coordinator, timeout_s: float = 5.0, seen: list[ScriptedBroker] | None = None
) -> ScriptedBroker:
    """Return the broker of a visit, and what came of the visit."""

    async def told() -> ScriptedBroker:
        broker = ScriptedBroker(coordinator.answers())
        (seen if seen is not None else []).append(broker)
        async with asyncio.timeout(10), broker:
            coordinator.port = broker.port
            cluster = Cluster(broker.bootstrap)
            await cluster.start()
            try:
                await tool(cluster, timeout_s)
            finally:
                await cluster.stop()
        return broker

    return asyncio.run(told())


def joins(broker: ScriptedBroker) -> list[str]:
    """Return the member ids of all JoinGroups."""
    return [asked.body.member_id for asked in broker.asked_for(Api.JOIN_GROUP)]


def left(broker: ScriptedBroker) -> list[str]:
    asked = broker.asked_for(Api.LEAVE_GROUP)
    return [member.member_id for each in asked for member in each.body.members]


def test_tool_rejoins_under_same_member_id_after_rebalance() -> None:
    broker = visited(Coordinator(join=(79,), sync=(27, 22)))

    assert joins(broker) == ["", "tool-1", "tool-1", "tool-1"]
    assert left(broker) == ["tool-1"]


def test_each_join_of_tool_differs_by_nonce() -> None:
    broker = visited(Coordinator(sync=(27,)))

    told = [asked.body.protocols[0].metadata for asked in broker.asked_for(Api.JOIN_GROUP)]
    first, second = (read_join(Subscription.read(data).user_data) for data in told)
    assert (first.marks, second.marks, second.nonce - first.nonce) == (MARKS, MARKS, 1)


def test_removed_tool_joins_with_new_member_id() -> None:
    for codes in ({"join": (79, 25, 79)}, {"join": (79, 0, 79), "sync": (25,)}):
        broker = visited(Coordinator(**codes))

        assert [bool(member_id) for member_id in joins(broker)] == [False, True, False, True]
        assert left(broker) == joins(broker)[-1:]


def test_tool_finds_moved_or_loading_coordinator_again() -> None:
    broker = visited(Coordinator(find=(0, 15, 0), join=(16, 14, HANGS_UP), sync=(16,)))

    assert len(broker.asked_for(Api.FIND_COORDINATOR)) >= 6
    assert joins(broker) == ["", "", "", "", "tool-1"]


def test_tool_gives_up_when_coordinator_stays_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "UNREACHABLE_S", 0.2)

    with pytest.raises(WorldError, match="COORDINATOR_NOT_AVAILABLE"):
        visited(Coordinator(find=(15,) * 100))


def test_tool_cancelled_while_leaving_still_leaves_group() -> None:
    coordinator = Coordinator()

    async def story() -> ScriptedBroker:
        broker = ScriptedBroker(coordinator.answers())
        async with asyncio.timeout(10), broker:
            coordinator.port = broker.port
            cluster = Cluster(broker.bootstrap)
            await cluster.start()
            visit = tool(cluster)

            def leave(asked: Asked) -> dict[str, Any]:
                visit.cancel()
                return coordinator.leave(asked)

            broker.answers[Api.LEAVE_GROUP] = leave
            with pytest.raises(asyncio.CancelledError):
                await visit
            await cluster.stop()
        return broker

    assert left(asyncio.run(story())) == ["tool-1"]


def test_tool_leaves_with_marks_unconfirmed_when_sync_is_refused() -> None:
    """The marked member joins again before the tool's SyncGroup arrives, and another one hangs. The
    tool reported that the group had not taken the marks, although the member left.
    """
    coordinator = Coordinator(sync=(27,))
    told = list[bool]()

    async def story() -> None:
        broker = ScriptedBroker(coordinator.answers())
        async with asyncio.timeout(10), broker:
            coordinator.port = broker.port
            cluster = Cluster(broker.bootstrap)
            await cluster.start()

            async def hangs(asked: Asked) -> dict[str, Any] | None:
                if len(broker.asked_for(Api.JOIN_GROUP)) > 1:
                    await asyncio.sleep(5)
                return coordinator.join(asked)

            broker.answers[Api.JOIN_GROUP] = hangs
            told.append(await tool(cluster, 0.3))
            assert left(broker) == ["tool-1"]
            await cluster.stop()

    asyncio.run(story())
    assert told == [False]


def test_missing_marks_sent_again() -> None:
    coordinator = Coordinator()
    coordinator.knows = [{}, {"b": Mark(MarkState.LEAVING, 8_000, epoch_ms=4)}, MARKS]

    broker = visited(coordinator)

    assert len(joins(broker)) == 3


def test_tool_with_ignored_marks_limits_rounds() -> None:
    """The group remembers 64 marks, and the clock of another tool is ahead: its marks stay, and
    this tool made 1,500 rounds a second until its timeout.
    """
    coordinator = Coordinator()
    coordinator.knows = [{}]

    assert len(joins(visited(coordinator, 0.5))) <= 4


def test_newer_mark_of_another_tool_replaces_own_mark() -> None:
    coordinator = Coordinator()
    coordinator.knows = [{"b": Mark(MarkState.CANCELLED, epoch_ms=6)}]

    assert len(joins(visited(coordinator))) == 1


def test_unretriable_join_error_raised_at_once() -> None:
    with pytest.raises(SettingError, match="GROUP_AUTHORIZATION_FAILED: group shop"):
        visited(Coordinator(join=(30,)))


def test_full_group_named_when_tool_gives_up() -> None:
    with pytest.raises(GroupError, match=r"in 0\.2 s: shop: GROUP_MAX_SIZE_REACHED"):
        visited(Coordinator(join=(81,) * 9), 0.2)


@pytest.mark.parametrize("code", [-1, 30])
def test_tool_refused_after_join_leaves_group(code: int) -> None:
    """The tool had a member id by then, and the group waited for its session to end."""
    coordinator, brokers = Coordinator(join=(79,), sync=(code,)), list[ScriptedBroker]()

    with pytest.raises(StreamsxError):
        visited(coordinator, seen=brokers)
    assert left(brokers[0]) == ["tool-1"]


def test_tool_failing_to_leave_logs_waiting_group(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machine, "LEAVE_S", 0.05)
    silent = Coordinator()
    silent.leave = lambda _: asyncio.sleep(1, None)  # type: ignore[method-assign,assignment,return-value]

    with caplog.at_level(logging.WARNING, "streamsx"):
        visited(Coordinator(leave=(16,)))
        visited(silent)

    assert caplog.messages == [
        "the group waits 6 s for this tool: NOT_COORDINATOR",
        "the group waits 6 s for this tool: REQUEST_TIMED_OUT",
    ]
