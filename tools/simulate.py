"""`streamsx simulate`: computes what a group of workers would do, without brokers.

`scale` computes the time, and the number of rebalances, when a group of your size grows or shrinks.
`seeds` and `story` simulate the workers that ship. A number, the seed, determines everything about
a group: its apps, its settings, its faults. Every group must keep the guarantees.
"""

import argparse
import sys
from collections.abc import Callable
from typing import NamedTuple

from streamsx.config import seconds, whole
from streamsx.errors import UsageError
from streamsx.tools.cli.command import Command, CommandGroup, tell, value
from streamsx.tools.cli.progress import blocking_progress

SHRINK_TRIES = 60
RESTORE_MAX_S = 365 * 86_400.0
"""Longest accepted time to restore: beyond it plans make no sense, and sums are no numbers."""


class SimulateCommand(NamedTuple):
    """Kind of simulation: `add` adds the options to a command, `work` returns an exit code."""

    purpose: str
    example: str
    add: Callable[[Command], None]
    work: Callable[[argparse.Namespace], int | None]


def main() -> None:
    """Run the command: exit with 2 for an impossible group."""
    parser = CommandGroup(
        "simulate", "Simulate groups of workers in virtual time, without brokers."
    )
    for name, kind in KINDS.items():
        command = parser.add_command(name, kind.purpose)
        kind.add(command)
        command.epilog = kind.example
        command.add_json()
    parser.run(lambda options: KINDS[options.command].work(options))


def add_scale(command: Command) -> None:
    add = command.add_argument
    number = value(whole(0))
    count = value(whole(1))
    add("--tasks", type=count, required=True, metavar="N", help="tasks with state, all of one size")
    add("--workers", type=count, required=True, metavar="N", help="workers at the beginning")
    add("--add", type=number, default=0, metavar="N", help="workers that join (0)")
    add(
        "--remove",
        type=number,
        default=0,
        metavar="N",
        help="workers that leave, as by `leave` (0)",
    )
    add(
        "--restore-seconds",
        type=value(restoring),
        default=30.0,
        metavar="S",
        help="seconds to restore one task from its changelog (30)",
    )
    add(
        "--max-learners",
        type=number,
        default=2,
        metavar="N",
        help="max_learners_per_member: tasks that one worker learns at once; with 0 tasks move "
        "at once, and stand still until they are restored (2)",
    )
    add(
        "--standby",
        type=number,
        default=0,
        metavar="N",
        help="num_standby_replicas: standby copies of each task (0)",
    )
    add("--serial", action="store_true", help="a worker restores one task after the other")
    add(
        "--together",
        action="store_true",
        help="learner_partial_rebalance=false: a worker takes its tasks when it has learned all",
    )


def restoring(text: object) -> float:
    found = seconds(text)
    if found > RESTORE_MAX_S:
        raise ValueError(f"{text!r}: a task is restored within 365d: write 30s or 10m")
    return found


def add_seeds(command: Command) -> None:
    number = value(whole(0))
    command.add_argument(
        "--from", dest="first", type=number, default=0, metavar="N", help="first seed (0)"
    )
    command.add_argument(
        "--count", type=value(whole(1)), default=300, metavar="N", help="number of seeds (300)"
    )
    add_world(command)


def add_story(command: Command) -> None:
    add = command.add_argument
    add("seed", type=value(whole(0)), help="number of the group, from `simulate seeds`")
    add("--last", type=value(whole(1)), default=200, metavar="N", help="newest lines (200)")
    add(
        "--shrink",
        action="store_true",
        help="leave out the faults that a failing seed does not need",
    )
    add_world(command)


def add_world(command: Command) -> None:
    """Add `--world`, which changes nothing: simulations always run the worker that ships.

    There is no level with stand-ins, because code behind a stand-in would be unproven.
    """
    command.add_argument(
        "--world", action="store_true", help="no effect: the real worker code always runs"
    )


def seeds(options: argparse.Namespace) -> int:
    """Simulate the groups of a range of seeds; return 1 if one of them fails, else 0."""
    from streamsx.simulation.world import play

    failures = []
    turns = 0
    virtual_s = 0.0
    with blocking_progress(sys.stderr, "simulating") as say:
        for number in range(options.first, options.first + options.count):
            result = play(number, story=0)
            turns = turns + result.turns
            virtual_s = virtual_s + result.virtual_s
            if wrong := result.violation:
                failures.append({"seed": number, "invariant": wrong.rule, "at": round(wrong.at, 3)})
                print(f"{wrong}", file=options.people, flush=True)
            say(f"simulated: seed {number}, {len(failures)} fail")
    print(f"{options.count} seeds, {virtual_s:.0f} virtual s, {turns} turns of threads: "
          f"{len(failures)} fail", file=options.people)  # fmt: skip
    tell(options, {"seeds": options.count, "events": turns, "virtual_s": round(virtual_s, 3),
                   "failures": failures})  # fmt: skip
    return int(bool(failures))


