"""What a seed draws of a world, beside its faults: sizes, rates, rules.

The first subtopology keeps state, the second none. Small numbers: the shapes that matter need few
members and few tasks, and a small world is told in a short story.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from streamsx.assignor.model import Rules
from streamsx.assignor.partition_assignor import Subtopology
from streamsx.membership.member import MemberConfig
from streamsx.model import TaskId, TopicPartition

SESSION_S, REBALANCE_S, HEARTBEAT_S = 10.0, 15.0, 3.0
FAULTS_S, SETTLE_S, INPUT_S = 120.0, 120.0, 150.0
SUBTOPOLOGIES = (Subtopology(0, ("orders",), True, 7), Subtopology(1, ("clicks",), False, 8))


@dataclass(frozen=True, slots=True)
class Scene:
    """Rates are per second. `hop_s`: until one thread of a worker hears of the other; `history`:
    records in each changelog before anybody comes; `mutes`: as Kafka, the coordinator never answers
    the parked SyncGroup of a member that it removes."""

    rules: Rules
    workers: int
    partitions: dict[str, int]
    delay_s: float
    hop_s: float
    input_rate: float
    restore_rate: float
    history: int
    commit_s: float
    revoke_s: float
    mutes: bool

    def config(self, *, jitter: float) -> MemberConfig:
        return MemberConfig(SESSION_S, REBALANCE_S, HEARTBEAT_S, self.revoke_s, jitter)

    def input_end(self, now: float) -> int:
        """Records of each input partition by now."""
        return int(min(now, INPUT_S) * self.input_rate)

    def tasks(self) -> Iterator[TaskId]:
        for sub in SUBTOPOLOGIES:
            for partition in range(self.partitions[sub.topics[0]]):
                yield TaskId(sub.number, partition)


def source(task: TaskId) -> TopicPartition:
    return TopicPartition(SUBTOPOLOGIES[task.subtopology].topics[0], task.partition)


def stateful(task: TaskId) -> bool:
    return SUBTOPOLOGIES[task.subtopology].stateful


def draw(seed: int) -> Scene:
    rng = random.Random(f"{seed}/scene")
    return Scene(
        rules=Rules(
            acceptable_recovery_lag=rng.choice([0, 3, 20]),
            imbalance_percentage=rng.choice([0.0, 0.2]),
            max_learners_per_member=rng.choice([None, 0, 1, 2]),
        ),
        workers=rng.randint(1, 4),
        partitions={"orders": rng.randint(1, 6), "clicks": rng.randint(1, 3)},
        delay_s=rng.choice([0.001, 0.02, 0.2]),
        hop_s=rng.choice([0.001, 0.02, 0.5]),
        input_rate=rng.choice([0.5, 2.0]),
        restore_rate=rng.choice([50.0, 200.0, 1000.0]),
        history=rng.choice([0, 30, 200]),
        commit_s=rng.choice([1.0, 3.0]),
        revoke_s=rng.choice([2.0, REBALANCE_S]),
        mutes=rng.random() < 0.5,
    )
