"""Snapshot restore: fills empty stores from the newest snapshot (`worker --snapshot URI`).

A store is built in a separate folder, on a thread beside the loop. Once complete, the built store
replaces the empty one, and the changelog is replayed from the snapshot's position on. A snapshot
that does not fit or cannot be read is logged once; then the changelog is replayed from the
beginning, as without a snapshot.

Not here: the format of a snapshot, and the check that it fits (`streamsx.state.snapshot`).
"""

import asyncio
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.clock import Clock
from streamsx.errors import (
    DataError,
    NotFound,
    SnapshotNotPublished,
    StateOnSpark,
    UsageError,
    WorldError,
)
from streamsx.journal import Journal
from streamsx.model import TaskId, TopicPartition
from streamsx.state.api import Rows
from streamsx.state.directory import StateDirectory
from streamsx.state.layout import StoreNode
from streamsx.tasks import crash_points
from streamsx.tasks.log_bounds import LogBounds
from streamsx.tasks.task_registry import TaskRegistry
from streamsx.topology.build import Topology

if TYPE_CHECKING:
    from streamsx.state.snapshot import Manifest, Part
    from streamsx.state.snapshot_files import SnapshotFiles

T = TypeVar("T")
StillWanted = Callable[[], bool]

THREADS: Final = 2
"""Threads that read snapshots, apart from the threads that close stores: a close cannot wait for a
download."""
LOOK_EVERY_S: Final = 10.0
"""Time for which the newest snapshot stays known, so that tasks that open together look once."""
WANTED_EVERY_S: Final = 0.5
SILENCE_MAX_S: Final = 30.0
CLOSE_MAX_S: Final = 2.0
TOMBSTONES_MS: Final = 86_400_000
"""Time for which a changelog without delete.retention.ms keeps tombstones: Kafka's default."""
REFUSALS: Final = (DataError, NotFound, UsageError, WorldError)


class Abandoned(Exception):
    """Error that ends a job whose task is not wanted any more."""


class Beside(futures.Executor):
    """Executor with daemon threads, which end with the process.

    An S3 service that takes requests and answers none holds a thread for 100 s and more.
    """

    def __init__(self) -> None:
        self._gate = threading.Semaphore(THREADS)
        self._context = set[futures.Future[Any]]()

    def submit(self, job: Callable[..., Any], /, *about: Any, **more: Any) -> futures.Future[Any]:
        made = futures.Future[Any]()

        def work() -> None:
            with self._gate:
                if made.set_running_or_notify_cancel():
                    try:
                        made.set_result(job(*about, **more))
                    except BaseException as error:
                        made.set_exception(error)

        self._context.add(made)
        made.add_done_callback(self._context.discard)
        threading.Thread(target=work, name="snapshot", daemon=True).start()
        return made

    def close(self) -> None:
        """Wait at most CLOSE_MAX_S for running jobs; call this when no caller waits for them."""
        futures.wait(self._context.copy(), CLOSE_MAX_S)


