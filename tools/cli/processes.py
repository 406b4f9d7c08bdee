"""Processes that a command or a test has started, each with a log of its own.

None outlives the process that started it, however that ends. Not here: which programs they are.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Thread

from streamsx.errors import StreamsxError

LINES_TOLD = 12
OURS = (sys.executable, "-m", "streamsx")
"""The beginning of a command of ours."""


class Child:
    """A process from its start to its end."""

    def __init__(
        self,
        name: str,
        log: Path,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        prints: bool = False,
    ) -> None:
        """It reads nothing, and writes to the end of `log`; with `prints` stdout is for `ready`.

        On Linux the kernel kills it when this process ends, even by SIGKILL; elsewhere only who
        started it does. It is in a process group of its own: Ctrl-C reaches this process alone,
        which then ends its children in order.
        """
        self.name, self.log, self.cpu_s = name, log, 0.0
        """`cpu_s`: user and system, once it has ended."""
        with log.open("ab") as file:
            started = _starter().submit(
                subprocess.Popen[bytes],
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if prints else file,
                stderr=file,
                env=env,
                cwd=folder,
                process_group=0,
                preexec_fn=_die_with_parent(),  # all it does is call prctl
            )
            self._process = started.result()
        self.pid = self._process.pid
        self._ended: Future[int] = Future()
        Thread(target=self._watch, name=f"wait-{name}", daemon=True).start()

    def _watch(self) -> None:
        """By wait4, which tells what it cost; nobody else waits for it."""
        _, status, used = os.wait4(self.pid, 0)
        self.cpu_s = used.ru_utime + used.ru_stime
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set_result(self._process.returncode)

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    def ready(self) -> str:
        """What stands behind `ready` on the first line that it prints, once it does. Raises Died,
        and kills what prints something else.
        """
        assert self._process.stdout is not None, "it was not to print"
        with self._process.stdout as printed:
            word, _, rest = printed.readline().decode().strip().partition(" ")
        if word != "ready":
            self.kill()
            raise Died(self)
        return rest

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code, once it has ended. Raises TimeoutError."""
        return self._ended.result(timeout_s)

    def send(self, number: signal.Signals) -> None:
        """Nothing, if it has ended."""
        if self.code is None:
            with suppress(ProcessLookupError):  # it ended: wait4 has returned, its code is not set
                os.kill(self.pid, number)

    def stop(self, timeout_s: float | None = None) -> int:
        """SIGTERM, and SIGKILL to one that takes longer; its exit code."""
        self.send(signal.SIGTERM)
        try:
            return self.wait(timeout_s)
        except TimeoutError:
            return self.kill()

    def kill(self) -> int:
        """SIGKILL; it is over when this returns. Its exit code."""
        self.send(signal.SIGKILL)
        return self.wait()

    def tail(self, lines: int = LINES_TOLD) -> list[str]:
        """The end of its log."""
        return self.log.read_text(errors="replace").splitlines()[-lines:]


class Died(StreamsxError):
    """A process did not end as it should. `tail`: of its log."""

    def __init__(self, child: Child) -> None:
        code = child.code or 0
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        super().__init__(f"{child.name} ended unexpectedly, {how}: see {child.log}")
        self.tail = child.tail()


@cache
def _starter() -> ThreadPoolExecutor:
    """The parent, to the kernel, is the *thread* that started a child: so that is one which lives
    as long as the process. One of asyncio.to_thread ends with its loop, and took children along.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="children")


def _die_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl, pr_set_pdeathsig = ctypes.CDLL(None).prctl, 1
    return lambda: prctl(pr_set_pdeathsig, signal.SIGKILL)
