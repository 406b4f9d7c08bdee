"""Planted bugs, each of which a check must find: a check that finds none checks nothing.

Each bug is a subclass of one machine that does one thing wrong. Each of them was a real bug once.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from _pytest.mark import ParameterSet

import streamsx.assignor.assign as assigning
from streamsx.assignor.claims import Metadata
from streamsx.assignor.cooperative import Held
from streamsx.assignor.partition_assignor import Outcome, StreamsPartitionAssignor
from streamsx.assignor.view import View
from streamsx.broker.groups import coordinator_events as b
from streamsx.broker.groups import runtime
from streamsx.broker.groups.classic import ClassicGroup, GroupState
from streamsx.broker.groups.coordinator import Coordinator
from streamsx.client import record_accumulator
from streamsx.client.producer import Goals, Producer
from streamsx.client.rejected_batch import Reworked, rework
from streamsx.group import member, session
from streamsx.group import member_events as e
from streamsx.group.admin.leave_progress import LeaveProgress, LeaveState
from streamsx.group.lease import Lease
from streamsx.group.member import Member
from streamsx.group.owned_partitions import OwnedPartitions
from streamsx.model import TaskId, TopicPartition
from streamsx.processing.task import TaskMetadata
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.protocol.consumer_protocol import Assignment, Subscription
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from streamsx.simulation.apps import POISON
from streamsx.simulation.checks import Check
from streamsx.simulation.nodes import HOSTS
from streamsx.simulation.scene import COUNTS, LINES, ROUTED, WORDS, Scene
from streamsx.simulation.scheduler import Violation
from streamsx.simulation.world import World, world
from streamsx.state import factory
from streamsx.state.layout import WINDOW
from streamsx.state.timed_store import TimedStore
from streamsx.tasks import active_tasks, commit_cycle
from streamsx.tasks.active_task import Active
from streamsx.tasks.commit_cycle import metadata_of, place_of
from streamsx.tasks.committer import Committer
from streamsx.tools import leave
from streamsx.worker import wiring
from tests.support.timed import WindowsWithTheirCommit


class NothingIsWithheld(StreamsPartitionAssignor):
    """Ignores claims: the new owner starts a task before the old owner has released it."""

    def assign(self, metadata: Metadata, partitions: Mapping[str, int], **more: Any) -> Outcome:
        said = [(member, Subscription.read(data)) for member, data in metadata]
        newest = max(subscription.generation for _, subscription in said)
        bare = [
            (member, replace(one, owned=one.owned if self.counts(one, newest) else ()).write())
            for member, one in said
        ]
        return super().assign(bare, partitions, **more)

    def counts(self, _: Subscription, __: int) -> bool:
        return False


class OldClaimsAreCut(NothingIsWithheld):
    """Drops claims of an older generation, also of a member whose SyncGroup failed and who still
    runs its tasks.
    """

    def counts(self, said: Subscription, newest: int) -> bool:
        return said.generation == newest


class OldLeadersPassOverClaims(NothingIsWithheld):
    """Drops claims under a leader that is still eager, in the first bounce of an upgrade
    (R429-43).
    """

    def counts(self, _: Subscription, __: int) -> bool:
        return not self._self.eager


class MemoryIsTrusted(StreamsPartitionAssignor):
    """Plans with what the last plan gave to a member, instead of with what the member claims."""

    given: Mapping[str, tuple[TopicPartition, ...]] = MappingProxyType({})

    def assign(self, metadata: Metadata, partitions: Mapping[str, int], **more: Any) -> Outcome:
        said = [(member, Subscription.read(data)) for member, data in metadata]
        old = [(m, replace(one, owned=self.given.get(m, one.owned)).write()) for m, one in said]
        outcome = super().assign(old, partitions, **more)
        self.given = {m: Assignment.read(a).partitions for m, a in outcome.assignments.items()}
        return outcome


class NoCommitIsFenced(Coordinator):
    """Takes each OffsetCommit for one of a current member, so that no commit is fenced."""

    def step(self, now: float, event: b.Event) -> list[b.Effect]:
        if isinstance(event, b.ClientRequest) and event.api == Api.OFFSET_COMMIT:
            group = self.groups.get(event.body.group_id)
            if isinstance(group, ClassicGroup) and group.members():
                event.body.member_id = min(group.round.members)
                event.body.generation_id_or_member_epoch = group.round.generation
        return super().step(now, event)


class JoinCountsWhenItIsAnswered(Member):
    """Starts the lease when the answer to JoinGroup arrives, though the answer may have been on its
    way for most of a session.
    """

    def _joined(self, flight: e.SendRequest, joined: e.Joined) -> None:
        super()._joined(replace(flight, at=self._box.now), joined)


class LeasesAreLongerThanSessions(Lease):
    """Extends a lease by three sessions, so that a worker that is cut off keeps processing."""

    def contact(self, at: float, *, steady: bool) -> None:
        super().contact(at + 3 * self._session_s, steady=True)


class LeasesKnowOfNoRound(Lease):
    """Extends the lease by heartbeats during a round that the member has not joined."""

    def contact(self, at: float, *, steady: bool) -> None:
        super().contact(at, steady=True)


class FencedMembersKeepTheirClaims(Member):
    """Keeps the claims of a fenced member. KIP-792: a zombie's old claim wins where nobody else
    claims.
    """

    def _fence(self, code: int = 0) -> None:
        self.generation, self.member_id = -1, ""
        self._calls.forget()
        self._commits.fail(e.Refusal.FENCED)
        self._pause(code)


class NobodyJoinsAfterARelease(OwnedPartitions):
    """Does not rejoin after a release, so that withheld tasks stay withheld."""

    def released(self, event: e.Released) -> None:
        before, collects = self._box.rejoin_reason, e.Timer.COLLECT in self._box._armed
        super().released(event)
        self._box.rejoin_reason = before
        if not collects:
            self._box.disarm(e.Timer.COLLECT)


def nothing_waits_to_be_let_go(_: View, runs: Mapping[TaskId, int | None]) -> Held:
    """Withholds no task, so the leader's plan breaks an invariant and is never sent."""
    return Held({task: builder for task, builder in runs.items() if builder is not None}, {}, {})


