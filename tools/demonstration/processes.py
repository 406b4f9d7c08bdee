"""The processes of a demo: the broker and the workers, each with a log of its own.

They never outlive it: see `streamsx.testing.children`.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Self

from streamsx.errors import StreamsxError
from streamsx.testing import children

LINES_TOLD = 12


class Child:
    """A command of ours. `code`: its exit code, negative for a signal; None while it runs."""

    def __init__(self, name: str, log: Path, *arguments: str) -> None:
        self.name, self.log = name, log
        self.code: int | None = None
        self.cpu_s = 0.0
        """User and system, once it has ended."""
        command = [sys.executable, "-m", "streamsx", *arguments]
        with log.open("ab") as file:
            self._process = children.start(command, out=file, err=file)

    def poll(self, options: int = os.WNOHANG) -> int | None:
        """Whether it has ended. By wait4, which tells what it cost; nobody else waits for it."""
        if self.code is None:
            pid, status, used = os.wait4(self._process.pid, options)
            if pid:
                self.code = self._process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu_s = used.ru_utime + used.ru_stime
        return self.code

    def send(self, number: signal.Signals) -> None:
        """Nothing, if it has ended."""
        if self.poll() is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """It is over when this returns."""
        self.send(signal.SIGKILL)
        self.poll(options=0)


class Died(StreamsxError):
    """A process did not end as it should. `tail`: of its log."""

    def __init__(self, child: Child) -> None:
        code = child.code or 0
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        super().__init__(f"{child.name} ended unexpectedly, {how}: see {child.log}")
        self.tail = child.log.read_text(errors="replace").splitlines()[-LINES_TOLD:]


class Processes(dict[str, Child]):
    """By name. A context manager: who runs at its end is killed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.values():
            child.kill()
