"""First snapshot of an app, made in one batch from the past records of its topics.

    bootstrap(spark, "shop.app", "s3://b/shop", {"orders": "lake/orders/*.parquet"})

Every topic that the app reads from outside has a history: a PATH of files (.parquet, .orc, .jsonl),
`kafka` or `none`. Files have the columns `key`, `value` and `timestamp`; the columns `topic`,
`partition`, `offset` and `headers` are optional. Rows without offsets are processed in the order of
(timestamp, file, row). Their topic is read from its start afterwards, because the topic holds the
records after the history. `run` and `handover` refuse a topic that begins before its history ends.

Not here: records that the app sends during the bootstrap (they are discarded), commits of offsets.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from glob import glob
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streamsx.app.lookup import app_named
from streamsx.client.cluster import START_TIMEOUT_S
from streamsx.errors import BrokerUnreachable, NotFound, SettingError, UsageError
from streamsx.spark import runner
from streamsx.spark.partitioner import partitions_of
from streamsx.spark.plan import Stage, check, refuse, stages
from streamsx.spark.publish import options_of
from streamsx.spark.rows import RECORDS_DDL
from streamsx.spark.runner import Committed, Pipeline
from streamsx.spark.session import PASSED_OVER, translate_error
from streamsx.spark.source import LATEST, SourceOptions, frame, there
from streamsx.spark.writer_lock import WriterLock
from streamsx.state.snapshot import Manifest, newest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KAFKA = "kafka"
NONE = "none"
FORMATS: Final = {".parquet": "parquet", ".orc": "orc", ".jsonl": "json", ".json": "json"}
BYTES: Final = ("string", "binary")
TIMES: Final = ("timestamp", "timestamp_ntz", "bigint", "int")
WHOLE: Final = ("bigint", "int", "smallint", "tinyint")
LOOK_S: Final = 1.0
"""Wait for brokers that may be down, when the arguments already give all that they could answer."""
HEADER: Final = {"key": "string", "value": "binary"}
HEADERS: Final = "array<struct<key: string, value: binary>>"


def bootstrap(
    spark: "SparkSession", name: str, out: str, history: Mapping[str, str], *,
    until_ms: int | None = None, partitions: Mapping[str, int] | None = None,
    publishes: bool = True, replace: bool = False, force: bool = False, **more: Any,
) -> Committed:  # fmt: skip
    """Build the state of the app MODULE[:ATTR] from its histories and commit the first snapshot.

    Args:
        spark: the session that runs the batch.
        name: the app, as MODULE[:ATTR].
        out: URI of the snapshots.
        history: a history for each topic that the app reads from outside.
        until_ms: leave out records from this timestamp on. Where rows have offsets, also leave out
            the records that follow them in their partition.
        partitions: partition counts of topics that do not exist on the brokers.
        publishes: write the changelogs too.
        replace: replace the snapshots that exist under `out`.
        force: ignore the running marks of other queries under `out`.
        more: arguments of Pipeline.

    Raises:
        NotOnSpark, UsageError, GroupNotEmpty and others: before anything is written.
    """
    app = app_named(name)
    given = dict(partitions or {})
    refuse(app.conf.id, check(app))
    refuse_histories(history, stages(app.topology(), {}, app.conf.topic_partitions))
    found = {}
    alone = given and not publishes and KAFKA not in history.values()
    try:
        found = runner.counts_found(name, LOOK_S if alone else START_TIMEOUT_S)
    except BrokerUnreachable:
        if not alone:
            raise
    if unknown := given.keys() - {spec.name for spec in app.topology().topics}:
        raise NotFound(f"no such topic: {', '.join(sorted(unknown))}: partitions: {name} has none")
    if wrong := {t: n for t, n in given.items() if found.get(t, n) != n}:
        raise SettingError(f"partitions: {wrong}: the brokers have {found}: leave them out")
    counts = {**given, **found}
    line = runner.pipeline(
        spark, name, out, counts, lambda _: None, publishes=publishes, force=force, **more
    )
    before = newest(line.files)
    if before and not replace:
        raise UsageError(
            f"snapshots exist already: {line.files.uri}: give --replace, or another --out"
        )
    with WriterLock(name, line.files, writes=publishes, force=force, say=line.say):
        runner.begin(line)
        if publishes:
            runner.create_topics(name, counts)
        return _made(line, before, history, until_ms)


def _made(
    line: Pipeline, before: Manifest | None, history: Mapping[str, str], until_ms: int | None
) -> Committed:
    try:
        frames = []
        numbered = set[str]()
        if topics := [topic for topic, spec in history.items() if spec == KAFKA]:
            frames.append(of_kafka(line, topics, until_ms))
        for topic, spec in history.items():
            if spec not in (KAFKA, NONE):
                rows, has_offsets = of_files(line, topic, spec)
                frames.append(rows if until_ms is None else cut(rows, until_ms, has_offsets))
                numbered |= set() if has_offsets else {topic}
        empty = line.spark.createDataFrame([], RECORDS_DDL + ", file string")
        whole = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames, empty)
        # The existing snapshot stays valid until this one, the next number, replaces it.
        work = line.work(before.number + 1 if before else 0, None, numbered)
        planned = set(history.values()) <= {KAFKA, NONE}
        return line.batch(whole, work, before, by="bootstrap", planned=planned)
    except Exception as error:
        raise translate_error(error) from error


def refuse_histories(history: Mapping[str, str], made: Sequence[Stage]) -> None:
    """Check that each external topic of the stages has a history, and that no other topic has one.

    Raises:
        UsageError: a history is missing, superfluous or of an unknown format, or Spark would skip
            one of its files because of the file's name.
        NotFound: no file matches a history.
    """
    external = {topic for stage in made for topic in stage.external}
    if more := sorted(history.keys() - external):
        near = get_close_matches(more[0], external - history.keys(), n=1)
        raise UsageError(
            f"not a topic from outside of the app: {', '.join(more)}: its topics from outside are "
            f"{', '.join(sorted(external))}: "
            + (f"did you mean {near[0]}?" if near else "leave it out")
        )
    if missing := sorted(external - history.keys()):
        raise UsageError(f"no history: {', '.join(missing)}: give --history TOPIC=PATH, or =none")
    for topic, spec in history.items():
        if spec not in (KAFKA, NONE) and PurePath(spec).suffix not in FORMATS:
            raise UsageError(
                f"history of {topic}: {spec!r}: write {KAFKA}, {NONE}, or files by their ending, "
                f"such as lake/{topic}/*.parquet ({', '.join(FORMATS)})"
            )
        if spec in (KAFKA, NONE) or "://" in spec or "{" in spec:  # left to Spark
            continue
        if not (files := glob(spec.removeprefix("file:"))):
            raise NotFound(f"no such file: {spec}: history of {topic}: give what is there")
        if unread := sorted(filter(PASSED_OVER.search, files)):
            raise UsageError(f"Spark does not read a file of this name: {unread[0]}: rename it")


def of_kafka(line: Pipeline, topics: list[str], until_ms: int | None) -> "DataFrame":
    """Read topics from their first record to their present end."""
    together = [
        kept for stage in line.stages if (kept := [t for t in stage.external if t in topics])
    ]
    options = options_of(line.name)
    options |= {"subscribe": ",".join(topics), "tasks": json.dumps(together)}
    # Look up the ends only once: `cut` and the batch are two jobs, and Spark plans each.
    options |= {"endingOffsets": json.dumps(there(SourceOptions(options)).at(LATEST))}
    rows = frame(line.spark, options)
    return rows if until_ms is None else cut(rows, until_ms, True)


def cut(rows: "DataFrame", until_ms: int, has_offsets: bool) -> "DataFrame":
    """Keep the records before `until_ms`.

    Where rows have offsets, keep a prefix of each partition: the first late record and all records
    after it go, so each record left out has an offset above every offset that was kept.
    """
    from pyspark.sql import functions as f

    late = f.col("timestamp") >= until_ms
    if not has_offsets:
        return rows.where(~late)
    ends = rows.where(late).groupBy("topic", "partition").agg(f.min("offset")).collect()
    for topic, partition, end in ends:
        here = (f.col("topic") == topic) & (f.col("partition") == partition)
        rows = rows.where(~here | (f.col("offset") < end))
    return rows


def of_files(line: Pipeline, topic: str, path: str) -> tuple["DataFrame", bool]:
    """Return the rows of files as RECORDS, with a column `file`, and True if they have offsets.
    Raise UsageError if the files cannot be read, or a column is missing or of a wrong type.
    """
    from pyspark.sql import functions as f

    where = f"history of {topic}: {path}"
    try:
        rows = read_files(line.spark, path)
    except Exception as error:
        raise UsageError(f"{where}: {translate_error(error)}") from error
    types = {name: kind for name, kind in rows.dtypes if name != "_metadata"}
    if missing := [name for name in ("key", "value", "timestamp") if name not in types]:
        found = ", ".join(types)
        raise UsageError(f"{where}: expected columns {', '.join(missing)}, found {found}")

    def column(name: str, *wanted: str) -> "Column":
        if (kind := types.get(name)) not in wanted:
            raise UsageError(
                f"{where}: expected a column {name} of type {' or '.join(wanted)}, found {kind}"
            )
        return f.col(name)

    def full(name: str, *wanted: str) -> "Column":
        wrong = f.raise_error(f.lit(f"{where}: a row without {name}: all of them need one"))
        return f.coalesce(column(name, *wanted), wrong)

    def number_of(name: str, kind: str) -> "Column":
        below = f.raise_error(f.lit(f"{where}: a row with {name} below 0"))
        return f.when((found := full(name, *WHOLE)) < 0, below).otherwise(found).cast(kind)

    def named(header: "Column") -> "Column":
        parts = (header[name].cast(kind).alias(name) for name, kind in HEADER.items())
        return f.struct(*parts)  # Spark casts a struct by position, not by name

    key, value = (column(name, *BYTES).cast("binary") for name in ("key", "value"))
    time = full("timestamp", *TIMES)
    has = {name: name in types for name in ("topic", "partition", "offset", "headers")}
    if has["offset"] > has["partition"]:
        raise UsageError(f"{where}: offsets without partition: give both columns, or neither")
    if has["topic"]:
        rows = rows.where(full("topic", "string") == topic)
    block = f.format_string("%s %020d", "_metadata.file_path", "_metadata.file_block_start")
    many = line.stages[0].counts[topic]
    made = rows.select(
        f.lit(topic).alias("topic"),
        (number_of("partition", "int") if has["partition"] else placed(many)(key, value))
        .alias("partition"),
        (number_of("offset", "bigint") if has["offset"] else f.monotonically_increasing_id())
        .alias("offset"),
        (f.unix_millis(time) if types["timestamp"].startswith("timestamp") else time.cast("bigint"))
        .alias("timestamp"),
        key.alias("key"),
        value.alias("value"),
        f.coalesce(f.transform("headers", named) if has["headers"] else f.lit(None), f.array())
        .cast(HEADERS).alias("headers"),
        block.alias("file"),
    )  # fmt: skip
    assert made.columns[:-1] == list(runner.TAKEN)
    return made, has["offset"]


def read_files(spark: "SparkSession", path: str) -> "DataFrame":
    """Read files, with the union of the columns of all files."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, StructType

    kind = FORMATS[PurePath(path).suffix]
    # Without mergeSchema, Spark applies the columns and types of one file to all files.
    rows = spark.read.option("mergeSchema", "true").format(kind).load(path)
    if kind != "json":
        return rows
    # Spark's JSON reader would silently skip anything after the first object of a line.
    schema = StructType([each for each in rows.schema if each.name != "_corrupt_record"])
    objects = f.from_json(f.format_string("[%s]", "value"), ArrayType(schema))
    torn = f.format_string("%s: a line that is no JSON: %.80s", "_metadata.file_path", "value")
    parsed = f.inline(f.coalesce(objects, f.raise_error(torn)))
    return spark.read.text(path).select("_metadata", parsed)


def placed(partitions: int) -> Callable[..., "Column"]:
    """Return a function that places rows in partitions by key, as producers do.

    Rows without a key are placed by value, so that each run places them alike.
    """
    from pyspark.sql.pandas.functions import arrow_udf

    def place(keys: pa.Array, values: pa.Array) -> pa.Array:
        return pa.array(partitions_of(pc.coalesce(keys, values, b""), partitions))

    made: Any = arrow_udf
    return made(place, "int")  # type: ignore[no-any-return]