def knows_no_good_end(departures: Mapping[str, LeaveProgress], **_: object) -> int:
    """Knows an exit code for one outcome only."""
    return {LeaveState.TIMEOUT: 1}[departures["w1"].state]


class EveryTaskWaitsForAllOutputs(Producer):
    """Waits for the outputs of all tasks at once: a partition without a leader holds up tasks that
    never write to it.
    """

    async def settle(self, goals: Mapping[TaskId, Goals], patience_s: float) -> frozenset[TaskId]:
        return await super().settle(goals, 1000 * patience_s)


class BeginningsAreNotCommitted(Committer):
    """Does not commit the first position of a task without records."""

    def first(self, active: Active) -> None: ...


def half_is_sent_again(*refused: Any) -> Reworked:
    """Send only the first part of a batch that was too large."""
    parts, records = rework(*refused)
    return Reworked(parts[:1], records)


def no_reader_is_ahead(sealed: TaskMetadata) -> Mapping[str, OffsetMetadata]:
    """Commit the position of the slowest reader alone."""
    return metadata_of(sealed._replace(readers={}))


def nobody_was_ahead(found: Mapping[str, tuple[int, OffsetMetadata]]) -> TaskMetadata:
    """Start all readers at the position of the slowest one."""
    return place_of(found)._replace(readers={})


def nobody_waits(since: float, *_: float | None) -> float:
    """Cut a revoked task off while its agents still await something."""
    return since


def no_seal_waits(*_: object) -> bool:
    """Commit what a body has changed so far in the middle of a record."""
    return False


def failures_are_held(*_: object) -> None:
    """Hold reports of failures until another record arrives."""


