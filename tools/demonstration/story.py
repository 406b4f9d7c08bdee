"""Course of the demo from its first process to its last: the steps and their conditions.

The story polls the workers' events and the group's offsets a few times per second, and never waits
longer than the limit. In any case all processes end, and the topics on a cluster of `--bootstrap`
are deleted. Not here: the checks (`verdict`), the drawing (`screen`).
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
"""Environment of the workers. By default a lag of 10,000 records is near enough for a task to
move, so no task of the demo would have to be learned."""

START_TIMEOUT_S = 25.0
STOP_TIMEOUT_S = 15.0
LOOK_EVERY_S = 0.1
ASK_EVERY_S = 1.0
CALM_MORE_S = 2.0
"""Addition to the measured calm: the calm of a worker begins half a second after its assignment."""
SETTLE_S = 2.5
"""Wait after a change, until its gaps are in the events; people also get the time to watch."""


class DemoStory:
    """Run of the demo with the options of the command."""

    def __init__(self, options: Namespace, topology: Topology, folder: Path, clock: Clock) -> None:
        self._options = options
        self._folder = folder
        self._clock = clock
        self._began = clock.now()
        self._show: Callable[[DemoView], None]
        self._processes: dict[str, Child] = {}
        self._children = ExitStack()
        """Stack that kills all children that still run at its end."""
        self._app = topology.app_id
        plans = topology.subtopologies
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
        """Further lines for the end of the summary."""

    async def run(self) -> DemoResult:
        """Run the demo and return its result.

        Raises:
            BrokerUnreachable: no broker answers.
            UsageError: the cluster cannot be used.
        """
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
            self._facts.failure = str(error)
            self.notes = error.tail
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
        limit_s = self._options.seconds_limit
        records = self._options.records
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
        want = self._feed.words
        facts = self._facts
        wrong = sorted(word for word in want.keys() | got if want[word] != got.get(word, 0))
        facts.distinct = len(want)
        facts.mismatches = len(wrong)
        told = (f"{word!r} is {got.get(word, 0)} and should be {want[word]}" for word in wrong)
        facts.wrong = next(told, "")

    async def _together(self) -> None:
        """Run the acts, and the tasks that poll and feed beside them."""
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(self._look_on(), name="look on")]
                for name in self._facts.workers[:-1]:
                    self._work(name)
                await self._until(lambda: self._view.group.moved_at > 0)  # then the topics exist
                beside.append(tasks.create_task(self._ask_on(), name="offsets"))
                await self._until(lambda: len(self._left) == len(self._inputs))
                beside.append(tasks.create_task(self._feed.run(self._cluster), name="feed"))
                await self._acts()
                for task in beside:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise first_of(group) from None

    async def _acts(self) -> None:
        facts = self._facts
        clock = self._clock
        view = self._view
        first = facts.workers[:-1]
        added = facts.workers[-1]
        leaver = facts.leaver
        await self._at_rest(first, 0.0)

        view.stage = DemoStage.CALM
        facts.fed_at = self._feed.begun_at
        await self._at_rest(first, CALM_S + CALM_MORE_S)

        view.stage = DemoStage.JOIN
        facts.added_at = clock.now()
        self._work(added)
        await self._at_rest(facts.workers, SETTLE_S)

        view.stage = DemoStage.LEAVE
        facts.marked_at = clock.now()
        gone = await leave(self._cluster, clock, self._app, [leaver])
        facts.forced = gone[leaver].state is not LeaveState.LEFT
        await self._until(lambda: self._processes[leaver].code is not None)
        facts.exit_code = self._processes[leaver].code
        await self._at_rest(facts.workers[1:], SETTLE_S)

        view.stage = DemoStage.DRAIN
        facts.shown_at = clock.now()
        self._feed.shown = True
        await self._until(lambda: self._drained)
        facts.drained_at = clock.now()

    async def _at_rest(self, names: Sequence[str], seconds: float) -> None:
        """Wait until the named workers have shared the tasks, under load, for some seconds."""

        def rests() -> bool:
            group = self._view.group
            since = max(group.moved_at, self._feed.begun_at)
            return self._clock.now() - since >= seconds and group.at_rest(names, self._tasks)

        await self._until(rests)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._looked.clear()
            await self._looked.wait()

    # -- tasks beside the acts

    async def _look_on(self) -> None:
        while True:
            self._look()
            told = self._facts.leaver if self._clock.now() >= self._facts.marked_at else None
            for name, child in self._processes.items():
                if child.code is not None and (child.code or name != told):
                    raise Died(child)
            await asyncio.sleep(LOOK_EVERY_S)

    def _look(self) -> None:
        """Read the events that the workers have written since the last call, and redraw."""
        view = self._view
        now = self._clock.now()
        if more := [event for file in self._files for event in file.more()]:
            self._events = sorted(self._events + more, key=lambda event: event["mono"])
            view.group = group_of(self._events)
            view.result = verdict(self._events, self._facts)
        for worker in self._workers():
            view.group.workers.setdefault(worker.name, SeenWorker())
        view.seconds = now - self._began
        view.feeds_s = now - self._feed.begun_at
        view.sent = self._feed.sent
        self._looked.set()
        self._show(view)

    async def _ask_on(self) -> None:
        """Poll the number of records that are not committed; retry after a WorldError.

        The race: the broker is killed; the request to the broker fails at once; a moment later
        `_look_on` sees the end of the process. The demo then reports the end of the process, and
        not the failed request.
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
        log = self._folder / f"{name}.log"
        command = [*OURS, *arguments]
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
        """Start a broker and return its address.

        Raises:
            Died: the broker ended, or was not ready within 25 s.
        """
        data = str(self._folder / "data")
        broker = self._start("broker", "broker", "--data", data, "--port", "0", prints=True)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                return await asyncio.to_thread(broker.ready)  # returns if the broker is killed
        except TimeoutError:
            broker.kill()
            raise Died(broker) from None

    async def _stop(self, children: Sequence[Child]) -> None:
        """Stop all children at once; kill the ones that still run after 15 s."""
        for child in children:
            child.send(signal.SIGTERM)
        give_up_at = self._clock.now() + STOP_TIMEOUT_S
        while any(child.code is None for child in children) and self._clock.now() < give_up_at:
            self._look()
            await asyncio.sleep(LOOK_EVERY_S)
        for child in children:
            child.kill()

    async def _clean_up(self) -> None:
        """Stop the processes and delete the topics.

        After a failure on the embedded broker there is nothing to save: the broker and the workers
        are killed at the end of `run`.
        """
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
