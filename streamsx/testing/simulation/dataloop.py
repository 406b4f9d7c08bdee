"""The data loop of a simulated worker: the machines of lifecycle/, driven as the engine does.

Its work is in miniature: an input record is its number; it is written to the task's output and
counted in its store under one of a few keys, with its own number, so that a loss shows in either.
At least once: outputs and changelog rows are acknowledged before the offsets are committed, the
store is written behind them, and without a lease nothing is processed and nothing is sent.

Not here: the group, which it knows from what its worker tells it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from streamsx.lifecycle import commit as c
from streamsx.lifecycle import reconcile as r
from streamsx.lifecycle import restore as s
from streamsx.membership import events as e
from streamsx.model import Role, TaskId, TopicPartition
from streamsx.task.task import Sealed
from streamsx.testing.simulation.control import Ask, Lane
from streamsx.testing.simulation.heap import Thread
from streamsx.testing.simulation.network import Network, Path
from streamsx.testing.simulation.node import Fetch, Fetched, Produce, Row
from streamsx.testing.simulation.scene import Scene, source, stateful

TURN_S, OPEN_S, CLOSE_S, POLL_S, RETRY_S, REQUEST_S = 1.0, 0.02, 0.05, 1.0, 0.2, 10.0
TURN_RECORDS_MAX = 50
KEYS = 4
STORE = ""


def changelog(task: TaskId) -> TopicPartition:
    return TopicPartition(f"store-{task.subtopology}-changelog", task.partition)


def output(task: TaskId) -> TopicPartition:
    return TopicPartition(f"out-{task.subtopology}", task.partition)


def key_of(number: int) -> bytes:
    return b"k%d" % (number % KEYS)


def counted(value: bytes | None) -> tuple[int, int]:
    """How many records, and the last of them, by a store's value."""
    count, _, last = (value or b"0,-1").partition(b",")
    return int(count), int(last)


@dataclass(slots=True)
class Store:
    """`position`: next offset of the changelog; None: nothing was ever written."""

    rows: dict[bytes, bytes] = field(default_factory=dict)
    position: int | None = None

    def write(self, rows: Mapping[bytes, bytes | None], position: int) -> None:
        self.rows.update({key: value for key, value in rows.items() if value is not None})
        self.position = position


@dataclass(slots=True, eq=False)
class Cell:
    """A task that is held. `end`: what an active's store must reach; `asked`: the last question
    for its positions; `live`: its rows with what is not committed."""

    task: TaskId
    store: Store
    restore: s.Restore | None
    open: bool = True
    reading: bool = False
    end: int = 0
    asked: int = 0
    committed: int = 0
    next: int = 0
    sealed: int = 0
    live: dict[bytes, bytes] = field(default_factory=dict)
    dirty: set[bytes] = field(default_factory=set)
    outputs: list[Row] = field(default_factory=list)

    @property
    def role(self) -> Role:
        """As what its store is being restored."""
        return Role.LEARNER if self.restore is not None and self.restore.follows else Role.ACTIVE


class Home(Protocol):
    """The worker around the loop."""

    @property
    def stands(self) -> bool: ...
    def post(self, event: e.Event) -> None: ...
    def fetch_positions(self, task: TaskId, told: Callable[[int], None]) -> None: ...
    def runs(self, cell: Cell) -> None: ...


