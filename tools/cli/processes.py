"""Child processes of a command or a test, each with a log of its own.

No child outlives its parent, even if the parent is killed. Not here: the programs that run.
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
"""First words of a `streamsx` command line."""


class Child:
    """Child process, from its start to its end."""

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
        """Start the process without input; its output is appended to `log`.

        With `prints`, stdout goes to `ready` instead. On Linux the kernel kills the child when this
        process ends, even by SIGKILL; on other systems the code that started the child has to. The
        child has a process group of its own: Ctrl-C reaches only this process, which then ends its
        children in order.
        """
        self.name = name
        self.log = log
        self.cpu_s = 0.0
        """CPU seconds, user and system; known after the end."""
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
                preexec_fn=_die_with_parent(),  # the function only calls prctl
            )
            self._process = started.result()
        self.pid = self._process.pid
        self._ended: Future[int] = Future()
        Thread(target=self._watch, name=f"wait-{name}", daemon=True).start()

    def _watch(self) -> None:
        """Wait for the end by wait4, which also returns the CPU time; no other code waits."""
        _, status, used = os.wait4(self.pid, 0)
        self.cpu_s = used.ru_utime + used.ru_stime
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set_result(self._process.returncode)

    @property
    def code(self) -> int | None:
        """Exit code of the process, negative for a signal; None while the process runs."""
        return self._ended.result() if self._ended.done() else None

    def ready(self) -> str:
        """Wait for the first line, `ready REST`, and return REST.

        Raises:
            Died: the process ended, or printed another first line; the process is killed then.
        """
        assert self._process.stdout is not None, "it was not to print"
        with self._process.stdout as printed:
            word, _, rest = printed.readline().decode().strip().partition(" ")
        if word != "ready":
            self.kill()
            raise Died(self)
        return rest

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            TimeoutError: the process still runs after `timeout_s`.
        """
        return self._ended.result(timeout_s)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; do nothing if the process has ended."""
        if self.code is None:
            with suppress(ProcessLookupError):  # ended: wait4 has returned, `code` is not set yet
                os.kill(self.pid, number)

    def stop(self, timeout_s: float | None = None) -> int:
        """Send SIGTERM, and SIGKILL after `timeout_s`; return the exit code."""
        self.send(signal.SIGTERM)
        try:
            return self.wait(timeout_s)
        except TimeoutError:
            return self.kill()

    def kill(self) -> int:
        """Send SIGKILL, wait for the end, and return the exit code."""
        self.send(signal.SIGKILL)
        return self.wait()

    def tail(self, lines: int = LINES_TOLD) -> list[str]:
        """Return the last lines of the log."""
        return self.log.read_text(errors="replace").splitlines()[-lines:]


class Died(StreamsxError):
    """Unexpected end of a process; `tail` holds the last lines of the log."""

    def __init__(self, child: Child) -> None:
        code = child.code or 0
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        super().__init__(f"{child.name} ended unexpectedly, {how}: see {child.log}")
        self.tail = child.tail()


@cache
def _starter() -> ThreadPoolExecutor:
    """Return the executor whose one thread starts all children.

    The kernel regards the *thread* that started a child as the parent, so this thread must live as
    long as the process. A thread of asyncio.to_thread ends with its event loop; then the kernel
    killed its children.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="children")


def _die_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    pr_set_pdeathsig = 1
    return lambda: prctl(pr_set_pdeathsig, signal.SIGKILL)
