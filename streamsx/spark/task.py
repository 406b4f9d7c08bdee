"""Task of one batch on an executor: a worker's Task, unchanged, over files and Arrow.

A task goes on from the committed chains of its stores and ends with new files. The files count only
by a manifest, so an attempt that fails or is repeated leaves garbage at most. A task uses up all of
its input by its end: the source moves on in any case. Neither clock nor environment decides
anything here; all values that could differ between two attempts travel with the closure, in
`BatchWork`.

    rows in  ->  Task over SnapshotRows  ->  rows out, inner and log; then one of kind META

The choice and order of the rows, the sinks and the commit belong to the driver.
"""

import json
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamsx.app.app import App
from streamsx.app.lookup import app_named
from streamsx.errors import NotOnSpark, PartitionCountChanged, UsageError
from streamsx.model import Headers
from streamsx.processing.actor import GatedActor
from streamsx.processing.batch import Batch
from streamsx.processing.failure_policy import Failure, Policy
from streamsx.processing.reader import AgentRun
from streamsx.processing.rerun import NO_RERUN, Rerun
from streamsx.processing.task import Task, TaskMetadata, latest
from streamsx.spark.checkout import Chain, SnapshotRows, scratch_folder
from streamsx.spark.plan import FOREIGN, INNER, OUT, Stage, code_of, place, stages
from streamsx.spark.rows import ArrowOutbox, meta_row
from streamsx.state.factory import make_store
from streamsx.state.snapshot import Manifest, Part, Position, to_json, typed
from streamsx.state.snapshot_files import open_files
from streamsx.tasks.commit_cycle import by_stage, by_writer
from streamsx.topology.time_links import time_links
from streamsx.worker.driver_loop import DriverLoop

if TYPE_CHECKING:
    from streamsx.state.cache import CachedStore

TASK_BYTES: Final = 256 << 20
RUN_ROWS: Final = 1000
"""Rows between two checks of gathered output: a row may send and change far more than its size."""
SEAL_ROWS: Final = 2000
THREAD_WAIT_S: Final = 60.0
"""Wait for a thread that a body has begun; nothing else outside of a body is waited for."""
TOLD_MAX: Final = 3
ALWAYS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class BatchWork:
    """Work of a batch, the same for each of its tasks.

    `app` is MODULE:ATTR. `signatures` are those of the topology on the driver. `counts` has the
    partitions of all topics. `number` is the one of the new snapshot, which is made upon `base`.
    `task_bytes` limits changed rows in memory. `numbered` are topics whose rows come in order and
    have no offsets. `ended`: no input follows, so operators with `idle=` close what is open.
    """

    app: str
    signatures: tuple[int, ...]
    counts: Mapping[str, int]
    uri: str
    number: int
    base: Manifest | None
    policy: Policy
    task_bytes: int = TASK_BYTES
    scratch: str | None = None
    numbered: frozenset[str] = frozenset()
    ended: bool = False

    def stage(self, number: int) -> tuple[App, Stage]:
        """Return the app and a stage. Raises UsageError if the app here is another one."""
        app, made, signatures = _stages(self.app, tuple(sorted(self.counts.items())))
        if signatures != self.signatures:
            raise UsageError(
                f"another app on this executor: {self.app} on {socket.gethostname()}: give all "
                "executors the code and the environment of the driver"
            )
        return app, made[number]

    def chain(self, store: str, partition: int) -> Chain:
        held = self.base.stores.get(store) if self.base else None
        return held.partitions.get(partition, Part()).chain if held else ()

    def position(self, topic: str, partition: int) -> Position | None:
        """Return the position in a partition, None before the first record."""
        return self.base.positions.get(topic, {}).get(partition) if self.base else None


@lru_cache(maxsize=1)
def _stages(
    name: str, counts: tuple[tuple[str, int], ...]
) -> tuple[App, list[Stage], tuple[int, ...]]:
    """Return the app and its stages, cached: analysing bodies takes longer than a small batch."""
    app = app_named(name)
    topology = app.topology()
    return app, stages(topology, dict(counts), 1), topology.signatures


class TaskReport(NamedTuple):
    """Report of one task.

    `positions` are by topic. `chains` are by store, only those that have changed. `failures` are
    the first of the failed records.
    """

    stage: int
    partition: int
    positions: Mapping[str, Position]
    chains: Mapping[str, Chain]
    records: int
    outputs: int
    failed: int
    failures: tuple[str, ...]

    @classmethod
    def from_json(cls, text: str) -> "TaskReport":
        made: TaskReport = typed(cls, json.loads(text))
        return made


