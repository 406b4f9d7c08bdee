"""Stories of whole groups, told by hand: one thing goes wrong, at a known time."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from streamsx.assignor.model import Mark, MarkState, Rules
from streamsx.lifecycle import commit
from streamsx.membership import events as e
from streamsx.membership.member import Member, State
from streamsx.testing.simulation.scene import HEARTBEAT_S, SESSION_S, Scene
from streamsx.testing.simulation.worker import Worker
from streamsx.testing.simulation.world import PRODUCT, Parts, Violation, World


def world(
    *,
    workers: int = 2,
    learners: int | None = 2,
    mutes: bool = False,
    hop_s: float = 0.001,
    parts: Parts = PRODUCT,
) -> World:
    """A calm network, four tasks with state and two without; nothing goes wrong by itself."""
    scene = Scene(
        rules=Rules(acceptable_recovery_lag=3, max_learners_per_member=learners),
        workers=workers,
        partitions={"orders": 4, "clicks": 2},
        delay_s=0.001,
        hop_s=hop_s,
        input_rate=2.0,
        restore_rate=200.0,
        history=100,
        commit_s=1.0,
        revoke_s=15.0,
        mutes=mutes,
    )
    return World(1, parts, scene=scene, keep=True)


def at(group: World, seconds: float, call: Callable[[], object]) -> None:
    group.heap.at(seconds, group.life, "script", None, call)


def counts(group: World) -> list[int]:
    return sorted(len(worker.loop.running) for worker in group.alive)


def lines(group: World, what: str, kind: type = object) -> list[float]:
    """When it happened."""
    story = group.heap.story
    return [line.at for line in story if line.what == what and isinstance(line.about, kind)]


def victim(group: World) -> Worker:
    return group.alive[0]


def test_a_newcomer_learns_what_it_gets_and_nobody_stands_still_for_it() -> None:
    group = world(workers=1)
    at(group, 20.0, group.add)
    group.run()
    assert counts(group) == [3, 3]
    learned = [
        line.at
        for line in group.heap.story
        if line.what == "task" and "LEARNER, old=RESTORING, new=TAILING" in str(line)
    ]
    assert len(learned) == 2


def test_a_worker_that_is_killed_and_started_again_does_not_hold_up_the_group() -> None:
    """Its predecessor would stay in every round until its session ends."""
    group = world()
    directory = victim(group).directory
    at(group, 20.0, victim(group).kill)
    at(group, 20.2, lambda: group.begin(directory))
    group.run_until(20.2 + SESSION_S / 2)
    assert counts(group) == [3, 3]


def test_a_worker_that_is_killed_for_good_is_replaced_when_its_session_ends() -> None:
    group = world()
    at(group, 20.0, victim(group).kill)
    group.run_until(20.0 + SESSION_S - 1)
    assert counts(group) == [3]
    group.run_until(20.0 + SESSION_S + 5)
    assert counts(group) == [6]


def test_a_drain_leaves_when_others_have_learned_everything() -> None:
    group = world()
    leaver = victim(group)
    at(group, 20.0, lambda: leaver.post(e.Leave(None)))
    group.run_until(40.0)
    assert leaver.member.state is State.GONE
    assert counts(group) == [6]
    assert lines(group, "says", e.Lost) == []


def test_a_mark_by_a_tool_makes_an_instance_leave() -> None:
    group = world()
    leaver = victim(group)
    mark = Mark(MarkState.LEAVING, epoch_ms=20_000)
    at(group, 20.0, lambda: group.use_tool({leaver.directory.name: mark}))
    group.run_until(60.0)
    assert leaver.member.state is State.GONE
    assert counts(group) == [6]


def test_a_marked_worker_that_hangs_is_removed_behind_its_deadline() -> None:
    group = world()
    leaver = victim(group)
    mark = Mark(MarkState.LEAVING, deadline_ms=30_000, epoch_ms=20_000)
    at(group, 20.0, lambda: group.use_tool({leaver.directory.name: mark}))

    def hang() -> None:
        leaver.data.frozen_until = 100.0

    at(group, 20.0, hang)
    group.run_until(29.0)
    assert leaver in group.alive
    group.run_until(45.0)
    assert leaver not in group.alive


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_broker_that_dies_at_a_write_leaves_a_group_that_goes_on(when: str) -> None:
    """Right before or right behind the generation, or the assignment, is on its disk."""
    group = world()

    def arm() -> None:
        group.node.crash_at = when
        group.add()

    at(group, 20.0, arm)
    at(group, 24.0, arm)
    group.run()
    assert lines(group, "crash")
    assert counts(group) == [1, 1, 2, 2]


def test_a_broker_that_is_away_for_most_of_a_session_costs_nobody_a_task() -> None:
    """Silence suspends; only the coordinator's word loses."""
    group = world()
    at(group, 20.0, lambda: group.node.crash(SESSION_S - 1, 0.5))
    group.run_until(50.0)
    assert lines(group, "says", e.Lost) == []
    assert len(lines(group, "says", e.Assigned)) == len(
        [at for at in lines(group, "says", e.Assigned) if at < 20.0]
    )
    assert counts(group) == [3, 3]


