"""The demo from its first process to its last: what is done, in which order, when to go on.

Everything that is waited for is read off the workers' events and the group's offsets, a few times
per second, and never longer than the limit. Whatever happens, the processes end, and what was made
on somebody's cluster is deleted. Not here: what it proves (`verdict`), how it looks (`screen`).
"""

import asyncio
import signal
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.clock import Clock
from streamsx.errors import StreamsxError, WorldError, first_of
from streamsx.group.admin.leave import leave
from streamsx.group.admin.leave_progress import LeaveState
from streamsx.model import TopicPartition
from streamsx.tools.cli.lags import uncommitted
from streamsx.tools.cli.processes import OURS, Child, Died
from streamsx.tools.demonstration.group import EventsFile, SeenEvent, SeenWorker, group_of
from streamsx.tools.demonstration.screen import PARTITIONS, DemoStage, DemoView, screen
from streamsx.tools.demonstration.traffic import Feed, counts
from streamsx.tools.demonstration.verdict import CALM_S, DemoFacts, DemoResult, verdict
from streamsx.topology.build import Topology
from streamsx.topology.internal_topics import TopicKind

APP = "streamsx.examples.wordcount"
SETTINGS = {
    "STREAMSX_TOPIC_PARTITIONS": str(PARTITIONS),
    "STREAMSX_ACCEPTABLE_RECOVERY_LAG": "100",
}
"""Of the workers. By default a learner that is 10,000 records behind is near enough, and would not
have to learn."""

START_TIMEOUT_S = 25.0
STOP_TIMEOUT_S = 15.0
LOOK_EVERY_S = 0.1
ASK_EVERY_S = 1.0
CALM_MORE_S = 2.0
"""Beside the calm that is measured: a worker's begins half a second behind its assignment."""
SETTLE_S = 2.5
"""Behind a change: until the gaps that it made are told, and for whoever watches."""


