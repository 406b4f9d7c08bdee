"""The rebalance metrics of consumers, by their names in KIP-429, of one member.

An observer: it is shown each event of the member with its effects, and decides nothing. Latencies
are of what stands for a consumer's callbacks: from the revoke to the release, and how long the
worker took over what it was given or has lost. A rebalance lasts from what began it, which of an
eager member is its first revoke, until the worker has taken its assignment in.

Not here: who reads them (a join carries them, the event `metrics` has them).
"""

from collections import deque
from collections.abc import Iterable, Mapping

from streamsx.assignor.model import METRICS
from streamsx.group import member_events as e
from streamsx.model import TopicPartition

HOUR_S = 3600.0
NEVER = -1.0
BEGINS = e.Joining | e.Revoke
"""A rebalance; of an eager member the latter, which else is within one."""
FAILED = "failed-rebalance-total"


class Latency:
    """Seconds in, milliseconds out."""

    def __init__(self) -> None:
        self.count, self.total, self.max = 0, 0.0, 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds * 1000
        self.max = max(self.max, seconds * 1000)

    @property
    def avg(self) -> float:
        return self.total / self.count if self.count else 0.0


class RebalanceMetrics:
    """`observe` is called on the member's thread, `assigned` and `lost` on its worker's."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._revoked, self._assigned, self._lost = Latency(), Latency(), Latency()
        self._rebalance, self._failed = Latency(), 0
        self._ended: float | None = None
        self._asked = dict[TopicPartition, tuple[int, float]]()
        """Of what was asked for: the number of the newest revoke, and when that was."""
        self._began: float | None = None
        self._under_way: deque[float] = deque()
        """When those rebalances began whose assignment the worker has yet to take in."""

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
        """Together, what was asked for together; others may have been asked for since."""
        asked = {tp: self._asked[tp] for tp in event.tps & self._asked.keys()}
        answered = {tp: at for tp, (number, at) in asked.items() if number == event.number}
        for at in {*answered.values()}:
            self._revoked.add(now - at)
        for tp in answered:
            del self._asked[tp]

    def assigned(self, now: float, took_s: float) -> None:
        """The worker has taken an assignment in."""
        self._assigned.add(took_s)
        if self._under_way:
            self._rebalance.add(now - self._under_way.popleft())
            self._ended = now

    def lost(self, took_s: float) -> None:
        self._lost.add(took_s)

    def values(self, now: float) -> Mapping[str, float]:
        """By name: milliseconds, numbers, per hour since the member began, seconds."""
        hours = max(now - self._since, 1.0) / HOUR_S
        ended, every = self._ended, self._rebalance
        latencies = (self._revoked, self._assigned, self._lost)
        return dict(zip(METRICS, (
            *(figure for latency in latencies for figure in (latency.avg, latency.max)),
            every.count / hours, every.count, every.avg, every.max, every.total,
            self._failed / hours, self._failed, NEVER if ended is None else now - ended,
        ), strict=True))  # fmt: skip
