"""group/leader.py: the input of a plan, while topics appear, grow and disappear."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamsx.assignor.model import Mark, MarkState, MemberMetadata, Memory, Rules
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor, Subtopology
from streamsx.assignor.wire import AssignmentView, write_assignment
from streamsx.client.cluster import Cluster
from streamsx.group import leader
from streamsx.group import member_events as e
from streamsx.group.leader import Leader
from streamsx.group.subscription_builder import SubscriptionBuilder
from streamsx.protocol.consumer_protocol import Assignment, Subscription
from tests.support.scripted_broker import ScriptedBroker

ASSIGNOR = StreamsPartitionAssignor(
    MemberMetadata("", instance="m", process=bytes(16).hex(), version="0.1.0"),
    Rules(),
    [Subtopology(0, ("a", "b"), False, 1)],
)
SUBSCRIBED = Subscription(("a", "b"), ASSIGNOR.user_data(MemberMetadata("", nonce=1))).write()
ASKED = e.Assign(1, "m1", 1, [("m1", SUBSCRIBED)])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "METADATA_RETRY_S", 0.001)
    monkeypatch.setattr(leader, "TOPICS_EVERY_S", 0.005)


class Steps:
    """Clock that each look moves on: seconds pass by the steps done."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        self._now += 0.5
        return self._now

    def wall(self) -> float:
        return 1e9 + self._now


class Group:
    """Group with one leader, its input and its plans."""

    def __init__(self, broker: ScriptedBroker, cluster: Cluster) -> None:
        self.broker = broker
        self.changes: asyncio.Queue[dict[str, int]] = asyncio.Queue()
        self.plans: list[e.Planned] = []
        self.events: list[tuple[str, dict[str, object]]] = []
        assignor = StreamsPartitionAssignor(
            MemberMetadata("", "m", bytes(16).hex(), version="0.1.0"),
            Rules(),
            [Subtopology(0, ("a", "b"), False, 1)],
        )
        self.builder = SubscriptionBuilder(assignor, ("a", "b"))
        self.leading = Leader(
            cluster,
            Steps(),
            self.builder,
            self.feed,
            self.write,
            10.0,
        )

    def write(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    async def given(self) -> set[str]:
        """Return what the only member gets by a plan made now."""
        plan = await self.plan()
        assert not plan.failed
        return {str(tp) for tp in Assignment.read(plan.assignments["m1"]).partitions}

    async def plan(self) -> e.Planned:
        await self.leading.plan(ASKED)
        return self.plans.pop()

    def feed(self, event: e.Event) -> None:
        if isinstance(event, e.PartitionsChanged):
            self.changes.put_nowait(dict(event.counts))
        else:
            assert isinstance(event, e.Planned)
            self.plans.append(event)


@asynccontextmanager
async def group(topics: dict[str, int]) -> AsyncIterator[Group]:
    async with asyncio.timeout(10), ScriptedBroker(topics=topics) as broker:
        cluster = Cluster(broker.bootstrap)
        await cluster.start()
        made = Group(broker, cluster)
        watching = asyncio.create_task(made.leading.watch())
        try:
            yield made
        finally:
            watching.cancel()
            await cluster.stop()


Story = Callable[[Group], Coroutine[Any, Any, None]]


def run(story: Story, **topics: int) -> None:
    async def told() -> None:
        async with group(topics) as made:
            await story(made)

    asyncio.run(told())


def test_leader_plans_topic_growth() -> None:
    async def story(group: Group) -> None:
        assert await group.given() == {"a-0", "a-1", "b-0"}
        assert await group.changes.get() == {"a": 2, "b": 1}
        group.broker.topics["b"] = 3
        assert await group.changes.get() == {"b": 3}
        assert await group.given() == {"a-0", "a-1", "b-0", "b-1", "b-2"}

    run(story, a=2, b=1)


def test_gone_topic_is_logged_once_and_planned_again_when_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(group: Group) -> None:
        await group.given()
        await group.changes.get()
        del group.broker.topics["b"]
        assert await group.given() == {"a-0", "a-1", "b-0"}, "not at the first look"
        assert await group.changes.get() == {"b": 0}
        assert await group.given() == {"a-0", "a-1"}
        group.broker.topics["b"] = 1
        assert await group.changes.get() == {"b": 1}
        assert await group.given() == {"a-0", "a-1", "b-0"}
        gone = [(line.levelname, line.getMessage()) for line in caplog.records]
        why = "Source topic b is not there any more: its tasks wait until it is. Create it again."
        assert gone == [("WARNING", why)]
        assert group.changes.empty()

    run(story, a=2, b=1)


def test_missing_topic_is_awaited_briefly_then_planned_without() -> None:
    async def story(group: Group) -> None:
        assert (await group.plan()).failed
        while "b" not in await group.changes.get():
            pass
        assert await group.given() == {"a-0", "a-1"}

    run(story, a=2)


def test_partition_counts_stay_while_broker_is_away() -> None:
    async def story(group: Group) -> None:
        await group.given()
        del group.broker.topics["b"]
        await group.broker.stop()
        for _ in range(50):
            await group.given()
        assert await group.given() == {"a-0", "a-1", "b-0"}

    run(story, a=2, b=1)


def test_plan_refreshes_partition_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No watch runs yet: growth since the last look is planned."""
    monkeypatch.setattr(leader, "TOPICS_EVERY_S", 60.0)

    async def story(group: Group) -> None:
        assert await group.given() == {"a-0", "b-0"}
        group.broker.topics["b"] = 2
        assert await group.given() == {"a-0", "b-0", "b-1"}

    run(story, a=1, b=1)


def test_plan_looks_again_for_just_created_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic appears after the first look."""
    monkeypatch.setattr(leader, "TOPICS_EVERY_S", 60.0)

    async def story(group: Group) -> None:
        async def make() -> None:
            assert await group.changes.get() == {"a": 1}
            group.broker.topics["b"] = 1

        making = asyncio.create_task(make())
        assert await group.given() == {"a-0", "b-0"}
        await making

    run(story, a=1)


def test_plan_gives_eviction_time_on_leader_clock() -> None:
    """The leader's clock shows 0 at the unix second 1e9."""
    marks = {"m": Mark(MarkState.LEAVING, 1_000_000_020_000, epoch_ms=3)}
    told = Assignment((), write_assignment(AssignmentView(Memory(1, marks=marks)))).write()

    async def story(group: Group) -> None:
        group.builder.given(told, 1e9)
        plan = await group.plan()
        assert (plan.request, plan.failed) == (1, False)
        assert plan.evictions == {"m1": pytest.approx(25.0, abs=1.0)}

    run(story, a=1, b=1)


def test_overdue_eviction_is_planned_a_few_seconds_ahead() -> None:
    """The deadline was 20 seconds before the leader's clock showed 0."""
    marks = {"m": Mark(MarkState.LEAVING, 999_999_980_000, epoch_ms=3)}
    told = Assignment((), write_assignment(AssignmentView(Memory(1, marks=marks)))).write()

    async def story(group: Group) -> None:
        group.builder.given(told, 1e9)
        plan = await group.plan()
        assert plan.evictions == {"m1": pytest.approx(6.0, abs=1.5)}

    run(story, a=1, b=1)
