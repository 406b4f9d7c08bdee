"""Kills of an app's workers and of its broker at random moments, while records flow.

`Killing` draws the victims and the times. A successor starts in the state directory of the killed
worker, or in an empty one. Afterwards `findings` returns the errors in the results of the app, in
the stores on the workers' disks, and in the number of restored records.

Not here: the apps (`exact_apps`), the processes (`workers`).
"""

import json
import random
import shutil
import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from rocksdict import Rdict

from streamsx.model import TopicPartition
from streamsx.state.api import FORMAT, INDEX, ROW
from streamsx.state.directory import PROCESS_FILE
from streamsx.state.layout import StoreNode
from streamsx.state.rocks import RocksMemory, RocksRows, options
from streamsx.tasks.store_restore import newest
from tests.support.apache_kafka import ApacheKafka
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.exact_apps import PARTITIONS, ExactApp
from tests.support.workers import Workers

PAUSE_S = 0.8
"""The longest pause between a commit and a kill."""
HASTE = 0.25
"""Share of kills that do not wait for a commit of the last successor."""
LOSS = 0.2
"""Share of killed workers that lose their state directory."""
SETTLE_S = 8.0
"""So long a commit of a worker is waited for."""
DRAIN_S = 120.0
CACHE_BYTES = 1 << 20
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once", "at_least_once"
SETTINGS = {
    EXACTLY_ONCE: {"processing_guarantee": EXACTLY_ONCE, "transaction_timeout": "3s"},
    AT_LEAST_ONCE: {"processing_guarantee": AT_LEAST_ONCE, "commit_interval": "100ms"},
}
"""Settings of workers by guarantee. An open transaction of a lost directory ends after 3 s."""
ALL = {"session_timeout": "3s", "heartbeat_interval": "500ms"}


class Kill(NamedTuple):
    """Kill of a worker: when its successor was started, what it ran, whether it lost its state."""

    name: str
    at: float
    held: frozenset[str]
    emptied: bool


