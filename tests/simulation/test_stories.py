"""Stories of whole groups, written by hand: one thing goes wrong, at a known time.

A docstring says what went wrong before the fix, and names the seed if one found it. All checks run
in every story.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streamsx.assignor.wire import read_assignment
from streamsx.broker.groups.classic import GroupState
from streamsx.group import member_events as e
from streamsx.group.leader import TOPICS_EVERY_S
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.consumer_protocol import Assignment
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from streamsx.simulation.checks import Check
from streamsx.simulation.clients import Tool
from streamsx.simulation.hosts import SimulatedHost
from streamsx.simulation.scene import COUNTS, LINES, WORDS, B, Scene
from streamsx.simulation.scheduler import Killed
from streamsx.simulation.world import World, world
from streamsx.tasks.committer import FULL
from streamsx.worker.memory_budget import DIRTY_SHARE

SETTLE_S = 30.0
pytestmark = pytest.mark.timeout(300)  # on a busy machine


@contextmanager
def group(
    *, alive: int | None = None, settles: bool = True, seed: int = 1, **scene: Any
) -> Iterator[World]:
    """Start a group on a calm network, and check at the end that everything was processed."""
    with world(seed, Scene(**{"workers": 2, **scene})) as made:
        for home in made.homes[:alive]:
            made.at(1.0, home.start)
        made.run_until(20.0)
        yield made
        if settles:
            made.heal()
            made.run_until(made.now + 15.0)
            made.client.feeding = False
            made.run_until(made.now + SETTLE_S)
            made.settle()


def told(made: World, text: str, who: str = "") -> list[float]:
    """Return the times of the trace lines that contain a text."""
    return [at for at, name, what in made.scheduler.trace if text in what and who in name]


def counts(made: World, at: float | None = None) -> list[int]:
    """Return the number of tasks of each live worker, sorted; `at`: run until then first."""
    if at:
        made.run_until(at)
    return sorted(len(home.running) for home in made.homes if home.alive)


def members(made: World, at: float | None = None) -> list[str]:
    """Return the members that the coordinator counts; `at`: run until then first."""
    if at:
        made.run_until(at)
    return [] if made.group is None else sorted(made.group.round.members)


def leave_and_stay(made: World) -> Tool:
    """Ask w2 to leave, and 6 s later to stay; return the second call of the tool."""
    for other in (made.homes[0], made.homes[2]):
        other.busy(14.0)  # they learn nothing meanwhile
    made.leave("w2", timeout_s=20.0)
    made.run_until(26.0)
    return made.leave("w2", timeout_s=20.0, cancel=True)


class Pauses(Check):
    """Longest time in which records waited and no record of a topic was processed."""

    def __init__(self, made: World, topic: str) -> None:
        super().__init__(made)
        self.topic, self.last, self.longest = topic, made.now, 0.0
        self.positions = Counter[TopicPartition]()
        for active in (each for home in made.homes for each in home.actives.values()):
            self.positions.update({tp: active.task.positions[tp.topic] for tp in active.sources})
        made.checks.append(self)

    def sample(self) -> None:
        partitions = [*self.world.partitions(LINES), *self.world.partitions(self.topic)]
        if all(self.positions[tp] >= self.world.end(tp) for tp in partitions):
            self.last = self.world.now  # what is fed comes in bursts: nothing was there to process
        self.longest = max(self.longest, self.world.now - self.last)

    def done(self, home: SimulatedHost, agent: str, tp: TopicPartition, offset: int) -> None:
        self.positions[tp] = max(self.positions[tp], offset + 1)
        if tp.topic == self.topic:
            self.last = self.world.now


# -- members come and go


def test_new_worker_learns_tasks_while_no_task_pauses() -> None:
    with group(alive=1, rate=40.0) as made:
        pauses = Pauses(made, WORDS)
        made.homes[1].start()
        assert counts(made, at=40.0) == [4, 4]
        assert len(told(made, "'learner', 'from': 'restoring', 'to': 'tailing'", "w2")) >= 2
        assert pauses.longest < 1.5


def test_killed_and_restarted_worker_does_not_hold_up_the_group() -> None:
    """The killed worker's old membership stayed in each round until its session ended."""
    with group() as made:
        home = made.homes[0]
        home.kill()
        made.at(20.2, home.start)
        assert counts(made, at=25.0) == [4, 4]


