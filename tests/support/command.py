"""Commands run in this process: a process of its own takes 0.3 s to import."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from streamsx.__main__ import main


def streamsx(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Return the exit code and the output of `streamsx` with these arguments."""
    out = StringIO()
    err = StringIO()
    code: object = 0
    with undone(cwd), chdir(cwd or "."), redirect_stdout(out), redirect_stderr(err):
        sys.argv = ["streamsx", *arguments]
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def error_line(stderr: str) -> str:
    """Return the one line of an error. After 0.5 s a command also prints that it waits for
    brokers.
    """
    (line,) = [each for each in stderr.splitlines() if not each.startswith("waiting for ")]
    return line


@contextmanager
def undone(folder: Path | None) -> Iterator[None]:
    """Put back what a command may change.

    These are arguments, `sys.path`, variables, handlers of signals, settings of loggers, and the
    modules that it imports from the folder.
    """
    argv = sys.argv
    path = sys.path
    modules = set(sys.modules)
    variables = {**os.environ}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    loggers = [logging.getLogger(name) for name in (None, "streamsx", "aiokafka", "asyncio")]
    logs = [(each, [*each.handlers], each.level, each.propagate) for each in loggers]
    disabled = logging.root.manager.disable
    sys.path = [*path]
    try:
        yield
    finally:
        sys.argv = argv
        sys.path = path
        for name in set(sys.modules) - modules:
            if folder and (getattr(sys.modules[name], "__file__", "") or "").startswith(
                f"{folder}/"
            ):
                del sys.modules[name]
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        logging.disable(disabled)
        for logger, was, level, propagate in logs:
            logger.handlers[:] = was
            logger.setLevel(level)
            logger.propagate = propagate
