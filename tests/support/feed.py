"""Feed of records at a steady rate, in a thread of its own, beside the test."""

import threading
from collections.abc import Callable

from streamsx.clock import Clock, SystemClock

SEND_EVERY_S = 0.02


class Feed:
    """Thread that calls `send` with the number of records that are due, from `start` to
    `enough`.
    """

    def __init__(self, send: Callable[[int], None], clock: Clock | None = None) -> None:
        self._send, self._clock = send, clock or SystemClock()
        self._thread: threading.Thread | None = None
        self._enough = threading.Event()
        self._failed: BaseException | None = None

    @property
    def on(self) -> bool:
        return self._thread is not None

    def start(self, per_s: int) -> None:
        assert not self.on, "a feed is on"
        self._enough.clear()
        self._thread = threading.Thread(target=self._run, args=(per_s,), name="feed")
        self._thread.start()

    def enough(self) -> None:
        """Stop sending; all records that were sent are stored. Raises what `send` has raised."""
        assert self.on, "no feed is on"
        self.end()
        if self._failed is not None:
            raise self._failed

    def end(self) -> None:
        """Stop sending without an error; do nothing without a running feed."""
        if self._thread is not None:
            self._enough.set()
            self._thread.join()
            self._thread = None

    def _run(self, per_s: int) -> None:
        began, sent = self._clock.now(), 0
        try:
            while not self._enough.wait(SEND_EVERY_S):
                due = int((self._clock.now() - began) * per_s)
                if due > sent:
                    self._send(due - sent)
                    sent = due
        except BaseException as error:  # whatever it is, the test has to know
            self._failed = error
