"""Fills empty stores from the newest snapshot, ahead of their changelogs: `worker --snapshot URI`.

A store is built in a folder of its own, beside the loop, and takes the place of the empty one when
it is whole. Whatever does not fit or cannot be had is told once; then the changelog is replayed
from its beginning, as without a snapshot.

Not here: what a snapshot is and whether it fits (`streamsx.state.snapshot`).
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from streamsx.engine import faults
from streamsx.engine.bounds import LogBounds
from streamsx.engine.given import Given
from streamsx.errors import DataError, NotFound, StreamsxError, UsageError, WorldError
from streamsx.lifecycle.reconcile import Holdings
from streamsx.model import TaskId, TopicPartition
from streamsx.state.api import Rows
from streamsx.state.layout import StoreNode

if TYPE_CHECKING:
    from streamsx.state.snapshot import Manifest, Part
    from streamsx.state.snapshot_files import SnapshotFiles

T = TypeVar("T")
Wish = Callable[[], bool]

THREADS: Final = 2
"""Beside those that close stores, which cannot wait for a download."""
LOOK_EVERY_S: Final = 10.0
"""Tasks that open together look for the newest snapshot once."""
WANTED_EVERY_S: Final = 0.5
LOOK_MAX_S: Final = 30.0
REFUSALS: Final = (DataError, NotFound, UsageError, WorldError)


class Abandoned(Exception):
    """Nobody waits for it any more."""


class Snapshots:
    """Of one worker, in whose stores there is nothing yet."""

    def __init__(self, given: Given, partitions: Mapping[str, int]) -> None:
        self._uri, self._app = given.config.snapshot, given.topology.app_id
        self._clock, self._journal, self._directory = given.clock, given.journal, given.directory
        self._plans, self._partitions = given.plans, partitions
        self._executor = ThreadPoolExecutor(THREADS, "snapshot") if self._uri else None
        self._looking, self._looked_at = asyncio.Lock(), 0.0
        self._newest: tuple[SnapshotFiles, Manifest] | StreamsxError | None = None
        self._told: set[str] = set()

    async def fill(
        self, task: TaskId, node: StoreNode, rows: Rows, bounds: LogBounds, held: Holdings
    ) -> None:
        """A store that has no position, while its task is wanted. Raises what the disk says when it
        is put in its place.
        """

        def wanted() -> bool:
            return not held.of(task).state.ends

        if self._uri is None or not node.persistent or rows.position() is not None:
            return
        began, folder, old = self._clock.now(), self._directory.aside(), self._directory.aside()
        try:
            manifest, part, position = await self._build(task, node, bounds, folder, wanted)
        except Abandoned:
            return
        except REFUSALS as error:
            where = f"store {node.name} of task {task}"
            self._tell(f"{error}: replaying the changelog", where)
            return
        if not rows.take(str(folder), str(old)):
            return
        self._journal(
            "snapshot_fetched",
            task=str(task),
            store=node.name,
            number=manifest.number,
            rows=sum(file.rows for file in part.chain),
            bytes=sum(file.bytes for file in part.chain),
            position=position,
            ms=round((self._clock.now() - began) * 1000, 1),
        )
        await self._beside(lambda _: self._directory.delete(old), wanted)
        await self._count_twice(task, manifest, bounds)

    def close(self) -> None:
        """When nobody waits for anything any more."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    async def _build(
        self, task: TaskId, node: StoreNode, bounds: LogBounds, folder: Path, wanted: Wish
    ) -> "tuple[Manifest, Part, int]":
        """The store in that folder, of which part, and its position."""
        from streamsx.state.snapshot import Wanted, build, part_for

        files, manifest = await self._look(wanted)
        plan, log = self._plans[task.subtopology], TopicPartition(node.changelog, task.partition)
        start, end = (await bounds.of([log]))[log]
        layout = node.layout(self._partitions[node.changelog])
        counts = {topic: self._partitions[topic] for topic in plan.topics}
        mine = Wanted(self._app, node.name, task.partition, layout, counts, start, end)
        part, position = part_for(manifest, mine, files.uri)
        await self._beside(partial(build, files, part, position, folder, layout), wanted)
        return manifest, part, position

    async def _look(self, wanted: Wish) -> "tuple[SnapshotFiles, Manifest]":
        async with self._looking:
            if self._newest is None or self._clock.now() - self._looked_at > LOOK_EVERY_S:
                try:
                    async with asyncio.timeout(LOOK_MAX_S):
                        self._newest = await self._beside(lambda _: self._find(), wanted)
                except TimeoutError:
                    what = f"no answer in {LOOK_MAX_S:.0f} s: give --snapshot a place that answers"
                    self._newest = NotFound(f"snapshot not read: {what}")
                except REFUSALS as error:
                    self._newest = error
                self._looked_at = self._clock.now()
        if isinstance(self._newest, StreamsxError):
            raise self._newest
        return self._newest

    def _find(self) -> "tuple[SnapshotFiles, Manifest]":
        from streamsx.state.snapshot import MANIFESTS, newest
        from streamsx.state.snapshot_files import open_files

        assert self._uri is not None
        files = open_files(self._uri)
        if (manifest := newest(files)) is None:
            raise NotFound(
                f"no snapshot: {files.uri}: expected {MANIFESTS}/NUMBER.json, found none: make one"
            )
        return files, manifest

    async def _beside(self, job: Callable[[Callable[[], None]], T], wanted: Wish) -> T:
        """In a thread. It is handed what to call now and then, which ends it when it is in vain.
        Raises Abandoned.
        """
        over = threading.Event()

        def step() -> None:
            faults.point("during_snapshot")
            if over.is_set():
                raise Abandoned

        work = asyncio.get_running_loop().run_in_executor(self._executor, job, step)
        try:
            while not (await asyncio.wait([work], timeout=WANTED_EVERY_S))[0]:
                if not wanted():
                    raise Abandoned
            return work.result()
        finally:
            over.set()
            work.cancel()  # nobody will ask what became of it

    async def _count_twice(self, task: TaskId, manifest: "Manifest", bounds: LogBounds) -> None:
        """The group goes on from what it has committed; the state may be ahead of that."""
        passed = {topic for plan in self._plans.values() for topic in plan.outputs}
        ahead = {
            TopicPartition(topic, task.partition): manifest.positions[topic][task.partition].next
            for topic in self._plans[task.subtopology].topics
            if topic not in passed and task.partition in manifest.positions.get(topic, {})
        }  # of the others the numbers are no offsets
        committed = await bounds.committed.of(ahead)
        begin = await bounds.begin([tp for tp, (offset, _) in committed.items() if offset < 0])
        group = {tp: begin.get(tp, offset) for tp, (offset, _) in committed.items()}
        if twice := sum(max(0, at - group[tp]) for tp, at in ahead.items()):
            what = (
                f"snapshot ahead of the group: snapshot {manifest.number}: {twice} records in it "
                "are not committed and count twice: streamsx spark handover"
            )
            self._tell(what, f"task {task}")

    def _tell(self, what: str, where: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._journal("error", what=what, where=where)
