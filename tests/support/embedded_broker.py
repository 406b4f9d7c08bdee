"""Embedded broker as a process that can be killed, started like `streamsx broker`.

It is handled like `apache_kafka.ApacheKafka`, so that one test can run against either. Not here: a
broker without kills (`streamsx.testing.Broker`).
"""

from pathlib import Path
from typing import Self

from streamsx.errors import BrokerUnreachable
from streamsx.tools.cli.processes import OURS, Child, Died


class EmbeddedBroker:
    """Process of a broker. A context manager; it may be down between calls, and its address stays
    the same.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        """Prepare a broker. `options` are those of `streamsx broker`."""
        self._folder, self.options = folder, options
        self._log = folder.with_suffix(".err")
        self._process: Child | None = None
        self.bootstrap = "127.0.0.1:0"

    @property
    def pid(self) -> int | None:
        """Return its pid; None while it is down."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, idle_s: float | None = None) -> None:
        """Start it and wait until it serves.

        Args:
            idle_s: Seconds after which it closes idle connections; ten minutes by default.

        Raises:
            BrokerUnreachable: with what it printed instead.
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
        """Return all that it has written to stderr."""
        return self._log.read_text()

    def stop(self) -> int | None:
        """Send SIGTERM; return its exit code, or None if it was down."""
        process, self._process = self._process, None
        return process.stop() if process else None

    def wait(self) -> int:
        """Wait until it ends by itself; return its exit code."""
        assert self._process is not None, "it is down"
        process, self._process = self._process, None
        return process.wait()

    def kill(self) -> None:
        """Kill it by SIGKILL, as in a crash."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        """Stop it if it runs, then start it."""
        self.stop()
        self.start()
