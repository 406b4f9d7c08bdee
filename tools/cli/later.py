"""Spark session of a command, from its start at first use to its end.

Not here: the commands and their use of the session.
"""

import argparse
import logging
import signal
from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import Any, Final, NoReturn, Self

from streamsx.state.snapshot_files import absolute

LOOK_EVERY_S: Final = 1.0


class LateSession:
    """Session that starts at the first access to one of its attributes.

    A thread reports the number of finished Spark tasks once per second. A job of minutes would
    otherwise print nothing.
    """

    def __init__(
        self, settings: Mapping[str, str], options: argparse.Namespace, say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._options = options
        self._say = say
        self._made: Any = None
        self._words = "looking at the app"
        self._over = Event()
        self._watcher = Thread(target=self._watch, name="tasks done", daemon=True)

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            self._made = self._begun()
            self._tracker = self._made.sparkContext.statusTracker()
            self._watcher.start()
        return getattr(self._made, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._watcher.is_alive():
            self._watcher.join()

    def say(self, words: str) -> None:
        self._words = words
        self._say(words)

    def _begun(self) -> Any:
        from streamsx.spark.session import probe_cluster, session

        given = vars(self._options)
        master = {"spark.master": given["master"]} if given["master"] else {}
        words = self._words
        self._say("starting Spark")
        wanted = {**self._settings, **master, **given["conf"]}
        interrupt = signal.getsignal(signal.SIGINT)
        made = session(wanted, debug=given["debug"])
        signal.signal(signal.SIGINT, interrupt)  # Spark's handler calls the JVM, even amid a call
        # Snapshots are in `state`, else in `out`, where the command `state` writes rows instead.
        uri = given.get("state", given.get("out"))
        asks = "app" in given and "scratch" not in given  # a pipeline probes by itself
        if asks and uri:
            probe_cluster(made, given["app"], absolute(uri))
        self._say(words)
        return made

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            try:
                found = list(map(self._tracker.getStageInfo, self._tracker.getActiveStageIds()))
            except Exception:  # the JVM is gone: the thread that waits for its work reports
                return
            stages = [stage for stage in found if stage is not None]
            if tasks := sum(stage.numTasks for stage in stages):
                done = sum(stage.numCompletedTasks for stage in stages)
                self._say(f"{self._words}: {done} of {tasks} tasks")


def interrupts() -> Event:
    """Install handlers of SIGINT and SIGTERM that raise KeyboardInterrupt; return an event.

    The handlers set the event and disable logging. All later errors and log lines follow from the
    interrupt: they come from interrupted calls of the JVM, and from the cleanup after them.
    """
    stopped = Event()

    def interrupt(*_: object) -> NoReturn:
        stopped.set()
        logging.disable()
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    return stopped
