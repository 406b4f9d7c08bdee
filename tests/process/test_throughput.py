"""`python -m tests.support.throughput` on the embedded broker: a program compared with itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.throughput.measuring import WORKER

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.perf
@pytest.mark.parametrize("how", [(), ("--together",)])
def test_throughput_ratio_of_a_program_to_the_same_program_is_near_1(how: tuple[str, ...]) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.support.throughput", "--json",
            "--records", "40000", "--repeat", "1", "--peer", WORKER.format("wordcount"),
            *how,
        ],
        check=False, capture_output=True, text=True, cwd=CHECKOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    (ratio,) = told["ratios"]
    assert 1 / 3 < ratio < 3, done.stderr
