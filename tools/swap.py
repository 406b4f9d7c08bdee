"""`streamsx swap`: moves all tasks of one worker to another one, and lets it leave.

This replaces hosts one by one. The new worker learns the tasks of the old one while the old one
runs on, and no other worker gives or receives a task. The command needs the broker and no
connection to the workers; `leave --cancel` withdraws the request.
"""

import argparse
import math

from streamsx.clock import Clock
from streamsx.errors import UsageError
from streamsx.tools.cli.cluster import ClusterCommand
from streamsx.tools.cli.command import value
from streamsx.tools.leave import ask, limit

EXAMPLES = "example:\n  streamsx swap --app shop --old a --new b"


def main() -> None:
    """Run the command: exit with 0 if the old worker left, 1 if too late, 3 if one is missing."""
    purpose = "Move all tasks of one worker to another one that has joined; then it leaves."
    command = ClusterCommand("swap", purpose, EXAMPLES)
    command.add_app(required=True)
    add = command.add_argument
    add(
        "--old",
        required=True,
        metavar="A",
        help="the worker that leaves, as `streamsx status` shows it",
    )
    add(
        "--new",
        required=True,
        metavar="B",
        help="the worker that takes over; it has joined already",
    )
    add(
        "--timeout", type=value(limit), default=math.inf, metavar="60s",
        help="after this time it leaves, whatever the new one has learned (scale_down_timeout)",
    )  # fmt: skip
    command.set_defaults(cancel=False, no_wait=False)
    command.ask(swap)


async def swap(options: argparse.Namespace, clock: Clock) -> int:
    """Swap the workers; return the exit code as `leave` does.

    Raises:
        UsageError: both names are the same.
        NotFound: the app or the new worker is unknown.
        StreamsxError: any other error of `leave`.
    """
    if options.old == options.new:
        raise UsageError(
            f"--old and --new are one worker: {options.old}: name the one that takes over"
        )
    options.instances = [options.old]
    return await ask(options, clock, swap_to=options.new)