def test_killed_worker_is_replaced_when_the_session_ends() -> None:
    with group() as made:
        made.homes[0].kill()
        assert counts(made, at=28.0) == [4]
        assert counts(made, at=35.0) == [8]


def test_terminated_worker_leaves_when_others_have_learned_the_tasks() -> None:
    with group() as made:
        made.homes[0].terminate()
        made.run_until(40.0)
        assert told(made, "ended: 0", "w1")
        assert not told(made, "lost {")
        assert counts(made) == [8]


def test_worker_named_by_the_leave_tool_leaves() -> None:
    with group() as made:
        tool = made.leave("w1")
        made.run_until(50.0)
        assert tool.code == 0
        assert counts(made) == [8]


@pytest.mark.slow
def test_hanging_leaving_worker_is_removed_after_the_deadline() -> None:
    with group() as made:
        made.homes[0].busy(80.0)
        made.leave("w1", timeout_s=10.0)
        assert len(members(made, at=29.0)) == 2
        assert len(members(made, at=45.0)) == 1
        made.run_until(100.0)
        made.homes[0].start()


@pytest.mark.slow
def test_worker_with_a_cancelled_leave_is_not_removed_at_the_deadline() -> None:
    """w2 was asked to leave within 30 s, to stay after 10 s, and was removed after 35 s: one seed
    of six.
    """
    with group(workers=3) as made:
        before = members(made)
        taken_back = leave_and_stay(made)
        made.run_until(60.0)
        assert taken_back.code == 0
        assert made.homes[1].alive
        assert members(made) == before  # who is removed joins again under another id


# -- the broker


@pytest.mark.parametrize(
    ("when", "api"),
    [
        pytest.param("asked", Api.JOIN_GROUP, marks=pytest.mark.slow),
        pytest.param("asked", Api.SYNC_GROUP, marks=pytest.mark.slow),
        pytest.param("told", Api.JOIN_GROUP, marks=pytest.mark.slow),
        ("told", Api.SYNC_GROUP),
    ],
)
def test_group_continues_after_the_broker_dies_at_a_write(when: str, api: Api) -> None:
    """The broker dies before or after it has stored the generation, or the assignment."""
    with group(alive=1, workers=3) as made:

        class Dies(Check):
            armed = True

            def at(self, host: str, call: Any, *_: Any) -> None:
                if self.armed and call.api is api and len(members(made)) == 2:
                    self.armed = False
                    made.nodes.crash(1.0)
                    raise Killed

        setattr(Dies, when, Dies.at)
        made.checks.append(Dies(made))
        made.homes[1].start()
        made.run_until(30.0)
        made.homes[2].start()
        made.run_until(50.0)
        assert len(told(made, "crashes")) == 1
        assert len(counts(made)) == 3


@pytest.mark.slow
def test_broker_away_for_most_of_a_session_costs_no_tasks() -> None:
    """Silence of the coordinator pauses tasks. Only an answer of the coordinator takes
    them away.
    """
    with group() as made:
        made.nodes.crash(9.0)
        made.run_until(50.0)
        assert not told(made, "lost {")
        assert counts(made) == [4, 4]


@pytest.mark.parametrize("what", ["coordinator", pytest.param("leader", marks=pytest.mark.slow)])
def test_moved_leader_or_coordinator_is_followed_with_old_broker_alive(what: str) -> None:
    """Every worker stopped for good in 3 of 3 runs on three real brokers."""
    with group(rate=40.0) as made:
        pauses = Pauses(made, WORDS)
        for at in (20.0, 30.0, 40.0):
            made.at(at, getattr(made.nodes, f"move_{what}"))
        made.run_until(50.0)
        assert not told(made, "lost {")
        assert pauses.longest < 5.0


@pytest.mark.slow
@pytest.mark.parametrize("topic", [pytest.param(LINES, marks=pytest.mark.slow), WORDS])
def test_damaged_batch_costs_no_later_record(topic: str) -> None:
    """Of 17,000 words 52 to 120 were lost, in 8 of 8 seeds."""
    with group(rate=40.0) as made:
        for at in range(20, 60, 2):
            made.at(float(at), made.nodes.damage, topic)
        made.run_until(62.0)
        assert len(told(made, "damages")) > 10


