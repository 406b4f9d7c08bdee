"""Jars from Maven, copied once per machine.

For what pip cannot install: Spark's own connector, and programs that a test runs beside us. Which
jars: a pom says it. What runs from them is not known here.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from streamsx.errors import WorldError

COPY_TIMEOUT_S = 300.0


class JarsMissing(WorldError):
    """Maven could not copy them: no such program, or the registry does not answer."""


def jars(pom: Path) -> Path:
    """The folder with all that the pom needs at run time, copied if this machine has no such yet.

    `$XDG_CACHE_HOME/streamsx` or `~/.cache/streamsx`, by the content of the pom. Two processes that
    ask at once copy once. Raises JarsMissing.
    """
    name = f"{pom.parent.name}-jars-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    folder = _cache() / name
    with (_cache() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _copy(pom, folder)
    return folder


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamsx"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _copy(pom: Path, folder: Path) -> None:
    """Into a folder beside it first: a copy that was interrupted must not look like a whole one."""
    begun = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
    command = [
        "mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={begun}",
    ]  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603  # the command is written above
            command, check=False, capture_output=True, text=True, timeout=COPY_TIMEOUT_S
        )
        if done.returncode or not any(begun.glob("*.jar")):
            said = (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]
            raise JarsMissing(f"Maven Central does not answer: {pom}: mvn says: {said[0]}")
        begun.rename(folder)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise JarsMissing(f"Maven Central does not answer: {pom}: {error}") from None
    finally:
        shutil.rmtree(begun, ignore_errors=True)
