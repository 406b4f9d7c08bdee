"""Rebalance metrics of one member, by the names of Kafka's consumer metrics in KIP-429.

An observer: each event of the member is passed in with its effects, and nothing is decided here.
The latencies stand for those of a consumer's callbacks. The revoke latency runs from the revoke to
the release. The other latencies are the worker's time to process assigned or lost partitions. A
rebalance lasts from its start until the worker has processed its assignment; for an eager member
the start is the first revoke.

Not here: the readers of the metrics (a join carries them, the event `metrics` has them).
"""

from collections import deque
from collections.abc import Iterable, Mapping

from streamsx.assignor.model import METRICS
from streamsx.group import member_events as e
from streamsx.model import TopicPartition

HOUR_S = 3600.0
NEVER = -1.0
BEGINS = e.Joining | e.Revoke
"""Effects that begin a rebalance; `Revoke` does so for an eager member, else it lies within one."""
FAILED = "failed-rebalance-total"


class Latency:
    """Count, total and maximum of durations: seconds in, milliseconds out."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.max = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds * 1000
        self.max = max(self.max, seconds * 1000)

    @property
    def avg(self) -> float:
        return self.total / self.count if self.count else 0.0


class RebalanceMetrics:
    """Metrics of one member.

    `observe` is called on the member's thread, `assigned` and `lost` on the worker's.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._revoked = Latency()
        self._assigned = Latency()
        self._lost = Latency()
        self._rebalance = Latency()
        self._failed = 0
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
                    self._failed += 1

    def _released(self, now: float, event: e.Released) -> None:
        """Record one latency per revoke for the partitions released together.

        A partition of another revoke, sent since, is left for its own release.
        """
        asked = {tp: self._asked[tp] for tp in event.tps & self._asked.keys()}
        answered = {tp: at for tp, (number, at) in asked.items() if number == event.number}
        for at in {*answered.values()}:
            self._revoked.add(now - at)
        for tp in answered:
            del self._asked[tp]

    def assigned(self, now: float, took_s: float) -> None:
        """Record that the worker has processed an assignment, in `took_s` seconds."""
        self._assigned.add(took_s)
        if self._under_way:
            self._rebalance.add(now - self._under_way.popleft())
            self._ended = now

    def lost(self, took_s: float) -> None:
        self._lost.add(took_s)

    def values(self, now: float) -> Mapping[str, float]:
        """Return the metrics by name.

        Units: milliseconds, counts, rates per hour since the member's start, seconds.
        """
        hours = max(now - self._since, 1.0) / HOUR_S
        ended = self._ended
        every = self._rebalance
        latencies = (self._revoked, self._assigned, self._lost)
        return dict(zip(METRICS, (
            *(figure for latency in latencies for figure in (latency.avg, latency.max)),
            every.count / hours, every.count, every.avg, every.max, every.total,
            self._failed / hours, self._failed, NEVER if ended is None else now - ended,
        ), strict=True))  # fmt: skip
