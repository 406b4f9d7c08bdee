"""Jars from Maven, copied once per machine.

pip cannot install Apache Kafka and the other Java programs that tests run beside streamsx. A pom
names the jars. This module does not know how the jars are used.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

COPY_TIMEOUT_S = 300.0


class JarsMissing(Exception):
    """Error of Maven's copying: `mvn` is not installed, or the registry does not answer."""


def jars(pom: Path) -> Path:
    """Return the folder with all jars that the pom needs at run time, copied if not there yet.

    The folder is in `$XDG_CACHE_HOME/streamsx` or `~/.cache/streamsx`, and its name contains a hash
    of the pom. If two processes call this function at once, one copies and the other waits.

    Raises:
        JarsMissing: Maven could not copy the jars.
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
    """Copy jars into a temporary folder, then rename that folder to `folder`.

    So an interrupted copy never looks like a complete one.
    """
    begun = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
    command = [
        "mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={begun}",
    ]  # fmt: skip
    try:
        done = subprocess.run(
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
