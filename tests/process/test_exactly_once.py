"""Workers and brokers that are killed under exactly-once: no record is lost or processed twice.

`SEED` draws the kills. `GUARANTEE=at_least_once` shows what these tests find without exactly-once.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamsx.state.api import ROW
from tests.process.conftest import ON_KAFKA
from tests.support.apache_kafka import ApacheKafka
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.exact_apps import (
    MODULE,
    DeadLetters,
    ExactApp,
    FlowShop,
    Payments,
    PaymentsOfTwo,
    PoisonedPayments,
)
from tests.support.kills import AT_LEAST_ONCE, EXACTLY_ONCE, Killing, opened
from tests.support.workers import Workers

GUARANTEE = os.environ.get("GUARANTEE", EXACTLY_ONCE)

SEED = int(os.environ.get("SEED", "38"))
PER_S = {Payments: 400, PaymentsOfTwo: 200, FlowShop: 300, PoisonedPayments: 400}
GATE_WORKERS, SLOW_WORKERS = ("a", "b"), ("a", "b", "c")
SECONDS_A_KILL = 8
SECONDS_ELSE = 120
MANY = 3000
"""Payments in one commit, of more users than a store writes at a time."""
Broker = EmbeddedBroker | ApacheKafka
Record = Callable[[str, object], None]

MARKS = {
    "embedded": (),
    "kafka": ON_KAFKA,
    "kafka_of_v1": ON_KAFKA,
}


def kills_of(
    broker: str, app: type[ExactApp], kills: int, *, slow: bool = False, standbys: int = 0
) -> Any:
    marks = [
        *(mark for mark in MARKS[broker] if mark.name != "timeout"),
        pytest.mark.timeout(SECONDS_ELSE + SECONDS_A_KILL * kills),
        *([pytest.mark.slow] if slow else []),
    ]
    name = f"{broker}-{app.__name__}-{kills}" + "-standbys" * bool(standbys)
    return pytest.param(broker, app, kills, slow, standbys, marks=marks, id=name)


@pytest.mark.parametrize(
    ("broker", "app", "kills", "slow", "standbys"),
    [
        kills_of("embedded", Payments, 6),
        kills_of("embedded", PaymentsOfTwo, 4),
        kills_of("embedded", FlowShop, 4),
        kills_of("embedded", PoisonedPayments, 3),
        kills_of("embedded", PoisonedPayments, 40, slow=True),
        kills_of("kafka", PoisonedPayments, 10, slow=True),
        kills_of("embedded", Payments, 200, slow=True),
        kills_of("embedded", PaymentsOfTwo, 200, slow=True),
        kills_of("embedded", FlowShop, 200, slow=True),
        kills_of("embedded", Payments, 30, slow=True, standbys=1),
        *(
            kills_of(broker, app, 20, slow=True)
            for broker in ("kafka", "kafka_of_v1")
            for app in (Payments, PaymentsOfTwo, FlowShop)
        ),
    ],
    indirect=["broker"],
)
def test_killed_workers_leave_no_trace(
    broker: Broker, tmp_path: Path, app: type[ExactApp], kills: int, slow: bool, standbys: int,
    record_property: Record,
) -> None:  # fmt: skip
    with (
        app(broker.bootstrap, tmp_path, SEED) as fed,
        Workers(broker.bootstrap, tmp_path / "w", app=MODULE, env=fed.env) as workers,
    ):
        killing = Killing(workers, fed, GUARANTEE, SEED, num_standby_replicas=standbys)
        fed.feed(PER_S[app])
        killing.start(*(SLOW_WORKERS if slow else GATE_WORKERS))
        killing.run(kills)
        killing.finish()
        killing.check(SEED)
        told(killing, record_property)


@pytest.mark.parametrize(
    ("broker", "kills"),
    [
        ("embedded", 2),
        pytest.param("embedded", 12, marks=[pytest.mark.slow, pytest.mark.timeout(240)]),
        pytest.param("kafka", 4, marks=[pytest.mark.slow, *ON_KAFKA]),
    ],
    indirect=["broker"],
)
def test_killed_broker_leaves_no_trace(
    broker: Broker, kills: int, tmp_path: Path, record_property: Record
) -> None:
    with (
        Payments(broker.bootstrap, tmp_path, SEED) as fed,
        Workers(broker.bootstrap, tmp_path / "w", app=MODULE, env=fed.env) as workers,
    ):
        killing = Killing(workers, fed, GUARANTEE, SEED)
        fed.feed(PER_S[Payments])
        killing.start(*GATE_WORKERS)
        for _ in range(kills):
            killing.kill_broker(broker)
        killing.finish()
        killing.check(SEED)
        told(killing, record_property)


GATE_POINTS = ("after_txn_offsets:3", "during_end:3")
SLOW_POINTS = (
    "processing:100", "after_seal:3", "after_flush:3", "before_adopt:3", "during_write",
    "after_write:3",
)  # fmt: skip


def dies_at(broker: str, point: str) -> Any:
    slow = broker != "embedded" or point in SLOW_POINTS
    marks = [*MARKS[broker], *([pytest.mark.slow] if slow else [])]
    return pytest.param(broker, point, marks=marks, id=f"{broker}-{point.partition(':')[0]}")


@pytest.mark.parametrize(
    ("broker", "point"),
    [dies_at(broker, point) for broker in MARKS for point in (*GATE_POINTS, *SLOW_POINTS)],
    indirect=["broker"],
)
def test_worker_that_dies_at_a_crash_point_leaves_no_trace(
    broker: Broker, point: str, tmp_path: Path
) -> None:
    with (
        Payments(broker.bootstrap, tmp_path, SEED, users=MANY) as fed,
        Workers(broker.bootstrap, tmp_path / "w", app=MODULE, env=fed.env) as workers,
    ):
        killing = Killing(workers, fed, GUARANTEE, SEED)
        fed.send(MANY)
        fed.feed(PER_S[Payments])
        killing.die("a", point)
        killing.finish()
        killing.check(SEED)


@pytest.mark.parametrize("broker", ["embedded"], indirect=True)
def test_kill_behind_a_flush_under_at_least_once_is_found(broker: Broker, tmp_path: Path) -> None:
    """The worker is killed after it has sent outputs and changelog rows, and before it commits
    offsets.

    The test finds the doubled outputs, rows that are in no changelog, and records that were
    restored beyond the last transaction.
    """
    with (
        Payments(broker.bootstrap, tmp_path, SEED) as fed,
        Workers(broker.bootstrap, tmp_path / "w", app=MODULE, env=fed.env) as workers,
    ):
        killing = Killing(workers, fed, AT_LEAST_ONCE, SEED)
        fed.feed(PER_S[Payments])
        killing.die("a", "after_flush:3")
        killing.finish()
        found = killing.findings()
        assert [each for each in found if "0 lost" in each and "0 too many" not in each], found
        assert [each for each in found if "table accounts" in each], found
        assert not [each for each in found if "store of" in each], found
        assert list(killing.too_much_restored()), "nothing was restored"
        with opened(next(killing.paths())[1]) as store:
            store.write({ROW + b'"u1"': b"7"}, store.position())
        assert len(list(killing.wrong_stores())) == 1


@pytest.mark.parametrize(
    ("broker", "fences"),
    [
        ("embedded", 4),
        pytest.param("embedded", 15, marks=pytest.mark.slow),
        pytest.param("kafka", 15, marks=[pytest.mark.slow, *ON_KAFKA]),
        pytest.param("kafka_of_v1", 15, marks=[pytest.mark.slow, *ON_KAFKA]),
    ],
    indirect=["broker"],
)
def test_worker_fenced_from_outside_leaves_no_trace(
    broker: Broker, fences: int, tmp_path: Path, record_property: Record
) -> None:
    """A worker that is fenced three times in a minute ends; its successor continues exactly.

    A fence that meets a transaction which is being ended has no effect on Apache Kafka.
    """
    with (
        Payments(broker.bootstrap, tmp_path, SEED) as fed,
        Workers(broker.bootstrap, tmp_path / "w", app=MODULE, env=fed.env) as workers,
    ):
        killing = Killing(workers, fed, GUARANTEE, SEED)
        fed.feed(PER_S[Payments])
        killing.start("a")
        ended = sum(killing.fence("a") for _ in range(fences))
        killing.finish()
        killing.check(SEED)
        assert killing.aborted, "no fence has hit a transaction"
        assert fences // 5 <= ended <= fences // 3
        record_property("ended", ended)
        told(killing, record_property)


@pytest.mark.parametrize(
    "broker",
    [
        "embedded",
        pytest.param("kafka", marks=[pytest.mark.slow, *ON_KAFKA]),
    ],
    indirect=True,
)
def test_body_slower_than_the_transaction_timeout_gives_every_output(
    broker: Broker, tmp_path: Path, record_property: Record
) -> None:
    with (
        Payments(broker.bootstrap, tmp_path, SEED, slow=(60, 3.0)) as fed,
        Workers(broker.bootstrap, tmp_path / "w", app=MODULE, env=fed.env) as workers,
    ):
        killing = Killing(workers, fed, GUARANTEE, SEED, transaction_timeout="2s")
        fed.feed(40)
        killing.start("a")
        workers.until(lambda: fed.fed > 150, "three slow payments")
        killing.finish()
        killing.check(SEED)
        assert killing.aborted <= 1
        told(killing, record_property)


@pytest.mark.parametrize(
    "broker",
    [
        "embedded",
        pytest.param("kafka", marks=[pytest.mark.slow, *ON_KAFKA]),
    ],
    indirect=True,
)
def test_each_dead_letter_is_kept_once_over_kills(
    broker: Broker, tmp_path: Path, record_property: Record
) -> None:
    with (
        DeadLetters(broker.bootstrap, tmp_path, SEED, limit=10_000) as fed,
        Workers(broker.bootstrap, tmp_path / "w", app=MODULE, env=fed.env) as workers,
    ):
        killing = Killing(workers, fed, GUARANTEE, SEED)
        fed.feed(1000)
        killing.start(*GATE_WORKERS)
        killing.run(3)
        workers.until(lambda: fed.all_sent, "all payments")
        killing.finish()
        killing.check(SEED)
        told(killing, record_property)


def told(killing: Killing, record_property: Record) -> None:
    """Keep the figures of a run as properties of the test."""
    kills, restored = len(killing.kills), killing.largest_restore
    figures = f"{killing.app.fed} fed, {kills} kills, {killing.aborted} aborts, {restored} restored"
    record_property("figures", figures)


@pytest.mark.parametrize(
    "broker", ["embedded", pytest.param("kafka", marks=[pytest.mark.slow, *ON_KAFKA])],
    indirect=True,
)  # fmt: skip
def test_running_app_changes_its_guarantee_worker_by_worker(broker: Broker, tmp_path: Path) -> None:
    """The app changes to exactly-once and back while records flow; a clean end repeats no record
    under either guarantee.
    """
    with (
        Payments(broker.bootstrap, tmp_path, SEED) as fed,
        Workers(broker.bootstrap, tmp_path / "w", app=MODULE, env=fed.env) as workers,
    ):
        before = Killing(workers, fed, AT_LEAST_ONCE, SEED)
        after = Killing(workers, fed, EXACTLY_ONCE, SEED)
        fed.feed(PER_S[Payments])
        before.start(*GATE_WORKERS)
        for group in (after, before):
            for name in GATE_WORKERS:
                assert workers.stop(name) == [0]
                group.start(name)
        before.workers_are(*GATE_WORKERS)
        before.finish()
        before.check(SEED)
