"""Workers of an app as processes: started, killed, stopped, frozen; with their events and logs.

Each has a state directory, a file of events and a log of its own, named after it, and uses them
again when it is started again. Tests wait for events, and never sleep. A worker that ends without a
request fails the test that waits.

Not here: brokers, records.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event as Moment
from typing import Self, TypeVar

from streamsx.clock import Clock, SystemClock
from streamsx.tools.cli.processes import OURS, Child
from streamsx.tools.demonstration.group import EventsFile, SeenEvent

WAIT_S = 60.0
LOOK_EVERY_S = 0.02
LINES_TOLD = 25
T = TypeVar("T")


class WorkerProcess:
    """One worker: its current process, and the output of all its processes."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.state = folder / name
        self.told = folder / f"{name}.jsonl"
        self.log = folder / f"{name}.log"
        self.process: Child | None = None
        self.expected = False
        """It was told to end, or is known to."""
        self.events: list[SeenEvent] = []
        self._file = EventsFile(self.told)

    def look(self) -> None:
        """Read what the process has written."""
        self.events += self._file.more()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.code is None

    def tail(self) -> str:
        """Return the end of its log."""
        lines = self.process.tail(LINES_TOLD) if self.process else []
        return "\n".join([f"-- {self.name}", *lines])


class Workers:
    """Workers of one app. A context manager; those that still run at its end are killed.

    `app`: as on the command line; `env`: environment variables of all, `STREAMSX_<SETTING>` among
    them; `in_slots`: they share a folder, and each takes a slot of it.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        *,
        app: str = "streamsx.examples.wordcount",
        env: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        in_slots: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._bootstrap, self._folder, self._app = bootstrap, folder, app
        self._env, self._in_slots = dict(env or {}), in_slots
        self._clock = clock or SystemClock()
        self._moment = Moment()
        self.all: dict[str, WorkerProcess] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.all.values():
            if worker.alive:
                self.kill(worker.name)

    # -- what is done to them

    def start(self, *names: str, **settings: object) -> None:
        """Start workers. `settings`: of these processes alone: `commit_interval="200ms"`,
        `fault="after_seal"`.
        """
        for name in names:
            worker = self.all.setdefault(name, WorkerProcess(name, self._folder))
            assert not worker.alive, f"{name} is running"
            command = [
                *OURS, "worker", self._app,
                "--bootstrap", self._bootstrap,
                "--instance-id", name, "--events", str(worker.told),
            ]  # fmt: skip
            if not self._in_slots:
                command += ["--state-dir", str(worker.state)]
            own = {f"STREAMSX_{key.upper()}": str(value) for key, value in settings.items()}
            worker.expected = "fault" in settings
            env = {**os.environ, **self._env, **own}
            worker.process = Child(name, worker.log, command, env=env, folder=self._folder)

    def signal(self, name: str, number: signal.Signals) -> None:
        self._running(name).send(number)

    def kill(self, name: str) -> None:
        """Kill a worker by SIGKILL; it is gone when this returns."""
        self.all[name].expected = True
        self._running(name).kill()

    def stop(self, *names: str, timeout_s: float = WAIT_S) -> list[int]:
        """Send SIGTERM to all of them, then return their exit codes."""
        for name in names:
            self.all[name].expected = True
            self.signal(name, signal.SIGTERM)
        return [self.code(name, timeout_s) for name in names]

    def code(self, name: str, timeout_s: float = WAIT_S) -> int:
        """Wait for its end and return its exit code; negative: the signal that killed it."""
        worker = self.all[name]
        worker.expected = True
        try:
            return self._running(name).wait(timeout_s)
        except TimeoutError:
            raise AssertionError(
                f"{name} has not ended in {timeout_s} s\n{worker.tail()}"
            ) from None

    def pid(self, name: str) -> int:
        return self._running(name).pid

    def log(self, name: str) -> str:
        """Return all that its processes wrote on stdout and stderr."""
        return self.all[name].log.read_text(errors="replace")

    def error(self, name: str) -> str:
        """Return the last line of its log: of a failed command the one line that says why."""
        return (self.log(name).splitlines() or [""])[-1]

    def _running(self, name: str) -> Child:
        process = self.all[name].process
        assert process is not None, f"{name} was never started"
        return process

    # -- what they tell

    def events(self, *kinds: str, of: str | None = None, **fields: object) -> list[SeenEvent]:
        """Return events by their monotonic times: of one worker or all, of some kinds or all."""
        workers = self.all.values() if of is None else (self.all[of],)
        for worker in workers:
            worker.look()
        found = (event for worker in workers for event in worker.events)
        return sorted(filter(lambda e: matches(e, kinds, fields), found), key=lambda e: e["mono"])

    def largest_commit(self, name: str) -> int:
        """Return the most records of a commit: a kill can double about as many."""
        return max((e["records"] for e in self.events("commit", of=name)), default=0)

    def held(self, name: str) -> set[str]:
        """Return the tasks that it runs, or ran when it was killed."""
        worker = self.all[name]
        worker.look()
        return set(running(worker.events))

    def active(self) -> dict[str, set[str]]:
        """Return what each live worker runs, by its events: tasks in the state running."""
        return {
            worker.name: set(running(worker.events)) for worker in self._looked() if worker.alive
        }

    def _looked(self) -> Iterator[WorkerProcess]:
        for worker in self.all.values():
            worker.look()
            yield worker

    # -- waiting

    def until(self, condition: Callable[[], T], what: str, timeout_s: float = WAIT_S) -> T:
        """Wait until `condition` is true, and return it.

        Raises:
            AssertionError: it took too long, or a worker ended unexpectedly; with the ends of all
                logs.
        """
        over = self._clock.now() + timeout_s
        while not (found := condition()):
            died = [w.name for w in self.all.values() if not (w.expected or w.alive)]
            if died or self._clock.now() > over:
                why = f"{died} died" if died else f"not in {timeout_s} s"
                logs = "\n".join(worker.tail() for worker in self.all.values())
                raise AssertionError(f"{what}: {why}\n{logs}")
            self._moment.wait(LOOK_EVERY_S)
        return found

    def until_event(
        self, *kinds: str, of: str | None = None, count: int = 1, since: float = 0.0,
        timeout_s: float = WAIT_S, **fields: object,
    ) -> SeenEvent:  # fmt: skip
        """Wait for the `count`th such event after a monotonic time, and return it."""

        def found() -> list[SeenEvent]:
            later = [e for e in self.events(*kinds, of=of, **fields) if e["mono"] > since]
            return later[count - 1 : count]

        return self.until(found, f"{kinds} of {of or 'anybody'} {fields}", timeout_s)[0]

    def now(self) -> float:
        """Return the current time of the clock of `mono` in events."""
        return self._clock.now()


def matches(event: SeenEvent, kinds: tuple[str, ...], fields: Mapping[str, object]) -> bool:
    return (not kinds or event["event"] in kinds) and fields.items() <= event.items()


def running(events: list[SeenEvent]) -> Iterator[str]:
    """Return the tasks in the state running, by the events of one worker."""
    state: dict[str, str] = {}
    for event in events:
        if event["event"] == "worker_started":
            state.clear()
        elif event["event"] == "task":
            state[event["task"]] = event["to"]
    return (task for task, now in sorted(state.items()) if now == "running")
