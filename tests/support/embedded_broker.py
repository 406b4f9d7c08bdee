"""The embedded broker as a process that can be killed, as `streamsx broker` starts it.

It is handled like `apache_kafka.ApacheKafka`, so that one test can run against either. Not here: a
broker that only has to be there (`streamsx.testing.Broker`).
"""

from pathlib import Path
from typing import Self

from streamsx.errors import BrokerUnreachable
from streamsx.tools.cli.processes import OURS, Child, Died


class EmbeddedBroker:
    """A context manager; between its calls the broker may be down, its address stays the same."""

    def __init__(self, folder: Path, *options: str) -> None:
        """`options` are those of `streamsx broker`."""
        self._folder, self.options = folder, options
        self._log = folder.with_suffix(".err")
        self._process: Child | None = None
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
        command = [*OURS, "broker", "--data", str(self._folder), "--port", port, *self.options]
        if idle_s is not None:
            command += ["--connections-max-idle", f"{idle_s}s"]
        process = Child("broker", self._log, command, prints=True)
        try:
            self.bootstrap = process.ready()
        except Died as error:
            raise BrokerUnreachable(f"the broker did not start: {self.told()}") from error
        self._process = process

    def told(self) -> str:
        """All that it ever wrote to stderr."""
        return self._log.read_text()

    def stop(self) -> int | None:
        """SIGTERM; its exit code, or None if it was down."""
        process, self._process = self._process, None
        return process.stop() if process else None

    def wait(self) -> int:
        """Its exit code, once it has ended by itself."""
        assert self._process is not None, "it is down"
        process, self._process = self._process, None
        return process.wait()

    def kill(self) -> None:
        """SIGKILL: as a crash."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        """Stop if it runs, then start."""
        self.stop()
        self.start()
