"""A member on real connections, and a coordinator that answers by script."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from streamsx.assignor.model import Mark, MarkState, MemberMetadata, Memory, Rules
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor, Subtopology
from streamsx.assignor.wire import AssignmentView, write_assignment
from streamsx.client.cluster import Cluster
from streamsx.clock import SystemClock
from streamsx.group import member_events as e
from streamsx.group import round_wait
from streamsx.group.member import MemberConfig, MemberState
from streamsx.group.outage import Outage
from streamsx.group.session import Session
from streamsx.group.subscription_builder import SubscriptionBuilder
from streamsx.metrics import MetricRegistry
from streamsx.model import TopicPartition
from streamsx.protocol.consumer_protocol import Assignment
from streamsx.protocol.wire import Api, Body
from tests.support.scripted_broker import NODE, Asked, ScriptedBroker

CLOCK = SystemClock()
WHOLE = Assignment((TopicPartition("in", 0),)).write()


class Group:
    """Coordinator with scripted answers.

    `assignments`: answers of SyncGroup, the last one for ever; `codes`: of LeaveGroup, for the
    whole and for each member.
    """

    def __init__(self) -> None:
        self.assignments, self.codes = [WHOLE], [0]
        self.heard: asyncio.Queue[e.ControlMessage] = asyncio.Queue()
        self.kept: list[str | None] = []
        self.events: list[tuple[str, dict[str, object]]] = []
        assignor = StreamsPartitionAssignor(
            MemberMetadata("", instance="m", process=bytes(16).hex(), version="0.1.0"),
            Rules(),
            [Subtopology(0, ("in",), False, 1)],
        )
        self.session = Session(
            CLOCK,
            MemberConfig(),
            "app",
            SubscriptionBuilder(assignor, ("in",)),
            self.heard.put_nowait,
            Outage(lambda _: None),
            MetricRegistry(),
            self.kept.append,
            self.write,
        )
        self.broker = ScriptedBroker(
            {
                Api.FIND_COORDINATOR: self.find,
                Api.JOIN_GROUP: self.join,
                Api.SYNC_GROUP: self.sync,
                Api.HEARTBEAT: lambda _: {"error_code": 0},
                Api.LEAVE_GROUP: self.leave,
            },
            {"in": 1},
        )

    def write(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    def find(self, _: Asked) -> Body:
        return {"error_code": 0, "node_id": NODE, "host": "127.0.0.1", "port": self.broker.port}

    def join(self, _: Asked) -> Body:
        joins = len(self.broker.asked_for(Api.JOIN_GROUP))
        return {
            "error_code": 0, "member_id": "m1", "leader": "m0", "generation_id": joins,
            "protocol_name": "streamsx", "members": [],
        }  # fmt: skip

    def sync(self, _: Asked) -> Body:
        said = self.assignments.pop(0) if len(self.assignments) > 1 else self.assignments[0]
        return {"error_code": 0, "assignment": said}

    def leave(self, _: Asked) -> Body:
        top, *members = self.codes
        told = [{"member_id": "m", "group_instance_id": None, "error_code": c} for c in members]
        return {"error_code": top, "members": told}

    async def next(self, kind: type[Any] | tuple[type[Any], ...]) -> Any:
        while not isinstance(message := await self.heard.get(), kind):
            pass
        return message


def play(group: Group, story: Coroutine[Any, Any, None]) -> None:
    """Run a story beside a session, then end the session."""

    async def played() -> None:
        async with asyncio.timeout(10), group.broker:
            cluster = Cluster(group.broker.bootstrap)
            await cluster.start()
            running = asyncio.create_task(group.session.run(cluster))
            try:
                await story
            finally:
                group.session.post(e.Stop(CLOCK.now()))
                await running
                await cluster.stop()

    asyncio.run(played())


def test_message_posted_before_start_is_handled() -> None:
    group = Group()
    group.session.post(e.Stop(CLOCK.now() + 60))

    async def story() -> None:
        assert await group.next(e.Left) == e.Left()

    play(group, story())


def test_unreadable_plan_counts_as_failed(caplog: pytest.LogCaptureFixture) -> None:
    """A plan of another program or version ended the worker as a bug of ours."""
    group = Group()
    group.assignments = [WHOLE, WHOLE[:-3], b"\x00", WHOLE]

    async def story() -> None:
        assert (await group.next(e.Assigned)).tps
        group.session.post(e.Want("a reason"))
        assert (await group.next(e.Assigned)).tps == ()
        assert group.session.member.state is MemberState.STABLE
        assert len(group.broker.asked_for(Api.JOIN_GROUP)) == 4
        assert group.session.losses == 0

    with caplog.at_level(logging.INFO, "streamsx"):
        play(group, story())
    assert not [
        line for line in caplog.messages if line.startswith("count ")
    ]  # metrics are for programs
    told = [
        line.getMessage().split(":")[0] for line in caplog.records if line.levelno > logging.INFO
    ]
    assert told == ["The leader's plan cannot be read"] * 4


def test_member_id_is_kept_until_member_has_left() -> None:
    group = Group()

    async def story() -> None:
        await group.next(e.Assigned)
        assert group.kept == ["m1"]

    play(group, story())
    assert group.kept == ["m1", None]


@pytest.mark.parametrize(
    ("codes", "says"),
    [
        ([0, 0], "was removed from the group."),
        ([0, 25], "was removed from the group."),
        ([16], "is not removed (NOT_COORDINATOR); another try follows."),
        ([0, 15], "is not removed (COORDINATOR_NOT_AVAILABLE); another try follows."),
    ],
)
def test_removal_is_logged_as_coordinator_answered(
    codes: list[int], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator answered 16 and named no member, and the log said that one was evicted."""

    group = Group()

    async def story() -> None:
        await group.next(e.Assigned)
        group.codes = codes
        member = group.session.member
        member._evictions.ends = {"m9": 0.0}
        group.session.post(e.Tick(e.Timer.EVICT))
        while "deadline" not in "".join(caplog.messages):  # noqa: ASYNC110  # it is told in the log alone
            await asyncio.sleep(0)
        assert group.kept == ["m1"]
        group.codes = [0]

    with caplog.at_level(logging.INFO, "streamsx"):
        play(group, story())
    assert [text for text in caplog.messages if "deadline" in text] == [
        f"A worker did not leave by its deadline and {says}"
    ]