def test_a_worker_stopped_beyond_its_session_stands_still_when_it_wakes_and_joins_anew() -> None:
    group = world()
    stopped = victim(group)

    def freeze() -> None:
        stopped.life.frozen_until = stopped.data.frozen_until = 45.0

    at(group, 20.0, freeze)
    group.run_until(45.0)
    assert stopped.stands
    group.run()
    assert counts(group) == [3, 3]


def test_a_sync_that_is_never_answered_does_not_keep_a_removed_member_out() -> None:
    """Kafka mutes the connection of who is removed while its SyncGroup is parked."""
    group = world(mutes=True)
    group.run_until(20.0)
    leader, removed = sorted(group.alive, key=lambda worker: not worker.member.leader)
    group.add()
    now = 20.0
    while removed.member.state is not State.SYNCING:
        group.run_until(now := now + 0.001)
    leader.control.remove(removed.member.member_id)
    group.run_until(now + 2.5 * HEARTBEAT_S)  # one until it hears of it, one until the others do
    assert lines(group, "says", e.Lost)
    assert removed.member.generation == leader.member.generation >= 0


class CommitsOfBeforeCount(Member):
    """What a commit was asked under is not looked at."""

    def step(self, now: float, event: e.Event) -> list[e.Effect]:
        if isinstance(event, e.Commit):
            event = replace(event, generation=self.generation)
        return super().step(now, event)


def a_commit_is_held_up_while_its_member_is_fenced_and_joins_anew(parts: Parts) -> World:
    """Others run its tasks in between, and commit; then it has them again."""
    group = world(hop_s=0.1, parts=parts)
    group.run_until(20.0)
    leader, busy = sorted(group.alive, key=lambda worker: not worker.member.leader)
    now = 20.0
    while busy.loop.commits.state is not commit.State.COMMITTING:
        group.run_until(now := now + 0.01)
    busy.data.frozen_until = now + 60.0
    at(group, now, lambda: leader.control.remove(busy.member.member_id))
    at(group, now + 30.0, leader.kill)
    group.run_until(now + 90.0)
    return group


def test_a_commit_of_before_a_fence_sets_nothing_back() -> None:
    group = a_commit_is_held_up_while_its_member_is_fenced_and_joins_anew(PRODUCT)
    told = [line.about for line in group.heap.story]
    refused = [about.why for about in told if isinstance(about, e.CommitFailed)]
    assert e.Refusal.NOT_OWNED in refused


def test_without_that_rule_it_does() -> None:
    with pytest.raises(Violation, match="OnlyItsRunnerCommits"):
        a_commit_is_held_up_while_its_member_is_fenced_and_joins_anew(
            Parts(member=CommitsOfBeforeCount)
        )
