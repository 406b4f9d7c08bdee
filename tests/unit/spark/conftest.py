"""Driver of batches by hand: stage after stage, task after task, in this process, without Spark.

A session of Spark only adds where tasks run. Order, routing and commits are the same here.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from streamsx.app.app import App
from streamsx.app.lookup import app_named
from streamsx.processing.failure_policy import FailureAction, Policy
from streamsx.protocol.partitioner import partition_of
from streamsx.spark.checkout import SnapshotRows, discard_all, scratch_folder
from streamsx.spark.plan import INNER, META, Stage, stages
from streamsx.spark.rows import ROWS
from streamsx.spark.runner import following
from streamsx.spark.task import BatchWork, TaskReport, run_task
from streamsx.state.api import INDEX, ROW
from streamsx.state.snapshot import Manifest, commit, newest
from streamsx.state.snapshot_files import SnapshotFiles, open_files
from streamsx.testing import TestDriver

Row = dict[str, Any]
Stored = dict[tuple[str, int], list[tuple[bytes, bytes]]]


class Fed(NamedTuple):
    """Record of a source topic."""

    topic: str
    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


def fed(topic: str, partitions: int, key: str | None, value: str, timestamp: int = 0) -> Fed:
    raw = None if key is None else key.encode()
    place = 0 if raw is None else partition_of(raw, partitions)
    return Fed(topic, place, timestamp, raw, value.encode())


def merged(records: list[Fed]) -> list[Fed]:
    """Yield records in the order in which a task takes them: by the running maximum of each topic's
    timestamps.

    So no cut gives an earlier batch a record that belongs before one of a later batch.
    """
    high: dict[tuple[str, int], int] = {}
    heads = []
    for n, each in enumerate(records):
        at = each.topic, each.partition
        high[at] = max(high.get(at, -1), each.timestamp)
        heads.append((high[at], each.topic, n))
    return [records[n] for *_, n in sorted(heads)]


class Batches:
    """App with its snapshots. `outs`, `reports`: of all batches."""

    def __init__(self, name: str, folder: Path, **counts: int) -> None:
        self.name, self.app, self.uri = name, app_named(name), str(folder / "state")
        folder.mkdir()
        self.scratch = str(folder)
        self.topology = self.app.topology()
        self.stages: list[Stage] = stages(self.topology, counts, self.app.conf.topic_partitions)
        self.files = open_files(self.uri)
        self.outs: list[Row] = []
        self.reports: list[TaskReport] = []
        self.more: dict[str, Any] = {}
        """Fields of the next batch's work."""
        self.published: dict[str, dict[int, int]] = {}
        """Ends in changelogs, which the next batch says."""
        self.ids: dict[str, str | None] = {}
        self.filled: set[tuple[str, int]] = set()
        self.chunk = 10_000
        self.offsets: defaultdict[tuple[str, int], int] = defaultdict(int)

    def work(self) -> BatchWork:
        base = newest(self.files)
        number = 0 if base is None else base.number + 1
        return BatchWork(
            self.name, self.topology.signatures, self.stages[0].counts, self.uri, number, base,
            Policy(FailureAction.LOG), scratch=self.scratch,
        )  # fmt: skip

    def rows(self, records: Sequence[Fed]) -> list[Row]:
        """Return rows with their offsets, as they come from Kafka."""
        made = []
        for each in records:
            at = each.topic, each.partition
            headers = [{"key": k, "value": v} for k, v in each.headers] or None
            made.append({**each._asdict(), "offset": self.offsets[at], "headers": headers})
            self.offsets[at] += 1
        return made

    def batch(self, rows: list[Row]) -> Manifest:
        """Run all stages, then the commit."""
        work = replace(self.work(), **self.more)
        reports: list[TaskReport] = []
        for stage in self.stages:
            for partition in range(stage.tasks):
                sent = self.task(work, stage, partition, rows)
                reports += [TaskReport.from_json(r["meta"]) for r in sent if r["kind"] == META]
                rows = rows + [row for row in sent if row["kind"] == INNER]
                self.outs += sent
        self.reports += reports
        manifest = self.following(work, reports)
        commit(self.files, manifest, before=work.base)
        return manifest

    def task(self, work: BatchWork, stage: Stage, partition: int, rows: list[Row]) -> list[Row]:
        mine = self.ordered(work, stage, partition, rows)
        parts = [
            pa.RecordBatch.from_pylist(mine[at : at + self.chunk], ROWS)
            for at in range(0, len(mine), self.chunk)
        ]
        sent = run_task(work, stage.number, parts, partition=partition)
        return [row for batch in sent for row in batch.to_pylist()]

    def ordered(self, work: BatchWork, stage: Stage, partition: int, rows: list[Row]) -> list[Row]:
        """Order rows by the running maximum of timestamps of each topic, from what was taken
        before.
        """
        heads: list[tuple[int, str, int, Row]] = []
        for topic in stage.subtopology.topics:
            mine = [r for r in rows if (r["topic"], r["partition"]) == (topic, partition)]
            inner = topic in stage.inner
            mine.sort(key=lambda r: (r["head"] if inner else 0, r["offset"]))
            held = work.position(topic, partition)
            high = -1 if held is None else held.high
            for row in mine:
                high = max(high, row["timestamp"])
                heads.append((high, topic, len(heads), row))
        return [row for *_, row in sorted(heads, key=lambda head: head[:3])]

    def following(self, work: BatchWork, reports: Sequence[TaskReport]) -> Manifest:
        about = self.app.conf.id, "run", "run"
        return following(
            work, work.base, self.stages, reports, about, self.published, self.ids, self.filled
        )

    def stored(self) -> Stored:
        return stored(self.files, self.scratch)


def stored(files: SnapshotFiles, scratch: str) -> Stored:
    """Return the bytes of every store, from the files of the newest snapshot."""
    manifest = newest(files)
    assert manifest is not None
    found: Stored = {}
    for name, store in manifest.stores.items():
        for partition, part in store.partitions.items():
            place = files, scratch_folder(scratch), name, partition
            rows = SnapshotRows(*place, part.chain, manifest.number)
            if entries := list(rows.scan(ROW, INDEX)):
                found[name, partition] = entries
    return found


def driven(app: App, records: Sequence[Fed], counts: Mapping[str, int], **more: Any) -> Stored:
    """Return the expected bytes of every store, from a TestDriver."""
    with TestDriver(app, partitions=counts, commit=False, **more) as driver:
        for each in records:
            headers: Any = list(each.headers) or None
            driver.to(each.topic, each.partition)(each.key, each.value, each.timestamp, headers)
        driver.advance(0)
        driver.commit()
        return {
            (name, partition): entries
            for name in (*app.tables, *app.flows.stores)
            for partition, store in driver.stores(name).items()
            if (entries := list(store.rows.scan(ROW, INDEX)))
        }


@pytest.fixture
def batches(tmp_path: Path) -> Iterator[Callable[..., Batches]]:
    made: list[Batches] = []

    def make(name: str, **counts: int) -> Batches:
        made.append(Batches(name, tmp_path / str(len(made)), **counts))
        return made[-1]

    yield make
    discard_all()
