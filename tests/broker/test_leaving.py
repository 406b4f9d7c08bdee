"""Real members without tasks to run: asked to leave, and asked to stay."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from streamsx.assignor.model import Copy, CopyRole, MemberMetadata, Rules
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor, Subtopology
from streamsx.client.cluster import Cluster
from streamsx.clock import SystemClock
from streamsx.errors import NotFound, UsageError
from streamsx.group import member_events as e
from streamsx.group.admin.describe import look, settled
from streamsx.group.admin.leave import Going, leave
from streamsx.group.admin.leave_progress import LeaveProgress, LeaveState
from streamsx.group.member import MemberConfig
from streamsx.group.member_events import ControlMessage, IsLeaving, Joining, OnAssignment
from streamsx.group.outage import Outage
from streamsx.group.session import Session
from streamsx.group.subscription_builder import SubscriptionBuilder
from streamsx.metrics import MetricRegistry
from streamsx.testing import Broker

APP, TOPIC, TASKS = "shop", "orders", 6
CLOCK = SystemClock()
LOG = logging.getLogger("streamsx")


class Peer:
    """Member whose worker releases tasks at once, and learns in no time or never."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name, self.learns = name, True
        self.heard: list[ControlMessage] = []
        builder = SubscriptionBuilder(
            StreamsPartitionAssignor(
                MemberMetadata(
                    "", instance=name, process=name.encode().ljust(16).hex(), version="0.1.0"
                ),
                Rules(acceptable_recovery_lag=0),
                [Subtopology(0, (TOPIC,), True, 7)],
            ),
            (TOPIC,),
        )
        config = MemberConfig(heartbeat_interval_s=0.1)
        outage = Outage(LOG.warning)
        self.session = Session(CLOCK, config, APP, builder, self.hear, outage, MetricRegistry())
        self.bootstrap = bootstrap
        self.thread = threading.Thread(target=lambda: asyncio.run(self.run()))

    async def run(self) -> None:
        cluster = Cluster(self.bootstrap)
        try:
            await self.session.run(cluster)
        finally:
            await cluster.stop()

    def hear(self, message: ControlMessage) -> None:
        self.heard.append(message)
        match message:
            case e.Revoke(tps, number):
                self.session.post(e.Released(frozenset(tps), number))
            case OnAssignment() if message.view.learners:
                lag = 0 if self.learns else 9_000
                learners = dict.fromkeys(message.view.learners, Copy(CopyRole.LEARNER, lag))
                self.session.builder.report = MemberMetadata("", copies=learners)
                if self.learns:
                    self.session.post(e.Ready())
            case OnAssignment():
                self.session.builder.report = MemberMetadata("")

    def told(self, kind: type[ControlMessage]) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]


