"""Sweeps over seeds: the first seeds run in the gate, the rest in `just slow`."""

import pytest
from _pytest.mark import ParameterSet


def seeds(gate: int, whole: int) -> list[int | ParameterSet]:
    """Return the numbers below `whole`; those from `gate` on are marked `slow`."""
    rest = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(gate, whole)]
    return [*range(gate), *rest]