class Restoring:
    """Feeds the restore machines: one fetch at a time for each store."""

    def __init__(self, thread: Thread, lane: Lane, rate: float, hold: Callable[..., None]) -> None:
        self._thread, self._lane, self._rate, self._hold = thread, lane, rate, hold

    def read_ends(self, cell: Cell, role: Role) -> None:
        """The answers for a learner and for the active it became may come in either order."""
        restore = cell.restore
        if restore is None:
            self._hold(r.EndsKnown(cell.task, role, behind=False))
            return

        def known(fetched: Fetched) -> None:
            if restore.state is s.State.OPENING:
                position, rows = cell.store.position, bool(cell.store.rows)
                opened(s.Opened(position, rows, 0, fetched.end))
            if role is Role.ACTIVE:
                cell.end = fetched.end
                if restore.follows and cell.open:
                    opened(s.Promoted(fetched.end))

        def opened(event: s.Event) -> None:
            """What a machine says it says as what it was then."""
            effects, role = restore.step(self._thread.heap.now, event), cell.role
            self._hold(r.EndsKnown(cell.task, role, behind=restore.state is not s.State.DONE))
            self._perform(cell, effects)

        self._fetch(cell, Fetch(changelog(cell.task), 0, 0), known)

    def _fetch(self, cell: Cell, fetch: Fetch, told: Callable[[Fetched], None]) -> None:
        def answered(fetched: Fetched) -> None:
            self._thread.hear()
            if cell.open:
                told(fetched)

        def again() -> None:
            if cell.open:
                self._fetch(cell, fetch, told)

        def lost() -> None:
            self._thread.later(RETRY_S, "fetch again", cell.task, again)

        self._lane.put(Ask(fetch, REQUEST_S, answered, lost))

    def _step(self, cell: Cell, event: s.Event) -> None:
        if cell.open and cell.restore is not None and cell.restore.state in s.READS:
            self._perform(cell, cell.restore.step(self._thread.heap.now, event))

    def _perform(self, cell: Cell, effects: list[s.Effect]) -> None:
        for effect in effects:
            match effect:
                case s.Wipe():
                    cell.store.rows.clear()
                    cell.store.position = None
                case s.Read():
                    self._read(cell)
                case s.Write(rows, position):
                    self._write(cell, rows, position)
                case s.ReachedEnd() | s.FellBehind():
                    done = isinstance(effect, s.ReachedEnd)
                    self._hold(r.Restored(cell.task, cell.role, done))

    def _read(self, cell: Cell) -> None:
        restore = cell.restore
        if restore is None or restore.state not in s.READS or cell.reading or not cell.open:
            return
        fetch = Fetch(changelog(cell.task), restore.position, int(self._rate))

        def came(fetched: Fetched) -> None:
            cell.reading = False
            if restore.follows:
                self._step(cell, s.Moved(fetched.end))
            if fetched.rows:
                keys, values = zip(*fetched.rows, strict=True)
                self._step(cell, s.Fetched(keys, values, fetch.offset + len(keys)))
            else:
                self._thread.later(POLL_S, "poll", cell.task, lambda: self._read(cell))

        cell.reading = True
        self._fetch(cell, fetch, came)

    def _write(self, cell: Cell, rows: Mapping[bytes, bytes | None], position: int) -> None:
        def written() -> None:
            if cell.open:
                cell.store.write(rows, position)
                self._step(cell, s.Written())
                self._read(cell)

        self._thread.later(len(rows) / self._rate, "write", cell.task, written)