@pytest.mark.parametrize(("silent", "phase"), [(Api.JOIN_GROUP, "join"), (Api.SYNC_GROUP, "plan")])
def test_round_that_is_not_answered_is_told_now_and_then(
    silent: Api, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_wait, "FIRST_S", 0.01)
    monkeypatch.setattr(round_wait, "EVERY_S", 0.01)
    group = Group()

    async def story() -> None:
        await group.next(e.Assigned)
        group.events.clear()  # of the first round, on a busy machine
        told = asyncio.Event()
        usual = group.broker.answers[silent]

        async def hang(_: Asked) -> None:
            await told.wait()

        group.broker.answers[silent] = hang
        group.session.post(e.Want("a reason"))
        while len(group.events) < 2:  # noqa: ASYNC110  # the lines have no event of their own
            await asyncio.sleep(0.005)
        group.broker.answers[silent] = usual
        told.set()

    play(group, story())
    names = {(event, fields["phase"]) for event, fields in group.events}
    assert names == {("rebalance_waits", phase)}


def marked(state: MarkState, epoch_ms: int) -> bytes:
    """Return a plan that gives everything and marks the only member so."""
    view = AssignmentView(Memory(1, marks={"m": Mark(state, epoch_ms=epoch_ms)}))
    return Assignment((TopicPartition("in", 0),), write_assignment(view)).write()


def test_leaving_then_staying_are_each_reported_once() -> None:
    """A data loop that gets only the first lets its tasks wait as long as a leaving worker may."""
    group = Group()
    group.assignments = [marked(MarkState.LEAVING, 1), marked(MarkState.CANCELLED, 2)]
    told: list[e.ControlMessage] = []

    async def story() -> None:
        while not told or told[-1] != e.Stays():
            message = await group.next((e.IsLeaving, e.Stays))
            told.append(message)

    play(group, story())
    assert told == [e.IsLeaving(None), e.Stays()]
