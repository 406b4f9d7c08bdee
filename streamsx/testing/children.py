"""Child processes that do not outlive the process that started them, however that ends.

Not here: which programs, and when they are told to end.
"""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import IO


def start(
    command: Sequence[str],
    *,
    out: IO[bytes] | int,
    err: IO[bytes] | int,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """It reads nothing, and writes to `out` and `err`. On Linux the kernel kills it when this
    process ends, even by SIGKILL; elsewhere only who started it does.
    """

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603  # what tests run
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=env,
            cwd=folder,
            preexec_fn=_die_with_parent(),  # noqa: PLW1509  # all it does is call prctl
        )

    return _starter().submit(begin).result()


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
