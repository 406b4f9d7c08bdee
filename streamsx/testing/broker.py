"""A broker for a test of yours: the embedded one, in a thread of its own, on a free port.

    with Broker(topics={"orders": 4}) as broker:
        app = streamsx.App("shop", broker=f"kafka://{broker.bootstrap}")

It is there for whoever speaks Kafka's protocol on this machine: workers as processes, clients of
other languages. Several may run at once. In a coroutine it is a plain `with` too. Not here: an app
without any broker (`TestDriver`), a broker that outlives the test (`streamsx broker`).
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
"""A test's records may be of 1970: by Kafka's default of a week they would go after half a minute.
"""


class Broker:
    """A context manager, to be entered as often as you like. It serves when it is entered, in some
    30 ms; at its end, whatever ends it, its port is closed and its directory gone.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        topics: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        """`folder`: one that stays, with all that it is told; without, one that is made and
        deleted. `topics` are made, with so many partitions; they keep records of any time.
        `options` are `BrokerServer`'s.
        """
        self._folder = folder
        self._options = {"topics": topics or {}, "topic_configs": KEEP_ALL, **options}
        self._started: Future[BrokerServer] | None = None
        self._ended: Future[None]
        self._served: Future[None]

    @property
    def bootstrap(self) -> str:
        """HOST:PORT."""
        return self.server.bootstrap

    @property
    def server(self) -> BrokerServer:
        """For a look inside; its loop is in another thread. Raises UsageError before it serves."""
        if self._started is None:
            raise UsageError("this broker does not serve yet: write `with Broker() as broker:`")
        return self._started.result()

    def __enter__(self) -> Self:
        """Raises what `BrokerServer.start` does."""
        started: Future[BrokerServer] = Future()
        self._started, self._ended, self._served = started, Future(), Future()
        self._thread = Thread(target=self._run, args=(started,), name="broker")
        try:
            self._thread.start()
            either: tuple[Future[Any], ...] = (started, self._served)
            wait(either, return_when=FIRST_COMPLETED)
        except BaseException:  # Ctrl-C, also while the thread begins: nobody else would end it
            self._end()
            raise
        if not started.done():
            self._end()
            self._served.result()
        return self

    def __exit__(self, *_: object) -> None:
        """Once all of it is gone. Raises what it failed with, if it has ended by itself."""
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
        except BaseException as error:  # is raised where the broker is entered or left
            self._served.set_exception(error)

    async def _serve(self, started: Future[BrokerServer]) -> None:
        with ExitStack() as made:
            folder = self._folder or made.enter_context(TemporaryDirectory(prefix="streamsx-"))
            async with BrokerServer(Path(folder), **self._options) as server:
                started.set_result(server)
                await asyncio.shield(asyncio.wrap_future(self._ended))
