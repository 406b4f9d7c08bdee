"""Commands that are called in this process: one of their own takes 0.3 s to import."""

import signal
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from streamsx.__main__ import main


def streamsx(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Return the exit code and the output of `streamsx` with these arguments.

    A command may take over the signals that end it, add folders to `sys.path`, and import an app
    of `cwd`: all of that is undone.
    """
    out = StringIO()
    err = StringIO()
    argv = sys.argv
    path = sys.path
    modules = set(sys.modules)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    sys.argv = ["streamsx", *arguments]
    sys.path = [*path]
    code: object = 0
    try:
        with chdir(cwd or "."), redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.argv = argv
        sys.path = path
        for name in set(sys.modules) - modules:
            if cwd and (getattr(sys.modules[name], "__file__", None) or "").startswith(f"{cwd}/"):
                del sys.modules[name]
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
