"""Simulated worlds: one seed gives one story, and a calm world does what a user expects."""

import os
import random
import subprocess
import sys

import pytest

from streamsx.simulation.faults import OtherFaults
from streamsx.simulation.nodes import HOSTS
from streamsx.simulation.scene import Scene
from streamsx.simulation.scheduler import Violation
from streamsx.simulation.world import world


def test_three_workers_count_words_while_nothing_goes_wrong() -> None:
    with world(1, Scene(pair=(4, 2), sizes=True)) as calm:
        for home in calm.homes:
            calm.at(1.0 + 4 * home.number, home.start)
        calm.run()
        assert calm.client.words.total() > 600
        assert calm.surplus == 0
        assert calm.excused == {}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", [(6,), pytest.param((3, 11, 12), marks=pytest.mark.slow)])
def test_seed_gives_the_same_story_under_every_hash_seed(seeds: tuple[int, ...]) -> None:
    """The sizes make sure that commits are refused and disks fill up (seeds 3, 6 and 11)."""
    told = set[tuple[str, ...]]()
    command = [sys.executable, "-m", "streamsx.simulation", *map(str, seeds), "--digest"]
    for hash_seed in ("1", "12345"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
        told.add(tuple(ran.stdout.splitlines()[: len(seeds)]))
    (digests,) = told
    assert len(set(digests)) == len(seeds)


def test_violation_names_the_seed_time_and_invariant() -> None:
    with world(1, Scene()) as empty, pytest.raises(Violation, match=r"seed 1 at 93.*: Every"):
        empty.run()


def test_worker_ending_for_an_unexpected_reason_is_a_violation() -> None:
    with world(1, Scene(workers=1)) as broken:
        home = broken.homes[0]
        broken.at(1.0, home.start)
        broken.run_until(5.0)
        assert home.parts is not None
        broken.at(6.0, home.process.main.call, home.parts.tasks.failed, None, OSError("planted"))
        with pytest.raises(Violation, match="WorkersEndWell: w1: OSError"):
            broken.run_until(20.0)


def test_worker_cut_off_reaches_no_address_of_the_broker() -> None:
    with world(1, Scene(workers=1)) as made:
        faults, rng = OtherFaults(made), random.Random(1)
        made.at(1.0, made.homes[0].start)
        made.run_until(5.0)
        for _ in range(20):  # half of them hit it, each in one way, the other, or both
            faults.cut(rng)
        name = made.homes[0].process.name
        assert not any(made.network.open(name, host) for host in HOSTS)
        assert not any(made.network.open(host, name) for host in HOSTS)
