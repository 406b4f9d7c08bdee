"""Metrics of one worker or broker: counters, gauges and histograms, in one registry. Pure.

The module that feeds a metric declares the metric, once: name, help, unit and labels. Names follow
Prometheus: the unit comes last, and `_total` ends the name of a counter.

One thread feeds a metric, once per batch, request or rebalance; once per record only where the
record failed or was refused. Any thread may read counters and histograms. A gauge asks its owner,
so gauges are read on the owner's thread.

Not here: a text format and an endpoint.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from streamsx.errors import Bug

NAME = re.compile(r"[a-z][a-z0-9_]*")
LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of a latency, in seconds; one more bucket has no bound."""

Labels = tuple[tuple[str, str], ...]
"""Pairs of a label's name and value."""


class Sample(NamedTuple):
    """Figure of a metric, as read."""

    name: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Declaration:
    """Declaration of a metric; `name` is the whole name, `unit` a plural, or empty for counts."""

    name: str
    help: str
    unit: str
    labels: tuple[str, ...] = ()


class Counter:
    """Count since the start; with labels, one count for each combination of their values."""

    __slots__ = ("_counts", "declared")

    def __init__(self, declared: Declaration) -> None:
        self.declared = declared
        self._counts: dict[tuple[str, ...], int] = {} if declared.labels else {(): 0}
        # A reader copies them first: the feeder's thread may begin a count meanwhile.

    def add(self, count: int, *labels: str) -> None:
        """Add to the count of these label values, which are in the order of the declaration."""
        if labels not in self._counts:
            self._begin(labels)
        self._counts[labels] += count

    def _begin(self, labels: tuple[str, ...]) -> None:
        names = self.declared.labels
        if len(labels) != len(names):
            raise Bug(f"metric {self.declared.name}: labels {names} have the values {labels}")
        self._counts[labels] = 0

    def value(self, *labels: str) -> int:
        return self._counts.get(labels, 0)

    def total(self) -> int:
        """Return the sum over all label values."""
        return sum(self._counts.copy().values())

    def samples(self) -> Iterator[Sample]:
        declared = self.declared
        for values, count in sorted(self._counts.copy().items()):
            yield Sample(declared.name, tuple(zip(declared.labels, values, strict=True)), count)


class Gauge:
    """Current value, asked from its owner when it is read."""

    __slots__ = ("declared", "value")

    def __init__(self, declared: Declaration, value: Callable[[], float]) -> None:
        self.declared = declared
        self.value = value

    def samples(self) -> Iterator[Sample]:
        yield Sample(self.declared.name, (), self.value())


class Histogram:
    """Distribution over buckets of fixed bounds, with the count, the sum and the largest value.

    `max` has no sample, because Prometheus' histograms have none.
    """

    __slots__ = ("_bounds", "_buckets", "count", "declared", "max", "sum")

    def __init__(self, declared: Declaration, bounds: tuple[float, ...]) -> None:
        self.declared = declared
        self._bounds = bounds
        self._buckets = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0
        self.max = 0.0

    def observe(self, value: float) -> None:
        """Count a value, which is not negative, in the first bucket whose bound is not below it."""
        self._buckets[bisect_left(self._bounds, value)] += 1
        self.count += 1
        self.sum += value
        self.max = max(self.max, value)

    @property
    def mean(self) -> float:
        """Return the mean of all values; 0 before the first."""
        return self.sum / self.count if self.count else 0.0

    def samples(self) -> Iterator[Sample]:
        """Return the samples; a bucket counts all values up to its bound, as in Prometheus."""
        name = self.declared.name
        bounds = (*(f"{bound:g}" for bound in self._bounds), "+Inf")
        for bound, count in zip(bounds, accumulate(self._buckets), strict=True):
            yield Sample(f"{name}_bucket", (("le", bound),), count)
        yield Sample(f"{name}_sum", (), self.sum)
        yield Sample(f"{name}_count", (), self.count)


Metric = Counter | Gauge | Histogram


class MetricRegistry:
    """All metrics of one worker or broker, in the order of their declaration.

    Args:
        prefix: beginning of all names.
    """

    def __init__(self, prefix: str = "streamsx_") -> None:
        self.prefix = prefix
        self._metrics: dict[str, Metric] = {}

    def counter(
        self, name: str, text: str, *, unit: str = "", labels: tuple[str, ...] = ()
    ) -> Counter:
        """Declare a counter; `text` is its help.

        Raises:
            Bug: the name is taken, or does not end with the unit and `_total`.
        """
        if not name.endswith("_total"):
            raise Bug(f"metric {name}: the name of a counter ends with _total")
        declared = self._declare(name, name.removesuffix("_total"), text, unit, labels)
        made = self._metrics[declared.name] = Counter(declared)
        return made

    def gauge(self, name: str, text: str, value: Callable[[], float], *, unit: str = "") -> Gauge:
        """Declare a gauge; `value` returns the current value.

        Raises:
            Bug: the name is taken, or does not end with the unit.
        """
        declared = self._declare(name, name, text, unit)
        made = self._metrics[declared.name] = Gauge(declared, value)
        return made

    def latency(self, name: str, text: str) -> Histogram:
        """Declare a histogram of durations in seconds.

        Raises:
            Bug: the name is taken, or does not end with the unit.
        """
        declared = self._declare(name, name, text, "seconds")
        made = self._metrics[declared.name] = Histogram(declared, LATENCY_BOUNDS_S)
        return made

    def _declare(
        self, name: str, stem: str, text: str, unit: str, labels: tuple[str, ...] = ()
    ) -> Declaration:
        whole = self.prefix + name
        if whole in self._metrics:
            raise Bug(f"metric {whole}: declared twice: one module feeds a metric")
        if not NAME.fullmatch(whole) or not f"_{stem}".endswith(f"_{unit}" if unit else ""):
            raise Bug(f"metric {whole}: a name in small letters that ends with {unit!r} is wanted")
        return Declaration(whole, text, unit, labels)

    def metrics(self) -> tuple[Metric, ...]:
        return tuple(self._metrics.values())

    def samples(self) -> Iterator[Sample]:
        """Return the figures of all metrics, gauges asked now."""
        for metric in self.metrics():
            yield from metric.samples()
