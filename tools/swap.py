"""`streamsx swap`: one instance gives its tasks to another one, which has joined, and leaves.

This replaces hosts one by one. The new instance learns the tasks of the old one while the old one
runs on, and no other instance gives or receives a task. The command needs the broker and no
connection to the workers; `leave --cancel` withdraws the request.
"""

import argparse
import math

from streamsx.clock import Clock
from streamsx.errors import UsageError
from streamsx.tools.cli.cluster import ClusterCommand
from streamsx.tools.cli.command import value
from streamsx.tools.leave import ask, limit


def main() -> None:
    """Run the command: exit with 0 if the old instance left, 1 if too late, 3 if one is missing."""
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
    """Swap the instances; return the exit code as `leave` does.

    Raises:
        UsageError: both names are the same.
        NotFound: the app or the new instance is unknown.
        StreamsxError: any other error of `leave`.
    """
    if options.old == options.new:
        raise UsageError(f"--old and --new are one: {options.old}: name the one that takes over")
    options.instances = [options.old]
    return await ask(options, clock, swap_to=options.new)
