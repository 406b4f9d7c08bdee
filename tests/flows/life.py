"""Life of an app's tasks without a driver: any cut of batches, commits, ends and crashes.

A `Life` plays what a worker does with each task of a flow, on one partition, in an order of its
own: batches of any length, slices of any length, stores in memory or in RocksDB with any budget.
Between two steps tasks are committed, end cleanly on the same rows, move to rows that are restored
from the changelogs, are taken over by a learner, go back to the last commit, or are killed.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from streamsx import App
from streamsx.model import Headers
from streamsx.processing.actor import GatedActor
from streamsx.processing.batch import Batch
from streamsx.processing.failure_policy import Failure, Policy
from streamsx.processing.inbox import Outbox, Send, SendRows
from streamsx.processing.task import Task, TaskMetadata
from streamsx.state.api import INDEX, ROW, Rows
from streamsx.state.factory import make_store
from streamsx.state.global_store import GlobalStore
from streamsx.state.layout import StoreNode
from streamsx.state.memory import MemoryRows
from streamsx.state.rocks import RocksMemory, RocksRows
from streamsx.tasks import store_restore
from streamsx.topology.partitions import resolve_partition_counts
from streamsx.topology.time_links import time_links
from tests.flows.cases import SINK, Case, Result, result_of

ENDS = ("restart", "move", "learner")
"""Ends of a task behind a commit: the next one has the same rows, restored ones, a learner's."""
CRASHES = ("abort", "kill")
"""Ends without a commit: nothing has left since the last one; rows have left, offsets have not."""
MakeRows = Callable[[str], Rows]
MEMORY = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=8 << 20)


@contextmanager
def rows_made(folder: Path | None) -> Iterator[MakeRows]:
    """Give a maker of empty rows: in RocksDB below a folder, in memory without one."""
    made: list[RocksRows] = []

    def make(name: str) -> Rows:
        if folder is None:
            return MemoryRows()
        rows = RocksRows(folder / f"{name}-{len(made)}", MEMORY, "{}")
        made.append(rows)
        return rows

    try:
        yield make
    finally:
        for rows in made:
            rows.close()