class When(Check):
    """Check that calls a function once, when the broker answers a request of one worker."""

    def __init__(self, made: World, host: str, api: Api, call: Callable[[], object]) -> None:
        super().__init__(made)
        self.host, self.api, self.left = host, api, [call]
        made.checks.append(self)

    def told(self, host: str, call: Any, body: Any) -> None:
        if host == self.host and call.api is self.api and self.left:
            self.left.pop()()


# What is told of each bug. Two workers run at 20 s.


def a_newcomer(made: World, busy_s: float = 6.0) -> None:
    """Start a third worker while the workers that run the tasks are too busy to release them."""
    for home in made.homes[:2]:
        home.busy(busy_s)
    made.homes[2].start()


def an_upgrade(made: World) -> None:
    """Start a third worker, and keep the others busy for three heartbeats: until it has started."""
    a_newcomer(made, 9.0)


def a_sync_is_lost(made: World) -> None:
    """Lose the answer to w1's SyncGroup: w1 joins the next round with its old generation, and is
    busy.
    """
    w1 = made.homes[0].process

    def cut_off() -> None:
        for sock in tuple(w1.sockets.values()):
            made.network.reset(sock)
        for host in HOSTS:
            made.network.cut(w1.name, host, 4.0)

    When(made, w1.name, Api.SYNC_GROUP, cut_off)
    made.at(26.0, made.homes[0].busy, 6.0)
    made.homes[2].start()


def a_commit_is_late(made: World) -> None:
    """Remove a member whose commit is on its way, while another worker takes its tasks over."""
    one_is_put_out(made, 5.0)


def one_is_put_out(made: World, cut_s: float = 25.0) -> None:
    """Remove a member, and cut it off so that it does not notice."""
    made.nodes.move_leader(1)  # of partitions: what a commit waits for is there all the time
    made.run_until(25.5)  # heartbeats come every 3 s, and were told just now
    leader, other = made.homes[:2]
    if other.member is not None and other.member.leader:
        leader, other = other, leader
    assert leader.parts is not None
    assert other.member is not None
    made.network.cut(other.process.name, HOSTS[0], cut_s)
    session = leader.parts.session
    session.member._evictions.ends[other.member.member_id] = 0.0
    session.post(e.Tick(e.Timer.EVICT))


def a_join_is_answered_late(made: World) -> None:
    """Answer w1's JoinGroup while w1 is frozen, then drop the requests that w1 sends."""
    w1 = made.homes[0]
    made.nodes.move_leader(1)  # of partitions: there is work all the time
    made.run_until(25.0)

    def hold_up() -> None:
        w1.freeze(7.0)
        made.after(6.9, made.network.cut, w1.process.name, HOSTS[0], 15.0)

    When(made, w1.process.name, Api.JOIN_GROUP, hold_up)
    made.homes[2].start()


def a_round_ends_without_them(made: World) -> None:
    """End a round without two members that know of it.

    They learn of the round at once and try to join for all of its time. Their heartbeats are
    answered, and they learn of its end later.
    """
    made.nodes.move_leader(1)  # of partitions: there is work all the time
    late = 10_000, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    refused = made.nodes.refused

    def refuse() -> None:
        if made.group is not None and made.group.round.state is GroupState.PREPARING:
            refused[Api.JOIN_GROUP] = late
            made.after(14.5, refused.__setitem__, Api.HEARTBEAT, late)  # of 15 s
            made.after(18.0, refused.clear)
        else:
            made.after(0.001, refuse)

    made.homes[2].start()
    refuse()


def a_worker_stands_still(made: World) -> None:
    made.homes[0].freeze(25.0)


def an_output_has_no_leader(made: World) -> None:
    made.nodes.leaderless[ROUTED] = made.now + 25.0
    made.nodes.move_leader()


def batches_are_too_large(made: World) -> None:
    for topic in (WORDS, COUNTS):
        made.nodes.narrow[topic] = made.now + 10.0


def an_instance_is_told_to_leave(made: World) -> None:
    made.leave("w1")


def workers_begin_at_the_end(made: World) -> None:
    made.homes[2].start()


