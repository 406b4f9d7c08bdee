"""Logs whose file was damaged while the broker was down: whole batches stay, the rest goes."""

import random
from pathlib import Path

import pytest

from streamsx.broker.log import appending
from streamsx.broker.log.log import Log
from streamsx.broker.log.segment import Descriptors
from streamsx.protocol.record_batch import Builder

TRIALS = 600


def opened(folder: Path) -> Log:
    return Log(folder, Descriptors(), segment_bytes=1 << 20, clean=False, sync=False)


def batch(rng: random.Random, sequence: int) -> memoryview:
    builder = Builder(1 << 16)
    for _ in range(rng.randrange(1, 4)):
        builder.append(rng.randrange(10**12), None, rng.randbytes(rng.randrange(300)))
    return memoryview(builder.close(7, 0, sequence))


def damage(rng: random.Random, data: bytes) -> tuple[bytes, int]:
    """Return the damaged bytes, and up to which byte they are unchanged."""
    at = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            return data[:at], at
        case 1:
            return data + rng.randbytes(rng.randrange(1, 200)), len(data)
        case 2:
            return data + data[: rng.randrange(1, 200)], len(data)
        case _:
            flipped = bytearray(data)
            flipped[at] ^= 1 << rng.randrange(8)
            return bytes(flipped), at


@pytest.mark.parametrize("part", range(4))
def test_log_recovery_keeps_exactly_the_whole_batches(part: int, tmp_path: Path) -> None:
    for trial in range(part, TRIALS, 4):
        rng = random.Random(trial)
        log = opened(tmp_path / f"{trial}-0")
        ends, sequence = [0], 0
        for _ in range(rng.randrange(1, 12)):
            records = batch(rng, sequence)
            appending.append(log, records, 1 << 20)
            sequence += records[60]  # how many there are
            ends.append(ends[-1] + len(records))
        (segment,) = log.segments
        log.close()
        whole = segment.path.read_bytes()
        damaged, sound = damage(rng, whole)
        segment.path.write_bytes(damaged)

        again = opened(tmp_path / f"{trial}-0")
        kept = max(end for end in ends if end <= sound)
        assert again.read(0, 1 << 20) == whole[:kept], trial
        end = again.end
        assert appending.append(again, batch(rng, end), 1 << 20) == end, trial
        again.close()
