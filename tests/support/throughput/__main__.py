"""`python -m tests.support.throughput`: rates of ours and of a peer, and their ratios.

Not here: the measuring (`measuring`) and the input (`corpora`).
"""

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from streamsx.client.security import PLAINTEXT
from streamsx.config import whole
from streamsx.errors import UsageError
from streamsx.event_loops import run
from streamsx.testing import Broker
from streamsx.tools.cli.command import Command, tell, value
from tests.support.throughput.measuring import CASES, CORE, rounds, summary


def main() -> None:
    """Print the rates and their ratios; with --json the last line is JSON."""
    command = Command("throughput", "Measure a worker's records per CPU-second beside a peer.")
    command.prog = f"python -m {__package__}"
    add = command.add_argument
    add("--peer", metavar="COMMAND", help="the other program, as a shell would split it")
    add("--case", choices=CASES, default="wordcount", help="of words in lines, or of orders")
    add("--codec", choices=["orjson", "msgspec"], default="orjson", help="dicts, or models (flow)")
    add("--records", type=value(whole(1)), default=1_000_000, help="so many (1000000)")
    add("--repeat", type=value(whole(1)), default=3, help="how often each is run (3)")
    add("--together", action="store_true", help="run both at the same time on one core")
    add("--bootstrap", help="a broker that is there (the embedded one)")
    command.add_json()
    command.run(measure)


def measure(options: argparse.Namespace) -> None:
    """Measure all rounds. Raises UsageError and others."""
    options.security = PLAINTEXT
    if options.together:
        others = os.sched_getaffinity(0) - {CORE}
        if not options.peer or not others:
            raise UsageError("--together: needs a --peer, and a second core for the broker")
        os.sched_setaffinity(0, others)
    with ExitStack() as stack:
        options.bootstrap = options.bootstrap or stack.enter_context(Broker()).bootstrap
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="streamsx-throughput-"))
        result = summary(run(rounds(options, Path(folder))))
    if ratios := result.get("ratios"):
        pairs = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"    ratio {median(ratios):.2f} (each pair: {pairs})", file=options.people)
    tell(options, result)


if __name__ == "__main__":
    main()