def story(options: argparse.Namespace) -> int:
    """Print the story of one seed; return 1 if the group fails, else 0.

    The story has a line per event: time, actor, and the message or the fault. The actor w1.2/data
    is the data loop of worker 1 in its second life.
    """
    from streamsx.simulation.shrink import Without, needed
    from streamsx.simulation.world import play

    result = play(options.seed, story=options.last)
    without = Without()
    if options.shrink and result.violation:
        rule = result.violation.rule
        count = result.struck

        def fails(left_out: Without) -> bool:
            wrong = play(options.seed, story=0, without=left_out).violation
            return wrong is not None and wrong.rule == rule

        with blocking_progress(sys.stderr, f"looking for the faults of {count} that it needs"):
            without = Without(range(count)).difference(needed(count, fails, SHRINK_TRIES))
        result = play(options.seed, story=options.last, without=without)
    print(*result.story, sep="\n", file=options.people)
    faults = f"{result.struck - len(without)} of {result.struck} faults"
    end = f"{result.virtual_s:.0f} virtual s, {faults}: {result.violation or 'holds'}"
    print(end, file=options.people)
    tell(options, {"seed": options.seed, "story": list(result.story), "left_out": sorted(without),
                   "violation": str(result.violation) if result.violation else None})  # fmt: skip
    return int(result.violation is not None)


def scale(options: argparse.Namespace) -> None:
    """Simulate a group that grows or shrinks, and print the cost.

    Raises:
        UsageError: no worker would be left, or the group does not change.
    """
    from streamsx.assignor.model import Rules
    from streamsx.simulation.scale import Resize, Scaling

    if options.remove > options.workers:
        raise UsageError(f"--remove {options.remove}: there are {options.workers}: give fewer")
    if options.remove == options.workers + options.add:
        raise UsageError(
            f"--remove {options.remove}: no worker would be left: give fewer, or --add"
        )
    if not options.add + options.remove:
        raise UsageError("nothing changes: give --add or --remove")
    sizes = options.tasks, options.workers, options.add, options.remove
    how = options.restore_seconds, options.serial, options.together
    rules = Rules(max_learners_per_member=options.max_learners, standby=options.standby)
    play = Scaling(Resize(*sizes, *how), rules)
    with blocking_progress(sys.stderr, "simulating") as say:
        while play.step():
            say(f"simulated: {play.cost.rebalances} rebalances, {play.cost.balanced_s:.0f} s")
    cost = play.cost
    idle_s = cost.unavailable_task_s
    per_move = idle_s / max(cost.moves, 1)
    print(
        f"balanced after {cost.balanced_s:.1f} s, {cost.rebalances} rebalances",
        f"{cost.moves} of {options.tasks} tasks moved; all others ran all the time",
        f"{idle_s:.1f} task-seconds stood still: {per_move:.2f} s per move",
        f"{cost.learning_task_s:.1f} task-seconds of learning, while another worker ran the task",
        sep="\n", file=options.people,
    )  # fmt: skip
    tell(options, {
        "rebalances": cost.rebalances, "moves": cost.moves,
        "seconds_to_balance": round(cost.balanced_s, 3),
        "unavailable_task_seconds": round(cost.unavailable_task_s, 3),
        "learning_task_seconds": round(cost.learning_task_s, 3),
    })  # fmt: skip


KINDS = {
    "scale": SimulateCommand(
        "Compute how long a group of your size takes to grow or shrink.",
        "example:\n  streamsx simulate scale --tasks 96 --workers 10 --add 1",
        add_scale,
        scale,
    ),
    "seeds": SimulateCommand(
        "Run whole groups under faults that are drawn from numbers, and check each.",
        "example:\n  streamsx simulate seeds --count 50",
        add_seeds,
        seeds,
    ),
    "story": SimulateCommand(
        "Print what happens in one of these groups, a line an event.",
        "example:\n  streamsx simulate story 42 --last 100",
        add_story,
        story,
    ),
}
