"""Journals that clients write while they run, complete even after a kill; merged to one history."""

import pickle
from collections.abc import Callable, Iterable
from pathlib import Path

from streamsx.clock import Clock, SystemClock
from tests.support.history.events import Action, Event, History, Phase

Over = Callable[[Phase, Action], None]
"""Ends an operation: how, and as what it was in the end."""


class Journal:
    """Journal of one client: each event is in the file, by one write, when a call returns."""

    def __init__(self, path: Path, client: str, clock: Clock | None = None) -> None:
        self._file, self._client = path.open("ab", buffering=0), client
        self._clock, self._operations = clock or SystemClock(), 0

    def close(self) -> None:
        self._file.close()

    def begin(self, action: Action) -> Over:
        """Note an operation before it starts."""
        self._operations += 1
        operation = self._operations
        self._write(operation, Phase.INVOKE, action)
        return lambda phase, outcome: self._write(operation, phase, outcome)

    def note(self, action: Action) -> None:
        """Note something that happens at once."""
        self._operations += 1
        self._write(self._operations, Phase.OK, action)

    def _write(self, operation: int, phase: Phase, action: Action) -> None:
        event = Event(self._client, operation, phase, action)
        self._file.write(pickle.dumps((self._clock.now(), event)))


def merged(paths: Iterable[Path]) -> History:
    """Merge journals by time: one clock serves all processes of a machine. An unfinished last line
    is dropped.
    """
    events = [each for path in paths for each in read(path)]
    return [event for _, event in sorted(events, key=lambda each: each[0])]


def read(path: Path) -> list[tuple[float, Event]]:
    found: list[tuple[float, Event]] = []
    with path.open("rb") as file:
        while file.peek(1):
            try:
                found.append(pickle.load(file))
            except (EOFError, pickle.UnpicklingError):
                break
    return found
