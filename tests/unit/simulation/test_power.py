"""Power loss: what is left of a directory does not depend on the process."""

import os
import random
from pathlib import Path

import pytest

from streamsx.simulation.power import PowerLoss


@pytest.mark.parametrize("seed", range(8))
def test_power_loss_leaves_the_same_whatever_digits_a_process_id_has(
    tmp_path: Path, seed: int
) -> None:
    left = set[bytes]()
    for pid in (b"9", b"99", b"1234567"):
        folder = tmp_path / str(len(pid))
        folder.mkdir()
        power = PowerLoss(folder, random.Random(seed))
        with power.watching():
            (folder / "lock").write_bytes(b"")
            (folder / "z.log").write_bytes(b"")
            for path in (folder / "z.log", folder):
                fd = os.open(path, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
            (folder / "lock").write_bytes(pid)
            (folder / "z.log").write_bytes(b"0123456789" * 100)
            power.lose()
        left.add((folder / "z.log").read_bytes())
    assert len(left) == 1
