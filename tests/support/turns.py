"""`python -m tests.support.turns FILE worker APP ...`: a streamsx command with its turns measured.

At its end FILE holds one JSON object: the longest turn of the data loop in ms of its thread's CPU
time, the longest time between the ends of two turns in ms of wall time while there was work, and
the highest resident memory in bytes.
"""

import json
import resource
import runpy
import sys
import time
from pathlib import Path
from typing import NamedTuple

from streamsx.worker.data_loop import DataLoop


class Turns(NamedTuple):
    """Figures in the form of the file."""

    turn_ms: float
    gap_ms: float
    resident_bytes: int


def read(file: Path) -> Turns:
    return Turns(*json.loads(file.read_text()).values())


def main() -> None:
    file = Path(sys.argv.pop(1))
    plain = DataLoop.turn
    longest = gap = ended = 0.0
    busy = False

    def turn(loop: DataLoop) -> bool:
        nonlocal longest, gap, ended, busy
        began = time.thread_time()
        works = plain(loop)
        longest = max(longest, time.thread_time() - began)
        now = time.perf_counter()
        if busy:
            gap = max(gap, now - ended)
        ended = now
        busy = works
        return works

    setattr(DataLoop, "turn", turn)  # noqa: B010  # a method is not assigned, says mypy
    try:
        runpy.run_module("streamsx", run_name="__main__")
    finally:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found = Turns(longest * 1000, gap * 1000, peak)
        file.write_text(json.dumps(found._asdict()))


if __name__ == "__main__":
    main()
