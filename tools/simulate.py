"""`streamsx simulate`: what a group would do, in virtual time, without brokers and workers.

`scale`: how long it takes, and how many rebalances, when a group of your size grows or shrinks.
"""

import argparse
import sys

from streamsx.config import seconds, whole
from streamsx.errors import UsageError
from streamsx.tools.cli.command import Command, tell, value
from streamsx.tools.cli.progress import blocking_progress

KINDS = ("scale",)


def main() -> None:
    """Ends with 2 for a group that cannot be."""
    command = Command("simulate", "Foresee what a group would do, in virtual time.")
    add = command.add_argument
    add("kind", choices=KINDS, help="scale: a balanced group grows or shrinks, all at once")
    add(
        "--tasks",
        type=value(whole(1)),
        required=True,
        metavar="N",
        help="tasks with state, of equal size",
    )
    add(
        "--workers",
        type=value(whole(1)),
        required=True,
        metavar="N",
        help="workers at the beginning",
    )
    add("--add", type=value(whole(0)), default=0, metavar="N", help="workers that join (0)")
    add(
        "--remove",
        type=value(whole(0)),
        default=0,
        metavar="N",
        help="workers that leave, as by `leave` (0)",
    )
    add(
        "--restore-seconds",
        type=value(seconds),
        default=30.0,
        metavar="S",
        help="to rebuild one task from its changelog, whatever else is rebuilt beside it (30)",
    )
    add("--max-learners", type=value(whole(0)), default=2, metavar="N",
        help="max_learners_per_member: tasks that one worker rebuilds at once; 0: all, and each "
        "stands still meanwhile (2)")  # fmt: skip
    add("--serial", action="store_true", help="a worker rebuilds one task after another")
    add(
        "--together",
        action="store_true",
        help="learner_partial_rebalance=false: a worker asks for what it learns when all is ready",
    )
    command.add_json()
    command.run(scale)


def scale(options: argparse.Namespace) -> None:
    """Raises UsageError for a group of nobody, or that does not change."""
    from streamsx.assignor.model import Rules
    from streamsx.simulation.scale import Resize, Scaling

    if options.remove > options.workers:
        raise UsageError(f"--remove {options.remove}: there are {options.workers}: give fewer")
    if options.remove == options.workers + options.add:
        raise UsageError(f"--remove {options.remove}: nobody would be left: give fewer, or --add")
    if not options.add + options.remove:
        raise UsageError("nothing changes: give --add or --remove")
    sizes = options.tasks, options.workers, options.add, options.remove
    how = options.restore_seconds, options.serial, options.together
    play = Scaling(Resize(*sizes, *how), Rules(max_learners_per_member=options.max_learners))
    with blocking_progress(sys.stderr, "simulating") as say:
        while play.step():
            say(f"simulated: {play.cost.rebalances} rebalances, {play.cost.balanced_s:.0f} s")
    cost = play.cost
    idle_s = cost.unavailable_task_s
    per_move = idle_s / max(cost.moves, 1)
    print(
        f"balanced after {cost.balanced_s:.1f} s, {cost.rebalances} rebalances",
        f"{cost.moves} of {options.tasks} tasks moved; all others ran on throughout",
        f"{idle_s:.1f} task-seconds nobody processed: {per_move:.2f} s per move",
        f"{cost.learning_task_s:.1f} task-seconds two workers had: one ran it, one learned it",
        sep="\n", file=options.people,
    )  # fmt: skip
    tell(options, {
        "rebalances": cost.rebalances, "moves": cost.moves,
        "seconds_to_balance": round(cost.balanced_s, 3),
        "unavailable_task_seconds": round(cost.unavailable_task_s, 3),
        "learning_task_seconds": round(cost.learning_task_s, 3),
    })  # fmt: skip
