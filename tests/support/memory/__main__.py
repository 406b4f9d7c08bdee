"""`python -m tests.support.memory`: peaks of a worker's memory compared with its `memory_budget`.

For each budget and each shape of rows a worker writes all rows, is restarted, and reads each row
twice. Printed is the higher peak of the two processes, above the budget. The limit of
docs/running.md is 120 MiB above it.

Not here: the app (`app`).
"""

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path

from streamsx.model import TopicPartition
from streamsx.testing import Broker
from streamsx.tools.cli.command import Command, tell
from tests.support.client import Client
from tests.support.throughput.measuring import peak_mb
from tests.support.workers import Workers

TOP = Path(__file__).parents[3]
"""Folder of the clone, where the worker finds its app."""
BEYOND_MIB = 120
BUDGETS_MIB = (64, 256, 512)
ROWS = {"small": 300_000, "large": 4_000, "nested": 4_000}
"""Of each shape: 0.8 KB of objects, 100 KB of text, 100 KB of objects."""
SENT_AT_ONCE = 2_000
READ_TIMES = 2
PATIENCE_S = 600.0
MIB = 1 << 20
WORK = TopicPartition("work", 0)


def main() -> None:
    """Run all; exit with 1 if a peak is too high."""
    command = Command("memory", "Measure a worker's memory beside its budget.")
    command.prog = f"python -m {__package__}"
    add = command.add_argument
    add("--budget", type=int, action="append", metavar="MIB", help="64, 256 and 512")
    add("--shape", choices=ROWS, action="append", help="all of them")
    command.add_json()
    command.run(measure)


def measure(options: argparse.Namespace) -> int:
    """Print each peak, in MiB."""
    peaks = list[dict[str, object]]()
    for shape in options.shape or ROWS:
        for budget in options.budget or BUDGETS_MIB:
            written, read = peaks_of(shape, budget)
            beyond = max(written, read) - budget
            peaks.append({"shape": shape, "budget": budget, "written": written, "read": read})
            told = f"{ROWS[shape]:7} rows {shape:6} budget {budget:3} MiB: written {written:4}"
            print(f"{told}, read {read:4}, beyond {beyond:4}", file=options.people, flush=True)
    tell(options, {"peaks": peaks})
    highest = max(max(int(p["written"]), int(p["read"])) - int(p["budget"]) for p in peaks)  # type: ignore[call-overload]
    return 1 if highest > BEYOND_MIB else 0


def peaks_of(shape: str, budget_mib: int) -> tuple[int, int]:
    """Return the peaks in MiB of a worker that writes all rows, and of one that reads them."""
    count = ROWS[shape]
    keys = range(count)
    env = {"SHAPE": shape, "PYTHONPATH": str(TOP)}
    with tempfile.TemporaryDirectory(prefix="streamsx-memory-") as folder, Broker() as broker:
        client = Client(broker.bootstrap)
        client.create(WORK.topic, 1)
        workers = Workers(broker.bootstrap, Path(folder), app=f"{__package__}.app", env=env)
        with workers:
            workers.start("w", memory_budget=f"{budget_mib}MiB")
            send(client, keys, "put")
            written = peak_at(workers, client, count)
            workers.stop("w")
            workers.start("w", memory_budget=f"{budget_mib}MiB")
            for _ in range(READ_TIMES):
                send(client, keys, "get")
            read = peak_at(workers, client, (1 + READ_TIMES) * count)
            workers.stop("w")
        client.close()
    return written, read


def send(client: Client, keys: Iterable[int], what: str) -> None:
    """Send a record for each key."""
    rows = [(None, f'[{key},"{what}"]'.encode()) for key in keys]
    for start in range(0, len(rows), SENT_AT_ONCE):
        client.send(WORK, rows[start : start + SENT_AT_ONCE])


def peak_at(workers: Workers, client: Client, offset: int) -> int:
    """Return the peak in MiB once the worker has committed this offset."""
    done = f"offset {offset} committed"
    workers.until(lambda: client.committed("memory", [WORK])[WORK] >= offset, done, PATIENCE_S)
    return round(peak_mb(workers.pid("w")) * 1e6 / MIB)


if __name__ == "__main__":
    main()
