"""Apps drawn from seeds, whose readers wait, fail, are tried again, and stop their task or worker.

Whole workers in virtual time, over the embedded broker. A worker that ends is started again. After
a while it is stopped, the code is mended, and another worker does the rest. Then each record has
had one effect per reader.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

import orjson
import pytest

import streamsx
from streamsx import App
from streamsx.model import TopicPartition
from streamsx.protocol.record_batch import columns
from tests.flows.test_progress import PARTITIONS
from tests.flows.test_progress_workers import append
from tests.flows.test_retrying_workers import committed, values
from tests.unit.conftest import HOST, PORT, READ_BYTES, VirtualCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from streamsx.app.channel import Topic
    from streamsx.processing.failure_policy import Failure
    from tests.unit.conftest import WorkerHarness

GATE = 8
SLOW = 600
START_S = 1.7e9
"""Time of the first record: records that are old by the clock of the bench would be deleted."""
STARTS_S = 9
MENDS_S = 40


def by_offset(failure: Failure) -> str:
    return ("dlq", "stop_task", "log")[failure.offset % 3]


REACTIONS: dict[str, Any] = {
    "log": "log",
    "dlq": "dlq",
    "stop_task": "stop_task",
    "by_offset": by_offset,
    "tried, then stop_task": streamsx.retry(attempts=2, backoff="0.3s", then="stop_task"),
    "tried, then dlq": streamsx.retry(attempts=2, backoff="0.3s", then="dlq"),
    "stop": "stop",
    "tried, then stop": streamsx.retry(attempts=2, backoff="0.3s", then="stop"),
}
ENDS_WORKER = ("stop", "tried, then stop")
NEVER_SKIPS = ("stop_task", "tried, then stop_task", *ENDS_WORKER)


@dataclass
class Reader:
    """Reader of the topic `in`: an agent, a flow, or a flow with a topic in between."""

    name: str
    kind: str
    reaction: str
    sleeps_s: float
    has_table: bool
    bad: set[str] = field(default_factory=set)
    """Users at whose records this reader fails until it is mended."""

    def waits(self, user: str) -> bool:
        return bool(self.sleeps_s) and crc32(f"{self.name} {user}".encode()) % 5 < 3


@dataclass
class Scene:
    """Readers and records of one seed, and what happens to the worker."""

    rng: random.Random
    guarantee: str
    readers: list[Reader]
    total: int
    row_max: int
    keys: int
    kills: bool

    @property
    def is_exact(self) -> bool:
        return self.guarantee == "exactly_once"

    @property
    def may_repeat(self) -> bool:
        """Return whether a worker may end at any place, with work that is not committed."""
        return self.kills or any(reader.reaction in ENDS_WORKER for reader in self.readers)


def drawn(seed: int) -> Scene:
    rng = random.Random(seed)
    total = rng.randint(10, 60)
    readers = []
    for number in range(rng.randint(1, 3)):
        kind = rng.choice(["agent", "agent", "flow", "flow over a topic"])
        reader = Reader(
            f"{kind[0]}{number}", kind, rng.choice([*REACTIONS]), rng.choice([0, 0.05, 0.3, 0.6]),
            has_table=rng.random() < 0.6,
        )  # fmt: skip
        bad = set(rng.sample(range(total), rng.randint(0, 4)))
        if rng.random() < 0.4:
            at = rng.randrange(total)
            bad |= set(range(at, min(total, at + rng.randint(2, 12))))
        reader.bad = {f"u{n}" for n in bad}
        readers.append(reader)
    guarantee = rng.choice(["exactly_once", "exactly_once", "at_least_once"])
    return Scene(
        rng, guarantee, readers, total, row_max=rng.choice([2, 3, 10]), keys=rng.choice([1, 6]),
        kills=rng.random() < 0.3,
    )  # fmt: skip


def app_of(scene: Scene, *, mended: bool) -> App:
    app = App(
        "drawn",
        topic_partitions=PARTITIONS,
        broker=f"{HOST}:{PORT}",
        session_timeout=10,
        transaction_timeout="5s",
        memory_budget="32MiB",
        processing_guarantee=scene.guarantee,
        consecutive_failures_max=scene.row_max,
    )
    source = app.topic("in")
    for reader in scene.readers:
        add = add_agent if reader.kind == "agent" else add_flow
        add(app, source, reader, set() if mended else reader.bad)
    return app


def add_agent(app: App, source: Topic, reader: Reader, bad: set[str]) -> None:
    out = app.topic(f"out-{reader.name}", partitions=1)
    table: Any = None
    if reader.has_table:
        table = app.Table(f"seen-{reader.name}", default=dict, partitions=PARTITIONS)

    async def body(stream: AsyncIterator[Any]) -> None:
        async for raw, value in stream.items():  # type: ignore[attr-defined]
            key, user = str(raw, "utf8"), value["user"]
            if table is not None:
                row = table[key]
                row[user] = row.get(user, 0) + 1
                table[key] = row
            await out.send(value=user)
            if reader.waits(user):
                await asyncio.sleep(reader.sleeps_s)
            if user in bad:
                raise ValueError(user)

    tables = [] if table is None else [table]
    on_error = REACTIONS[reader.reaction]
    app.agent(source, name=reader.name, on_error=on_error, tables=tables)(body)


def add_flow(app: App, source: Topic, reader: Reader, bad: set[str]) -> None:
    def checked(value: dict[str, str]) -> str:
        if value["user"] in bad:
            raise ValueError(value["user"])
        return value["user"]

    flow = app.flow(source, on_error=REACTIONS[reader.reaction]).map_values(checked)
    if reader.kind == "flow over a topic":
        flow = flow.repartition(f"between-{reader.name}")
    flow.to(app.topic(f"out-{reader.name}", partitions=1))


def play(scene: Scene, bench: VirtualCluster) -> None:
    """Run the app until it has done or stopped, mend it, and run it until the end."""
    rng = scene.rng
    worker = bench.station(app_of(scene, mended=False), "w0", by_hand=False)
    bench.run(STARTS_S)
    records = [
        (f"k{n % scene.keys}", {"user": f"u{n}"}, START_S + n / 100) for n in range(scene.total)
    ]
    size = max(1, scene.total // rng.randint(1, 6))
    gap_s = rng.choice([0.05, 0.3, 1.2])
    for at in range(0, scene.total, size):
        append(bench, records[at : at + size], in_batch=rng.choice([1, 50]))
        bench.run(gap_s)
        worker = alive(worker, scene, bench)
    bench.run(rng.choice([1, 8]))
    worker = alive(worker, scene, bench)
    if scene.kills:
        worker.process.kill()
        worker = bench.station(app_of(scene, mended=False), "w1", by_hand=False)
        bench.run(rng.choice([14, 25]))
    if worker.process.alive:
        worker.process.signal(signal.SIGTERM)
    bench.run(6)
    bench.station(app_of(scene, mended=True), "w2", by_hand=False)
    bench.run(MENDS_S)


def alive(worker: WorkerHarness, scene: Scene, bench: VirtualCluster) -> WorkerHarness:
    """Start a worker again that has ended, as a platform would; return the one that runs."""
    if worker.process.alive:
        return worker
    return bench.station(app_of(scene, mended=False), "w0", by_hand=False)


def letters(bench: VirtualCluster) -> Counter[tuple[str, str]]:
    """Return how many committed letters there are, by operator and user."""
    found: Counter[tuple[str, str]] = Counter()
    if "drawn-dlq" not in bench.broker.service.topics.by_name:
        return found
    for partition in range(PARTITIONS):
        log = bench.log(TopicPartition("drawn-dlq", partition))
        at = log.start
        while at < log.high_watermark:
            data = log.read(at, READ_BYTES)
            batch = columns(data, at, aborted=log.aborted(at, data))
            for value, headers in zip(batch.values, batch.headers or (), strict=False):
                operator = str(dict(headers)["__streamsx.operator"] or b"", "utf8")
                found[operator, orjson.loads(value or b"")["user"]] += 1
            at = batch.next_offset
    return found


def wrong(scene: Scene, bench: VirtualCluster) -> Iterator[str]:
    """Yield what is lost, and what is there twice where nothing may be."""
    told = letters(bench)
    for reader in scene.readers:
        sent = Counter(values(bench, f"out-{reader.name}"))
        good = {f"u{n}" for n in range(scene.total)} - reader.bad
        if lost := good - sent.keys():
            yield f"{reader} has lost {lost}"
        own = {user: count for (operator, user), count in told.items() if operator == reader.name}
        if scene.is_exact:
            yield from wrong_if_exact(reader, sent, own)
        if reader.kind == "agent" and reader.has_table:
            yield from wrong_rows(scene, reader, sent, seen(bench, reader))


def wrong_if_exact(reader: Reader, sent: Counter[str], own: dict[str, int]) -> Iterator[str]:
    if twice := [user for user, count in sent.items() if count > 1]:
        yield f"{reader} has sent twice: {twice}"
    if reader.reaction in NEVER_SKIPS and (skipped := reader.bad - sent.keys()):
        yield f"{reader} has skipped {skipped}"
    if both := [user for user, count in own.items() if count > 1 or user in sent]:
        yield f"{reader} has letters twice, or of records that it has done: {both}"
    keeps = reader.kind == "agent" and "dlq" in reader.reaction
    if keeps and (lost := reader.bad - sent.keys() - own.keys()):
        yield f"{reader} has no letters of {lost}"


def seen(bench: VirtualCluster, reader: Reader) -> Counter[str]:
    """Return how often each user is in the table of an agent, as its changelog has it."""
    found: Counter[str] = Counter()
    for partition in range(PARTITIONS):
        rows = dict(committed(bench, f"drawn-seen-{reader.name}-changelog", partition))
        for value in rows.values():
            found.update(orjson.loads(value))
    return found


def wrong_rows(
    scene: Scene, reader: Reader, sent: Counter[str], held: Counter[str]
) -> Iterator[str]:
    if scene.is_exact:
        if held != sent:
            yield f"{reader}: its table is not its output: {held - sent}, {sent - held}"
    elif not scene.may_repeat:
        twice = [user for user, count in held.items() if count > 1]
        lost = {f"u{n}" for n in range(scene.total)} - reader.bad - held.keys()
        if twice or lost:
            yield f"{reader}: its table has {twice} twice, and not {lost}"


def judge(folder: Path, seeds: range) -> None:
    for seed in seeds:
        scene = drawn(seed)
        bench = VirtualCluster(folder / str(seed), {"in": PARTITIONS})
        try:
            play(scene, bench)
            assert not [*wrong(scene, bench)], f"seed {seed}: {scene}"
        finally:
            bench.close()


def test_each_record_has_one_effect_whatever_fails_and_stops(tmp_path: Path) -> None:
    judge(tmp_path, range(GATE))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_each_record_of_many_apps_has_one_effect(tmp_path: Path, part: int) -> None:
    judge(tmp_path, range(GATE + part, SLOW, 10))
