"""Runner of an app on Spark, batch after batch: all stages, the sink, and the commit.

A manifest is the commit, and the only truth, also about where the source goes on. The checkpoint
that Spark keeps of a query is thrown away with the query, so that the two cannot disagree.

    rows -> stage -> inner rows -> stage -> ... -> sink -> changelogs -> manifest

State is exact after any crash; records leave through the sink at least once. The work of a task
(`task`) and histories (`bootstrap`) are not done here.
"""

import json
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from streamsx import errors
from streamsx.app.app import App
from streamsx.app.lookup import app_named
from streamsx.client import admin
from streamsx.client.admin import NewTopic
from streamsx.client.cluster import START_TIMEOUT_S, Cluster
from streamsx.model import TopicPartition
from streamsx.processing.failure_policy import Policy
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.spark.changelogs import WORKERS, taken_back, who_went_on
from streamsx.spark.compact import COMPACT, compact
from streamsx.spark.plan import INNER, LOG, META, OUT, Stage, check, refuse, stages
from streamsx.spark.publish import changelog_ids, filled, options_of, publish, require_transactions
from streamsx.spark.rows import DDL, RECORDS_DDL
from streamsx.spark.session import accept, probe_cluster, translate_error
from streamsx.spark.source import EARLIEST, LATEST, SourceOptions, frame, into_topics
from streamsx.spark.task import TASK_BYTES, TOLD_MAX, BatchWork, TaskReport, run_task
from streamsx.spark.writer_lock import WriterLock, commit_positions, take
from streamsx.state import snapshot
from streamsx.state.snapshot import Manifest, Part, Position, StoreSnapshot, manifest_after
from streamsx.state.snapshot_files import SnapshotFiles, absolute, open_files
from streamsx.tasks import crash_points
from streamsx.tasks.start_positions import OffsetReset
from streamsx.topology.internal_topics import dead_letters_name
from streamsx.topology.partitions import resolve_partition_counts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

GARBAGE_EVERY: Final = 16
LOOK_EVERY_S: Final = 1
START: Final = -2
"""Earliest offset, as a number in the offsets of Spark."""
TAKEN: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
SENT: Final = ("topic", "partition", "key", "value", "headers", "timestamp")
KAFKA = "kafka"
NOOP = "noop"
PARQUET = "parquet="
GROUP: Final = "group"
"""Start, beside EARLIEST and LATEST, at the committed offsets of the workers' group."""

Output = Callable[["DataFrame"], object]


class Committed(NamedTuple):
    """Committed batch: its manifest, and the reports of its tasks."""

    manifest: Manifest
    reports: Sequence[TaskReport]

    @property
    def records(self) -> int:
        return sum(report.records for report in self.reports)

    @property
    def outputs(self) -> int:
        return sum(report.outputs for report in self.reports)


# -- what all batches share