class SnapshotRestore:
    """Snapshot restore of one worker's stores without a position.

    Args:
        uri: place of the snapshots; None for a worker without them.
        topology: graph of the app.
        partitions: partition count of each topic.
        cluster: client for the settings of changelogs.
        directory: folders for stores that are being built.
        journal: receives what was read, and errors.
        clock: time of the worker.
    """

    def __init__(
        self,
        *,
        uri: str | None,
        topology: Topology,
        partitions: Mapping[str, int],
        cluster: Cluster,
        directory: StateDirectory,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._uri = uri
        self._app = topology.app_id
        self._clock = clock
        self._journal = journal
        self._directory = directory
        self._cluster = cluster
        self._plans = {plan.number: plan for plan in topology.subtopologies}
        self._partitions = partitions
        self._executor = Beside()
        self.close = self._executor.close
        self._search: asyncio.Future[tuple[SnapshotFiles, Manifest]] | None = None
        self._searched_at = self._progress_at = 0.0
        self._logged: set[str] = set()

    async def fill(
        self, task: TaskId, node: StoreNode, rows: Rows, bounds: LogBounds, held: TaskRegistry
    ) -> None:
        """Fill a store without a position from the newest snapshot, while the task is wanted.

        Raises:
            StateOnSpark: no snapshot has the state, and the changelog is empty.
            DescriptorsUsedUp, DiskFailed, StoreCorrupt, StoreLocked: the disk refuses to put the
                built store in its place.
        """

        def wanted() -> bool:
            return not held.of(task).state.ends

        if self._uri is None or not node.persistent or rows.position() is not None:
            return
        began = self._clock.now()
        folder = self._directory.aside()
        old = self._directory.aside()
        try:
            manifest, part, position = await self._build(task, node, bounds, folder, wanted)
        except Abandoned:
            return
        except StateOnSpark:  # an empty changelog cannot be replayed: the state would be lost
            raise
        except REFUSALS as error:
            where = f"store {node.name} of task {task}"
            self._log_once(f"{error}: replaying the changelog", where)
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
        _ = self._begin(partial(shutil.rmtree, old, ignore_errors=True))  # queued behind builds
        await self._count_twice(task, manifest, bounds)

    async def _build(
        self, task: TaskId, node: StoreNode, bounds: LogBounds, folder: Path, wanted: StillWanted
    ) -> "tuple[Manifest, Part, int]":
        """Build the store in `folder`.

        Returns:
            The manifest, the part that the store was built from, and the store's position.
        """
        from streamsx.state.snapshot import Wanted, build, part_for

        now = self._clock.now()
        search = self._search
        if search is None or (search.done() and now - self._searched_at > LOOK_EVERY_S):
            search = self._begin(self._find)
            self._searched_at = now
            self._search = search
        files, manifest = await self._until(search, wanted)
        plan = self._plans[task.subtopology]
        log = TopicPartition(node.changelog, task.partition)
        start, end = (await bounds.of([log]))[log]
        found = await admin.topic_configs(self._cluster, [log.topic])
        kept_ms = int(found.get(log.topic, {}).get("delete.retention.ms") or TOMBSTONES_MS)
        layout = node.layout(self._partitions[node.changelog])
        counts = {topic: self._partitions[topic] for topic in plan.topics}
        made_from = self._directory.changelog_id(node.name) or b""
        mine = Wanted(
            self._app, node.name, task.partition, layout, counts, start, end, made_from.hex(),
            int(self._clock.wall() * 1000) - kept_ms,
        )  # fmt: skip
        try:
            part, position = part_for(manifest, mine, files.uri)
        except SnapshotNotPublished as error:
            if end:
                raise
            raise StateOnSpark(f"state was not handed over: {error}") from error
        over = threading.Event()

        def step() -> None:
            crash_points.point("during_snapshot")
            self._progress_at = self._clock.now()
            if over.is_set():
                raise Abandoned

        work = self._begin(partial(build, files, part, position, folder, layout, step))
        try:
            await self._until(work, wanted)
        finally:
            over.set()
            work.cancel()
        return manifest, part, position

    def _find(self) -> "tuple[SnapshotFiles, Manifest]":
        from streamsx.state.snapshot import newest_there
        from streamsx.state.snapshot_files import open_files

        assert self._uri is not None
        files = open_files(self._uri)
        return files, newest_there(files)

    def _begin(self, job: Callable[[], T]) -> "asyncio.Future[T]":
        work = asyncio.get_running_loop().run_in_executor(self._executor, job)
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        return work  # the callback takes the error even if the caller of this job has gone

    async def _until(self, work: "asyncio.Future[T]", wanted: StillWanted) -> T:
        """Wait for a job and return the result.

        Raises:
            Abandoned: the task is not wanted any more.
            NotFound: no thread has made progress for SILENCE_MAX_S.
        """
        began = self._clock.now()
        while not (await asyncio.wait([work], timeout=WANTED_EVERY_S))[0]:
            if not wanted():
                raise Abandoned
            if self._clock.now() - max(began, self._progress_at) > SILENCE_MAX_S:
                raise NotFound(
                    f"snapshot not read: no answer in {SILENCE_MAX_S:.0f} s: give --snapshot a "
                    "place that answers"
                )
        self._progress_at = self._clock.now()
        return work.result()

    async def _count_twice(self, task: TaskId, manifest: "Manifest", bounds: LogBounds) -> None:
        """Report the records that the snapshot holds and the group has not committed.

        The group goes on from the committed offsets, so these records count twice.
        """
        passed = {topic for plan in self._plans.values() for topic in plan.outputs}
        ahead = {
            TopicPartition(topic, task.partition): manifest.positions[topic][task.partition].next
            for topic in self._plans[task.subtopology].topics
            if topic not in passed and task.partition in manifest.positions.get(topic, {})
        }  # a snapshot's numbers for topics that the app writes are no offsets
        committed = await bounds.committed.of(ahead)
        begin = await bounds.begin([tp for tp, (offset, _) in committed.items() if offset < 0])
        group = {tp: begin.get(tp, offset) for tp, (offset, _) in committed.items()}
        if twice := sum(max(0, at - group[tp]) for tp, at in ahead.items()):
            what = (
                f"snapshot ahead of the group: snapshot {manifest.number}: {twice} records in it "
                "are not committed and count twice: streamsx spark handover"
            )
            self._log_once(what, f"task {task}")

    def _log_once(self, what: str, where: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            self._journal("error", what=what, where=where)
