"""Cost of a process with all processes that it has started: CPU time and memory, by the kernel.

Memory is counted as a share (PSS): pages that several processes share count once.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

LOOK_EVERY_S = 0.25
TICK = os.sysconf("SC_CLK_TCK")


def tree(root: int, without: Collection[int] = ()) -> dict[int, float]:
    """Return CPU seconds by process; children that have ended count for their parent.

    `without`: leave these processes out, with all that they have started.
    """
    parents, used = dict[int, int](), dict[int, float]()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended meanwhile
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            parents[int(name)] = int(fields[1])
            used[int(name)] = sum(map(int, fields[11:15])) / TICK
    mine, more = set[int](), {root}
    while more:
        mine |= more
        more = {pid for pid, of in parents.items() if of in mine} - mine - set(without)
    return {pid: used[pid] for pid in mine if pid in used}


def cpu_s(root: int, without: Collection[int] = ()) -> float:
    """Return user and system time of all of them."""
    return sum(tree(root, without).values())


def busy_s(pid: int) -> float:
    """Return user and system time of the live threads of one process, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


def memory_mb(root: int) -> float:
    """Return their memory in units of 10^6 bytes."""
    total = 0
    for pid in tree(root):
        with suppress(OSError):  # it has ended meanwhile
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


class Peak:
    """Highest figures that were seen. `cpu_s`: at the last look."""

    memory_mb = 0.0
    cpu_s = 0.0


@contextmanager
def watched(root: int) -> Iterator[Peak]:
    """Watch a process that may end meanwhile."""
    peak, over = Peak(), Event()

    def look() -> None:
        while not over.wait(LOOK_EVERY_S):
            peak.memory_mb = max(peak.memory_mb, memory_mb(root))
            peak.cpu_s = max(peak.cpu_s, cpu_s(root))

    thread = Thread(target=look, name="peak")
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