def workers_are_bounced(made: World) -> None:
    """End and restart the workers in turn, each while its agents await something."""
    for turn in range(6):
        home, at = made.homes[turn % 2], 21.0 + 5 * turn
        made.at(at, home.terminate)
        made.at(at + 3.5, home.start)


def bodies_wait_at_hand_overs(made: World) -> None:
    """End and restart the workers in turn. No record fails, so no task is careful."""
    workers_are_bounced(made)


def commits_meet_waiting_bodies(made: World) -> None:
    """End and restart the workers in turn, so that their tasks go back at first failures."""
    workers_are_bounced(made)


def the_input_ends(made: World) -> None:
    """End the input with a record that fails, in each partition."""
    made.client.feeding = False
    for tp in made.partitions(LINES):
        made.client._fed[tp].unsent.append([POISON.encode()])


def nobody_resumes_what_has_closed(self: TimedStore, _closed: int) -> None:
    """Forget what was closed, so that the next owner closes it again."""
    self._forget_expiry()


WINDOWS_WITH_THEIR_COMMIT = {**factory.STORES, WINDOW: WindowsWithTheirCommit}
"""Rows are deleted by the commit that sends the results: a kill in it loses both."""


def windows_are_handed_over(made: World) -> None:
    """End and restart the workers in turn."""
    workers_are_bounced(made)


def commits_are_cut_off(made: World) -> None:
    """Kill workers between changelogs and offsets, again and again."""
    for turn in range(5):
        made.at(21.0 + 5 * turn, setattr, made, "dies_at", "after_flush")


ASSIGNOR = wiring, "StreamsPartitionAssignor"
COORDINATOR = (runtime, "Coordinator")
MEMBER = (session, "Member")
HOLDING, LEASE = (member, "OwnedPartitions"), (member, "Lease")


TWO_RUN = {"OneRunner", "OnlyItsRunnerCommits"}
THEN_TOO = {"CommittedIsDoneOnce"}
"""What two runners of a task break as well, and now and then first."""
Story = Callable[[World], None]
Planted = tuple[tuple[Any, str], Any, Story, str]

PLANTED: list[Planted] = [
    (ASSIGNOR, NothingIsWithheld, a_newcomer, "OnlyItsRunnerCommits"),
    (ASSIGNOR, OldLeadersPassOverClaims, an_upgrade, "OnlyItsRunnerCommits"),
    (ASSIGNOR, MemoryIsTrusted, a_newcomer, "OneRunner"),
    (ASSIGNOR, OldClaimsAreCut, a_sync_is_lost, "OneRunner"),
    (COORDINATOR, NoCommitIsFenced, a_commit_is_late, "OnlyItsRunnerCommits"),
    (MEMBER, JoinCountsWhenItIsAnswered, a_join_is_answered_late, "NobodyOutlivesItsSession"),
    (LEASE, LeasesAreLongerThanSessions, one_is_put_out, "NobodyOutlivesItsSession"),
    (LEASE, LeasesKnowOfNoRound, a_round_ends_without_them, "NobodyOutlivesItsSession"),
    (MEMBER, FencedMembersKeepTheirClaims, a_worker_stands_still, "OnlyItsRunnerCommits"),
    (HOLDING, NobodyJoinsAfterARelease, a_newcomer, "EverythingIsCommitted"),
    ((assigning, "withhold"), nothing_waits_to_be_let_go, a_newcomer, "LegalPlans"),
    (
        (wiring, "Producer"),
        EveryTaskWaitsForAllOutputs,
        an_output_has_no_leader,
        "OutputsHoldUpTheirOwn",
    ),
    ((record_accumulator, "rework"), half_is_sent_again, batches_are_too_large, "NothingIsSkipped"),
    (
        (wiring, "Committer"),
        BeginningsAreNotCommitted,
        workers_begin_at_the_end,
        "NothingIsSkipped",
    ),
    ((commit_cycle, "metadata_of"), no_reader_is_ahead, workers_are_bounced, "NothingIsSkipped"),
    ((active_tasks, "place_of"), nobody_was_ahead, workers_are_bounced, "CommittedIsDoneOnce"),
    (
        (wiring, "patient_until"),
        nobody_waits,
        bodies_wait_at_hand_overs,
        "NothingIsSkipped",
    ),
    ((Committer, "_puts_off"), no_seal_waits, commits_meet_waiting_bodies, "NothingIsSkipped"),
    (
        (TimedStore, "resume"),
        nobody_resumes_what_has_closed,
        windows_are_handed_over,
        "NothingIsSkipped",
    ),
    ((factory, "STORES"), WINDOWS_WITH_THEIR_COMMIT, commits_are_cut_off, "NothingIsSkipped"),
    ((Active, "pass_over"), failures_are_held, the_input_ends, "NoTaskStands"),
    ((leave, "exit_code"), knows_no_good_end, an_instance_is_told_to_leave, "ToolFails"),
]


