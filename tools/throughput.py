"""`streamsx throughput`: records per CPU-second of a worker, beside another program on one broker.

Topics are filled first, with real text or with orders; then each program in turn, again and again,
counts all their words, or adds up the orders of each user, with a group and a state directory of
its own. Measured is the CPU time of its process, user and system, until a commit leaves nothing to
do. What a tenth of the records takes is subtracted, and with it the start; counting from a first
commit instead gave 0.21 to 0.56 for one and the same pair, for what a program has done by then that
it has not committed is anybody's guess. Whoever does the same work can be measured: BOOTSTRAP,
TOPIC, GROUP, STATE_DIR, PARTITIONS, WORKLOAD=B (orders: C) and STYLE=agent in the environment,
offsets committed to the group.

The machine is noisy: the ratio of a pair that ran one after the other is what counts.
"""

import argparse
import asyncio
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from streamsx.clock import SystemClock
from streamsx.config import whole
from streamsx.errors import TaskFailed, UsageError
from streamsx.tools.cli.command import Command, value
from streamsx.tools.cli.processes import OURS, Child

CLOCK = SystemClock()
TOPIC = "throughput"
PARTITIONS = 4
START = 10
"""One line of so many is counted first, to know what the start takes."""
POLL_S = 0.05
STALL_S = 120.0
STOP_S = 30.0
LOG_LINES = 3
WORKER = f"{shlex.join(OURS)} worker streamsx.tools.peers.{{}} -l warning"
CASES = {"wordcount": "B", "aggregate": "C"}
"""Of ours, and what peers call it."""


class MeasuredRun(NamedTuple):
    """One program over all lines of a topic, from its start on."""

    records: int
    cpu_s: float
    wall_s: float


def rate(run: MeasuredRun, start: MeasuredRun) -> float:
    """Lines per CPU-second beyond `start`, a run over fewer lines. Raises UsageError if nothing of
    it can be told from the start.
    """
    cpu = run.cpu_s - start.cpu_s
    if cpu <= 0 or run.records <= start.records:
        raise UsageError(f"too few lines to measure: {run.records}: give more --records")
    return (run.records - start.records) / cpu


def main() -> None:
    """Prints the rates and their ratios; the last line is JSON with --json."""
    command = Command("throughput", "Measure a worker's records per CPU-second beside a peer.")
    add = command.add_argument
    add("--peer", metavar="COMMAND", help="the other program, as a shell would split it")
    add("--case", choices=CASES, default="wordcount", help="of words in lines, or of orders")
    add("--records", type=value(whole(1)), default=1_000_000, help="so many (1000000)")
    add("--repeat", type=value(whole(1)), default=3, help="how often each is run (3)")
    add("--bootstrap", help="a broker that is there (the embedded one)")
    command.add_json()
    command.run(measure)


def measure(options: argparse.Namespace) -> None:
    """Raises UsageError and others."""
    people = sys.stderr if options.json else sys.stdout
    case = options.case
    programs = {"streamsx": WORKER.format(case)} | ({"peer": options.peer} if options.peer else {})
    rates: dict[str, list[float]] = {name: [] for name in programs}
    with tempfile.TemporaryDirectory(prefix="streamsx-throughput-") as place:
        root = Path(place)
        with broker(options.bootstrap) as bootstrap:
            lines = {"start": options.records // START, "all": options.records}
            for name, records in lines.items():
                fill(bootstrap, topic_of(name), records, case)
            for number in range(options.repeat):
                for name, program in programs.items():
                    start, run = (
                        one(program, bootstrap, case, part, f"{name}-{part}-{number}", root, n)
                        for part, n in lines.items()
                    )
                    rates[name].append(rate(run, start))
                    told = f"{rates[name][-1]:10,.0f} records per CPU-second, {run.wall_s:.1f} s"
                    print(f"{name:>9} {told}", file=people, flush=True)
    result = summary(rates)
    if ratios := result.get("ratios"):
        pairs = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"    ratio {median(ratios):.2f} (each pair: {pairs})", file=people)
    if options.json:
        print(json.dumps(result))


def topic_of(part: str) -> str:
    """One of this process: the broker may have others."""
    return f"{TOPIC}-{os.getpid()}-{part}"


def summary(rates: dict[str, list[float]]) -> dict[str, Any]:
    """Rates of each program, and those of ours by the peer's of the same round."""
    found: dict[str, Any] = {name: [round(rate) for rate in some] for name, some in rates.items()}
    if "peer" in rates:
        pairs = zip(rates["streamsx"], rates["peer"], strict=True)
        found["ratios"] = [round(ours / theirs, 3) for ours, theirs in pairs]
    return found


@contextmanager
def broker(bootstrap: str | None) -> Iterator[str]:
    """The address of one that is there, or of an embedded one that ends with this."""
    from streamsx.testing import Broker

    if bootstrap is not None:
        yield bootstrap
        return
    with Broker() as embedded:
        yield embedded.bootstrap


def fill(bootstrap: str, topic: str, records: int, case: str) -> None:
    """The same for all."""
    from streamsx.tools.peers.corpora import filled, orders, text

    rows = text() if case == "wordcount" else orders()
    asyncio.run(filled(bootstrap, topic, PARTITIONS, records, rows))


def one(
    program: str, bootstrap: str, case: str, part: str, name: str, root: Path, records: int
) -> MeasuredRun:
    """Start a program, wait until it has committed all records, stop it."""
    topic, group, state = topic_of(part), f"{name}-{os.getpid()}", root / name
    environment = os.environ | {
        "BOOTSTRAP": bootstrap, "TOPIC": topic, "GROUP": group, "STATE_DIR": str(state),
        "PARTITIONS": str(PARTITIONS), "WORKLOAD": CASES[case], "STYLE": "agent",
        "STREAMSX_BOOTSTRAP": bootstrap,
    }  # fmt: skip
    process = Child(name, state.with_suffix(".log"), shlex.split(program), env=environment)
    try:
        return watched(process, bootstrap, topic, group, records)
    except TaskFailed as error:
        tail = " | ".join(process.tail(LOG_LINES))
        raise TaskFailed(f"{error}: its log ends: {tail}") from error
    finally:
        process.stop(STOP_S)


def watched(process: Child, bootstrap: str, topic: str, group: str, records: int) -> MeasuredRun:
    """Until the commit that leaves nothing: no line, and no word of a line."""
    from streamsx.tools.peers.corpora import GroupProgress, progress

    async def watch() -> MeasuredRun:
        began = moved_at = CLOCK.now()
        last = GroupProgress(0, 0)
        async for made in progress(bootstrap, topic, group, POLL_S):
            now = CLOCK.now()
            if made != last:
                moved_at, last = now, made
            if process.code is not None or now - moved_at > STALL_S:
                raise TaskFailed(f"no progress: {group}: at {made.records} of {records}")
            if made.records >= records and not made.left:
                return MeasuredRun(made.records, cpu_s(process.pid), now - began)
        raise AssertionError("there is always more progress to ask for")

    return asyncio.run(watch())


def cpu_s(pid: int) -> float:
    """User and system time of a process, by the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