class Life(Outbox):
    """Tasks of an app with topics as lists.

    `ends`: kinds of ends that may come; `often`: share of steps behind which one comes;
    `forgets`: a planted fault, nothing is kept of what has closed.
    """

    def __init__(
        self,
        app: App,
        draw: random.Random,
        make_rows: MakeRows,
        budget_bytes: int,
        *,
        ends: Sequence[str] = ENDS,
        often: float = 0.05,
        forgets: bool = False,
    ) -> None:
        self.draw = draw
        self.make_rows = make_rows
        self.budget_bytes = budget_bytes
        self.ends = ends
        self.often = often
        self.forgets = forgets
        topology = app.topology()
        self.plans = {plan.number: plan for plan in topology.subtopologies}
        self.counts = resolve_partition_counts(topology, {}, default=1, declare=True).counts
        self.global_nodes = topology.tables
        self.tables = {
            name: GlobalStore(node, MemoryRows(), budget_bytes)
            for name, node in topology.tables.items()
        }
        self.applied = dict.fromkeys(topology.tables, 0)
        """Next offset of the topic of each global table."""
        self.logs: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.changelogs: defaultdict[str, list[tuple[bytes, bytes | None]]] = defaultdict(list)
        nodes = [node for plan in self.plans.values() for node in plan.stores]
        self.stored = {node.name: make_rows(node.name) for node in nodes}
        self.learned: dict[str, Rows] = {}
        self.committed = {
            n: TaskMetadata(dict.fromkeys(p.topics, 0)) for n, p in self.plans.items()
        }
        self.sent: dict[int, dict[str, int]] = {}
        """Ends of a task's output topics at its last commit."""
        self.failures: list[Failure] = []
        self.told = False
        """Whether results are read before the end."""
        self.aborts = 0
        self.kills = 0
        self.repeated = 0
        """Records that were taken again after kills."""
        self.tasks: dict[int, Task] = {}
        for number in self.plans:
            self._open(number)

    @property
    def late(self) -> int:
        """The late records of all tasks, as their last commits have them."""
        return sum(sum(each.late.values()) for each in self.committed.values())

    # -- the outbox of the tasks

    def to(self, topic: str, partition: int | None = None) -> Send:
        log = self.logs[topic]

        def send(
            key: bytes | None,
            value: bytes | None,
            at_ms: int,
            headers: Headers | None,
            by: bytes | None = None,
        ) -> None:
            log.append((key, value, at_ms, headers))

        return send

    def rows(self, topic: str, partition: int) -> SendRows:
        log = self.changelogs[topic]

        def send(keys: Sequence[bytes], values: Sequence[bytes | None], at_ms: int) -> None:
            log.extend(zip(keys, values, strict=True))

        return send

    # -- inputs and results

    def step_by_step(self, inputs: Iterable[Mapping[str, Any]]) -> Iterator[Result]:
        """Work each input off before the next one comes, and yield the results."""
        seen = 0
        self.told = True
        for n, each in enumerate(inputs):
            self._write(each)
            while self._any_has_input():
                self._step(self.draw.choice([*self.tasks]))
            self._settle()
            if len(self.plans) > 1:
                self.commit_all()
            self._disturb(self.draw.choice([*self.tasks]))
            yield from self._results(seen, n)
            seen = len(self.logs[SINK])
        self.commit_all()
        yield from self._results(seen, n)

    def at_once(self, inputs: Iterable[Mapping[str, Any]]) -> Iterator[Result]:
        """Write all inputs, let the tasks read them in any cut, and yield the results."""
        for each in inputs:
            self._write(each)
        while self._any_has_input():
            number = self.draw.choice([*self.tasks])
            self._step(number)
            self._disturb(number)
        self.commit_all()
        yield from self._results(0, -1)

    def _write(self, each: Mapping[str, Any]) -> None:
        key = None if each["key"] is None else each["key"].encode()
        value = None if each["value"] is None else json.dumps(each["value"]).encode()
        self.logs[each["topic"]].append((key, value, each["ts"], None))
        for name, node in self.global_nodes.items():
            log = self.logs[node.changelog]
            if new := log[self.applied[name] :]:
                self.tables[name].apply([row[0] for row in new], [row[1] for row in new])
                self.applied[name] = len(log)

    def _results(self, seen: int, cause: int) -> Iterator[Result]:
        for key, value, at, _ in self.logs[SINK][seen:]:
            text = None if key is None else key.decode()
            yield result_of(cause, text, None if value is None else json.loads(value), at)

    # -- steps

    def _any_has_input(self) -> bool:
        return any(
            at < len(self.logs[topic])
            for task in self.tasks.values()
            for topic, at in task.taken.items()
        )

    def _step(self, number: int) -> None:
        """Offer a cut of each topic that has none, and run a part of it."""
        task = self.tasks[number]
        for topic in task.plan.topics:
            start = task.wanted(topic)
            stop = min(len(self.logs[topic]), start + self.draw.randrange(1, 30))
            if start < stop and not task.waiting(topic):
                keys, values, times, headers = zip(*self.logs[topic][start:stop], strict=True)
                some = headers if any(headers) else None
                task.offer(Batch(topic, 0, keys, values, times, range(start, stop), some, stop))
        done = {t for t in task.plan.topics if task.wanted(t) == len(self.logs[t])}
        task.run(self.draw.randrange(1, 40), done)
        for name, rows in self.learned.items():
            self._catch_up(self._node(name), rows, self.draw.randrange(0, 20))

    def _settle(self) -> None:
        """Run until everything that closes at once has been closed."""
        while any(task.run(100, task.plan.topics) for task in self.tasks.values()):
            pass

    def _disturb(self, number: int) -> None:
        if self.draw.random() < 0.2:
            self.commit(number)
        if self.draw.random() < self.often:
            self._end(number, self.draw.choice(self.ends))

    # -- commits and ends

    def commit_all(self) -> None:
        """Commit upstream tasks first, then let the others process what they get."""
        for _ in self.plans:
            for number in self.plans:
                self.commit(number)
            while self._any_has_input():
                for number in self.plans:
                    self._step(number)
            self._settle()
        for number in self.plans:
            self.commit(number)

    def commit(self, number: int) -> None:
        task = self.tasks[number]
        while (sealed := task.seal(self.draw.randrange(1, 9))) is None:
            pass
        ends = {node.name: len(self.changelogs[node.changelog]) for node in task.plan.stores}
        task.committed(sealed, ends)
        while not task.write_some(self.draw.randrange(1, 9)):
            pass
        self.committed[number] = sealed._replace(closed={}) if self.forgets else sealed
        self.sent[number] = self._outputs(number)
        if self.draw.random() < 0.3:
            self._check(number)

    def _outputs(self, number: int) -> dict[str, int]:
        return {topic: len(self.logs[topic]) for topic in self.plans[number].outputs}

    def _end(self, number: int, how: str) -> None:
        plan = self.plans[number]
        read = any(plan.outputs & {*each.topics} for each in self.plans.values())
        if how == "abort" and (read or self.told):
            how = "restart"  # results that somebody has read cannot be taken back
        if how in ENDS:
            self.commit(number)
        elif how == "abort":
            self.aborts += 1
            for topic, end in self.sent[number].items():
                del self.logs[topic][end:]
        else:
            self._kill(number)
        self.tasks[number].close()
        for node in plan.stores:
            if how == "learner":
                copy = self.learned.pop(node.name, None)
                self.stored[node.name] = self.make_rows("copy") if copy is None else copy
            elif how in ("move", "kill"):
                self.stored[node.name] = self.make_rows(node.name)
            self._catch_up(node, self.stored[node.name], None)
            if self.draw.random() < 0.5:
                self.learned.setdefault(node.name, self.make_rows(f"{node.name}-learned"))
        self._open(number)

    def _kill(self, number: int) -> None:
        """Send all or some rows of a seal, and no offsets, then kill the task."""
        task = self.tasks[number]
        self.kills += 1
        at = self.committed[number].positions
        self.repeated += sum(taken - at[topic] for topic, taken in task.taken.items())
        whole = self.draw.random() < 0.7
        while task.seal(self.draw.randrange(1, 9)) is None:
            if not whole and self.draw.random() < 0.3:
                break

    def _open(self, number: int) -> None:
        plan = self.plans[number]
        stores = {
            n.name: make_store(n, self.stored[n.name], self.budget_bytes) for n in plan.stores
        }
        policy = Policy(report=self.failures.append)
        start = partial(GatedActor, lambda *_: None)
        links = time_links(self.plans.values(), plan, 0, self.counts)
        about = plan, 0, stores, self, start, policy, self.committed[number]
        self.tasks[number] = Task(*about, links=links, tables=self.tables)
        self.sent[number] = self._outputs(number)

    # -- changelogs

    def _node(self, name: str) -> StoreNode:
        nodes = (node for plan in self.plans.values() for node in plan.stores)
        return next(node for node in nodes if node.name == name)

    def _catch_up(self, node: StoreNode, rows: Rows, limit: int | None) -> None:
        """Read a changelog on from the position of some rows."""
        start = rows.position() or 0
        log = self.changelogs[node.changelog]
        stop = len(log) if limit is None else min(len(log), start + limit)
        if part := log[start:stop]:
            keys = node.local_keys([key for key, _ in part])
            newest = store_restore.newest(keys, [value for _, value in part])
            rows.write(node.indexed(newest), stop)

    def _check(self, number: int) -> None:
        """Compare the rows of a task with its changelogs."""
        for node in self.plans[number].stores:
            log = self.changelogs[node.changelog]
            keys = node.local_keys([key for key, _ in log])
            newest = dict(zip(keys, (value for _, value in log), strict=True))
            held = {key: value for key, value in newest.items() if value is not None}
            there = dict(self.stored[node.name].scan(ROW, INDEX))
            assert there == held, (node.name, sorted(there.items() ^ held.items())[:4])


def results_by_key(results: Iterable[Result]) -> dict[str, list[tuple[Any, int]]]:
    """Return values and times by key, in order."""
    found: defaultdict[str, list[tuple[Any, int]]] = defaultdict(list)
    for each in results:
        found[each.key].append((each.value, each.at_ms))
    return dict(found)


def lived(
    case: Case, app: App, draw: random.Random, make_rows: MakeRows, **how: Any
) -> tuple[Life, list[Result]]:
    """Run a case through a life, with a budget of 2 KB or of 1 MB; return both."""
    life = Life(app, draw, make_rows, draw.choice([2000, 1 << 20]), **how)
    timed = any("window" in each or "before" in each for each in case["ops"])
    in_turn = len(life.plans) > 1 and (timed or len(case["sources"]) > 1)
    run = life.step_by_step if in_turn or draw.random() < 0.3 else life.at_once
    return life, list(run(case["inputs"]))
