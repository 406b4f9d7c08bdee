"""Options and endings that all commands share: one error line, exit codes, types of options.

0 done, 1 tried and failed, 2 wrong usage, 3 not found, 4 cluster unreachable, 130 interrupted, 141
nobody reads on. What a command prints when it succeeds is its own affair.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from streamsx.errors import StreamsxError, UsageError

INTERRUPTED = 130
UNREAD = 141
PORT_MAX = 65535

T = TypeVar("T")


class Command(argparse.ArgumentParser):
    """Says what is wrong in one line, and ends with 2. Every command has --debug."""

    def __init__(self, name: str, purpose: str) -> None:
        super().__init__(prog=f"streamsx {name}", description=purpose, allow_abbrev=False)
        self.add_argument("--debug", action="store_true", help="print tracebacks")

    def add_json(self) -> None:
        what = "the last line is one JSON object, the rest on stderr"
        self.add_argument("--json", action="store_true", help=what)

    def error(self, message: str) -> NoReturn:
        """As argparse demands it: called for each wrong option."""
        self.exit(
            UsageError.exit_code, f"error: {message}: {self.prog}: --help shows what can be\n"
        )

    def run(self, work: Callable[[argparse.Namespace], int | None]) -> NoReturn:
        """Does the work and ends the process with its exit code, or with that of what it raised.
        What is for people alone goes to `people`.
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
                print(f"error: {line_of(error)}", file=sys.stderr)
                code = error.exit_code if isinstance(error, StreamsxError) else 1
        sys.exit(code)


@contextmanager
def ending() -> Iterator[None]:
    """Ends the process, quietly, for who interrupts what is inside or reads its output no more."""
    try:
        try:
            yield
        finally:
            _flush()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # as `| head` does it, which has seen enough
        sys.exit(UNREAD)


def _flush() -> None:
    """What cannot be written is thrown away: else Python tries again at its end, and complains."""
    try:
        print(end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise


def tell(options: argparse.Namespace, result: object) -> None:
    """Programs, which asked for it with --json."""
    if options.json:
        print(json.dumps(result), flush=True)


def line_of(error: Exception) -> str:
    """One line. What is not one of ours was not expected: it says where more can be learned."""
    text = " ".join(str(error).split())
    if isinstance(error, StreamsxError):
        return text
    return f"unexpected {type(error).__name__}: {text or 'no more is known'}: again with --debug"


def value(parse: Callable[[object], T]) -> Callable[[str], T]:
    """A parser of `streamsx.config` as the type of an option: argparse hides what others raise."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def port(text: str) -> int:
    """Of TCP; 0 stands for a free one."""
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: a port is a number up to {PORT_MAX}")
    return int(text)