SCENES: dict[Story, dict[str, Any]] = {
    a_commit_is_late: {"sessions": (30.0,)},  # TCP tries for a third of it
    an_upgrade: {"eager": "some"},
    workers_begin_at_the_end: {"reset": "latest", "rate": 20.0},
    an_output_has_no_leader: {"pair": (1, 1), "rate": 10.0, "workers": 2, "words": 2, "lines": 2},
    batches_are_too_large: {"rate": 20.0, "workers": 2, "words": 2, "lines": 2},
    workers_are_bounced: {
        "rate": 20.0,
        "workers": 2,
        "sizes": True,
        "moody": True,
        "sleepy": 0.02,
    },
    bodies_wait_at_hand_overs: {"rate": 20.0, "workers": 2, "sizes": True, "sleepy": 0.1},
    commits_meet_waiting_bodies: {"rate": 20.0, "workers": 2, "sizes": True, "moody": True},
    the_input_ends: {"rate": 20.0, "workers": 2},
    windows_are_handed_over: {"rate": 20.0, "workers": 2, "flows": True},
    commits_are_cut_off: {
        "rate": 20.0,
        "workers": 2,
        "flows": True,
        "vocabulary": 8,
        "commits": (3.0,),
    },
}


SEEDS: dict[Story, int] = {
    an_upgrade: 10,
    commits_are_cut_off: 3,
    commits_meet_waiting_bodies: 8,
    workers_are_bounced: 2,
}
"""Seed 1 does not hit the moment of these stories."""


def one_of_each_check() -> list[ParameterSet]:
    """Return one bug for each check; the gate plants these, and `just slow` plants all."""
    seen = set[str]()
    cases = []
    for planted in PLANTED:
        check = planted[-1]
        cases.append(pytest.param(planted, marks=[pytest.mark.slow] if check in seen else []))
        seen.add(check)
    return cases


@pytest.mark.timeout(300)
@pytest.mark.parametrize("planted", one_of_each_check())
def test_planted_bug_violates_the_expected_check(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    (module, name), bug, story, check = planted
    monkeypatch.setattr(module, name, bug)
    with pytest.raises(Violation, match=f" s: {check}"):
        run(story, check)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("story", dict.fromkeys(story for _, _, story, _ in PLANTED))
@pytest.mark.slow
def test_same_story_without_the_planted_bug_passes(story: Story) -> None:
    run(story)


def run(story: Story, check: str = "") -> None:
    """Run a planted bug with one check alone: another one might find it first."""
    given: dict[str, Any] = {"rate": 60.0, "workers": 3, **SCENES.get(story, {})}
    scene = Scene(**given)
    with world(SEEDS.get(story, 1), scene) as made:
        if check in TWO_RUN:
            others = (TWO_RUN | THEN_TOO) - {check}
            made.checks = [one for one in made.checks if type(one).__name__ not in others]
        for home in made.homes[:2]:
            made.at(1.0, home.start)
        made.run_until(20.0)
        story(made)
        made.run_until(50.0)
        made.client.feeding = False
        made.run_until(75.0)
        made.settle()
