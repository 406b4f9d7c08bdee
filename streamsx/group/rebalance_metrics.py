"""Rebalance metrics of one member, by the names of Kafka's consumer metrics in KIP-429.

An observer: each event of the member is passed in with its effects, and nothing is decided here.
The latencies stand for those of a consumer's callbacks. The revoke latency runs from the revoke to
the release. The other latencies are the worker's time to process assigned or lost partitions. A
rebalance lasts from its start until the worker has processed its assignment; for an eager member
the start is the first revoke.

The registry has what is counted, in seconds; the averages and rates of KIP-429 come out of that.

Not here: the readers of the metrics (a join carries them, the event `metrics` has them).
"""

from collections import deque
from collections.abc import Iterable, Mapping

from streamsx.assignor.model import METRICS
from streamsx.group import member_events as e
from streamsx.metrics import MetricRegistry
from streamsx.model import TopicPartition

HOUR_S = 3600.0
NEVER = -1.0
BEGINS = e.Joining | e.Revoke
"""Effects that begin a rebalance; `Revoke` does so for an eager member, else it lies within one."""
FAILED = "failed-rebalance-total"


class RebalanceMetrics:
    """Metrics of one member.

    `observe` is called on the member's thread, `assigned` and `lost` on the worker's.
    """

    def __init__(self, registry: MetricRegistry, now: float) -> None:
        self._since = now
        self._revoked = registry.latency(
            "partitions_revoked_latency_seconds", "Time from a revoke to the release."
        )
        self._assigned = registry.latency(
            "partitions_assigned_latency_seconds", "Time to process assigned partitions."
        )
        self._lost = registry.latency(
            "partitions_lost_latency_seconds", "Time to process lost partitions."
        )
        self._rebalance = registry.latency(
            "rebalance_latency_seconds",
            "Time from the start of a rebalance until its assignment is processed.",
        )
        self._failed = registry.counter("failed_rebalances_total", "Rebalances that failed.")
        self._ended: float | None = None
        self._asked = dict[TopicPartition, tuple[int, float]]()
        """Per revoked partition, the number of the newest revoke and its time."""
        self._began: float | None = None
        self._under_way: deque[float] = deque()
        """Start times of the rebalances whose assignment the worker has not processed yet."""

    def observe(self, now: float, event: e.Event, effects: Iterable[e.Effect]) -> None:
        if isinstance(event, e.Released):
            self._released(now, event)
        for effect in effects:
            if self._began is None and isinstance(effect, BEGINS):
                self._began = now
            match effect:
                case e.OnAssignment() if self._began is not None:
                    self._under_way.append(self._began)
                    self._began = None
                case e.Revoke(tps, number):
                    self._asked.update(dict.fromkeys(tps, (number, now)))
                case e.Count(metric) if metric == FAILED:
                    self._failed.add(1)

    def _released(self, now: float, event: e.Released) -> None:
        """Record one latency per revoke for the partitions released together.

        A partition of another revoke, sent since, is left for its own release.
        """
        asked = {tp: self._asked[tp] for tp in event.tps & self._asked.keys()}
        answered = {tp: at for tp, (number, at) in asked.items() if number == event.number}
        for at in {*answered.values()}:
            self._revoked.observe(now - at)
        for tp in answered:
            del self._asked[tp]

    def assigned(self, now: float, took_s: float) -> None:
        """Record that the worker has processed an assignment, in `took_s` seconds."""
        self._assigned.observe(took_s)
        if self._under_way:
            self._rebalance.observe(now - self._under_way.popleft())
            self._ended = now

    def lost(self, took_s: float) -> None:
        self._lost.observe(took_s)

    def values(self, now: float) -> Mapping[str, float]:
        """Return the metrics by name.

        Units: milliseconds, counts, rates per hour since the member's start, seconds.
        """
        hours = max(now - self._since, 1.0) / HOUR_S
        ended = self._ended
        every = self._rebalance
        failed = self._failed.value()
        latencies = (self._revoked, self._assigned, self._lost)
        return dict(zip(METRICS, (
            *(s * 1000 for latency in latencies for s in (latency.mean, latency.max)),
            every.count / hours, every.count,
            every.mean * 1000, every.max * 1000, every.sum * 1000,
            failed / hours, failed, NEVER if ended is None else now - ended,
        ), strict=True))  # fmt: skip
