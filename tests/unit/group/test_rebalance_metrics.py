"""Metrics of KIP-429 by name and value, for a member played by hand."""

from collections.abc import Callable

import pytest

from streamsx.assignor.model import METRICS
from streamsx.group import member_events as e
from streamsx.group.rebalance_metrics import RebalanceMetrics
from streamsx.metrics import MetricRegistry
from streamsx.model import TopicPartition
from tests.unit.group.conftest import Play

Plays = Callable[..., Play]
P, Q = TopicPartition("t", 0), TopicPartition("t", 1)


class Watched:
    """Member with its metrics."""

    def __init__(self, play: Play) -> None:
        self.play, self.metrics = play, RebalanceMetrics(MetricRegistry(), 0.0)
        step = play.member.step

        def stepped(now: float, event: e.Event) -> list[e.Effect]:
            effects = step(now, event)
            self.metrics.observe(now, event, effects)
            return effects

        play.member.step = stepped  # type: ignore[method-assign]  # it is watched, no more

    def values(self, *names: str) -> list[float]:
        told = self.metrics.values(self.play.now)
        assert tuple(told) == METRICS
        return [round(told[name], 3) for name in names]


def test_rebalance_metrics_are_empty_before_first_rebalance(play: Plays) -> None:
    watched = Watched(play())
    assert watched.values(*METRICS) == [0.0] * 13 + [-1.0]


def test_rebalance_latency_lasts_until_worker_takes_assignment(play: Plays) -> None:
    group = play()
    watched = Watched(group)
    group.begin()
    group.now = 0.2
    group.joined(1)
    group.synced(P)
    assert watched.values("rebalance-total") == [0.0]
    watched.metrics.assigned(group.now + 0.05, 0.04)
    group.now = 1800.0

    assert watched.values(
        "rebalance-total", "rebalance-latency-avg", "rebalance-latency-max",
        "rebalance-latency-total", "rebalance-rate-per-hour", "last-rebalance-seconds-ago",
        "partitions-assigned-latency-avg",
    ) == [1.0, 250.0, 250.0, 250.0, 2.0, 1799.75, 40.0]  # fmt: skip

    watched.metrics.assigned(group.now, 0.02)  # given back, which is no rebalance
    assert watched.values("rebalance-total", "partitions-assigned-latency-max") == [1.0, 40.0]


def test_revoke_latency_lasts_until_release(play: Plays) -> None:
    group = play()
    watched = Watched(group)
    group.stable(P, Q)
    asked = next(x for x in group.stable(Q, generation=2) if isinstance(x, e.Revoke))
    group.now += 0.3
    group.feed(e.Released(frozenset({P}), asked.number))
    watched.metrics.lost(0.01)

    names = ("partitions-revoked-latency-avg", "partitions-revoked-latency-max")
    assert watched.values(*names, "partitions-lost-latency-max") == [300.0, 300.0, 10.0]


def test_revoke_released_after_a_newer_one_counts(play: Plays) -> None:
    """A callback takes its time, while no member waits: the longest time was left out."""
    group = play()
    watched = Watched(group)
    group.stable(P, Q)
    first = next(x for x in group.stable(Q, generation=2) if isinstance(x, e.Revoke))
    group.now += 4.0
    second = next(x for x in group.stable(generation=3) if isinstance(x, e.Revoke))
    group.now += 1.0
    group.feed(e.Released(frozenset({Q}), second.number))
    group.feed(e.Released(frozenset({P}), first.number))
    group.feed(e.Released(frozenset({P}), first.number))

    names = ("partitions-revoked-latency-avg", "partitions-revoked-latency-max")
    assert watched.values(*names) == [3000.0, 5000.0]


def test_eager_rebalance_latency_begins_with_revoke(play: Plays) -> None:
    group = play(eager=True)
    watched = Watched(group)
    group.stable(P)
    watched.metrics.assigned(group.now, 0.0)
    asked = next(x for x in group.feed(e.Want("new")) if isinstance(x, e.Revoke))
    group.now += 2.0
    group.feed(e.Released(frozenset({P}), asked.number))
    group.joined(2)
    group.synced(P)
    watched.metrics.assigned(group.now, 0.0)

    assert watched.values("rebalance-total", "rebalance-latency-max") == [2.0, 2000.0]


def test_failed_rebalance_is_counted(play: Plays) -> None:
    group = play()
    watched = Watched(group)
    group.begin()
    group.now = 1800.0
    group.answer(e.JoinGroup, 14)
    assert watched.values("failed-rebalance-total", "failed-rebalance-rate-per-hour") == [1.0, 2.0]


@pytest.mark.parametrize("name", METRICS)
def test_metric_names_follow_specification(name: str) -> None:
    assert name.partition("-")[0] in ("partitions", "rebalance", "failed", "last")