@pytest.mark.slow
def test_uncommitted_rows_stay_within_the_limit_while_a_changelog_refuses() -> None:
    """A commit that did not end stopped no processing, and memory grew for as long as it waited."""
    with group(alive=1, rate=300.0, vocabulary=10**6, memory="1MiB") as made:
        made.nodes.stingy[COUNTS] = made.now + 20.0
        parts = made.homes[0].parts
        assert parts is not None
        most = 0
        for _ in range(80):
            made.run_until(made.now + 0.25)
            stores = [s for a in parts.tasks.actives.values() for s in a.task.stores.values()]
            most = max(most, sum(store.dirty_bytes for store in stores))
        limit = (FULL + 0.5) * DIRTY_SHARE * (1 << 20)
        assert 0.5 * limit < most < limit


@pytest.mark.slow
def test_deleted_source_topic_does_not_cause_endless_rounds() -> None:
    """A round came every 3 to 6 s. Now tasks of other topics continue."""
    with group(pair=(4, 2), settles=False) as made:
        made.nodes.delete(B)
        made.run_until(60.0)
        assert made.group is not None
        before, words = made.group.round.generation, made.client.words.total()
        made.run_until(120.0)
        assert made.group.round.generation <= before + 2
        assert made.client.words.total() > words
        made.client.feeding = False
        made.run_until(130.0)
        assert made.counts(COUNTS) == made.client.words


# -- its own threads, its own disk


@pytest.mark.slow
def test_full_disk_ends_only_one_worker() -> None:
    """Seed 48: the last records arrived while the worker's tasks were being cancelled."""
    with group() as made:
        home = made.homes[0]
        home.disk.full = True
        made.run_until(40.0)
        assert made.excused["disk full"] == 1
        assert counts(made) == [8]
        home.disk.full = False
        home.start()


def test_worker_frozen_beyond_the_session_stays_idle_and_rejoins() -> None:
    with group() as made:
        home = made.homes[0]
        home.freeze(25.0)
        made.run_until(44.9)
        before = sum(made.now - at < 20.0 for at in told(made, "first_record", "w1"))
        assert (before, home.works) == (0, False)
        assert counts(made, at=60.0) == [4, 4]
        assert len(told(made, "lost {", "w1")) == 1


def test_record_awaiting_a_foreign_event_is_committed_after_input_ends() -> None:
    """Seed 2026 of a trial: 745 of 748 records were committed, for ever."""
    with group(sleepy=1.0, rate=1.0) as made:
        made.run_until(40.0)
        assert made.excused["foreign"]


@pytest.mark.slow
def test_topics_of_one_sub_topology_may_grow() -> None:
    """Topics a:4 and b:2, and b grows to 4: b-2 and b-3 were claimed and never read."""
    with group(pair=(4, 2)) as made:
        made.nodes.grow(B, 4)
        made.run_until(20.0 + 4 * TOPICS_EVERY_S)  # the last one gets its first record late
        assert all(made.offsets.get(tp, 0) > 0 for tp in made.partitions(B))
        assert len(made.partitions(B)) == 4


@pytest.mark.slow
def test_topic_grows_once_the_disk_works_again() -> None:
    """Seed 931: a folder that could not be flushed ended the broker, instead of failing the
    request.
    """
    with group(pair=(4, 2), sync=True) as made:
        made.nodes.disk.failures = 1.0
        made.nodes.grow(B, 4)
        assert len(made.partitions(B)) == 2
        made.nodes.disk.failures = 0.0
        made.run_until(20.0 + 4 * TOPICS_EVERY_S)
        assert len(made.partitions(B)) == 4
        assert all(made.offsets.get(tp, 0) > 0 for tp in made.partitions(B))


@pytest.mark.slow
def test_worker_starts_while_the_changelog_of_local_state_has_no_leader() -> None:
    """Seed 2111 of a trial: the worker ended with a WorldError after 10 s."""
    with group() as made:
        home = made.homes[0]
        home.kill()
        made.nodes.leaderless[COUNTS] = made.now + 12.0
        home.start()
        made.run_until(50.0)
        assert home.lives == 2
        assert counts(made) == [4, 4]


