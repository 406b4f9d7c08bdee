"""Journal of a worker's decisions, one line each: for people in the log, for programs as JSON.

The text log has a sentence for each event (`log_sentences`). The JSON log has its name and fields.
The file of events has JSON Lines. The names of events and fields are contracts. Each line has `t`
(unix seconds), `mono` (monotonic seconds), `instance` and `event`, and is flushed as it is written.
Of records only those that fail have a line each, which the log leaves out.
"""

import json
import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from streamsx.clock import Clock
from streamsx.errors import UsageError
from streamsx.log_sentences import level_of, of_event

LOG: Final = logging.getLogger("streamsx")
FILE_ONLY: Final = frozenset({"failed", "refused"})
"""Events that the log never has, because it has a limited number of lines about the same."""
MONOTONIC: Final = frozenset({"at"})
"""Fields for programs alone: monotonic seconds mean nothing to a reader of the log."""
DEADLINE: Final = "deadline"
"""Field in unix seconds; the log shows it as a time in UTC."""


class Journal:
    """Journal of one worker, written to by both threads.

    `as_json`: the log is for programs, and has events that the text log sums up for people.

    Raises:
        UsageError: the file cannot be opened.
    """

    def __init__(
        self, instance: str, clock: Clock, path: Path | None = None, *, as_json: bool = False
    ) -> None:
        self.instance = instance
        self._as_json = as_json
        self._clock = clock
        self._path = path
        self._lock = threading.Lock()
        self._file: IO[str] | None = None
        if path is not None:
            try:
                self._file = path.open("a")
                self._file.write(_end_of_torn_line(path))
            except OSError as error:
                raise UsageError(
                    f"events file: {path}: {error.strerror}: give --events a file in a folder "
                    "that is there"
                ) from None

    def __call__(self, event: str, **fields: object) -> None:
        """Write an event with its fields, which JSON must know; the log shows a sentence."""
        level = level_of(event, as_json=self._as_json)
        if event not in FILE_ONLY and LOG.isEnabledFor(level):
            text = self._text(event, fields)
            LOG.log(level, "%s", text, extra={"fields": {"event": event, **fields}})
        if self._file is not None:
            stamp = {"t": self._clock.wall(), "mono": self._clock.now()}
            told = {**stamp, "instance": self.instance, "event": event, **fields}
            with self._lock:
                self._write(json.dumps(told) + "\n")

    @property
    def file(self) -> Path | None:
        """Return the file of events; None without one, or after it has failed."""
        return None if self._file is None else self._path

    def _text(self, event: str, fields: dict[str, object]) -> str:
        """Return the sentence of an event, or its fields as key=value if there is none."""
        known = shown(fields)
        return of_event(event, {"worker": self.instance, **known}) or line(event, known)

    def _write(self, text: str) -> None:
        """Write a line to the file; a file that fails is closed, and the worker goes on."""
        if self._file is None:
            return  # closed by the other thread
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            LOG.error(
                "Events file %s: %s. No more events are written to it.", self._path, error.strerror
            )
            self.close()

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # the buffered rest cannot be written either
                self._file.close()
            self._file = None


def shown(fields: dict[str, object]) -> dict[str, object]:
    """Return the fields for people: no monotonic times, and other times in UTC."""
    found = {name: value for name, value in fields.items() if name not in MONOTONIC}
    if isinstance(until := found.get(DEADLINE), int | float):
        found[DEADLINE] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until))
    return found


def line(event: str, fields: dict[str, object]) -> str:
    """Return an event as `promoted task=1_0 lag=12`; values with spaces are quoted."""
    return " ".join([event, *(f"{name}={_quoted(value)}" for name, value in fields.items())])


def _quoted(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return json.dumps(text) if not text or any(c in text for c in ' "=\n') else text


def _end_of_torn_line(path: Path) -> str:
    """Return the newline that is missing after a line that a killed process left unfinished.

    Without the newline the unfinished line would swallow the next line.
    """
    if not path.is_file():
        return ""  # a pipe, a terminal
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return ""
        file.seek(-1, os.SEEK_END)
        return "" if file.read(1) == b"\n" else "\n"
