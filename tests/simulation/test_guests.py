"""Clients of other makes in a simulated world: they see nothing wrong, and planted bugs are found.

Seeds draw such clients as they draw everything (`test_seeds`). This world has all of them, and only
the clients themselves fail in it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from streamsx.broker.groups.assignments import Assignments
from streamsx.broker.groups.consumer_group import ConsumerGroup
from streamsx.broker.groups.coordinator import Coordinator
from streamsx.broker.groups.offsets import judge_commit
from streamsx.broker.groups.transactions import Transaction, Transactions
from streamsx.broker.log.flusher import Flusher
from streamsx.broker.log.log import Log
from streamsx.protocol.error_codes import ErrorCode
from streamsx.simulation.scene import Scene
from streamsx.simulation.scheduler import Violation
from streamsx.simulation.world import World, world

SEEDS = range(12)
Plant = Callable[[pytest.MonkeyPatch], None]


def broken(made: World) -> str:
    """Play 40 s, and the quiet time after them; return the invariant that broke, or an empty
    string.
    """
    try:
        for home in made.homes:
            made.at(1.0, home.start)
        made.run_until(40.0)
        made.heal()
        made.client.feeding = False
        made.run_until(75.0)
        made.settle()
    except Violation as wrong:
        return str(wrong)
    return ""


def story(seed: int, upstream: str) -> str:
    """Play a world in which other clients do all that they can; return the broken invariant, or
    "".
    """
    with world(seed, Scene(rate=20.0, workers=2, upstream=upstream, readers=3)) as made:
        if wrong := broken(made):
            return wrong
        assert made.upstream is not None
        assert made.upstream.fates, "there was no transaction"
        assert made.excused["power cut"] == 0
    return ""


@pytest.mark.parametrize("upstream", [pytest.param("v1", marks=pytest.mark.slow), "v2"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_transactions_and_groups_of_other_clients_are_served(seed: int, upstream: str) -> None:
    assert story(seed, upstream) == ""


def all_is_visible(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Log, "readable_to", lambda log, committed: log.high_watermark)


def nothing_was_aborted(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Log, "aborted", lambda *_: [])


def all_is_committed(plant: pytest.MonkeyPatch) -> None:
    real = Transactions._decide
    plant.setattr(Transactions, "_decide", lambda self, txn, commit: real(self, txn, commit=True))


def offsets_are_forgotten(plant: pytest.MonkeyPatch) -> None:
    real = Transactions._decide

    def decide(self: Transactions, txn: Transaction, *, commit: bool) -> None:
        txn.staged = {}
        real(self, txn, commit=commit)

    plant.setattr(Transactions, "_decide", decide)


def offsets_count_at_once(plant: pytest.MonkeyPatch) -> None:
    real = Coordinator._stage

    def stage(self: Coordinator, now: float, request: Any) -> list[Any]:
        offsets, _ = judge_commit(request, ErrorCode.NONE, self.catalog, self.config)
        self._group(request.body.group_id).committed.update(offsets)
        return real(self, now, request)

    plant.setattr(Coordinator, "_stage", stage)


def whoever_was_there_commits(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(ConsumerGroup, "may_commit", lambda *_: [])


def nobody_is_waited_for(plant: pytest.MonkeyPatch) -> None:
    real = Assignments.reconcile

    def reconcile(self: Assignments, member: Any, _: object) -> None:
        real(self, member, set())

    plant.setattr(Assignments, "reconcile", reconcile)


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (all_is_visible, "TransactionsAreWholeOrNot"),
        (nothing_was_aborted, "TransactionsAreWholeOrNot"),
        (all_is_committed, "TransactionsAreWholeOrNot"),
        (offsets_are_forgotten, "progress is at"),
        (offsets_count_at_once, "progress is at"),
        (whoever_was_there_commits, "ReadersShareTheirTopic"),
        (nobody_is_waited_for, "ReadersShareTheirTopic"),
    ],
)
def test_planted_bug_is_found_by_other_clients(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, check: str
) -> None:
    plant(monkeypatch)
    found = next(filter(None, (story(seed, "v2") for seed in SEEDS)), "")
    assert check in found


def power_cuts(seed: int) -> str:
    """Cut the power of a broker again and again; return the broken invariant, or an empty string.

    The broker runs with `sync` and short files, and some of its flushes fail.
    """
    with world(seed, Scene(rate=60.0, workers=1, sync=True, segment_bytes=2000)) as made:
        disk = made.nodes.disk
        for second in range(5, 35, 6):
            made.at(second + seed / 7, partial(made.nodes.crash, 1.0, power=True))
            made.at(second - 3.0, partial(setattr, disk, "failures", 0.1))
            made.at(second - 2.0, partial(setattr, disk, "failures", 0.0))
        return broken(made)


def acknowledged_before_the_flush(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Flusher, "when_flushed", lambda _, done: done())


def hidden_again(plant: pytest.MonkeyPatch) -> None:
    real = Log.flushed_to

    def flushed_to(log: Log, mark: Any) -> None:
        real(log, mark)
        log.flushed = max(0, log.flushed - 3)

    plant.setattr(Log, "flushed_to", flushed_to)


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_acknowledged_records_survive_power_cuts(seed: int) -> None:
    assert power_cuts(seed) == ""


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (acknowledged_before_the_flush, "SyncedIsThere"),
        (hidden_again, "ReadersAreNotSentBack"),
    ],
)
def test_bug_planted_in_the_flush_is_found_by_power_cuts(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, check: str
) -> None:
    plant(monkeypatch)
    found = next(filter(None, map(power_cuts, SEEDS)), "")
    assert check in found
