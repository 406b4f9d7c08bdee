"""`streamsx assign`: plans the tasks of groups: reads groups, prints plans, as JSON lines.

The command answers how a group would react if a host joined or left. No broker and no worker is
needed. To play several rounds, feed the plan's `memory`, and the roles that the plan assigns, into
the next round.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

from streamsx.errors import UsageError
from streamsx.tools.cli.command import Command

EXAMPLE = (
    '{"tasks": [{"id": "0_0"}, {"id": "0_1"}], '
    '"members": [{"id": "a", "owned": ["0_0", "0_1"]}, {"id": "b"}]}'
)


def main() -> None:
    """Run the command: print a plan for each group; exit with 2 if a line was no group."""
    purpose = "Plan the tasks of groups: read a JSON object a line, and print a plan for each."
    command = Command("assign", purpose, epilog=f"example, a line of input:\n  {EXAMPLE}")
    add = command.add_argument
    add(
        "--input",
        metavar="FILE",
        default="-",
        help="the file with the groups; - is standard input (-)",
    )
    command.run(run)


def run(options: argparse.Namespace) -> int:
    """Print an answer for each line of the input.

    Returns:
        Exit code: 2 if at least one answer is an error, else 0.

    Raises:
        UsageError: the file cannot be read.
    """
    wrong = 0
    with ExitStack() as stack:
        lines: Iterable[bytes] = sys.stdin.buffer
        if options.input != "-":
            try:
                lines = stack.enter_context(open(options.input, "rb"))
            except OSError as error:
                raise UsageError(f"cannot read {options.input}: {error.strerror}") from error
        for answer in answers(lines):
            wrong += "error" in answer
            print(json.dumps(answer), flush=True)
    return UsageError.exit_code if wrong else 0


def answers(lines: Iterable[str | bytes]) -> Iterator[dict[str, object]]:
    """Yield a plan, or an object with `error`, for each line that is not blank."""
    from streamsx.assignor.assign import assign
    from streamsx.assignor.document import document_of, group_of

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield {**document_of(assign(*group_of(json.loads(line))))}
        except RecursionError:
            yield {"error": f"line {number}: nested too deep"}
        except (UsageError, ValueError) as error:
            yield {"error": f"line {number}: {error}"}