class DataLoop:
    """`running`: what is processed, as far as there is a lease."""

    def __init__(
        self,
        network: Network,
        scene: Scene,
        thread: Thread,
        stores: dict[TaskId, Store],
        home: Home,
    ) -> None:
        self.holdings, self.commits = r.Holdings(), c.Commits()
        self.cells: dict[TaskId, Cell] = {}
        self.running: set[TaskId] = set()
        self._scene, self._thread, self._stores, self._home = scene, thread, stores, home
        self._generation = -1
        self._commit_id, self._commit_tasks = 0, frozenset[TaskId]()
        self._commit_due = 0.0
        self._unsent: dict[TaskId, list[tuple[TopicPartition, tuple[Row, ...]]]] = {}
        lane = Lane(thread.heap, network, Path(thread.life, "fetch"))
        self._restoring = Restoring(thread, lane, scene.restore_rate, self.hold)
        self._produces = Lane(thread.heap, network, Path(thread.life, "produce"))

    # Tasks.

    def take_in(self, generation: int, plan: r.Planned) -> None:
        self._generation = generation
        self.hold(plan)

    def hold(self, event: r.Event) -> None:
        for effect in self.holdings.step(self._thread.heap.now, event):
            match effect:
                case r.Run() | r.Suspend() | r.Forget() | r.Close():
                    self._change(effect, self.cells[effect.task])
                case r.Open(task, role):
                    self._open(task, role)
                case r.FetchPositions(task, number):
                    self._fetch_positions(self.cells[task], number)
                case r.ReadEnds(task, role):
                    self._restoring.read_ends(self.cells[task], role)
                case r.Announce():
                    self._home.post(e.Ready())
                case r.Release(task, number):
                    self._home.post(e.Released(frozenset({source(task)}), number))
                case r.Moved():
                    self._thread.heap.note(self._thread.life, "task", effect)

    def _change(self, effect: r.Run | r.Suspend | r.Forget | r.Close, cell: Cell) -> None:
        match effect:
            case r.Run(task):
                cell.next = cell.sealed = cell.committed
                cell.live = dict(cell.store.rows)
                self.running.add(task)
                self._home.runs(cell)
            case r.Suspend(task):
                self.running.discard(task)
                self._commit(c.Suspended(task, cell.next != cell.sealed))
            case r.Forget(task):
                self.running.discard(task)
                self._unsent.pop(task, None)
                self._commit(c.TaskLost(task))
            case r.Close(task):
                cell.open = False
                self._thread.later(CLOSE_S, "closed", task, lambda: self._closed(cell))

    def _open(self, task: TaskId, role: Role) -> None:
        limit = self._scene.rules.acceptable_recovery_lag
        restore = s.Restore(follows=role is Role.LEARNER, limit=limit) if stateful(task) else None
        self.cells[task] = Cell(task, self._stores.pop(task, Store()), restore)
        self._thread.later(OPEN_S, "open", task, lambda: self.hold(r.StoresOpen(task)))

    def _closed(self, cell: Cell) -> None:
        del self.cells[cell.task]
        self._stores[cell.task] = cell.store
        self.hold(r.Closed(cell.task))

    def _fetch_positions(self, cell: Cell, number: int) -> None:
        def told(offset: int) -> None:
            if cell.open and cell.asked == number:
                cell.committed = offset
                self.hold(r.Positions(cell.task, number))

        cell.asked = number
        self._home.fetch_positions(cell.task, told)

    # Records.

    def turn(self) -> None:
        now = self._thread.heap.now
        self._thread.later(TURN_S, "turn", None, self.turn)
        if self._home.stands:
            return
        for task in sorted(self.running):
            self._process(self.cells[task], now)
        if now >= self._commit_due and self.commits.state is c.State.IDLE:
            self._commit_due = now + self._scene.commit_s
            dirty = {t for t in self.running if self.cells[t].next != self.cells[t].sealed}
            self._commit(c.Due(frozenset(dirty)))

    def _process(self, cell: Cell, now: float) -> None:
        end = min(self._scene.input_end(now), cell.next + TURN_RECORDS_MAX)
        for number in range(cell.next, end):
            cell.outputs.append((b"", b"%d" % number))
            if stateful(cell.task):
                key = key_of(number)
                cell.live[key] = b"%d,%d" % (counted(cell.live.get(key))[0] + 1, number)
                cell.dirty.add(key)
        cell.next = end

    # Commits.

    def committed(self, number: int, dropped: frozenset[TaskId] | None) -> None:
        """`dropped` None: all."""
        assert number == self._commit_id
        self._commit(c.Committed(self._commit_tasks if dropped is None else dropped))

    def _commit(self, event: c.Event) -> None:
        for effect in self.commits.step(self._thread.heap.now, event):
            match effect:
                case c.Seal(task):
                    self._seal(self.cells[task])
                case c.Flush():
                    self._flush()
                case c.CommitOffsets(sealed):
                    self._commit_offsets(sealed)
                case c.Adopt(task, sealed, ends):
                    if sealed.rows[STORE]:
                        self.cells[task].store.write(sealed.rows[STORE], ends[changelog(task)])
                    self._commit(c.TaskWritten(task))
                case c.Settled(task):
                    self.hold(r.Settled(task))

    def _seal(self, cell: Cell) -> None:
        rows = {key: cell.live[key] for key in sorted(cell.dirty)}
        batches = [(output(cell.task), tuple(cell.outputs))]
        batches += [(changelog(cell.task), tuple(rows.items()))] if rows else []
        self._unsent[cell.task] = batches
        records, cell.sealed = cell.next - cell.sealed, cell.next
        cell.outputs, cell.dirty = [], set()
        sealed = Sealed({source(cell.task).topic: cell.next}, -1, {STORE: rows}, records)
        self._commit(c.TaskSealed(cell.task, sealed))

    def _flush(self) -> None:
        """What was lost meanwhile is not sent; without a lease nothing is."""

        def again() -> None:
            self._thread.later(TURN_S, "flush again", None, self._flush)

        def acknowledged(ends: Mapping[TopicPartition, int]) -> None:
            self._thread.hear()
            self._unsent.clear()
            self._commit(c.Flushed(ends))

        if self._home.stands:
            again()
            return
        batches = [batch for _, some in sorted(self._unsent.items()) for batch in some]
        self._produces.put(Ask(Produce(tuple(batches)), REQUEST_S, acknowledged, again))

    def _commit_offsets(self, sealed: Mapping[TaskId, Sealed]) -> None:
        self._commit_id, self._commit_tasks = self._commit_id + 1, frozenset(sealed)
        offsets = {}
        for task, what in sealed.items():
            tp = source(task)
            offsets[tp] = e.OffsetAndMetadata(what.positions[tp.topic])
        self._home.post(e.Commit(self._commit_id, offsets, self._generation))
