"""Groups that process exactly once: a worker dies, freezes or is fenced at each step of a commit.

All checks run in every story; `EachCommitIsWhole` compares outputs and tables with the committed
input whenever no transaction is open. Each planted bug makes one place of the product wrong, and
one of the runs must find it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from streamsx.client import admin, fetcher
from streamsx.client.transactional_id import TransactionalId, TransactionStage
from streamsx.client.transactional_producer import TransactionalProducer
from streamsx.group import member_events as e
from streamsx.group import requests
from streamsx.group.member import Member
from streamsx.group.offset_commits import OffsetCommits
from streamsx.model import TaskId
from streamsx.protocol.wire import Api
from streamsx.simulation.hosts import SimulatedHost
from streamsx.simulation.scene import Scene, draw
from streamsx.simulation.scheduler import Killed, Violation
from streamsx.simulation.world import World, world
from streamsx.tasks import commit_cycle, crash_points
from streamsx.tasks.commit_cycle import CommitCycles, CommitState
from streamsx.tasks.task_driver import TaskDriver
from streamsx.tasks.transactional_committer import TransactionalCommitter
from tests.support.listed_tests import TESTS

POINTS = (
    "processing", "after_seal", "after_flush", "after_txn_offsets", "during_end", "before_adopt",
    "after_write",
)  # fmt: skip
FENCED_AT = ("processing", "after_flush", "after_txn_offsets", "during_end")
RUNS = 40
EXACT = [seed for seed in range(200) if draw(seed).is_exact][: RUNS // 2]
"""Seeds whose workers process exactly once."""
BACK_S = 22.0
LONG_S, SHORTER_S = 14.0, 8.5
"""Freezes longer than session and transaction, and longer than the session alone."""
pytestmark = pytest.mark.timeout(300)

Strike = Callable[[World, SimulatedHost], None]


def dies(made: World, home: SimulatedHost) -> None:
    home.kill()
    made.after(BACK_S, home.start)
    raise Killed


def freezes(_: World, home: SimulatedHost) -> None:
    home.freeze(LONG_S)


def freezes_shorter(_: World, home: SimulatedHost) -> None:
    home.freeze(SHORTER_S)


def tell(point: str, strike: Strike | None, seed: int = 1, **scene: Any) -> None:
    """Play a group of two in which one worker is struck at a point; without a strike it is fenced.

    Raises:
        Violation: an invariant was broken.
    """
    given: dict[str, Any] = {
        "workers": 2, "exact": "v2", "sessions": (6.0,), "commits": (3.0,), "sizes": bool(seed % 2),
        "latency_s": 0.02, **scene,
    }  # fmt: skip
    with world(seed, Scene(**given)) as made:
        struck = list[str]()
        usual = crash_points.point

        def reached(name: str) -> None:
            running = made.scheduler.running
            if name != point or running is None or struck or made.now < 25.0:
                usual(name)
                return
            for home in made.homes:
                if home.alive and home.process is running.process:
                    struck.append(home.name)
                    if strike is None:
                        made.fenced_at = name
                        usual(name)
                    else:
                        strike(made, home)

        crash_points.point = reached
        for home in made.homes:
            made.at(1.0, home.start)
        made.at(60.0, setattr, made.client, "feeding", False)
        made.run_until(100.0)
        made.settle()
        assert struck, f"nobody came to {point}"


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(
    ("point", "strike"),
    [
        pytest.param(
            point, strike,
            marks=[] if (point, strike) in {("during_end", freezes), ("after_txn_offsets", dies)}
            else [pytest.mark.slow],
        )
        for point in POINTS
        for strike in (dies, freezes, freezes_shorter)
    ],
)  # fmt: skip
def test_worker_that_is_struck_at_a_step_leaves_no_trace(
    point: str, strike: Strike, version: str
) -> None:
    tell(point, strike, seed=1 + POINTS.index(point), exact=version)


@pytest.mark.parametrize("version", ["v1", pytest.param("v2", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "point", [FENCED_AT[2], *(pytest.param(each, marks=pytest.mark.slow) for each in FENCED_AT)]
)
def test_worker_that_is_fenced_at_a_step_leaves_no_trace(point: str, version: str) -> None:
    tell(point, None, exact=version)


# -- planted bugs

Plant = Callable[[pytest.MonkeyPatch], None]


def lost_task_stays_in_the_transaction(patch: pytest.MonkeyPatch) -> None:
    def forget(self: Any, task: TaskId) -> None:
        self._committer.lose(task)
        self._stop(task)
        self._active_tasks.abort(task, self._stores.changelogs(task).values())
        self._undone.discard(task)

    patch.setattr(TaskDriver, "_forget", forget)


def a_part_of_the_offsets_is_staged(patch: pytest.MonkeyPatch) -> None:
    def keeps(self: Any, asked: Any) -> bool:
        lost = [tp for tp in asked.offsets if self._since.get(tp, asked.born + 1) > asked.born]
        asked.leave_out(dict.fromkeys(lost, e.NOT_OURS))
        if not asked.offsets:
            self._fail(asked, e.Refusal.NOT_OWNED)
        return bool(asked.offsets)

    def committed(self: Any, number: int, _: frozenset[TaskId], __: Mapping[TaskId, Any]) -> None:
        if number == self._number:
            self._number += 1
            self._step(commit_cycle.OffsetsCommitted(frozenset()))

    patch.setattr(OffsetCommits, "_keeps", keeps)
    patch.setattr(TransactionalCommitter, "committed", committed)


def tasks_run_beside_the_cycle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionalCommitter, "stands", property(lambda self: self._quiet))


def adopted_before_the_end(patch: pytest.MonkeyPatch) -> None:
    def end(self: Any) -> list[commit_cycle.Effect]:
        effects = self._adopt(frozenset(), frozenset())
        return [commit_cycle.EndTransaction(), *effects]

    def decide(self: Any, event: commit_cycle.Event) -> list[commit_cycle.Effect]:
        if isinstance(event, commit_cycle.TransactionEnded):
            return []
        return usual(self, event)  # type: ignore[no-any-return]

    usual: Any = CommitCycles._decide
    patch.setattr(CommitCycles, "_end", end)
    patch.setattr(CommitCycles, "_decide", decide)


def no_quiet(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionalCommitter, "_ready", lambda *_: True)


def an_end_of_unknown_outcome_counts(patch: pytest.MonkeyPatch) -> None:
    async def end(self: Any) -> bool:
        reply = None
        while reply is None:
            reply = await self._tried(Api.END_TXN, self._id.end_request())
        if self._id.stage is TransactionStage.SHUT:
            self._id.ended(reply)
        return True

    patch.setattr(TransactionalProducer, "end", end)


def staging_extends_the_lease(patch: pytest.MonkeyPatch) -> None:
    def take(self: Any, flight: Any, event: Any) -> None:
        if isinstance(flight.body, e.TxnOffsetCommit) and not event.error:
            self.lease.contact(flight.at, steady=True)
        usual(self, flight, event)

    usual: Any = Member._take_reply
    patch.setattr(Member, "_take_reply", take)


def restored_to_the_stable_end(patch: pytest.MonkeyPatch) -> None:
    async def bounds_now(cluster: Any, tps: Any, isolation: int = 0) -> Any:
        return await usual(cluster, tps, admin.READ_COMMITTED)

    usual: Any = admin.bounds_now
    patch.setattr(admin, "bounds_now", bounds_now)


def abort_keeps_batches(patch: pytest.MonkeyPatch) -> None:
    def abort(self: Any) -> None:
        self._life += 1
        self._cut()
        self._moved.set()
        if self._id.stage is not TransactionStage.BEGINNING:
            self._id.aborted()
            self._spawn(self._begin_again(), name="begin a transaction")

    patch.setattr(TransactionalProducer, "abort", abort)


def reads_uncommitted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fetcher, "READ_COMMITTED", 0)


def no_generation(patch: pytest.MonkeyPatch) -> None:
    def request(*given: Any) -> Any:
        api, body = usual(*given)
        if "transactional_id" in body:
            nobody = {"generation_id": -1, "member_id": "", "group_instance_id": None}
            return api, {**body, **nobody}
        return api, body

    usual: Any = requests.request
    patch.setattr(requests, "request", request)


def released_before_the_end(patch: pytest.MonkeyPatch) -> None:
    def end(self: Any) -> list[commit_cycle.Effect]:
        self.state = CommitState.ENDING
        early = [task for task in sorted(self.sealed) if self._suspended.get(task) is False]
        for task in early:
            del self._suspended[task]
        return [*map(commit_cycle.SuspendedSettled, early), commit_cycle.EndTransaction()]

    patch.setattr(CommitCycles, "_end", end)


def offsets_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    async def settle(self: Any, *_: Any) -> frozenset[TaskId]:
        self._sending.flush()
        self.push()
        if self._id.stage is TransactionStage.OPEN:
            self._id.shut()
        return frozenset()

    patch.setattr(TransactionalProducer, "settle", settle)


def batches_leave_behind_the_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        TransactionalId, "leaves", lambda self, _: self.stage is not TransactionStage.BEGINNING
    )


def aborted_tasks_go_on(patch: pytest.MonkeyPatch) -> None:
    def abort(self: Any, why: str, stops: Any = None) -> None:
        self._committer.aborted()
        self._abort_transaction()

    patch.setattr(TaskDriver, "abort", abort)


def only_wanted_tasks_are_in_a_cycle(patch: pytest.MonkeyPatch) -> None:
    def begin(self: Any, tasks: Any) -> list[commit_cycle.Effect]:
        wanted = [task for task in tasks if task in self._suspended]
        return usual(self, wanted or tasks)  # type: ignore[no-any-return]

    usual: Any = CommitCycles._begin
    patch.setattr(CommitCycles, "_begin", begin)


PLANTS = (
    lost_task_stays_in_the_transaction, tasks_run_beside_the_cycle, adopted_before_the_end,
    no_quiet, an_end_of_unknown_outcome_counts, abort_keeps_batches,
    reads_uncommitted, released_before_the_end, offsets_before_the_flush,
    batches_leave_behind_the_flush, aborted_tasks_go_on, only_wanted_tasks_are_in_a_cycle,
)  # fmt: skip
BY_TESTS: dict[Plant, str] = {
    a_part_of_the_offsets_is_staged: "group/test_offset_commits.py",
    staging_extends_the_lease: "group/test_member.py",
    restored_to_the_stable_end: "tasks/test_transactional_restore.py",
    no_generation: "group/test_requests.py",
}
"""Bugs that none of the runs meets, with the tests that find them.

The embedded broker writes the decision about a transaction and its markers in one turn. A worker
that is out of the group has no lease, so it commits nothing that a generation would refuse.
"""


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation):
        play_all()


@pytest.mark.parametrize("plant", BY_TESTS)
def test_planted_bug_is_found_by_a_test(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = str(TESTS / "unit" / BY_TESTS[plant])
    quiet = ["-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "-k", "staged or marker"]
    assert pytest.main([*quiet, tests]) == pytest.ExitCode.OK
    plant(monkeypatch)
    assert pytest.main([*quiet, tests]) == pytest.ExitCode.TESTS_FAILED


def play_all() -> None:
    for number in range(RUNS):
        play(number)


def play(number: int) -> None:
    """Play one of the runs: stories and seeds in turn."""
    if number % 2:
        with world(EXACT[number // 2]) as made:
            made.run()
        return
    number //= 2
    strike = (freezes_shorter, dies, None, freezes)[number % 4]
    point = (FENCED_AT if strike is None else POINTS)[number // 4 % 4]
    tell(point, strike, seed=number + 1, exact=("v1", "v2")[number // 2 % 2])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_runs_of_the_planted_bugs_pass_without_them() -> None:
    play_all()
