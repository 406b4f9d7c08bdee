"""Mistakes of a user, collected so that one run tells all of them, each with its file and line.

A mistake is an error of the user's code that does not depend on an earlier one. Not here: the
search for mistakes (`streamsx.app`, `streamsx.topology`).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from streamsx.errors import SeveralMistakes, UsageError

PLACE: Final = re.compile(r"(\.py|>):\d+\b")
"""File and line, as in `(shop.py:12)`, `(<stdin>:1)`."""


class Mistakes:
    """Mistakes that were found so far, in their order, each once."""

    def __init__(self) -> None:
        self._found: dict[str, UsageError] = {}

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._found)

    @contextmanager
    def noted(self, made_at: str = "") -> Iterator[None]:
        """Note the mistakes of the block. `made_at`: file and line, for errors that have none."""
        try:
            yield
        except UsageError as error:
            self.add(error, made_at)

    def add(self, error: UsageError, made_at: str = "") -> None:
        """Note a mistake, or each of several."""
        for each in all_of(error):
            placed = at(each, made_at)
            self._found.setdefault(str(placed), placed)

    def check(self) -> None:
        """Raise what was noted: the only mistake itself, or SeveralMistakes."""
        found = list(self._found.values())
        if len(found) > 1:
            raise SeveralMistakes(found)
        for error in found:
            raise error


def all_of(error: UsageError) -> tuple[UsageError, ...]:
    """Return the mistakes that an error stands for."""
    return error.errors if isinstance(error, SeveralMistakes) else (error,)


def at(error: UsageError, made_at: str) -> UsageError:
    """Return the error with a place at its end; unchanged if it has one already."""
    text = str(error)
    if not made_at or PLACE.search(text):
        return error
    placed = type(error)(f"{text} ({made_at})")
    placed.__cause__ = error
    return placed