def run_task(
    work: BatchWork,
    stage: int,
    batches: Iterable[pa.RecordBatch],
    *,
    careful: bool = False,
    partition: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Run one task on one batch.

    `batches` are in the order of the task, all of one partition; without a row the task does not
    run, unless input has ended: then it is that of `partition`. `careful` makes this the rerun of
    an attempt that failed. So the record of a value that ended the earlier attempt with
    ValueRefused is found.

    Raises:
        NotOnSpark: a body leaves input unread.
        TaskFailed, TaskStopped, ValueRefused, UsageError: the task has ended.
    """
    given = (rows for rows in batches if rows.num_rows)
    loop = DriverLoop(THREAD_WAIT_S, lambda: False)
    attempt: TaskAttempt | None = None
    try:
        for rows in given:
            if attempt is None:
                found: int = rows.column("partition")[0].as_py()
                attempt = TaskAttempt(work, stage, found, loop, careful=careful)
            yield from attempt.take(rows)
        if work.ended and partition is not None:
            attempt = attempt or TaskAttempt(work, stage, partition, loop, careful=careful)
            yield from attempt.end_input()
        if attempt is not None:
            yield from attempt.commit_all()
            yield attempt.finish()
    finally:
        loop.end()


class TaskAttempt:
    """Attempt of a task on a batch: `take` rows, `commit`, and `finish` when there are no more."""

    def __init__(
        self, work: BatchWork, number: int, partition: int, loop: DriverLoop, *, careful: bool
    ) -> None:
        self._work = work
        self._loop = loop
        self._app, self._stage = work.stage(number)
        self._partition = partition
        self.outbox = ArrowOutbox(self._stage, self._partition)
        self._records = 0
        self._failed = 0
        self._failures: list[str] = []
        plan = self._stage.subtopology
        found = {topic: work.position(topic, self._partition) for topic in plan.topics}
        known = {topic: each for topic, each in found.items() if each is not None}
        self._known = set(known)
        """Topics with a known position; a position of another topic would be a guess."""
        self._starts = {topic: known.get(topic, Position(0)).next for topic in plan.topics}
        self._ends = dict(self._starts)
        metadata = TaskMetadata(
            dict(self._ends),
            max((each.stream_time for each in known.values()), default=-1),
            high={topic: each.high for topic, each in known.items()},
            readers={topic: each.readers for topic, each in known.items()},
            closed=latest(each.closed for each in known.values()),
            told={topic: dict(by_writer(each.told)) for topic, each in known.items()},
        )
        files = open_files(work.uri)
        scratch = scratch_folder(work.scratch)
        self._rows: dict[str, SnapshotRows] = {}
        self._stores: dict[str, CachedStore] = {}
        for node in plan.stores:
            chain = work.chain(node.name, self._partition)
            below = SnapshotRows(files, scratch, node.name, self._partition, chain, work.number)
            self._rows[node.name] = below
            self._stores[node.name] = make_store(node, below, work.task_bytes // len(plan.stores))
        policy = replace(work.policy, report=self._report)
        # The failed attempt left nothing, not even the reason: the interval is all of the input.
        rerun = Rerun(dict.fromkeys(plan.topics, ALWAYS), careful=True) if careful else NO_RERUN
        start = partial(GatedActor, bool)  # the next turn sees that its body waits
        about = plan, self._partition, self._stores, self.outbox, start, policy, metadata, rerun
        plans = self._app.topology().subtopologies
        links = time_links(plans, plan, self._partition, self._stage.counts)
        self._task = loop.call(lambda: Task(*about, links))

    def take(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process all the rows, and yield the rows that are sent meanwhile.

        Changed rows that do not fit into memory are spilled to files.

        Raises:
            NotOnSpark: a body leaves input unread.
            PartitionCountChanged: a row is of a partition without a task.
        """
        task = self._task
        places = pc.min_max(rows.column("partition")).as_py()
        if not 0 <= places["min"] <= places["max"] < self._stage.tasks:
            what = f"partition {places['max']} of {', '.join(self._ends)}"
            raise PartitionCountChanged(
                f"partition without a task: {what}: expected {self._stage.tasks} of them: "
                "partitions cannot be added to topics with state: rescale it"
            )
        assert places == {"min": self._partition, "max": self._partition}, f"rows of {places}"
        for topic in self._ends:
            part = rows.filter(pc.equal(rows.column("topic"), topic))
            if not self._is_numbered(topic):  # a source may start too early
                part = part.filter(pc.greater_equal(part.column("offset"), self._starts[topic]))
            if part.num_rows:
                task.offer(self._batch(topic, part))
        while self._loop.call(lambda: task.run(RUN_ROWS, self._ends.keys())):
            yield from self.outbox.drain()
            if sum(store.dirty_bytes for store in self._stores.values()) > self._work.task_bytes:
                yield from self.commit()
                self.spill(last=False)
        for body in task.bodies:
            if not body.actor.idle:
                raise NotOnSpark(f"agent {body.agent!r} ({self._line(body)}): {FOREIGN}")

    def end_input(self) -> Iterator[pa.RecordBatch]:
        """Close what is open in operators with `idle=`."""
        task = self._task
        topics = self._ends.keys()
        # The first look begins to count the time without input.
        self._loop.call(lambda: task.look_for_idle(0.0, topics, ended=True))
        self._loop.call(lambda: task.look_for_idle(ALWAYS, topics, ended=True))
        while self._loop.call(lambda: task.run(RUN_ROWS, topics)):
            yield from self.outbox.drain()

    def _batch(self, topic: str, part: pa.RecordBatch) -> Batch:
        """Return the rows as a batch with offsets.

        Inner rows are numbered on from the manifest. Numbered from 0 in each batch, a task would
        take them for seen ones. Offsets must rise, since a task passes over lower ones in silence.
        The check of whole columns takes 0.1 % of a task's CPU; offset by offset it took 3.7 %.

        Raises:
            UsageError: a history has a record twice.
        """
        end = self._ends[topic]
        if self._is_numbered(topic):
            offsets: Sequence[int] = range(end, end + part.num_rows)
        else:
            given = part.column("offset").to_numpy()
            steps = np.diff(given, prepend=end - 1)
            if steps.min() <= 0:
                at = steps.argmin()
                where = f"{topic}-{self._partition} offset {given[at]}"
                assert not steps[at], f"{where} was given after {given[at] - steps[at]}"
                raise UsageError(f"record given twice: {where}: give it once")
            offsets = given.tolist()
        self._ends[topic] = offsets[-1] + 1
        self._known.add(topic)
        keys, values, times = (
            part.column(name).to_pylist() for name in ("key", "value", "timestamp")
        )
        headers = part.column("headers")
        told = list(map(_headers, headers.to_pylist())) if len(headers.flatten()) else None
        return Batch(topic, self._partition, keys, values, times, offsets, told, offsets[-1] + 1)

    def _is_numbered(self, topic: str) -> bool:
        return topic in self._stage.inner or topic in self._work.numbered

    def commit(self) -> Iterator[pa.RecordBatch]:
        """Commit as a worker does: changes go to the changelogs, then to the rows of the stores."""
        task = self._task
        while (sealed := task.seal(SEAL_ROWS)) is None:
            yield from self.outbox.drain()
        yield from self.outbox.drain()
        task.committed(sealed, {})
        while not task.write_some(SEAL_ROWS):
            pass
        self._records += sealed.records

    def commit_all(self) -> Iterator[pa.RecordBatch]:
        """Commit, then delete what has closed.

        A worker deletes closed rows one commit after their results. Here the manifest commits both
        at once, and no later commit of this task would delete them.
        """
        yield from self.commit()
        if self._task.dirty:
            yield from self.commit()

    def spill(self, *, last: bool) -> None:
        for rows in self._rows.values():
            rows.spill(last=last)

    def finish(self) -> pa.RecordBatch:
        """Finish the files of what was committed, and return the META row that names them."""
        task = self._task
        partition = self._partition
        reached = {b.topic: min(b.reached, self._ends[b.topic]) for b in task.bodies}
        assert {**self._ends, **reached} == task.taken == self._ends, f"{task.id} at {reached}"
        task.close()
        self._loop.run_ready()
        for store in self._stores.values():
            store.stop_scans()  # a database under a scan cannot be handed on
        self.spill(last=True)
        chains = {name: rows.chain for name, rows in self._rows.items()}
        chains = {n: c for n, c in chains.items() if c != self._work.chain(n, partition)}
        known = sorted(self._known)
        high = task.high
        ahead = task.passing
        closed = {store: until for store, until in task.committed_at.closed.items() if until > 0}
        told = {topic: by_stage(times) for topic, times in task.committed_at.told.items()}
        times = {t: {stage: tuple(all_) for stage, all_ in of.items()} for t, of in told.items()}
        at = {
            t: Position(
                self._ends[t], task.stream_time, high[t], ahead.get(t, {}), closed, times.get(t, {})
            )
            for t in known
        }
        outputs = self.outbox.sent[OUT] + self.outbox.sent[INNER]
        counts = self._records, outputs, self._failed, tuple(self._failures)
        report = TaskReport(self._stage.number, partition, at, chains, *counts)
        return meta_row(partition, to_json(report).decode())

    def _report(self, failure: Failure) -> None:
        self._failed += 1
        if len(self._failures) < TOLD_MAX:
            self._failures.append(str(failure))

    def _line(self, body: AgentRun) -> str:
        """Return the place of the innermost frame of a body in the file of its agent."""
        function = self._app.agents[body.agent].fun
        file = code_of(function).co_filename
        lines = [n for name, n in body.actor.lines() if name == file]
        return place(function, lines[-1] if lines else None)


def _headers(given: list[dict[str, Any]] | None) -> Headers:
    return [(each["key"], each["value"]) for each in given or ()]
