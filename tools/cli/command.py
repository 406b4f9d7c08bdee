"""Options and endings that all commands share: one error line, exit codes, types of options.

Exit codes: 0 done, 1 tried and failed, 2 wrong usage, 3 not found, 4 cluster unreachable, 130
interrupted, 141 reader of the output gone. Each command decides alone about its output on success.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from streamsx.errors import StreamsxError, UsageError
from streamsx.mistakes import all_of

INTERRUPTED = 130
UNREAD = 141
PORT_MAX = 65535

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """Parser that reports wrong options in one line and exits with 2.

    The keyword arguments are argparse's, which makes the parsers of subcommands.
    """

    def __init__(self, prog: str, description: str, **more: Any) -> None:
        how = {"formatter_class": argparse.RawDescriptionHelpFormatter, **more}
        super().__init__(prog=f"streamsx {prog}", description=description, **how)
        self.allow_abbrev = False

    def error(self, message: str) -> NoReturn:
        """Report a wrong option and exit with 2; argparse calls this method for wrong options."""
        self.exit(
            UsageError.exit_code, f"error: {message}: {self.prog}: --help shows all options\n"
        )

    def run(self, work: Callable[[argparse.Namespace], int | None]) -> NoReturn:
        """Do the work and end the process with the exit code of the work, or of its error.

        `options.people` is the stream for output that only people read: stderr with `--json`, else
        stdout.
        """
        options = self.parse_args()
        options.people = sys.stderr if vars(options).get("json") else sys.stdout
        with ending():
            try:
                code = work(options) or 0
                print(end="", flush=True)
            except BrokenPipeError:
                raise
            except Exception as error:
                if options.debug:
                    raise
                for line in lines_of(error):
                    print(f"error: {line}", file=sys.stderr)
                code = error.exit_code if isinstance(error, StreamsxError) else 1
        sys.exit(code)


class Command(Parser):
    """Parser of a command. Every command has --debug."""

    def __init__(self, prog: str, description: str, **more: Any) -> None:
        super().__init__(prog, description, **more)
        self.add_argument("--debug", action="store_true", help="print the traceback of an error")

    def add_json(self) -> None:
        what = "print the result as JSON on stdout, and all else on stderr"
        self.add_argument("--json", action="store_true", help=what)


class CommandGroup(Parser):
    """Parser of a command with subcommands; `options.command` is the name of the given one."""

    def __init__(self, name: str, purpose: str, kind: type[Command] = Command) -> None:
        super().__init__(
            name, purpose, epilog=f"streamsx {name} COMMAND --help shows options and an example"
        )
        self._name = name
        self._commands = self.add_subparsers(dest="command", metavar="COMMAND", parser_class=kind)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; report wrong ones by the help of their command."""
        words = sys.argv[1:] if args is None else args
        commands: dict[str, Parser] = dict(self._commands.choices)
        if not words:
            self.error(f"no command: there are {', '.join(commands)}")
        if not words[0].startswith("-") and words[0] not in commands:
            near = get_close_matches(words[0], commands, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(commands)}"
            self.exit(UsageError.exit_code, f"error: no such command: {words[0]}: {hint}\n")
        options, left = self.parse_known_args(words, namespace)
        if options.command is None:
            self.error(f"{words[0]} ahead of a command: there are {', '.join(commands)}")
        if left:
            commands[options.command].error(f"unrecognized arguments: {' '.join(left)}")
        return options

    def add_command(self, name: str, purpose: str) -> Command:
        return self._commands.add_parser(
            name, prog=f"{self._name} {name}", description=purpose, help=purpose
        )


@contextmanager
def ending() -> Iterator[None]:
    """End the process quietly after an interrupt, or if the reader of its output has gone."""
    try:
        try:
            yield
        finally:
            _flush()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # such as from `| head`, which has read enough
        sys.exit(UNREAD)


def _flush() -> None:
    """Flush stdout; discard output that cannot be written.

    Otherwise Python would try to write the output again at exit, and print an error.
    """
    try:
        print(end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise


def tell(options: argparse.Namespace, result: object) -> None:
    """Print a result for programs, if the command has `--json`."""
    if options.json:
        print(json.dumps(result), flush=True)


def lines_of(error: Exception) -> list[str]:
    """Return an error as one line, or several mistakes of a user as one line each."""
    found = all_of(error) if isinstance(error, UsageError) else (error,)
    return [line_of(each) for each in found]


def line_of(error: Exception) -> str:
    """Return an error as one line.

    An error other than StreamsxError is unexpected, so the line recommends `--debug`.
    """
    text = " ".join(str(error).split())
    if isinstance(error, StreamsxError):
        return text
    return f"unexpected {type(error).__name__}: {text or 'no details'}: --debug shows more"


def value(parse: Callable[[object], T]) -> Callable[[str], T]:
    """Wrap a parser of `streamsx.config` as the type of an option.

    The wrapper raises ArgumentTypeError, because argparse hides the text of other errors.
    """

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def port(text: str) -> int:
    """Parse a TCP port; 0 stands for a free one.

    Raises:
        argparse.ArgumentTypeError: the text is no number, or too large.
    """
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: a port is a number up to {PORT_MAX}")
    return int(text)
