"""Embedded broker for tests, in a thread of its own, on a free port.

    with Broker(topics={"orders": 4}) as broker:
        app = streamsx.App("shop", broker=f"kafka://{broker.bootstrap}")

Any client on this machine that speaks Kafka's protocol can use the broker: workers as processes,
clients in other languages. Several brokers may run at once. In a coroutine, use a plain `with` too.
Not here: an app without any broker (`TestDriver`), a broker that outlives the test (`streamsx
broker`).
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Self

from streamsx.broker.net.server import BrokerServer
from streamsx.errors import UsageError
from streamsx.event_loops import run

KEEP_ALL = {"retention.ms": "-1"}
"""Topic configs that keep records for ever.

A test's records may date from 1970. With Kafka's default retention of a week they would be deleted
after half a minute.
"""


class Broker:
    """Context manager that runs an embedded broker, in a thread of its own, on a free port.

        with Broker(topics={"orders": 4}) as broker:
            app = streamsx.App("shop", broker=f"kafka://{broker.bootstrap}")

    The broker starts on entry, in some 30 ms. On exit, for whatever reason, its port is closed and
    its temporary directory is deleted. One object may be entered any number of times.

    Args:
        folder: Directory that stays, with all records; by default a temporary one.
        topics: Topics to create, with their numbers of partitions. They keep records of any time.
        **options: Options of `BrokerServer`.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        topics: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        """Configure the broker; entering the context starts the server."""
        self._folder = folder
        self._options = {"topics": topics or {}, "topic_configs": KEEP_ALL, **options}
        self._started: Future[BrokerServer] | None = None
        self._ended: Future[None]
        self._served: Future[None]

    @property
    def bootstrap(self) -> str:
        """Return HOST:PORT of the broker."""
        return self.server.bootstrap

    @property
    def server(self) -> BrokerServer:
        """Return the server, for a look inside. Its event loop runs in another thread.

        Raises:
            UsageError: the broker has not started yet.
        """
        if self._started is None:
            raise UsageError("this broker does not serve yet: write `with Broker() as broker:`")
        return self._started.result()

    def __enter__(self) -> Self:
        """Start the broker; raise the errors of `BrokerServer.start`."""
        started: Future[BrokerServer] = Future()
        self._started = started
        self._ended = Future()
        self._served = Future()
        self._thread = Thread(target=self._run, args=(started,), name="broker")
        try:
            self._thread.start()
            either: tuple[Future[Any], ...] = (started, self._served)
            wait(either, return_when=FIRST_COMPLETED)
        except BaseException:  # Ctrl-C, even while the thread starts: nothing else would end it
            self._end()
            raise
        if not started.done():
            self._end()
            self._served.result()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the broker, and wait until port and thread are gone.

        Raise the broker's own error if the broker ended before.
        """
        self._end()
        self._served.result()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self, started: Future[BrokerServer]) -> None:
        try:
            self._served.set_result(run(self._serve(started), serves=True))
        except BaseException as error:  # __enter__ or __exit__ raises it
            self._served.set_exception(error)

    async def _serve(self, started: Future[BrokerServer]) -> None:
        with ExitStack() as made:
            folder = self._folder or made.enter_context(TemporaryDirectory(prefix="streamsx-"))
            async with BrokerServer(Path(folder), **self._options) as server:
                started.set_result(server)
                await asyncio.shield(asyncio.wrap_future(self._ended))