Group = dict[str, Peer]
Story = Callable[[Cluster, Group], Coroutine[Any, Any, None]]
Play = Callable[[str, Story], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Start members by name, and wait until all have equally many tasks."""

    def played(names: str, story: Story) -> None:
        with Broker(tmp_path / "broker", topics={TOPIC: TASKS}) as broker:
            group = {name: Peer(broker.bootstrap, name) for name in names}
            for peer in group.values():
                peer.thread.start()
            try:
                asyncio.run(told(broker.bootstrap, group, story))
            finally:
                for peer in group.values():
                    peer.session.post(e.Stop(CLOCK.now()))
                for peer in group.values():
                    peer.thread.join(5)

    return played


async def told(bootstrap: str, group: Group, story: Story) -> None:
    cluster = Cluster(bootstrap)
    await cluster.start()
    try:
        async with asyncio.timeout(60):
            await until_shares(cluster, *[TASKS // len(group)] * len(group))
            await story(cluster, group)
    finally:
        await cluster.stop()


async def shares(cluster: Cluster) -> list[int]:
    """Return the number of tasks of each member."""
    try:
        seen = await settled(cluster, CLOCK, APP, 5)
    except NotFound:
        return []
    return [len(here.active) for here in seen.report.instances]


async def until_shares(cluster: Cluster, *wanted: int) -> None:
    while await shares(cluster) != list(wanted):  # noqa: ASYNC110  # the broker tells nobody
        await asyncio.sleep(0.02)


async def until_told(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  # by another thread
        await asyncio.sleep(0.01)


async def ask(cluster: Cluster, names: str, **how: Any) -> dict[str, LeaveProgress]:
    return dict(await leave(cluster, CLOCK, APP, names, **how))


def brief(departures: dict[str, LeaveProgress]) -> dict[str, tuple[str, int, int]]:
    return {
        name: (departure.state.value, departure.tasks_moved, len(departure.left))
        for name, departure in departures.items()
    }


def test_member_asked_to_leave_leaves_when_others_have_learned_the_tasks(play: Play) -> None:
    async def story(cluster: Cluster, group: Group) -> None:
        seen: list[Going] = []

        found = await ask(cluster, "b", on_report=lambda going, _: seen.append(dict(going)))

        assert brief(found) == {"b": ("left", 2, 0)}
        assert found["b"].ms < 20_000
        assert group["b"].told(e.Left)
        assert await shares(cluster) == [3, 3]
        assert [going["b"].state for going in (seen[0], seen[-1])] == [
            LeaveState.LEAVING, LeaveState.LEFT,
        ]  # fmt: skip

    play("abc", story)


def test_two_members_leave_at_once(play: Play) -> None:
    async def story(cluster: Cluster, group: Group) -> None:
        found = await ask(cluster, "ab")

        assert brief(found) == {"a": ("left", 2, 0), "b": ("left", 2, 0)}
        assert await shares(cluster) == [6]

    play("abc", story)


def test_leader_leaves_like_any_member(play: Play) -> None:
    async def story(cluster: Cluster, group: Group) -> None:
        report = (await settled(cluster, CLOCK, APP, 5)).report
        leader = report.labels[report.leader or ""]
        assert leader

        found = await ask(cluster, leader)

        assert brief(found) == {leader: ("left", 2, 0)}
        assert await shares(cluster) == [3, 3]

    play("abc", story)


def test_members_all_leaving_do_not_wait_for_heirs(play: Play) -> None:
    """b reads the plan and leaves at once. a's SyncGroup then fails with 27, so a does not know
    that it is leaving. As the only member left it takes b's tasks until it knows: b's tasks count
    as moved.
    """

    async def story(cluster: Cluster, group: Group) -> None:
        found = await ask(cluster, "ab")

        left, moved = ("left", 0, 3), ("left", 3, 0)
        assert sorted(brief(found).values()) in ([left, left], [left, moved])
        assert max(departure.ms for departure in found.values()) < 20_000
        assert (await look(cluster, APP)).state == "Empty"

    play("ab", story)


def test_leave_of_an_unknown_member_does_not_hold_up_other_members(play: Play) -> None:
    async def story(cluster: Cluster, group: Group) -> None:
        assert brief(await ask(cluster, "bz")) == {"b": ("left", 2, 0), "z": ("unknown", 0, 0)}
        assert brief(await ask(cluster, "b")) == {"b": ("unknown", 0, 0)}
        with pytest.raises(NotFound, match="no such app: bakery"):
            await leave(cluster, CLOCK, "bakery", ["b"])

    play("abc", story)


def test_member_leaves_at_the_deadline_with_tasks_not_learned(play: Play) -> None:
    async def story(cluster: Cluster, group: Group) -> None:
        group["a"].learns = False

        found = await ask(cluster, "b", timeout_s=1.0)

        assert brief(found) == {"b": ("timeout", 0, 3)}
        assert 1_000 <= found["b"].ms < 20_000
        await until_shares(cluster, 6)
        assert group["b"].told(e.Left)

    play("ab", story)


def test_repeated_leave_request_keeps_the_first_deadline(play: Play) -> None:
    """The group is not disturbed again, and the first deadline stays."""

    async def story(cluster: Cluster, group: Group) -> None:
        group["a"].learns = False
        first = await ask(cluster, "b", timeout_s=2.0, wait=False)
        assert brief(first) == {"b": ("leaving", 0, 3)}
        await until_told(lambda: group["b"].told(IsLeaving))
        await settled(cluster, CLOCK, APP, 5)
        rounds = len(group["a"].told(Joining))

        again = await ask(cluster, "b", timeout_s=20.0, wait=False)
        assert len(group["a"].told(Joining)) == rounds
        assert again["b"].deadline_ms <= first["b"].deadline_ms
        assert brief(await ask(cluster, "b", timeout_s=20.0)) == {"b": ("timeout", 0, 3)}

    play("ab", story)


def test_leaving_member_stays_when_cancelled_in_time(play: Play) -> None:
    async def story(cluster: Cluster, group: Group) -> None:
        group["a"].learns = False
        await ask(cluster, "b", wait=False)
        watched = asyncio.create_task(ask(cluster, "b"), name="somebody who waits")
        await until_told(lambda: group["b"].told(IsLeaving))

        assert brief(await ask(cluster, "bz", cancel=True)) == {
            "b": ("cancelled", 0, 3), "z": ("unknown", 0, 0),
        }  # fmt: skip
        assert brief(await watched) == {"b": ("cancelled", 0, 3)}
        assert await shares(cluster) == [3, 3]
        rounds = len(group["a"].told(Joining))
        assert brief(await ask(cluster, "b", cancel=True)) == {"b": ("cancelled", 0, 3)}
        assert len(group["a"].told(Joining)) == rounds

        group["a"].learns = True
        assert brief(await ask(cluster, "b")) == {"b": ("left", 3, 0)}

    play("ab", story)


def test_leave_cancellation_need_not_be_awaited(play: Play) -> None:
    async def story(cluster: Cluster, group: Group) -> None:
        group["a"].learns = False
        await ask(cluster, "b", wait=False)

        assert brief(await ask(cluster, "b", cancel=True, wait=False)) == {"b": ("cancelled", 0, 3)}
        await until_shares(cluster, 3, 3)
        assert not (await look(cluster, APP)).report.instances[1].member.leaving

    play("ab", story)


def test_leave_of_more_than_64_instances_is_refused(play: Play) -> None:
    async def story(cluster: Cluster, group: Group) -> None:
        with pytest.raises(UsageError, match="too many workers at once: 65: name 64 at most"):
            await leave(cluster, CLOCK, APP, [f"w{i}" for i in range(65)])

    play("a", story)
