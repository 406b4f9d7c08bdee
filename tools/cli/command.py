"""Options and endings that all commands share: one error line, exit codes, durations and sizes.

0 done, 1 tried and failed, 2 wrong usage, 3 not found, 4 cluster unreachable, 130 interrupted. What
a command prints when it succeeds is its own affair.
"""

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from streamsx.errors import StreamsxError, UsageError

INTERRUPTED = 130
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Command(argparse.ArgumentParser):
    """Says what is wrong in one line, and ends with 2. Every command has --debug."""

    def __init__(self, name: str, purpose: str) -> None:
        super().__init__(prog=f"streamsx {name}", description=purpose, allow_abbrev=False)
        self.add_argument("--debug", action="store_true", help="print tracebacks")

    def error(self, message: str) -> NoReturn:
        """As argparse demands it: called for each wrong option."""
        self.exit(
            UsageError.exit_code, f"error: {message}: {self.prog}: --help shows what can be\n"
        )

    def run(self, work: Callable[[argparse.Namespace], int | None]) -> NoReturn:
        """Does the work and ends the process with its exit code, or with that of what it raised."""
        options = self.parse_args()
        try:
            code = work(options) or 0
        except KeyboardInterrupt:
            code = INTERRUPTED
        except Exception as error:
            if options.debug:
                raise
            print(f"error: {line_of(error)}", file=sys.stderr)
            code = error.exit_code if isinstance(error, StreamsxError) else 1
        sys.exit(code)


def line_of(error: Exception) -> str:
    """One line. What is not one of ours was not expected: it says where more can be learned."""
    text = " ".join(str(error).split())
    if isinstance(error, StreamsxError):
        return text
    return f"unexpected {type(error).__name__}: {text or 'no more is known'}: again with --debug"


def seconds(text: str) -> float:
    """Of a duration: `500ms`, `60s`, `10m`."""
    return _amount(text, SECONDS, "a duration is written 500ms, 60s or 10m")


def size_bytes(text: str) -> int:
    """Of a size: `512`, `64KiB`, `8MiB`."""
    return int(_amount(text, BYTES, "a size is written 512, 64KiB or 8MiB"))


def _amount(text: str, units: dict[str, Any], how: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-zA-Z]*)", text)
    if not found or found[2] not in units:
        raise argparse.ArgumentTypeError(f"{text!r}: {how}")
    return float(found[1]) * float(units[found[2]])
