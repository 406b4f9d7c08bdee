"""`streamsx swap`: one instance gives its tasks to another one, which has joined, and leaves.

Host by host: the new one learns what the old one runs, while that runs on, and nobody else gives
or gets anything. It needs the broker and no way to the workers; `leave --cancel` takes it back.
"""

import argparse
import math

from streamsx.clock import Clock
from streamsx.errors import UsageError
from streamsx.tools.cli.cluster import ClusterCommand
from streamsx.tools.cli.command import value
from streamsx.tools.leave import ask, limit


def main() -> None:
    """Ends with 0 when the old one has left, 1 when it was out of time, 3 when one is not there."""
    command = ClusterCommand("swap", "Give the tasks of an instance to one other, then it leaves.")
    command.add_app(required=True)
    add = command.add_argument
    add("--old", required=True, metavar="A", help="who leaves, as `streamsx status` shows it")
    add("--new", required=True, metavar="B", help="who takes over: it has joined by then")
    add(
        "--timeout", type=value(limit), default=math.inf, metavar="60s",
        help="then the old one leaves, whatever the new one has learned (its scale_down_timeout)",
    )  # fmt: skip
    command.set_defaults(cancel=False, no_wait=False)
    command.ask(swap)


async def swap(options: argparse.Namespace, clock: Clock) -> int:
    """The exit code. Raises UsageError, NotFound and what `leave` does."""
    if options.old == options.new:
        raise UsageError(f"--old and --new are one: {options.old}: name the one that takes over")
    options.instances = [options.old]
    return await ask(options, clock, swap_to=options.new)
