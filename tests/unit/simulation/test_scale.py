"""simulation/scale.py and `streamsx simulate scale`: what a change of size costs."""

import json
from dataclasses import replace
from random import Random

import pytest

from streamsx.assignor.model import Rules
from streamsx.simulation.scale import REBALANCE_S, Cost, Resize, Scaling
from tests.support.command import streamsx


def cost(resize: Resize, rules: Rules | None = None) -> Cost:
    play = Scaling(resize, rules or Rules())
    while play.step():
        pass
    return play.cost


@pytest.mark.parametrize(
    ("resize", "rebalances", "moves", "waves"),
    [
        (Resize(96, 10, add=1), 9, 8, 4),
        (Resize(32, 1, add=1), 17, 16, 8),
        (Resize(32, 3, add=1), 9, 8, 4),
        (Resize(96, 3, add=3), 17, 48, 8),
        (Resize(96, 4, remove=1), 9, 24, 4),
        (Resize(12, 3, add=3, remove=3), 5, 12, 2),
    ],
)
def test_each_learner_wave_takes_two_rebalances(
    resize: Resize, rebalances: int, moves: int, waves: int
) -> None:
    """ASSIGNOR.md 10: at 2 learners a worker, of 30 s each; nobody waits but for the hand-over."""
    found = cost(resize)
    assert (found.rebalances, found.moves) == (rebalances, moves)
    assert found.balanced_s == pytest.approx(30 * waves + REBALANCE_S * rebalances)
    assert found.unavailable_task_s == pytest.approx(REBALANCE_S * moves)


def test_without_learners_all_moves_happen_at_once_and_tasks_stand_still() -> None:
    found = cost(Resize(96, 10, add=1, restore_s=60), Rules(max_learners_per_member=0))
    assert (found.rebalances, found.moves) == (2, 8)
    assert found.balanced_s == pytest.approx(60 + 2 * REBALANCE_S)
    assert found.unavailable_task_s == pytest.approx(8 * (60 + REBALANCE_S))


@pytest.mark.parametrize(
    ("resize", "rebalances", "seconds"),
    [
        (Resize(32, 1, add=1), 33, 481),
        (Resize(32, 3, add=1), 17, 241),
        (Resize(96, 3, add=3), 33, 481),
        (Resize(96, 10, add=1), 17, 241),
    ],
)
def test_serial_resize_in_together_mode_needs_fewer_rebalances(
    resize: Resize, rebalances: int, seconds: float
) -> None:
    """The last rows of ASSIGNOR.md 10. Together, as many rebalances as side by side."""
    serial = cost(replace(resize, serial=True))
    assert serial.rebalances == rebalances
    assert serial.balanced_s == pytest.approx(seconds, abs=1)
    together = cost(replace(resize, serial=True, together=True))
    assert together.rebalances == rebalances // 2 + 1 < serial.rebalances
    assert together.balanced_s == pytest.approx(serial.balanced_s, abs=1)
    assert together.learning_task_s > serial.learning_task_s
    assert together.moves == serial.moves


def test_group_wide_learner_limit_slows_balancing() -> None:
    """The same moves: 722 s with 2 in the group, 241 s with 2 in each (ASSIGNOR.md 2)."""
    found = cost(Resize(96, 3, add=3), Rules(max_learners=2))
    assert (found.rebalances, found.moves) == (49, 48)
    assert found.balanced_s == pytest.approx(722, abs=0.5)


def test_any_group_balances_with_unavailability_only_for_hand_overs() -> None:
    draw = Random(7)
    for _ in range(60):
        workers, add = draw.randint(1, 5), draw.randint(0, 4)
        remove = draw.randint(0, min(workers, workers + add - 1))
        resize = Resize(draw.randint(0, 30), workers, add, remove, restore_s=draw.choice([0, 5]))
        rules = Rules(max_learners_per_member=draw.choice([1, 2, None]), imbalance_percentage=0)
        found = cost(resize, rules)
        least = 0 if found.moves == 0 else resize.restore_s
        assert found.balanced_s >= least
        assert found.unavailable_task_s == pytest.approx(REBALANCE_S * found.moves), resize


def test_simulate_scale_prints_json_to_stdout_and_summary_to_stderr() -> None:
    done = streamsx("simulate", "scale", "--tasks", "96", "--workers", "10", "--add", "1", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "rebalances": 9, "moves": 8, "seconds_to_balance": 120.45, "unavailable_task_seconds": 0.4,
        "learning_task_seconds": 240.8,
    }  # fmt: skip
    assert done.stderr.splitlines()[0] == "balanced after 120.4 s, 9 rebalances"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "0", "--workers", "1"], "--tasks: not a whole number from 1 on: '0'"),
        (["--tasks", "9", "--workers", "1"], "nothing changes: give --add or --remove"),
        (
            ["--tasks", "9", "--workers", "1", "--remove", "1"],
            "no worker would be left: give fewer",
        ),
        (["--tasks", "9", "--workers", "1", "--add", "2", "--remove", "2"], "there are 1: give"),
    ],
)
def test_simulate_scale_refuses_impossible_group(words: list[str], said: str) -> None:
    done = streamsx("simulate", "scale", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("resize", "standby", "rebalances", "learned_s"),
    [
        (Resize(96, 10, add=1), 1, 5, 120),
        (Resize(96, 10, add=1), 2, 5, 90),
        (Resize(32, 3, remove=1), 2, 2, 0),
    ],
)
def test_standbys_make_resize_take_fewer_rebalances(
    resize: Resize, standby: int, rebalances: int, learned_s: float
) -> None:
    """A newcomer follows what it does not run, and a part of it is what it will run."""
    found, bare = cost(resize, Rules(standby=standby)), cost(resize)
    assert found.rebalances == rebalances < bare.rebalances
    assert found.moves == bare.moves
    assert found.learning_task_s == pytest.approx(learned_s, abs=1) != bare.learning_task_s
    assert found.balanced_s <= bare.balanced_s