@pytest.mark.slow
def test_vanished_node_costs_no_tasks_within_a_ten_second_session() -> None:
    """Timeouts of 5 s followed each other, whatever the session timeout: three seeds of four."""
    with group(workers=3) as made:
        made.nodes.vanish(0, 40.0)
        made.run_until(70.0)
        assert not told(made, "lost {")


def test_commit_refused_for_good_is_given_up() -> None:
    with group() as made:
        made.nodes.refused[Api.OFFSET_COMMIT] = 2, ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        made.run_until(30.0)
        assert told(made, "refuses OFFSET_COMMIT")


@pytest.mark.slow
def test_worker_with_a_cancelled_leave_and_lost_tasks_ends_cleanly() -> None:
    """The data loop took the worker for leaving for ever: SIGTERM ended it with exit code 1 and
    without a commit.
    """
    with group(workers=3) as made:
        home = made.homes[1]
        leave_and_stay(made)
        made.run_until(50.0)
        home.freeze(25.0)
        made.run_until(90.0)
        assert told(made, "lost {", home.name)
        home.terminate()
        made.run_until(120.0)
        assert told(made, "ended: 0", home.name)


@pytest.mark.slow
def test_departing_member_opens_no_new_learners() -> None:
    """The learners of its last plan were opened beside its last commits."""
    assert any(goes_behind_a_plan(seed) for seed in range(2, 6))


def goes_behind_a_plan(seed: int) -> bool:
    """Return whether the last plan came before the last commits."""
    # So many records that each task has some to commit whenever that plan comes.
    with group(alive=1, words=12, max_learners=1, rate=240.0, seed=seed) as made:
        home = made.homes[1]

        class Ends(Check):
            """Check that ends a worker when a plan arrives that has it learn one more task."""

            def told(self, host: str, call: Any, body: Any) -> None:
                if host == f"{home.name}.1" and call.api is Api.SYNC_GROUP and home.running:
                    assert home.parts is not None
                    plan = read_assignment(Assignment.read(bytes(body["assignment"])).user_data)
                    more = plan.learners - set(home.parts.registry.tasks())
                    if more and not home.terminated:
                        made.network.slow[host] = 100.0
                        home.terminate()
                        home.terminate()

        made.checks.append(Ends(made))
        home.start()
        made.run_until(40.0)
        (since, _) = told(made, "SIGTERM", "w2")
        assert all(at < since for at in told(made, "'learner', 'from': 'created'", "w2"))
        return told(made, "assigned", "w2")[-1] > since


@pytest.mark.slow
def test_task_with_refused_commits_is_handed_over_uncommitted() -> None:
    """The task waited until the time to revoke was over, and was lost."""
    with group(alive=1, rate=60.0) as made:
        made.nodes.refused[Api.OFFSET_COMMIT] = 10**6, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        made.homes[1].start()
        assert counts(made, at=33.0) == [4, 4]
        assert not told(made, "lost {")
        made.nodes.refused.clear()


@pytest.mark.slow
def test_permanently_damaged_batch_holds_up_only_one_partition() -> None:
    """The batch ended its worker, and then the next worker."""
    with group(rate=40.0) as made:
        for _ in range(120):
            made.nodes.damage(WORDS)
        made.run_until(60.0)
        assert told(made, "nothing behind it is read")


