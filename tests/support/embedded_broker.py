"""The embedded broker beside a test: in a thread, or as a process that can be killed.

The process is handled like `apache_kafka.ApacheKafka`, so that one test can run against either. A
test that runs a loop itself needs neither: `async with Broker(folder) as broker`.
"""

import asyncio
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, Self

from streamsx.broker.server import Broker
from streamsx.errors import BrokerUnreachable
from streamsx.testing import children


class BrokerThread:
    """A context manager; the broker starts in 30 ms, and its loop runs in a thread."""

    def __init__(self, folder: Path, **options: Any) -> None:
        """`options` are those of `Broker`."""
        self._folder, self._options = folder, options
        self._started: Future[tuple[Broker, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = Thread(target=lambda: asyncio.run(self._serve()), name="broker")

    @property
    def broker(self) -> Broker:
        """For a look inside; its loop is in another thread."""
        return self._started.result()[0]

    @property
    def bootstrap(self) -> str:
        """HOST:PORT."""
        return self.broker.bootstrap

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._started.exception():
            loop, ended = self._started.result()[1:]
            loop.call_soon_threadsafe(ended.set)
        self._thread.join()

    async def _serve(self) -> None:
        ended = asyncio.Event()
        try:
            async with Broker(self._folder, **self._options) as broker:
                self._started.set_result((broker, asyncio.get_running_loop(), ended))
                await ended.wait()
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)


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
