"""The embedded broker as a process that can be killed, as `streamsx broker` starts it.

It is handled like `apache_kafka.ApacheKafka`, so that one test can run against either. Not here: a
broker that only has to be there (`streamsx.testing.Broker`).
"""

import subprocess
import sys
from pathlib import Path
from typing import Self

from streamsx.errors import BrokerUnreachable
from streamsx.testing import children


class EmbeddedBroker:
    """A context manager; between its calls the broker may be down, its address stays the same."""

    def __init__(self, folder: Path, *options: str) -> None:
        """`options` are those of `streamsx broker`."""
        self._folder, self._options = folder, options
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap = "127.0.0.1:0"

    @property
    def pid(self) -> int | None:
        """None while it is down."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, idle_s: float | None = None) -> None:
        """Until it serves. `idle_s`: it closes connections that are idle for so long, ten minutes
        without. Raises BrokerUnreachable with what it said instead.
        """
        assert self._process is None, "it is running"
        port = self.bootstrap.rpartition(":")[2]
        command = [sys.executable, "-m", "streamsx", "broker", "--data", str(self._folder)]
        command += ["--port", port, *self._options]
        if idle_s is not None:
            command += ["--connections-max-idle", f"{idle_s}s"]
        with (self._folder.parent / f"{self._folder.name}.err").open("ab") as log:
            self._process = children.start(command, out=subprocess.PIPE, err=log)
        assert self._process.stdout
        word, _, address = self._process.stdout.readline().decode().strip().partition(" ")
        if word != "ready":
            self.kill()
            raise BrokerUnreachable(f"the broker did not start: {self.told()}")
        self.bootstrap = address

    def told(self) -> str:
        """All that it ever wrote to stderr."""
        return (self._folder.parent / f"{self._folder.name}.err").read_text()

    def stop(self) -> int | None:
        """SIGTERM; its exit code, or None if it was down."""
        if self._process is None:
            return None
        self._process.terminate()
        return self._end()

    def kill(self) -> None:
        """SIGKILL: as a crash."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def restart(self) -> None:
        """Stop if it runs, then start."""
        self.stop()
        self.start()

    def _end(self) -> int:
        assert self._process
        assert self._process.stdout
        code = self._process.wait()
        self._process.stdout.close()
        self._process = None
        return code
