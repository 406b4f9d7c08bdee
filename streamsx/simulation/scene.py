"""Scene of a world: the sizes, rates, settings and app that a seed draws beside its faults.

Each field has a stream of random numbers of its own, so that a new field changes no old seed. The
numbers are small: the shapes that matter need few members and few tasks.
"""

import random
from dataclasses import dataclass, field, fields, replace
from typing import Any

from streamsx.config import AT_LEAST_ONCE, EXACTLY_ONCE

APP = "wc"
LINES = f"{APP}-lines"
WORDS = f"{APP}-words"
COUNTS = f"{APP}-counts-changelog"
SIZES = f"{APP}-sizes-changelog"
A = f"{APP}-a"
B = f"{APP}-b"
ROUTED = f"{APP}-routed"
FINALS = f"{APP}-finals"
JOINED = f"{APP}-joined"
WINDOW_MS = 2000
GRACE_MS = 500
WITHIN_MS = 1000


def drawn(usual: Any, choices: tuple[Any, ...], stream: str = "") -> Any:
    """Return a field of a scene.

    `usual`: value in a hand-made scene; `choices`: values that a seed draws from; `stream`: name of
    the field's random numbers, by default the name of the field.
    """
    return field(default=usual, metadata={"choices": choices, "stream": stream})


