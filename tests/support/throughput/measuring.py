"""CPU time of a worker, measured beside another program on one broker.

Topics are filled first, with real text or with orders. Then each program in turn, again and again,
counts all words, or adds up the orders of each user, with a group and a state directory of its own.
Measured is the CPU time of its process, user and system, until a commit leaves nothing to do. The
time of a tenth of the records is subtracted, and with it the start. Counting from a first commit
instead gave 0.21 to 0.56 for one and the same pair, because the work done before that commit is
unknown. Any program that does the same work can be measured: BOOTSTRAP, TOPIC, GROUP, STATE_DIR,
PARTITIONS, WORKLOAD=B (orders: C), STYLE=agent and CODEC=orjson in the environment, offsets
committed to the group.

The machine is noisy, and one program differs by 1.5 between rounds: the ratio of a pair that ran
one after the other is what counts. More exact is a pair that runs at the same time on one core,
with the broker on the others (`--together`): both have the same machine at each moment, and pairs
lie within 2 to 4 % of each other. Their chunks are half as long, so costs per chunk count double.
"""

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from streamsx.client.cluster import Cluster
from streamsx.clock import SystemClock
from streamsx.errors import TaskFailed, UsageError
from streamsx.tools.cli.cluster import connected
from streamsx.tools.cli.processes import OURS, Child
from tests.support.throughput.corpora import ORDERS_FROM_MS, fill, orders, progress, text

CLOCK = SystemClock()
TOPIC = "throughput"
PARTITIONS = 4
START = 10
"""One line of so many is counted first, to know what the start takes."""
POLL_S = 0.05
STALL_S = 120.0
STOP_S = 30.0
CORE = 0
"""Core of the programs that run at the same time."""
PINNED = """\
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Program that becomes another one on one core."""
LOG_LINES = 3
WORKER = f"{shlex.join(OURS)} worker {__package__}.{{}} -l warning"
CASES = {
    "wordcount": "B", "aggregate": "C", "flow": "C", "nested": "C", "windows": "D", "finals": "D",
}  # fmt: skip
"""Of ours, and what peers call it."""


class MeasuredRun(NamedTuple):
    """Run of one program over all lines of a topic, from its start."""

    records: int
    cpu_s: float
    wall_s: float
    peak_mb: float
    """Resident, at most so far; of 10^6 bytes."""


def rate(run: MeasuredRun, start: MeasuredRun) -> float:
    """Return lines per CPU-second beyond `start`, a run over fewer lines.

    Raises:
        UsageError: the run cannot be told apart from the start.
    """
    cpu = run.cpu_s - start.cpu_s
    if cpu <= 0 or run.records <= start.records:
        raise UsageError(f"too few lines to measure: {run.records}: give more --records")
    return (run.records - start.records) / cpu


def summary(rates: dict[str, list[float]]) -> dict[str, Any]:
    """Return rates of each program, and ratios of ours to the peer's in the same round."""
    found: dict[str, Any] = {name: [round(rate) for rate in some] for name, some in rates.items()}
    if "peer" in rates:
        pairs = zip(rates["streamsx"], rates["peer"], strict=True)
        found["ratios"] = [round(ours / theirs, 3) for ours, theirs in pairs]
    return found


async def rounds(options: argparse.Namespace, root: Path) -> dict[str, list[float]]:
    """Return the rates of each program, over topics of this process: the broker may have others."""
    programs = {"streamsx": WORKER.format(options.case)}
    programs |= {"peer": options.peer} if options.peer else {}
    rates: dict[str, list[float]] = {name: [] for name in programs}
    topics = {f"{TOPIC}-{os.getpid()}-start": options.records // START}
    topics[f"{TOPIC}-{os.getpid()}-all"] = options.records
    async with connected(options) as cluster:
        for topic, records in topics.items():
            rows = text() if options.case == "wordcount" else orders()
            # Words carry the time of their line, and the topic of words keeps seven days.
            from_ms = int(CLOCK.wall() * 1000) if options.case == "wordcount" else ORDERS_FROM_MS
            await fill(cluster, CLOCK, topic, PARTITIONS, islice(rows, records), from_ms)
        one_by_one = [{name: program} for name, program in programs.items()]
        for number in range(options.repeat):
            for some in [programs] if options.together else one_by_one:
                starts, runs = [
                    await run_all(options, root, cluster, some, number, topic, records)
                    for topic, records in topics.items()
                ]
                for name, start, made in zip(some, starts, runs, strict=True):
                    rates[name].append(rate(made, start))
                    told = f"{rates[name][-1]:10,.0f} records per CPU-second"
                    told += f", {made.wall_s:.1f} s, {made.peak_mb:.0f} MB"
                    print(f"{name:>9} {told}", file=options.people, flush=True)
    return rates


async def run_all(
    options: argparse.Namespace, root: Path, cluster: Cluster, programs: Mapping[str, str],
    number: int, topic: str, records: int,
) -> list[MeasuredRun]:  # fmt: skip
    """Run these programs at the same time over all records of a topic."""
    runs = []
    for name, program in programs.items():
        group = f"{name}-{number}-{topic}"
        environment = {
            "BOOTSTRAP": options.bootstrap, "STREAMSX_BOOTSTRAP": options.bootstrap,
            "TOPIC": topic, "GROUP": group, "PARTITIONS": str(PARTITIONS),
            "STATE_DIR": str(root / group), "WORKLOAD": CASES[options.case],
            "STYLE": "agent", "CODEC": options.codec,
        }  # fmt: skip
        command = shlex.split(program)
        if options.together:
            command = [sys.executable, "-c", PINNED, str(CORE), *command]
        child = Child(group, root / f"{group}.log", command, env=os.environ | environment)
        runs.append(measured(child, cluster, topic, records))
    return await asyncio.gather(*runs)


async def measured(process: Child, cluster: Cluster, topic: str, records: int) -> MeasuredRun:
    """Run until a commit leaves no line and no word of a line, then stop the program."""
    began = moved_at = CLOCK.now()
    last = None
    try:
        while True:
            made, now = await progress(cluster, topic, process.name), CLOCK.now()
            if made != last:
                moved_at, last = now, made
            if process.code is not None or now - moved_at > STALL_S:
                tail = " | ".join(process.tail(LOG_LINES))
                raise TaskFailed(
                    f"no progress: {process.name}: at {made.records} of {records}: "
                    f"its log ends: {tail}"
                )
            if made.records >= records and not made.left:
                pid = process.pid
                return MeasuredRun(made.records, cpu_s(pid), now - began, peak_mb(pid))
            await asyncio.sleep(POLL_S)
    finally:
        await asyncio.to_thread(process.stop, STOP_S)


def cpu_s(pid: int) -> float:
    """Return user and system time of a process, by the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mb(pid: int) -> float:
    """Return the highest resident memory, by the kernel."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    told = next(line for line in lines if line.startswith("VmHWM:"))
    return int(told.split()[1]) * 1024 / 1e6
