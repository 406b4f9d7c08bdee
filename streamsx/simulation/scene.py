"""What a seed draws of a world, beside its faults: sizes, rates, settings, what the app does.

Each field has a stream of random numbers of its own, so that a new one changes no old seed. Small
numbers: the shapes that matter need few members and few tasks.
"""

import random
from dataclasses import dataclass

APP = "wc"
LINES, WORDS, COUNTS = f"{APP}-lines", f"{APP}-words", f"{APP}-counts-changelog"
SIZES = f"{APP}-sizes-changelog"
A, B, ROUTED = f"{APP}-a", f"{APP}-b", f"{APP}-routed"


@dataclass(frozen=True, slots=True)
class Scene:
    """Seconds, partitions, shares of records. The app: `split` cuts lines into words, `count`
    counts them, with `sizes` a second agent of the same topic adds their lengths, and with `pair`
    `route` passes on what comes in two topics, in one sub-topology without state.

    `sleepy`: of the records of `count` and `route`, which wait for something foreign. `poison`: of
    the lines, which fail; half of them cannot even be decoded. `hop_s`: until a thread wakes up;
    `preempt`: of the looks at a clock, after which others run first.
    """

    workers: int = 3
    lines: int = 4
    words: int = 4
    pair: tuple[int, int] | None = None
    sizes: bool = False
    sleepy: float = 0.0
    poison: float = 0.0
    rate: float = 20.0
    vocabulary: int = 100
    memory: str = "32MiB"
    lag: int = 20
    max_learners: int | None = 2
    imbalance: float = 0.0
    revoke_s: float = 15.0
    sessions: tuple[float, ...] = (10.0,)
    commits: tuple[float, ...] = (1.0,)
    waits: tuple[float, ...] = (0.5,)
    latency_s: float = 0.001
    hop_s: float = 0.001
    preempt: float = 0.0
    idle_s: float = 600.0

    def session_s(self, worker: int) -> float:
        return self.sessions[worker % len(self.sessions)]

    def settings(self, worker: int) -> dict[str, object]:
        """Of this worker's app; a group may have workers with several versions of them."""
        return {
            "topic_partitions": self.words,
            "session_timeout": self.session_s(worker),
            "heartbeat_interval": min(3.0, self.session_s(worker) / 3),
            "rebalance_timeout": 15.0,
            "revoke_timeout": self.revoke_s,
            "commit_interval": self.commits[worker % len(self.commits)],
            "acceptable_recovery_lag": self.lag,
            "max_learners_per_member": self.max_learners,
            "imbalance_percentage": self.imbalance,
            "fetch_max_wait": self.waits[worker % len(self.waits)],
            "memory_budget": self.memory,
        }

    @property
    def sources(self) -> dict[str, int]:
        """Topics that the client feeds, and their partitions."""
        pair = dict(zip((A, B), self.pair, strict=True)) if self.pair else {}
        return {LINES: self.lines, **pair}

    @property
    def changelogs(self) -> tuple[str, ...]:
        return (COUNTS, SIZES) if self.sizes else (COUNTS,)

    @property
    def tasks(self) -> int:
        return self.lines + self.words + (max(self.pair) if self.pair else 0)


def draw(seed: int) -> Scene:
    def of(name: str) -> random.Random:
        return random.Random(f"{seed}/scene/{name}")

    return Scene(
        workers=of("workers").choice([2, 3, 3, 4]),
        lines=of("lines").choice([1, 2, 4]),
        words=of("words").choice([2, 4, 4, 12]),
        pair=of("pair").choice([None, None, (4, 2), (1, 3)]),
        sizes=of("sizes").random() < 0.3,
        sleepy=of("sleepy").choice([0.0, 0.0, 0.01]),
        poison=of("poison").choice([0.0, 0.0, 0.01]),
        rate=of("rate").choice([4.0, 12.0]),
        lag=of("lag").choice([0, 20, 200]),
        max_learners=of("max_learners").choice([None, 0, 1, 2]),
        imbalance=of("imbalance").choice([0.0, 0.2]),
        revoke_s=of("revoke").choice([3.0, 15.0]),
        sessions=of("session").choice([(10.0,), (10.0,), (6.0, 10.0, 15.0)]),
        commits=of("commit").choice([(1.0,), (1.0, 3.0)]),
        waits=of("wait").choice([(0.5,), (1.0,), (0.25, 1.0)]),
        latency_s=of("latency").choice([0.0005, 0.003, 0.02]),
        hop_s=of("hop").choice([0.0001, 0.002, 0.02]),
        preempt=of("preempt").choice([0.0, 0.0, 0.01]),
        idle_s=of("idle").choice([600.0, 600.0, 4.0]),
    )