@dataclass(frozen=True, slots=True)
class Scene:
    """Values of one world: seconds, partitions, shares of records.

    The app: `split` cuts lines into words, and `count` counts them. With `sizes`, a second agent of
    the same topic adds their lengths. With `flows`, flows of that topic count words by windows, and
    join the words with some of themselves. With `pair`, `route` passes on the records of two
    topics, in one sub-topology without state.

    `sleepy`: share of the records of `count` and `route` that wait for a foreign future; `poison`:
    share of the lines that fail, half of which cannot even be decoded; `hop_s`: mean seconds until
    a thread wakes up; `preempt`: share of the looks at a clock that let other threads run first.
    """

    workers: int = drawn(3, (2, 3, 3, 4))
    lines: int = drawn(4, (1, 2, 4))
    words: int = drawn(4, (2, 4, 4, 12))
    pair: tuple[int, int] | None = drawn(None, (None, None, (4, 2), (1, 3)))
    sizes: bool = False
    moody: bool = drawn(False, (False, False, True))
    """Whether `size` waits for a foreign future or fails on some records; implies `sizes`."""
    flows: bool = drawn(False, (False, False, False, True), "closings")
    sleepy: float = drawn(0.0, (0.0, 0.0, 0.01))
    poison: float = drawn(0.0, (0.0, 0.0, 0.01))
    rate: float = drawn(20.0, (4.0, 12.0))
    vocabulary: int = 100
    memory: str = "32MiB"
    lag: int = drawn(20, (0, 20, 200))
    max_learners: int | None = drawn(2, (None, 0, 1, 2))
    imbalance: float = drawn(0.0, (0.0, 0.2))
    partial: bool = drawn(True, (True, True, False))
    eager: str = drawn("none", ("none", "none", "none", "all", "some", "bounced"))
    static: str = drawn("none", ("none", "none", "none", "all", "some"), "standing")
    older: str = drawn("none", ("none", "none", "none", "none", "first", "odd"), "versions")
    """Lives of a worker that run the app without `pair`, until the world is healed."""
    slow_revoke_s: float = drawn(0.0, (0.0, 0.0, 0.0, 0.5, 5.0))
    """Seconds that a rebalance callback of the app takes."""
    standbys: int = drawn(0, (0, 0, 1, 2))
    zones: tuple[str, ...] = drawn(("",), (("",), ("a", "b")))
    revoke_s: float = drawn(15.0, (3.0, 15.0), "revoke")
    sessions: tuple[float, ...] = drawn((10.0,), ((10.0,), (10.0,), (6.0, 10.0, 15.0)), "session")
    commits: tuple[float, ...] = drawn((1.0,), ((1.0,), (1.0, 3.0)), "commit")
    waits: tuple[float, ...] = drawn((0.5,), ((0.5,), (1.0,), (0.25, 1.0)), "wait")
    latency_s: float = drawn(0.001, (0.0005, 0.003, 0.02), "latency")
    hop_s: float = drawn(0.001, (0.0001, 0.002, 0.02), "hop")
    preempt: float = drawn(0.0, (0.0, 0.0, 0.01))
    idle_s: float = drawn(600.0, (600.0, 600.0, 4.0), "idle")
    compacts: bool = drawn(False, (False, False, True), "compaction")
    """Whether changelogs are compacted every few seconds, however small."""
    sync: bool = drawn(False, (False, False, False, True), "sync")
    """Whether the broker flushes: a power cut takes unflushed data, and flushes may fail."""
    unsynced: bool = drawn(False, (False, False, False, True), "power")
    """Whether a power cut takes unflushed data without `sync` too: the promise ends there."""
    segment_bytes: int = drawn(0, (0, 0, 2000), "segments")
    """Segment size of the broker's logs, as an admin sets it; 0 for the default."""
    upstream: str = drawn("none", ("none", "none", "none", "v1", "v2"))
    """Version of the transaction protocol that an external producer uses; none without one."""
    reset: str = drawn("earliest", ("earliest", "earliest", "latest"))
    """Setting `consumer_auto_offset_reset`; see `latest`."""
    exact: str = drawn("none", ("none", "none", "v1", "v2"))
    """Version of the protocol in which workers process exactly once; none for at least once."""
    open_s: float = drawn(10.0, (4.0, 10.0, 25.0), "transaction")
    """Time-out of a worker's transactions: below and above its session."""
    readers: int = drawn(0, (0, 0, 0, 2, 3))
    """Number of readers of lines, in a group of the consumer protocol."""

    @property
    def is_exact(self) -> bool:
        """Return whether workers process exactly once."""
        return self.exact != "none"

    @property
    def latest(self) -> bool:
        """Return whether workers begin at the ends of topics.

        They do not if other producers write before the app has begun, nor if topics grow: a worker
        that lost its disk no longer knows how many partitions there were.
        """
        return self.reset == "latest" and self.upstream == "none" and self.pair is None

    def session_s(self, worker: int) -> float:
        return self.sessions[worker % len(self.sessions)]

    def is_eager(self, worker: int, life: int) -> bool:
        """Return whether a worker is eager; `bounced` workers change with each life."""
        numbers = {"none": 0, "all": 1, "some": worker, "bounced": worker + life}
        return bool(numbers[self.eager] % 2)

    def is_static(self, worker: int) -> bool:
        return self.static == "all" or (self.static == "some" and worker % 2 == 0)

    def is_older(self, life: int) -> bool:
        return {"none": False, "first": life == 1, "odd": life % 2 == 1}[self.older]

    def before(self) -> "Scene":
        """Return this scene with the app of the version before."""
        return replace(self, pair=None)

    def settings(self, worker: int, life: int) -> dict[str, object]:
        """Return the settings of a worker's app; workers of one group may differ in them."""
        zone = self.zones[worker % len(self.zones)]
        return {
            "processing_guarantee": EXACTLY_ONCE if self.is_exact else AT_LEAST_ONCE,
            "transaction_timeout": self.open_s,
            "topic_partitions": self.words,
            "session_timeout": self.session_s(worker),
            "heartbeat_interval": min(3.0, self.session_s(worker) / 3),
            "rebalance_timeout": 15.0,
            "revoke_timeout": self.revoke_s,
            "commit_interval": self.commits[worker % len(self.commits)]
            / (10 if self.is_exact else 1),
            "acceptable_recovery_lag": self.lag,
            "max_learners_per_member": self.max_learners,
            "imbalance_percentage": self.imbalance,
            "learner_partial_rebalance": self.partial,
            "num_standby_replicas": self.standbys,
            "upgrade_from": "2.3" if self.is_eager(worker, life) else None,
            "static_membership": self.is_static(worker),
            "tags": {"zone": zone} if zone else {},
            "fetch_max_wait": self.waits[worker % len(self.waits)],
            "memory_budget": self.memory,
            "consumer_auto_offset_reset": "latest" if self.latest else "earliest",
        }

    @property
    def sources(self) -> dict[str, int]:
        """Return the topics that the client feeds, with their partition counts."""
        pair = dict(zip((A, B), self.pair, strict=True)) if self.pair else {}
        return {LINES: self.lines, **pair}

    @property
    def tasks(self) -> int:
        return self.lines + self.words + (max(self.pair) if self.pair else 0)


def draw(seed: int) -> Scene:
    found: dict[str, Any] = {"sizes": random.Random(f"{seed}/scene/sizes").random() < 0.3}
    for each in fields(Scene):
        if "choices" in each.metadata:
            rng = random.Random(f"{seed}/scene/{each.metadata['stream'] or each.name}")
            found[each.name] = rng.choice(each.metadata["choices"])
    found["sizes"] = found["sizes"] or found["moody"]
    return Scene(**found)
