"""`streamsx throughput`: records per CPU-second of a worker, beside another program on one broker.

A topic is filled with real text first; then each program in turn, again and again, counts all its
words with a group and a state directory of its own. Measured is the CPU time of its process, user
and system, from its first commit to the one that leaves nothing to do: the start is not in it, the
commits are. Whoever does the same work can be measured: BOOTSTRAP, TOPIC, GROUP, STATE_DIR,
PARTITIONS and WORKLOAD=B, STYLE=agent in the environment, offsets committed to the group.

The machine is noisy: the ratio of a pair that ran one after the other is what counts.
"""

import argparse
import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from streamsx.clock import SystemClock
from streamsx.config import whole
from streamsx.errors import TaskFailed
from streamsx.tools.cli.command import Command, value

CLOCK = SystemClock()
TOPIC = "throughput-lines"
PARTITIONS = 4
POLL_S = 0.05
STALL_S = 120.0
STOP_S = 30.0
LOG_LINES = 3
OURS = f"{sys.executable} -m streamsx worker streamsx.tools.peers.wordcount -l warning"


class Run(NamedTuple):
    """One program over all lines. `records`, `cpu_s`: between its first and its last commit."""

    records: int
    cpu_s: float
    wall_s: float

    @property
    def rate(self) -> float:
        return self.records / self.cpu_s


def main() -> None:
    """Prints the rates and their ratios; the last line is JSON with --json."""
    command = Command("throughput", "Measure a worker's records per CPU-second beside a peer.")
    add = command.add_argument
    add("--peer", metavar="COMMAND", help="the other program, as a shell would split it")
    add("--records", type=value(whole(1)), default=1_000_000, help="lines (1000000)")
    add("--repeat", type=value(whole(1)), default=3, help="how often each is run (3)")
    add("--bootstrap", help="a broker that is there (the embedded one)")
    add("--json", action="store_true", help="the last line is one JSON object, the rest on stderr")
    command.run(measure)


def measure(options: argparse.Namespace) -> None:
    """Raises UsageError and others."""
    people = sys.stderr if options.json else sys.stdout
    programs = {"streamsx": OURS} | ({"peer": options.peer} if options.peer else {})
    runs: dict[str, list[Run]] = {name: [] for name in programs}
    with tempfile.TemporaryDirectory(prefix="streamsx-throughput-") as place:
        root = Path(place)
        with broker(options.bootstrap, root) as bootstrap:
            topic = f"{TOPIC}-{os.getpid()}"
            fill(bootstrap, topic, options.records)
            for number in range(options.repeat):
                for name, program in programs.items():
                    group = f"{name}-{os.getpid()}-{number}"
                    run = one(program, bootstrap, topic, group, root / group, options.records)
                    runs[name].append(run)
                    told = f"{name:>9} {run.rate:10,.0f} lines per CPU-second, {run.wall_s:.1f} s"
                    print(told, file=people, flush=True)
    result = summary(runs)
    if ratios := result.get("ratios"):
        pairs = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"    ratio {median(ratios):.2f} (each pair: {pairs})", file=people)
    if options.json:
        print(json.dumps(result))


def summary(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Rates of each program, and those of ours by the peer's of the same round."""
    found: dict[str, Any] = {name: [round(run.rate) for run in some] for name, some in runs.items()}
    if "peer" in runs:
        pairs = zip(runs["streamsx"], runs["peer"], strict=True)
        found["ratios"] = [round(ours.rate / theirs.rate, 3) for ours, theirs in pairs]
    return found


@contextmanager
def broker(bootstrap: str | None, root: Path) -> Iterator[str]:
    """The address of one that is there, or of an embedded one that ends with this."""
    if bootstrap is not None:
        yield bootstrap
        return
    command = [sys.executable, "-m", "streamsx", "broker", "--port", "0", "--data"]
    with (
        (root / "broker.log").open("wb") as log,
        subprocess.Popen(
            [*command, str(root / "broker")], stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield process.stdout.readline().removeprefix("ready ").strip()
        finally:
            process.terminate()


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Real text, the same for all."""
    from streamsx.tools.peers.text import filled

    asyncio.run(filled(bootstrap, topic, PARTITIONS, records))


def one(program: str, bootstrap: str, topic: str, group: str, state: Path, records: int) -> Run:
    """Start a program, wait until it has committed all lines, stop it."""
    environment = os.environ | {
        "BOOTSTRAP": bootstrap, "TOPIC": topic, "GROUP": group, "STATE_DIR": str(state),
        "PARTITIONS": str(PARTITIONS), "WORKLOAD": "B", "STYLE": "agent",
        "STREAMSX_BOOTSTRAP": bootstrap,
    }  # fmt: skip
    log = state.with_suffix(".log")
    with (
        log.open("wb") as written,
        subprocess.Popen(
            shlex.split(program), env=environment, stdout=written, stderr=written
        ) as process,
    ):
        try:
            return watched(process, bootstrap, topic, group, records)
        except TaskFailed as error:
            tail = " | ".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            raise TaskFailed(f"{error}: its log ends: {tail}") from error
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def watched(
    process: "subprocess.Popen[bytes]", bootstrap: str, topic: str, group: str, records: int
) -> Run:
    """From its first commit to the one that leaves nothing: no line, and no word of a line."""
    from streamsx.tools.peers.text import Progress, progress

    async def watch() -> Run:
        first: tuple[int, float, float] | None = None
        moved_at, last = CLOCK.now(), Progress(0, 0)
        async for made in progress(bootstrap, topic, group, POLL_S):
            now = CLOCK.now()
            if made != last:
                moved_at, last = now, made
            if process.poll() is not None or now - moved_at > STALL_S:
                raise TaskFailed(f"no progress: {group}: at {made.records} of {records}")
            if made.records and first is None:
                first = made.records, cpu_s(process.pid), now
            if first is not None and made.records >= records and not made.left:
                taken = cpu_s(process.pid) - first[1]
                return Run(made.records - first[0], taken, now - first[2])
        raise AssertionError("there is always more progress to ask for")

    return asyncio.run(watch())


def cpu_s(pid: int) -> float:
    """User and system time of a process, by the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