def test_dead_member_is_removed_after_the_session_of_that_member() -> None:
    """A commit beside a waiting JoinGroup moved the wake-up time of the group, and nothing woke the
    group: the member was removed after 38 s instead of 6 s.
    """
    with group(sessions=(6.0, 30.0), rate=60.0) as made:
        first, second = made.homes
        assert first.parts is not None
        assert first.member is not None
        who = first.member.member_id

        class Dies(Check):
            """Check that kills a worker once a commit beside its waiting JoinGroup has moved the
            end of its session before all wake-ups of the group.
            """

            moves = False

            def asked(self, host: str, call: Any) -> None:
                if made.group is not None and call.api is Api.OFFSET_COMMIT and first.alive:
                    state, wake_at = made.group.round, made.group.turn.wake_at
                    parked = state.state is GroupState.PREPARING and state.members[who].parked
                    own = host == first.process.name
                    self.moves = own and parked and wake_at > made.now + made.scene.session_s(0)

            def told(self, host: str, call: Any, body: Any) -> None:
                if self.moves and call.api is Api.OFFSET_COMMIT:
                    codes = {p["error_code"] for t in body["topics"] for p in t["partitions"]}
                    if codes == {ErrorCode.NONE}:
                        first.kill()

        made.checks.append(Dies(made))
        second.freeze(14.0)  # the round waits for its JoinGroup
        # What a heartbeat is told in a round, but it moves nothing: only commits do.
        made.nodes.refused[Api.HEARTBEAT] = 10**6, ErrorCode.REBALANCE_IN_PROGRESS
        first.parts.session.post(e.Want("task 0_0 stopped"))
        while first.alive and second.process.frozen:
            made.run_until(made.now + 0.1)
        assert not first.alive
        made.nodes.refused.clear()
        made.run_until(made.now + 6.5)
        assert second.process.frozen  # the round is still open: its end begins all sessions anew
        assert len(members(made)) == 1


@pytest.mark.slow
def test_topic_is_read_again_when_the_partition_leader_returns() -> None:
    """Records of the other topic filled all the room for waiting records, and the partition was not
    fetched again.
    """
    with group(alive=1, lines=1, words=2, pair=(2, 2), rate=150.0, memory="256KiB") as made:
        made.homes[0].kill()
        made.nodes.leaderless[B] = made.now + 20.0
        made.homes[0].start()
        made.run_until(45.0)


# -- the leader dies amid it


class Begun(Check):
    """Number of times that each worker has begun to learn each task."""

    def __init__(self, made: World) -> None:
        super().__init__(made)
        self.learned: Counter[tuple[str, object]] = Counter()
        made.checks.append(self)

    def said(self, home: SimulatedHost, event: str, fields: dict[str, object]) -> None:
        if event == "task" and fields["from"] == "created" and fields["role"] == "learner":
            self.learned[home.name, fields["task"]] += 1


def after(kind: str, *, dies: bool) -> tuple[dict[str, set[TaskId]], int]:
    """Return the tasks of each worker at the end, and how many tasks were learned more than once.

    The leader stays. With `dies` it is killed when the first task has moved, and is back 0.3 s
    later.
    """
    alive = {"up": 2, "down": 3, "swap": 3}[kind]
    with group(workers=3, alive=2, words=12, max_learners=1) as made:
        if alive == 3:
            made.homes[2].start()
            made.run_until(40.0)
        leads = next(
            h for h in made.homes if h.parts is not None and h.parts.rebalance_handler.leads
        )
        other = next(h for h in made.homes[:2] if h is not leads)
        begun, since = Begun(made), len(told(made, "promoted"))
        if kind == "up":
            made.homes[2].start()
        else:
            made.leave(other.name, swap_to=made.homes[2].name if kind == "swap" else None)
        made.scheduler.run_until(made.now + 30.0, lambda: len(told(made, "promoted")) > since)
        if dies:
            leads.kill()
            made.after(0.3, leads.start)
        made.run_until(100.0)
        runs = {home.name: set(home.running) for home in made.homes if home.alive}
        again = sum(n - 1 for (name, _), n in begun.learned.items() if name != leads.name)
        return {name: {t for t in some if t.subtopology == 1} for name, some in runs.items()}, again


@pytest.mark.parametrize("kind", ["up", "down", "swap"])
@pytest.mark.slow
def test_group_leader_dying_amid_a_resize_does_not_change_the_result(kind: str) -> None:
    """No task is learned twice, and each worker ends with as many tasks as without the kill. Which
    tasks stay with the restarted leader depends on its disk.
    """
    (runs, again), (calm, _) = after(kind, dies=True), after(kind, dies=False)
    assert again == 0
    assert {name: len(some) for name, some in runs.items()} == {
        name: len(some) for name, some in calm.items()
    }
    if kind != "up":
        assert runs == calm