class Killing:
    """Workers of an app that are killed; `seed` draws their fates. Prints what it does."""

    def __init__(
        self, workers: Workers, app: ExactApp, guarantee: str, seed: int, **settings: object
    ) -> None:
        self.workers, self.app, self.guarantee = workers, app, guarantee
        self.settings = {**ALL, **SETTINGS[guarantee], **settings}
        self.kills: list[Kill] = []
        self.largest_restore = 0
        self._draw = random.Random(seed)
        self._names: tuple[str, ...] = ()
        self._started: dict[str, float] = {}

    def start(self, *names: str) -> None:
        """Start workers, and wait until each of them has committed."""
        self._names = names
        started = self.workers.now()
        self._start(*names)
        for name in names:
            self._settle(name, started)

    def workers_are(self, *names: str) -> None:
        """Use these workers, which run already."""
        self._names = names

    def run(self, kills: int) -> None:
        """Kill so many workers, one by one."""
        for _ in range(kills):
            self.kill()

    def kill(self) -> None:
        """Kill a worker at a random moment, and start its successor."""
        name = self._draw.choice(self._names)
        self._pause()
        held = self._held(name)
        self.workers.kill(name)
        emptied = self._draw.random() < LOSS
        if emptied:
            shutil.rmtree(self.workers.all[name].state)
        kill = Kill(name, self.workers.now(), held, emptied)
        self.kills.append(kill)
        self._start(name)
        if self._draw.random() >= HASTE:
            self._settle(name, kill.at)

    def die(self, name: str, point: str) -> None:
        """Let a worker die at a crash point, and start its successor."""
        self._start(name, fault=point)
        code = self.workers.code(name)
        assert code == -signal.SIGKILL, f"{point} was not reached: {self.workers.all[name].tail()}"
        held = self._held(name)
        self.kills.append(Kill(name, self.workers.now(), held, emptied=False))
        self.start(name)

    def fence(self, name: str) -> bool:
        """Fence a worker by its transactional id at a random moment, and wait until it has
        committed again. Return whether it has ended, and is started again.
        """
        self._pause()
        worker = self.workers.all[name]
        worker.expected = True
        self.app.client.fence(self.transactional_id(name))
        fenced = self.workers.now()
        self.workers.until(
            lambda: self._since(name, fenced, "commit") or not worker.alive,
            "a commit behind a fence",
        )
        if worker.alive:
            worker.expected = False
            return False
        self.start(name)
        return True

    def transactional_id(self, name: str) -> str:
        """Return the id under which a worker commits: that of its state directory."""
        file = self.workers.all[name].state / self.app.name / PROCESS_FILE
        return f"{self.app.name}-{json.loads(file.read_text())['process_id']}"

    @property
    def aborted(self) -> int:
        """Number of transactions that were aborted; each has raised the epoch of its producer."""
        ends = (each for tp in self._written for each in self.app.client.transactions(tp))
        return len({each.producer for each in ends if not each.committed})

    @property
    def _settled(self) -> bool:
        return self.app.client.ends(self._written) == self.app.client.stable_ends(self._written)

    @cached_property
    def _written(self) -> list[TopicPartition]:
        """Partitions that workers write."""
        app = self.app
        outputs = [tp for ending in (*app.written, *app.inner) for tp in app.of(ending)]
        changelogs = sorted({node.changelog for node in self.stores.values()})
        return [*outputs, *(TopicPartition(c, n) for c in changelogs for n in range(PARTITIONS))]

    @cached_property
    def stores(self) -> dict[str, StoreNode]:
        """Stores of the app by name."""
        return {n.name: n for each in self.app.topology().subtopologies for n in each.stores}

    def kill_broker(self, broker: EmbeddedBroker | ApacheKafka) -> None:
        """Kill the broker at a random moment, start it again, and wait for a commit."""
        self._pause()
        broker.kill()
        broker.start()
        self.workers.until_event("commit", since=self.workers.now())

    def _start(self, *names: str, **more: object) -> None:
        self._started |= dict.fromkeys(names, self.workers.now())
        self.workers.start(*names, **self.settings, **more)

    def _held(self, name: str) -> frozenset[str]:
        """Return the tasks of the current process, as far as its events show them."""
        begun = self._since(name, self._started[name], "worker_started")
        return frozenset(self.workers.held(name) if begun else ())

    def _pause(self) -> None:
        over = self.workers.now() + self._draw.uniform(0, PAUSE_S)
        self.workers.until(lambda: self.workers.now() > over, "a pause")

    def _settle(self, name: str, since: float) -> None:
        """Wait for a commit of a worker; not for long, since it may have no task."""
        over = since + SETTLE_S
        self.workers.until(
            lambda: self.workers.now() > over or self._since(name, since, "commit"), "a commit"
        )

    def _since(self, name: str, at: float, kind: str) -> bool:
        return any(event["mono"] > at for event in self.workers.events(kind, of=name))

    def finish(self) -> None:
        """End the feed, and the workers once all is committed."""
        self.app.enough()
        self._drained()
        self.app.close()
        self._drained()
        codes = self.workers.stop(*self._names)
        assert set(codes) == {0}, (codes, [self.workers.all[n].tail() for n in self._names])
        self.workers.until(lambda: self._settled, "all transactions have ended", DRAIN_S)

    def _drained(self) -> None:
        self.workers.until(lambda: self.app.drained, "all is committed", DRAIN_S)

    # -- afterwards

    def findings(self) -> list[str]:
        """Return what is wrong, an empty list if nothing is."""
        restored = self.too_much_restored() if self.guarantee == EXACTLY_ONCE else ()
        return [*self.app.findings(), *self.wrong_stores(), *restored]

    def check(self, seed: int) -> None:
        """Raise AssertionError for any error, with the kills."""
        found = self.findings()
        assert not found, "\n".join([f"seed {seed}", *found, *map(str, self.kills)])

    def wrong_stores(self) -> Iterator[str]:
        """Return the stores on disk that differ from their changelogs up to their positions."""
        for name, path in self.paths():
            yield from self._wrong_store(name, path, self.stores[path.parent.name])

    def paths(self) -> Iterator[tuple[str, Path]]:
        """Yield the folders of all stores, with the names of their workers."""
        for worker in self.workers.all.values():
            for path in sorted(worker.state.glob(f"{self.app.name}/stores/*/*")):
                if path.name.isdigit():
                    yield worker.name, path

    def _wrong_store(self, name: str, path: Path, node: StoreNode) -> Iterator[str]:
        tp = TopicPartition(node.changelog, int(path.name))
        with opened(path) as store:
            position, rows = store.position(), dict(store.scan(ROW, INDEX))
        records = list(self.app.client.read(tp))
        keys = node.local_keys([record.key for record in records])
        known = sum(record.offset < (position or 0) for record in records)
        told = newest(keys[:known], [record.value for record in records[:known]])
        changed = set(keys[known:])  # compaction may have taken the earlier values of these
        held = {k: value for k, value in told.items() if value is not None and k not in changed}
        rows = {key: value for key, value in rows.items() if key not in changed}
        if held != rows:
            wrong = sorted(dict(held.items() ^ rows.items()))
            some = [(key, held.get(key), rows.get(key)) for key in wrong[:3]]
            yield f"store of {name}: {tp} at {position}: {len(wrong)} rows: changelog, disk: {some}"

    def too_much_restored(self) -> Iterator[str]:
        """Return the restarts that read more than one commit interval of a task's changelogs.

        That is the largest transaction in each of them. Tasks that another worker ran meanwhile are
        left out, and directories that were lost.
        """
        largest = cache(self._largest_transaction)
        runs = defaultdict[str, list[tuple[float, str]]](list)
        for event in self.workers.events("task", to="running"):
            runs[event["task"]].append((event["mono"], event["instance"]))
        stores = {each.number: each.stores for each in self.app.topology().subtopologies}
        for kill, until in zip(self.kills, self._ends(), strict=True):
            for task, restored in self._restored(kill, until, runs).items():
                number, partition = map(int, task.split("_"))
                tps = [TopicPartition(each.changelog, partition) for each in stores[number]]
                bound = sum(map(largest, tps))
                self.largest_restore = max(self.largest_restore, restored)
                if restored > bound:
                    yield f"restored {restored} of task {task}, more than {bound}: {kill}"

    def _ends(self) -> Sequence[float]:
        """Return for each kill the time at which the same worker was killed again."""
        return [
            next((k.at for k in self.kills[n + 1 :] if k.name == kill.name), float("inf"))
            for n, kill in enumerate(self.kills)
        ]

    def _restored(
        self, kill: Kill, until: float, runs: Mapping[str, Sequence[tuple[float, str]]]
    ) -> dict[str, int]:
        """Return the records by task that a successor has read for what its predecessor ran.

        `runs` has the times at which each task began to run, with the worker.
        """
        found: dict[str, int] = {}
        if kill.emptied:
            return found
        for event in self.workers.events("restore_progress", of=kill.name, role="active"):
            task, at = event["task"], event["mono"]
            if not kill.at < at < until or task not in kill.held:
                continue
            if not any(kill.at < began < at and w != kill.name for began, w in runs[task]):
                found[task] = max(found.get(task, 0), event["restored"])
        return found

    def _largest_transaction(self, tp: TopicPartition) -> int:
        return max((each.records for each in self.app.client.transactions(tp)), default=0)


@contextmanager
def opened(path: Path) -> Iterator[RocksRows]:
    """Open a store of a worker that has ended."""
    memory = RocksMemory(blocks_bytes=CACHE_BYTES, buffers_bytes=CACHE_BYTES)
    db = Rdict(str(path), options(memory))
    layout = bytes(db[FORMAT] or b"").decode()
    db.close()
    rows = RocksRows(path, memory, layout)
    try:
        yield rows
    finally:
        rows.close()