@dataclass(frozen=True)
class Pipeline:
    """Settings that all batches of a run share.

    `name` is MODULE[:ATTR]. With `publish` rows also go to the changelogs. `run` is the id of this
    run. `say` is called with a line of text for each stage. With `force` the state is taken from
    any other place.
    """

    spark: "SparkSession"
    name: str
    app: App
    uri: str
    stages: Sequence[Stage]
    sink: Output
    publish: bool
    task_bytes: int = TASK_BYTES
    scratch: str | None = None
    say: Callable[[str], object] = bool
    force: bool = False
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def files(self) -> SnapshotFiles:
        return open_files(self.uri)

    def take(self, before: Manifest | None) -> None:
        """Take the state over, before rows go to changelogs.

        Raises:
            GroupNotEmpty: a worker has begun since.
            StateConflict: another run has begun, as this process stood still for longer than its
                mark
            counts.
            StateOnSpark: the state is in another place.
        """
        snapshot.expect_newest(self.files, before)
        tps = [tp for stage in self.stages for tp in stage.read]
        conf = self.app.conf
        uri = self.files.uri
        ask = SourceOptions(options_of(self.name)).ask
        ask(lambda cluster: take(cluster, conf, tps, uri, force=self.force))

    def commit_positions(self, manifest: Manifest) -> None:
        """Commit the positions of a manifest to the group, after the manifest.

        The manifest alone decides where a query goes on. These offsets serve readers of the group's
        progress, and a user who has lost the place of the state. An error is only reported.
        """
        about = self.app.conf.id, manifest, self.stages, self.files.uri
        try:
            SourceOptions(options_of(self.name)).ask(
                lambda cluster: commit_positions(cluster, *about)
            )
        except errors.StreamsxError as error:  # the next batch commits them
            self.say(f"offsets not committed: {error}")

    def work(self, number: int, base: Manifest | None, numbered: Iterable[str] = ()) -> BatchWork:
        conf = self.app.conf
        policy = Policy(
            conf.on_error,
            conf.on_decode_error,
            consecutive_failures_max=conf.consecutive_failures_max,
            dead_letters=dead_letters_name(conf),
        )
        about = self.app.topology().signatures, self.stages[0].counts, self.uri, number, base
        return BatchWork(
            self.name, *about, policy, self.task_bytes, self.scratch, frozenset(numbered)
        )

    def batch(
        self, rows: "DataFrame", work: BatchWork, before: Manifest | None, *, by: str, planned: bool
    ) -> Committed:
        """Run one batch through all stages, the sink and the commit.

        `rows` are those of all external topics; with `planned` they come in the order of tasks.
        Rows that Kafka still has between stages belong to them. Errors of `run_task` pass through.

        Raises:
            StateConflict: the newest snapshot is not `before`.
        """
        from pyspark.sql import DataFrame
        from pyspark.sql.functions import col

        kept, reports, made = [], list[TaskReport](), list[DataFrame]()
        try:
            if sum(bool(stage.external) for stage in self.stages) > 1:
                kept.append(rows.persist())  # else every stage reads all from Kafka
            for stage in self.stages:
                topics = ", ".join(stage.subtopology.topics)
                self.say(
                    f"batch {work.number}: stage {stage.number}: {stage.tasks} tasks: {topics}"
                )
                mine = rows.where(col("topic").isin([*stage.subtopology.topics]))
                if stage.inner:
                    inner = reduce(DataFrame.union, made).where(col("topic").isin([*stage.inner]))
                    inner = inner.where(col("kind") == INNER).select("head", *TAKEN)
                    mine = mine.unionByName(inner, allowMissingColumns=True)
                if stage.inner or not planned:
                    mine = ordered(mine, stage, work)
                task = partial(attempt, work, stage.number)
                made.append(mine.select(*TAKEN).mapInArrow(task, DDL).persist())
                kept.append(made[-1])
                meta_rows = made[-1].where(col("kind") == META).select("meta").collect()
                found = [TaskReport.from_json(row.meta) for row in meta_rows]
                reports += found
                if failed := sum(each.failed for each in found):
                    first = [line for each in found for line in each.failures][:TOLD_MAX]
                    self.say(f"{failed} records passed over: {'; '.join(first)}")
            sent = reduce(DataFrame.union, made)
            shared = frozenset[str]().union(*(stage.outputs for stage in self.stages))
            leaves = (col("kind") == OUT) | (col("kind") == INNER) & col("topic").isin([*shared])
            self.sink(sent.where(leaves).select(*SENT))
            log = sent.where(col("kind") == LOG)
            logs: tuple[Any, ...] = {}, {}, ()
            if self.publish:
                before_it = changelog_ids(self.name), filled(self.name, work.counts)
                self.take(before)
                logs = publish(log, self.name), *before_it
            about = self.app.conf.id, self.run, by
            manifest = following(work, before, self.stages, reports, about, *logs)
            crash_points.point("before_manifest")
            snapshot.commit(self.files, manifest, before=before)
            crash_points.point("after_manifest")
            if self.publish:
                self.commit_positions(manifest)
        finally:
            for each in reversed(kept):
                each.unpersist()  # the plan of a later batch may be equal
        return Committed(manifest, reports)


