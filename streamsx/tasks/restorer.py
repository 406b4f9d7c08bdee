"""Shell of store restores: reads and writes in slices that a running task does not notice.

The next read of a store, and the moment at which the store has caught up, are decided in
`streamsx.tasks.store_restore`. The order of tasks is decided here:

1. Actives, because no worker processes their records meanwhile.
2. Learners, one after another, the one with the least left first: the first relief comes early, and
   the last one no later. Learners that are near enough come after the others.
3. Standbys.

A strict order was measured to be better than sharing (8.7 % less down time).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from streamsx.client.admin import Bounds
from streamsx.client.fetcher import Fetcher
from streamsx.clock import Clock
from streamsx.errors import STORE_FAULTS, IncompatibleStore
from streamsx.journal import Journal
from streamsx.model import Role, TaskId, TopicPartition
from streamsx.state.api import Rows, holds_rows
from streamsx.state.layout import StoreNode
from streamsx.tasks import crash_points, store_restore
from streamsx.tasks.restore_summary import RestoresOver, RestoreSummary
from streamsx.tasks.state_machine import TaskEvent
from streamsx.tasks.store_restore import StoreRestore
from streamsx.tasks.task_registry import Happened

WRITE_ROWS = 500
PROGRESS_EVERY_S = 0.5
TURNS: Final = {Role.ACTIVE: 0, Role.LEARNER: 1, Role.STANDBY: 2}


@dataclass(slots=True)
class Store:
    """Store that is being restored."""

    of: "Restoring"
    node: StoreNode
    changelog: TopicPartition
    rows: Rows
    machine: StoreRestore
    writes: Iterator[tuple[bytes, bytes | None]] | None = None
    """Rest of the batch that is being written; None without one."""


@dataclass(slots=True)
class Restoring:
    """Task that is being restored, with all its stores."""

    task: TaskId
    role: Role
    stores: list[Store] = field(default_factory=list)
    logged_at: float = 0.0

    @property
    def done(self) -> bool:
        """Return whether all stores are at the end (active) or near enough (follower), written."""
        wanted = (
            store_restore.RestoreState.TAILING
            if self.role.follows
            else store_restore.RestoreState.DONE
        )
        return all(store.machine.state is wanted for store in self.stores)

    @property
    def lag(self) -> int:
        """Return the records that the worst store is behind the end."""
        return max(store.machine.lag for store in self.stores)

    @property
    def restored(self) -> int:
        """Return the records that this restore has applied."""
        return sum(store.machine.records for store in self.stores)

    def order(self) -> tuple[int, bool, int, TaskId]:
        """Return the sort key of this task: smaller keys are restored first."""
        return TURNS[self.role], self.done, self.lag, self.task


class Restorer:
    """Restorer of all tasks of a worker whose ends are known and that do not run.

    Args:
        fetcher: fetcher of changelogs.
        lag_max: lag at which a follower is near enough.
        kept: returns the folder for a store that is set aside, by store and partition.
        restored: called with the state of a task's stores, each time that may have changed.
        failed: called for a task with a store that cannot be read or written.
        journal: receives progress and errors.
        clock: time of the worker.
    """

    def __init__(
        self,
        *,
        fetcher: Fetcher,
        lag_max: int,
        kept: Callable[[str, int], str],
        restored: Callable[[Happened], None],
        failed: Callable[[TaskId, Exception], None],
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._journal = journal
        self._kept = kept
        self._fetcher = fetcher
        self._restored = restored
        self._failed = failed
        self._limit = lag_max
        self._tasks: dict[TaskId, Restoring] = {}
        self._by_changelog: dict[TopicPartition, Store] = {}
        self._summary = RestoreSummary()

    # -- tasks come and go

    def ends(
        self,
        task: TaskId,
        role: Role,
        stores: Sequence[StoreNode],
        changelogs: Mapping[str, TopicPartition],
        rows: Mapping[str, Rows],
        bounds: Mapping[TopicPartition, Bounds],
    ) -> bool:
        """Set the restore of a task going, with the bounds of its changelogs as of now.

        A follower may be made active while the first ends are being read: then this call, as an
        active, is the first for the task.

        Args:
            task: the task to restore.
            role: role in which the task is restored.
            stores: stores of the task, as the topology has them.
            changelogs: changelog by store.
            rows: open rows by store.
            bounds: bounds by changelog.

        Returns:
            Whether something is left to restore.
        """
        if task not in self._tasks:
            restoring = self._tasks[task] = Restoring(task, role)
            for node in stores:
                tp = changelogs[node.name]
                machine = StoreRestore(follows=role.follows, limit=self._limit)
                self._by_changelog[tp] = Store(restoring, node, tp, rows[node.name], machine)
            restoring.stores = [self._by_changelog[tp] for tp in changelogs.values()]
        restoring = self._tasks[task]
        restoring.role = role
        for store in restoring.stores:
            start, end = bounds[store.changelog]
            if store.machine.state is store_restore.RestoreState.OPENING:
                held = store.rows
                self._step(
                    store, store_restore.Opened(held.position(), holds_rows(held), start, end)
                )
            if not role.follows and store.machine.follows:
                self._step(store, store_restore.Promoted(end))
        if not restoring.done:
            self._summary.begun(self._clock.now(), task)
        return not restoring.done

    def turned(self, task: TaskId, role: Role) -> None:
        """Change the role of a follower; the ends may not be known yet."""
        if task in self._tasks:
            self._tasks[task].role = role

    def remove(self, task: TaskId) -> None:
        """Stop reading for a task; the stores stay open."""
        restoring = self._tasks.pop(task, None)
        for store in restoring.stores if restoring else ():
            self._fetcher.remove(store.changelog)
            del self._by_changelog[store.changelog]
        self._log_end(self._summary.dropped(self._clock.now(), task))

    def lag(self, task: TaskId) -> int | None:
        """Return the lag of a task in records, None for a task that is not restored here."""
        restoring = self._tasks.get(task)
        return restoring.lag if restoring else None

    def __len__(self) -> int:
        return len(self._tasks)

    # -- messages of the fetcher

    def out_of_range(self, tp: TopicPartition, bounds: Bounds) -> None:
        """Restart the store of a changelog that was cut under a reader."""
        if store := self._by_changelog.get(tp):
            with self._tried(store.of.task):
                self._step(store, store_restore.OutOfRange(bounds.start, bounds.high_watermark))

    @contextmanager
    def _tried(self, task: TaskId) -> Iterator[None]:
        """Fail a task whose disk refuses rows, or whose changelog is that of another store."""
        try:
            yield
        except (*STORE_FAULTS, IncompatibleStore) as error:
            self.remove(task)  # the next rows must not go in without these
            self._failed(task, error)

    # -- slices

    def urgent(self) -> bool:
        """Return whether an active is restored here, whose records wait meanwhile."""
        return any(r.role is Role.ACTIVE for r in self._tasks.values())

    def slice(self, until: float) -> bool:
        """Read and write until the time `until`; return whether anything was done."""
        worked = False
        for store in list(self._by_changelog.values()):
            self._follow(store)  # its lag is reported, and its turn may not come for a long time
        for restoring in sorted(self._tasks.values(), key=Restoring.order):
            with self._tried(restoring.task):
                for store in list(restoring.stores):
                    while self._clock.now() < until and self._advance(store):
                        worked = True
                if (
                    not restoring.done
                    and self._clock.now() - restoring.logged_at >= PROGRESS_EVERY_S
                ):
                    self._log_progress(restoring)
            if self._clock.now() >= until:
                break
        if self._summary.due(self._clock.now()):
            self._log_all()
        return worked

    def _advance(self, store: Store) -> bool:
        """Write some rows, or take a fetched batch; return False when there is neither."""
        if store.of.task not in self._tasks:
            return False  # the task runs now
        if store.writes is not None:
            self._write(store)
            return True
        batch = self._fetcher.take(store.changelog)
        if batch is None or store.machine.state is store_restore.RestoreState.DONE:
            return False
        keys = store.node.local_keys(batch.keys)
        rows = store.node.indexed(store_restore.newest(keys, batch.values))
        store.writes = iter(rows.items())
        self._step(store, store_restore.Fetched(len(batch.keys), batch.next_offset))
        return True

    def _follow(self, store: Store) -> None:
        machine = store.machine
        end = self._fetcher.end(store.changelog)
        if machine.follows and end > machine.end and store.of.task in self._tasks:
            self._step(store, store_restore.EndMoved(end))

    def _write(self, store: Store) -> None:
        assert store.writes is not None
        part = dict(islice(store.writes, WRITE_ROWS))
        if last := len(part) < WRITE_ROWS:
            store.writes = None
        store.rows.write(part, store.machine.writing if last else None)
        crash_points.point("during_restore")
        if last:
            self._step(store, store_restore.Written())

    # -- effects

    def _step(self, store: Store, event: store_restore.Event) -> None:
        before = store.machine.state
        for effect in store.machine.step(self._clock.now(), event):
            match effect:
                case store_restore.Empty(why, keep):
                    self._empty(store, why, keep=keep)
                case store_restore.Read(offset):
                    self._fetcher.add(store.changelog, offset)
        if store.machine.state is before:
            return
        restoring = store.of
        if restoring.done:
            self._log_progress(restoring)
            now = self._clock.now()
            self._log_end(self._summary.over(now, restoring.task, restoring.restored))
        stands = TaskEvent.REACHED_END if restoring.done else TaskEvent.FELL_BEHIND
        self._restored(Happened(restoring.task, stands, restoring.role))

    def _empty(self, store: Store, why: str, *, keep: bool) -> None:
        store.writes = None
        what = f"{why}: restoring it from the start; no action needed"
        if not keep:
            store.rows.wipe()
        elif store.rows.set_aside(kept := self._kept(store.node.name, store.changelog.partition)):
            what = (
                f"{why}: the brokers have lost records of it: restoring it from those they have: "
                f"the old store is kept in {kept}: delete it if nothing is missing"
            )
        crash_points.point("during_wipe")
        where = f"store {store.node.name} of task {store.of.task}, {store.changelog}"
        self._journal("error", what=what, where=where)

    def _log_progress(self, restoring: Restoring) -> None:
        restoring.logged_at = self._clock.now()
        self._journal(
            "restore_progress",
            task=str(restoring.task),
            role=restoring.role.value,
            restored=restoring.restored,
            end=sum(store.machine.total for store in restoring.stores),
        )

    def _log_all(self) -> None:
        """Log how far all restores together are."""
        some = [each for each in self._tasks.values() if not each.done]
        total = sum(store.machine.total for each in some for store in each.stores)
        left = sum(store.machine.lag for each in some for store in each.stores)
        percent = int(100 * max(total - left, 0) / total) if total else 0
        tasks = sorted(each.task for each in some)
        self._journal("restoring", tasks=list(map(str, tasks)), percent=percent, left=left)

    def _log_end(self, over: RestoresOver | None) -> None:
        if over is not None:
            ms = round(over.took_s * 1000, 1)
            tasks = list(map(str, over.tasks))
            self._journal("restored", tasks=tasks, records=over.records, ms=ms)
