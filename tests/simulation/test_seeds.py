"""Whole groups of the real code under faults that seeds draw, the same on every machine."""

from collections import Counter

import pytest

from streamsx.simulation.faults import KINDS
from streamsx.simulation.scene import draw
from streamsx.simulation.world import play

SWARM = (6, 12, 17)
"""Seeds whose stories are looked at, too: the cheapest three of the first twenty that meet more
than half of the kinds of faults.
"""
SEEDS = (3, pytest.param(17, marks=pytest.mark.slow))
"""What a commit plays beside them."""
FLOWS = [seed for seed in range(200) if draw(seed).flows][:30]
"""Seeds with flows."""
SLOW, SLOW_CHUNK = 3_000, 60
FOUND = [802, 3081, 7352, 32435, 51852, 62207, 81461, 99097]
"""Each has broken an invariant once: the product was mended, or, for 3081, the scenario."""


def failures(seeds: range) -> list[str]:
    return [str(wrong) for seed in seeds if (wrong := play(seed, story=0).violation)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_group_survives_the_faults_of_a_seed(seed: int) -> None:
    assert failures(range(seed, seed + 1)) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", FOUND)
@pytest.mark.slow
def test_seed_that_once_failed_passes(seed: int) -> None:
    assert failures(range(seed, seed + 1)) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seed", [FLOWS[0], *(pytest.param(seed, marks=pytest.mark.slow) for seed in FLOWS[1:])]
)
def test_flows_survive_the_faults_of_a_seed(seed: int) -> None:
    assert failures(range(seed, seed + 1)) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(0, SLOW, SLOW_CHUNK))
def test_a_group_survives_thousands_of_seeds(first: int) -> None:
    assert failures(range(first, first + SLOW_CHUNK)) == []


@pytest.mark.timeout(120)
def test_swarm_of_seeds_covers_all_wanted_events() -> None:
    """Without a fenced member a simulation proves nothing about fencing."""
    kinds, met = Counter[str](), Counter[str]()
    for seed in SWARM:
        result = play(seed, story=10**6)
        assert result.violation is None, str(result.violation)
        kinds += result.met
        met.update(line.split()[2] for line in result.story)
    wanted = {
        "aborted", "assigned", "first_record", "learner_ready", "leaving", "left", "lost",
        "promoted", "rebalance_started", "revoked", "task",
    }  # fmt: skip
    assert wanted - met.keys() == set()
    assert len(kinds) > len(KINDS) / 2