def attempt(
    work: BatchWork, stage: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run a task; from the second attempt on, run it carefully (`processing/rerun`)."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    careful = context.attemptNumber() > 0
    partition = context.partitionId() if work.ended else None  # `ordered` has put it there
    return run_task(work, stage, batches, careful=careful, partition=partition)


def ordered(rows: "DataFrame", stage: Stage, work: BatchWork) -> "DataFrame":
    """Return the rows with each task in one Spark partition, in the order of the task.

    Rows with offsets of Kafka are in the order of offsets. Rows of several writers are merged by
    the progress of their writers, each writer in its own order. Other rows are in the order of
    time. Topics are merged by their running maximum of timestamps.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    timed = f.col("topic").isin([*work.numbered])
    names = [name for name in ("timestamp", "file") if name in rows.columns]
    within: list[Column] = [f.when(timed, f.col(name)) for name in names]
    within += [f.col(name) for name in ("head", "offset") if name in rows.columns]
    by = within
    topics = stage.subtopology.topics
    if len(topics) > 1:
        held = work.base.positions if work.base else {}
        highs = {t: {n: at.high for n, at in held.get(t, {}).items()} for t in topics}
        before = f.from_json(f.lit(json.dumps(highs)), "map<string,map<string,bigint>>")
        high = before[f.col("topic")][f.col("partition").cast("string")]
        window = Window.partitionBy("topic", "partition").orderBy(*within)
        running = f.max("timestamp").over(window.rowsBetween(Window.unboundedPreceding, 0))
        rows = rows.withColumn("reached", f.greatest(running, high))
        by = [f.col("reached"), f.col("topic"), *within]
    return rows.repartitionById(stage.tasks, f.col("partition")).sortWithinPartitions(*by)


def following(
    work: BatchWork,
    before: Manifest | None,
    made: Sequence[Stage],
    reports: Iterable[TaskReport],
    about: tuple[str, str, str],
    published: Mapping[str, Mapping[int, int]],
    ids: Mapping[str, str | None],
    held_before: Collection[tuple[str, int]],
) -> Manifest:
    """Return the manifest after `before`, which is `work.base` or is replaced.

    `about` is the app's id, the run and the maker. `published` has the ends of what was written, by
    changelog and partition. `ids` are the ids of changelogs. `held_before` names the changelog
    partitions that held anything. Ends in a changelog that was made anew since are left out.
    """
    app, run, by = about
    base = work.base
    positions = {t: dict(each) for t, each in (base.positions if base else {}).items()}
    stores = {}
    for stage in made:
        for node in stage.subtopology.stores:
            held = base.stores.get(node.name) if base else None
            parts = {n: Part() for n in range(stage.tasks)} | dict(held.partitions if held else {})
            before_id = held.changelog_id if held else None
            made_from = ids.get(node.changelog) or before_id
            if before_id not in (None, made_from):
                parts = {n: Part(part.chain) for n, part in parts.items()}
            layout = node.layout(work.counts[node.changelog])
            stores[node.name] = StoreSnapshot(layout, parts, made_from)
    for report in reports:
        for topic, position in report.positions.items():
            # Numbers of our own are not offsets of Kafka: the next run begins at the topic's start.
            at = position._replace(next=0) if topic in work.numbered else position
            positions.setdefault(topic, {})[report.partition] = at
        n = report.partition
        for node in made[report.stage].subtopology.stores:
            part = stores[node.name].partitions[n]
            chain = report.chains.get(node.name, part.chain)
            end = published.get(node.changelog, {}).get(n)
            if chain == part.chain and end is None:
                continue
            # Two cases in which the changelog is not whole: rows or tombstones were left out of it
            # once, and are still missing; or it held rows of an earlier life, which remain.
            begun = not part.chain and (node.changelog, n) not in held_before
            whole = part.changelog_next is not None or begun
            parts = {**stores[node.name].partitions, n: Part(chain, end if whole else None)}
            stores[node.name] = stores[node.name]._replace(partitions=parts)
    return manifest_after(
        before, app, work.signatures, by, run=run,
        partitions=dict(work.counts), positions=positions, stores=stores,
    )  # fmt: skip


# -- what a run needs


def counts_found(name: str, within_s: float = START_TIMEOUT_S) -> dict[str, int]:
    """Return the partition counts of the app's topics that are there. Raises BrokerUnreachable."""
    topics = [spec.name for spec in app_named(name).topology().topics]
    ask = SourceOptions(options_of(name)).ask
    found = ask(lambda cluster: admin.partition_counts(cluster, topics), within_s)
    return {topic: count for topic, count in found.items() if count}


def pipeline(
    spark: "SparkSession", name: str, uri: str, found: Mapping[str, int], sink: Output,
    *, publishes: bool, **more: Any,
) -> Pipeline:  # fmt: skip
    """Return the pipeline of an app; `found` are the partition counts of the topics that are there.

    Raises:
        NotOnSpark: the app cannot run on Spark.
        UsageError: the app or its brokers do not fit.
    """
    app = app_named(name)
    refuse(app.conf.id, check(app, found))
    made = stages(app.topology(), found, app.conf.topic_partitions)
    if publishes:
        require_transactions(name, "use brokers that have them, or give --no-publish")
    return Pipeline(spark, name, app, absolute(uri), made, sink, publishes, **more)


def begin(line: Pipeline, sink: str = NOOP) -> None:
    """Prepare the session, after all checks that need none, so that a session may begin here.

    Raises:
        UsageError: the session or an executor does not fit.
    """
    accept(line.spark)
    tasks = max(stage.tasks for stage in line.stages)
    line.spark.conf.set("spark.sql.shuffle.partitions", str(tasks))
    probe_cluster(line.spark, line.name, line.uri)
    folder = sink.removeprefix(PARQUET)
    if folder != sink and "://" not in folder:  # Spark resolves schemes, and knows more
        probe_cluster(line.spark, line.name, absolute(folder), "a shared mount as --sink parquet=")


def sink_of(word: str, options: Mapping[str, str]) -> Output:
    """Return the sink for the word of `--sink`. Raises SettingError for an unknown one."""
    if word == KAFKA:
        return lambda rows: into_topics(rows, options)
    if word == NOOP:
        return lambda _: None
    if word.startswith(PARQUET):
        return lambda rows: rows.write.mode("append").parquet(word.removeprefix(PARQUET))
    raise errors.SettingError(f"sink: {word!r}: write {KAFKA}, {NOOP} or {PARQUET}DIR")


# -- the query


class LiveQuery:
    """Running query; `query` is Spark's own object."""

    query: "StreamingQuery"

    def __init__(
        self, pipeline: Pipeline, base: Manifest | None, keep: int,
        heard: Callable[[Committed], object], *, ends: bool = False,
    ) -> None:  # fmt: skip
        self._pipeline = pipeline
        self._base = base
        self._keep = keep
        self._heard = heard
        self._ends = ends
        """Whether the query ends with the input that is there now."""
        self._turn = threading.Lock()
        self._error: Exception | None = None

    def start(self, writer: "DataStreamWriter", held: WriterLock) -> None:
        """Start the query, and keep the lock `held` until the query has ended."""
        self.query = writer.foreachBatch(self.hear).start()
        self._held = held
        held.alive = lambda: bool(self.query.isActive)

    def hear(self, rows: "DataFrame", _: int) -> None:
        """Run a batch, called by Spark; Spark's number of the batch is not the committed one."""
        if not self._turn.acquire(blocking=False):
            raise InterruptedError("the query is being stopped")
        try:
            self.batch(rows)
        except Exception as error:
            self._error = translate_error(error)
            raise
        finally:
            self._turn.release()

    def batch(self, rows: "DataFrame") -> Manifest:
        line = self._pipeline
        base = self._base
        number = base.number + 1 if base else 0
        work = line.work(number, base)
        done = line.batch(rows, work, base, by="run", planned=True)
        self._base = done.manifest
        self._heard(done)
        if number % GARBAGE_EVERY == 0:
            try:
                snapshot.collect_garbage(line.files, self._keep)
            except errors.StreamsxError as error:
                line.say(f"garbage stays: {error}")
        return done.manifest

    def end_input(self) -> None:
        """Let operators with `idle=` close what is open, because no input follows."""
        line = self._pipeline
        base = self._base
        sources = (source for stage in line.stages for source in stage.subtopology.sources)
        idles = (step.idle_ms is not None for source in sources for step in source.operators)
        if base is None or not any(idles):
            return
        work = replace(line.work(base.number + 1, base), ended=True)
        rows = line.spark.createDataFrame([], RECORDS_DDL)
        try:
            done = line.batch(rows, work, base, by="run", planned=False)
        except Exception as error:
            raise translate_error(error) from error
        self._base = done.manifest
        self._heard(done)

    def stop(self) -> None:
        """Stop the query after the batch that runs now."""
        with self._turn:
            self.query.stop()
        self._held.end()

    def wait(self, stop: threading.Event | None = None) -> None:
        """Wait for the end of the query and raise the error; stop the query when `stop` is set."""
        from pyspark.errors import StreamingQueryException

        try:
            while not self.query.awaitTermination(LOOK_EVERY_S):
                if stop is not None and stop.is_set():
                    self.stop()
        except StreamingQueryException as error:
            self._held.end()
            raise (self._error or translate_error(error)) from error
        try:
            if self._ends and not (stop is not None and stop.is_set()):
                self.end_input()
        finally:
            self._held.end()


def run(
    spark: "SparkSession", name: str, state: str, *, every_s: float = 1.0,
    available_now: bool = False, max_records: int | None = None, start: str = EARLIEST,
    sink: str = KAFKA, publishes: bool = True, force: bool = False,
    keep: int = 10, heard: Callable[[Committed], object] = bool, **more: Any,
) -> LiveQuery:  # fmt: skip
    """Begin a query, from the newest snapshot, or without one from `start`.

    `start` is EARLIEST, LATEST or GROUP. `force` ignores the mark that another query has left, and
    an overlap of a history with its topic. `more` are fields of Pipeline. All errors are raised
    before anything is written.

    Raises:
        NotOnSpark: the app cannot run on Spark.
        IncompatibleStore: the snapshot does not fit the app.
        NotFound: a topic that the app reads is not there.
        GroupNotEmpty: workers are running.
    """
    app = app_named(name)
    options = options_of(name)
    found = counts_found(name)
    leave = sink_of(sink, options)
    line = pipeline(spark, name, state, found, leave, publishes=publishes, force=force, **more)
    external = [topic for stage in line.stages for topic in stage.external]
    if missing := sorted(set(external) - found.keys()):
        raise errors.NotFound(
            f"no such topic: {', '.join(missing)}: {app.conf.id} reads it: create it"
        )
    options |= {"maxOffsetsPerTrigger": str(max_records)} if max_records else {}
    when: Any = (
        {"availableNow": True} if available_now else {"processingTime": f"{every_s} seconds"}
    )
    writes = publishes or sink == KAFKA or start == GROUP
    with ExitStack() as stack:
        held = WriterLock(name, line.files, writes=writes, force=force, say=line.say)
        stack.enter_context(held)
        base = going_on(line, force=force)
        begin(line, sink)
        if base and writes and not force:
            refuse_left_behind(line, base)
        if writes:
            create_topics(name, found)
        if base and publishes:
            base = taken_back(name, base, line.stages, line.files, line.scratch)
        base = base or FIRST[start](line)
        live = LiveQuery(line, base, keep, heard, ends=available_now)
        if (rest := between(line, base)) is not None:
            base = live.batch(rest)
        options |= {
            "subscribe": ",".join(external), "state": line.uri,
            "startingOffsets": places_of(base, external, line.stages[0].counts) if base else start,
            "tasks": json.dumps([stage.external for stage in line.stages if stage.external]),
        }  # fmt: skip
        # No checkpoint location: it would be a second record of where to go on.
        live.start(frame(spark, options, stream=True).writeStream.trigger(**when), held)
        stack.pop_all()
    return live


def going_on(line: Pipeline, *, force: bool) -> Manifest | None:
    """Return the newest snapshot, None without one.

    Raises:
        UsageError: the snapshot has no positions, or its history overlaps a topic.
        IncompatibleStore: the snapshot does not fit the app.
    """
    base = snapshot.newest(line.files)
    uri = line.files.uri
    if base:
        counts = line.stages[0].counts
        nodes = [node for stage in line.stages for node in stage.subtopology.stores]
        layouts = {node.name: node.layout(counts[node.changelog]) for node in nodes}
        snapshot.refuse_other(base, uri, line.app.conf.id, layouts, counts)
        if not base.positions and any(part.chain for part in base.parts()):
            raise errors.UsageError(
                f"snapshot without positions: {uri}: snapshot {base.number}, made by "
                f"{base.made_by}: all records would count twice: take one that spark run or spark "
                "bootstrap has made"
            )
        if not force:
            refuse_overlap(line.name, base, uri)
    return base


def refuse_left_behind(line: Pipeline, base: Manifest) -> None:
    """Raise SnapshotAhead if workers have taken, and sent, the records after the snapshot."""
    external = [topic for stage in line.stages for topic in stage.external]
    ask = SourceOptions(options_of(line.name)).ask
    if ask(lambda cluster: who_went_on(cluster, base, external)) == WORKERS:
        raise errors.SnapshotAhead(
            f"{WORKERS[0]}: {line.files.uri}: {WORKERS[1]}; --force if they did not"
        )


def refuse_overlap(name: str, base: Manifest, uri: str) -> None:
    """Raise UsageError if a topic begins before the end of its history.

    All records of the topic follow a history without offsets, so an overlap would count twice.
    """
    ends = {
        TopicPartition(topic, n): at.high
        for topic, each in base.positions.items() for n, at in each.items()
        if not at.next and at.high >= 0
    }  # fmt: skip
    if not ends:
        return
    begins = SourceOptions(options_of(name)).ask(lambda cluster: admin.begin_times(cluster, ends))
    for tp, high in ends.items():
        if 0 <= begins[tp] <= high:
            raise errors.UsageError(
                f"history and topic overlap: {tp}: history without offsets up to {moment(high)}, "
                f"in {uri}, records from {moment(begins[tp])} on in the topic, which would count "
                "twice: bootstrap with --until or from files with offsets; --force if they differ"
            )


def moment(ms: int) -> str:
    """Return a time in the form of --until."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def places_of(base: Manifest, topics: Iterable[str], counts: Mapping[str, int]) -> str:
    held = base.positions
    return json.dumps({
        topic: {n: held.get(topic, {}).get(n, Position(0)).next or START
                for n in range(counts[topic])}
        for topic in topics
    })  # fmt: skip


# -- where it begins without a snapshot


def latest(line: Pipeline) -> Manifest:
    """Commit and return a manifest with the present ends of all topics.

    Without the manifest `latest` would be a later place after a crash.
    """
    counts = line.stages[0].counts
    external = (topic for stage in line.stages for topic in stage.external)
    tps = [TopicPartition(topic, n) for topic in external for n in range(counts[topic])]
    found = SourceOptions(options_of(line.name)).ask(lambda c: admin.bounds(c, tps, committed=True))
    positions: dict[str, dict[int, Position]] = {}
    for tp, (_, high, *_) in found.items():
        positions.setdefault(tp.topic, {})[tp.partition] = Position(high)
    about = line.app.conf.id, line.run, "run"
    made = following(line.work(0, None), None, line.stages, [], about, {}, {}, ())
    made = replace(made, positions=positions)
    snapshot.commit(line.files, made, before=None)
    return made


def of_group(line: Pipeline) -> Manifest:
    """Return a manifest of the state in the changelogs, at the committed offsets of the group."""
    line.say("compacting changelogs")
    positions = left_by_group(line.name, line.stages)
    return compact(line.name, line.uri, positions=positions, spark=line.spark, scratch=line.scratch)


FIRST: Final[Mapping[str, Callable[[Pipeline], Manifest | None]]] = {
    EARLIEST: lambda _: None, LATEST: latest, GROUP: of_group,
}  # fmt: skip


def left_by_group(name: str, made: Sequence[Stage]) -> dict[str, dict[int, Position]]:
    """Return the positions of the group in all topics that the app reads, also those between
    stages.

    A partition without a committed offset begins where a worker would begin. `name` is
    MODULE[:ATTR].

    Raises:
        WorldError: a transaction holds offsets, or the brokers do not answer.
    """
    app = app_named(name)
    conf = app.conf
    reset = OffsetReset(conf.consumer_auto_offset_reset == LATEST, app.topology().own)
    inner = {topic for stage in made for topic in stage.inner}
    tps = [tp for stage in made for tp in stage.read]

    async def look(cluster: Cluster) -> dict[str, dict[int, Position]]:
        found, why = await admin.committed_now(cluster, conf.id, tps)
        if why is not None:
            raise why
        positions: dict[str, dict[int, Position]] = {}
        for tp, (begin, end) in (await admin.bounds(cluster, tps, committed=True)).items():
            offset, text = found[tp]
            if (at := offset) < 0:
                at = reset.offset(tp, begin, end)
            elif tp.topic in inner:
                at = max(at, begin)  # retention has deleted the records before `begin`
            beside = OffsetMetadata.decode(text)
            readers = {r: offset + ahead for r, ahead in beside.readers.items()}
            readers = {r: position for r, position in readers.items() if position > at}
            told = {stage: tuple(times) for stage, times in beside.told.items()}
            made_at = Position(
                at, beside.stream_time, readers=readers, closed=beside.closed, told=told
            )
            positions.setdefault(tp.topic, {})[tp.partition] = made_at
        return positions

    return SourceOptions(options_of(name)).ask(look)


def between(line: Pipeline, base: Manifest | None) -> "DataFrame | None":
    """Return rows that the group has left between stages, to be processed before all others.

    Return None after the first batch: positions between stages are then not offsets of Kafka.
    """
    inner = [topic for stage in line.stages for topic in stage.inner]
    if base is None or base.made_by != COMPACT or not inner or not base.positions:
        return None
    begin = places_of(base, inner, line.stages[0].counts)
    options = {"subscribe": ",".join(inner), "startingOffsets": begin}
    return frame(line.spark, options_of(line.name) | options)


def create_topics(name: str, found: Mapping[str, int]) -> None:
    """Create the topics of the app that are not there."""
    app = app_named(name)
    layout = resolve_partition_counts(
        app.topology(), found, default=app.conf.topic_partitions,
        declare=app.conf.topic_allow_declare,
    )  # fmt: skip
    new = [NewTopic(s.name, s.partitions or 0, s.replication, s.config) for s in layout.create]
    SourceOptions(options_of(name)).ask(lambda cluster: admin.create_topics(cluster, new))