class DemoStory:
    """One run. `options`: of the command."""

    def __init__(self, options: Namespace, topology: Topology, folder: Path, clock: Clock) -> None:
        self._options, self._folder = options, folder
        self._clock, self._began = clock, clock.now()
        self._show: Callable[[DemoView], None]
        self._processes: dict[str, Child] = {}
        self._children = ExitStack()
        """At its end whoever still runs is killed."""
        self._app, plans = topology.app_id, topology.subtopologies
        self._topics = [spec.name for spec in topology.topics]
        self._sources = [topic for plan in plans for topic in plan.topics]
        (self._changelog,) = (t.name for t in topology.topics if t.kind is TopicKind.CHANGELOG)
        self._inputs = [TopicPartition(t, n) for t in self._sources for n in range(PARTITIONS)]
        self._tasks = PARTITIONS * len(plans)
        self._facts = DemoFacts(
            records=options.records,
            workers=tuple(f"w{number}" for number in range(1, options.workers + 2)),
            stateful=frozenset(plan.number for plan in plans if plan.stateful),
        )
        self._feed = Feed(clock, self._sources[0], options.records)
        self._bootstrap: str = options.bootstrap or ""
        self._cluster: Cluster
        self._connected = self._drained = False
        self._left: dict[TopicPartition, int] = {}
        self._files: list[EventsFile] = []
        self._events: list[SeenEvent] = []
        self._view = DemoView(group_of(()), verdict((), self._facts), self._facts.stateful)
        self._looked = asyncio.Event()
        self.notes: list[str] = []
        """What else there is to say at the end."""

    async def run(self) -> DemoResult:
        """Raises BrokerUnreachable and UsageError for a cluster that cannot be used."""
        me = asyncio.current_task()
        assert me is not None, "called in a task"
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, me.cancel)
        with self._children:
            async with screen(self._options.people) as self._show:
                await self._run()
        self._facts.cpu_s = sum(worker.cpu_s for worker in self._workers())
        self._facts.seconds = self._clock.now() - self._began
        return verdict(self._events, self._facts)

    async def _run(self) -> None:
        try:
            self._bootstrap = self._bootstrap or await self._broker()
            self._cluster = Cluster(self._bootstrap)
            await self._cluster.start(START_TIMEOUT_S)
            self._connected = True
            await self._play()
        except Died as error:
            self._facts.failure, self.notes = str(error), error.tail
        except StreamsxError as error:
            if not self._connected:
                raise
            self._facts.failure = str(error)
        except asyncio.CancelledError:
            self._facts.failure = "interrupted"
            raise
        finally:
            await self._clean_up()

    # -- the story

    async def _play(self) -> None:
        limit_s, records = self._options.seconds_limit, self._options.records
        try:
            async with asyncio.timeout(limit_s - (self._clock.now() - self._began)):
                await self._together()
        except TimeoutError:
            raise StreamsxError(
                f"not done in {limit_s:g} s: {self._feed.sent:,} of {records:,} lines were sent, "
                f"and it was at {self._view.stage.title!r}: allow more with --seconds-limit"
            ) from None
        self._view.stage = DemoStage.COMPARE
        await self._stop(self._workers())
        for worker in self._workers():
            if worker.code:
                raise Died(worker)
        got = await counts(self._cluster, self._clock, self._changelog)
        want, facts = self._feed.words, self._facts
        wrong = sorted(word for word in want.keys() | got if want[word] != got.get(word, 0))
        facts.distinct, facts.mismatches = len(want), len(wrong)
        told = (f"{word!r} is {got.get(word, 0)} and should be {want[word]}" for word in wrong)
        facts.wrong = next(told, "")

    async def _together(self) -> None:
        """The acts, and what goes on beside them."""
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(self._look_on(), name="look on")]
                for name in self._facts.workers[:-1]:
                    self._work(name)
                await self._until(lambda: self._view.group.moved_at > 0)  # the topics are there
                beside.append(tasks.create_task(self._ask_on(), name="offsets"))
                await self._until(lambda: len(self._left) == len(self._inputs))
                beside.append(tasks.create_task(self._feed.run(self._cluster), name="feed"))
                await self._acts()
                for task in beside:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise first_of(group) from None

    async def _acts(self) -> None:
        facts, clock, view = self._facts, self._clock, self._view
        first, added, leaver = facts.workers[:-1], facts.workers[-1], facts.leaver
        await self._at_rest(first, 0.0)

        view.stage, facts.fed_at = DemoStage.CALM, self._feed.begun_at
        await self._at_rest(first, CALM_S + CALM_MORE_S)

        view.stage, facts.added_at = DemoStage.JOIN, clock.now()
        self._work(added)
        await self._at_rest(facts.workers, SETTLE_S)

        view.stage, facts.marked_at = DemoStage.LEAVE, clock.now()
        gone = await leave(self._cluster, clock, self._app, [leaver])
        facts.forced = gone[leaver].state is not LeaveState.LEFT
        await self._until(lambda: self._processes[leaver].code is not None)
        facts.exit_code = self._processes[leaver].code
        await self._at_rest(facts.workers[1:], SETTLE_S)

        view.stage, facts.shown_at = DemoStage.DRAIN, clock.now()
        self._feed.shown = True
        await self._until(lambda: self._drained)
        facts.drained_at = clock.now()

    async def _at_rest(self, names: Sequence[str], seconds: float) -> None:
        """These share the tasks, and have done so for a while, with lines coming."""

        def rests() -> bool:
            group = self._view.group
            since = max(group.moved_at, self._feed.begun_at)
            return self._clock.now() - since >= seconds and group.at_rest(names, self._tasks)

        await self._until(rests)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._looked.clear()
            await self._looked.wait()

    # -- what goes on beside

    async def _look_on(self) -> None:
        while True:
            self._look()
            told = self._facts.leaver if self._clock.now() >= self._facts.marked_at else None
            for name, child in self._processes.items():
                if child.code is not None and (child.code or name != told):
                    raise Died(child)
            await asyncio.sleep(LOOK_EVERY_S)

    def _look(self) -> None:
        """At what the workers have written since the last look."""
        view, now = self._view, self._clock.now()
        if more := [event for file in self._files for event in file.more()]:
            self._events = sorted(self._events + more, key=lambda event: event["mono"])
            view.group, view.result = group_of(self._events), verdict(self._events, self._facts)
        for worker in self._workers():
            view.group.workers.setdefault(worker.name, SeenWorker())
        view.seconds, view.feeds_s = now - self._began, now - self._feed.begun_at
        view.sent = self._feed.sent
        self._looked.set()
        self._show(view)

    async def _ask_on(self) -> None:
        """How much is left. What cannot be asked now is asked again: "the broker is killed; what
        is asked of it fails at once; a moment later its end is seen", and is what is told.
        """
        while True:
            fed = self._feed.done
            with suppress(WorldError):
                self._left = await uncommitted(self._cluster, self._app, self._inputs)
                self._view.left = sum(self._left.values())
                self._drained = fed and not any(self._left.get(tp, 1) for tp in self._inputs)
            await asyncio.sleep(ASK_EVERY_S)

    # -- processes

    def _workers(self) -> list[Child]:
        return [self._processes[n] for n in self._facts.workers if n in self._processes]

    def _start(self, name: str, *arguments: str, prints: bool = False) -> Child:
        log, command = self._folder / f"{name}.log", [*OURS, *arguments]
        self._processes[name] = child = Child(name, log, command, prints=prints)
        self._children.callback(child.kill)
        return child

    def _work(self, name: str) -> None:
        told = self._folder / f"{name}.jsonl"
        self._files.append(EventsFile(told))
        self._start(
            name, "worker", APP, "--bootstrap", self._bootstrap, "--instance-id", name,
            "--state-dir", str(self._folder / name), "--events", str(told),
        )  # fmt: skip

    async def _broker(self) -> str:
        """Start one. Its address. Raises Died."""
        data = str(self._folder / "data")
        broker = self._start("broker", "broker", "--data", data, "--port", "0", prints=True)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                return await asyncio.to_thread(broker.ready)  # ends when the broker is killed
        except TimeoutError:
            broker.kill()
            raise Died(broker) from None

    async def _stop(self, children: Sequence[Child]) -> None:
        """All at once; by force who takes too long."""
        for child in children:
            child.send(signal.SIGTERM)
        give_up_at = self._clock.now() + STOP_TIMEOUT_S
        while any(child.code is None for child in children) and self._clock.now() < give_up_at:
            self._look()
            await asyncio.sleep(LOOK_EVERY_S)
        for child in children:
            child.kill()

    async def _clean_up(self) -> None:
        """What failed on a broker of its own is killed with it: nobody needs it any more."""
        if self._options.bootstrap or not self._facts.failure:
            await self._stop(self._workers())
            await self._stop(list(self._processes.values()))
        if not self._connected:
            return
        if self._options.bootstrap and not self._options.keep:
            try:
                await admin.delete_topics(self._cluster, self._topics)
            except StreamsxError as error:
                self.notes.append(f"delete these topics: {', '.join(self._topics)}: {error}")
        await self._cluster.stop()
