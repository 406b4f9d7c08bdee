"""State out of history: all that topics or files tell of the past, as one batch and one snapshot.

    bootstrap(spark, "shop.app", "s3://b/shop", {"orders": "lake/orders/*.parquet"})

A history is PATH of files (.parquet, .orc, .jsonl), `kafka` or `none`; every topic that the app
reads from outside has one. Files have columns `key`, `value` and `timestamp`, and what there is of
`topic`, `partition`, `offset` and `headers`. Without offsets, rows come in order of (timestamp,
file, row), and the topic itself is read from its start afterwards: it holds what came behind them,
and `run` and `handover` refuse one that begins before its history ends. Not here: what is sent
meanwhile (nobody waits for it), commits of offsets.
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
from streamsx.spark.connector import PYTHON, frame
from streamsx.spark.partitioner import partitions_of
from streamsx.spark.plan import Stage, check, refuse, stages
from streamsx.spark.publish import options_of
from streamsx.spark.rows import RECORDS_DDL
from streamsx.spark.runner import Committed, Pipeline
from streamsx.spark.session import PASSED_OVER, translate_error
from streamsx.spark.source import LATEST, SourceOptions, there
from streamsx.spark.writer_lock import WriterLock
from streamsx.state.snapshot import Manifest, newest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KAFKA, NONE = "kafka", "none"
FORMATS: Final = {".parquet": "parquet", ".orc": "orc", ".jsonl": "json", ".json": "json"}
BYTES: Final = ("string", "binary")
TIMES: Final = ("timestamp", "timestamp_ntz", "bigint", "int")
WHOLE: Final = ("bigint", "int", "smallint", "tinyint")
LOOK_S: Final = 1.0
"""For brokers that may not be up: what they would say is given."""
HEADER: Final = {"key": "string", "value": "binary"}
HEADERS: Final = "array<struct<key: string, value: binary>>"


def bootstrap(
    spark: "SparkSession", name: str, out: str, history: Mapping[str, str], *,
    until_ms: int | None = None, partitions: Mapping[str, int] | None = None,
    publishes: bool = True, replace: bool = False, force: bool = False, connector: str = PYTHON,
    **more: Any,
) -> Committed:  # fmt: skip
    """`until_ms`: records from there on are left out, and what follows them in their partition;
    `partitions`: of topics that the brokers do not have; `replace`: what is there already;
    `force`: whatever a query says that has left a mark there; `more`: of Pipeline.

    Raises NotOnSpark, UsageError, GroupNotEmpty and others, before anything is written.
    """
    app, given = app_named(name), dict(partitions or {})
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
        raise UsageError(f"snapshots are there: {line.files.uri}: --replace, or another --out")
    with WriterLock(name, line.files, writes=publishes, force=force, say=line.say):
        runner.begin(line)
        if publishes:
            runner.create_topics(name, counts)
        return _made(line, before, history, until_ms, connector)


def _made(
    line: Pipeline, before: Manifest | None, history: Mapping[str, str], until_ms: int | None,
    connector: str,
) -> Committed:  # fmt: skip
    try:
        frames, numbered = [], set[str]()
        if topics := [topic for topic, spec in history.items() if spec == KAFKA]:
            frames.append(of_kafka(line, topics, connector, until_ms))
        for topic, spec in history.items():
            if spec not in (KAFKA, NONE):
                rows, has_offsets = of_files(line, topic, spec)
                frames.append(rows if until_ms is None else cut(rows, until_ms, has_offsets))
                numbered |= set() if has_offsets else {topic}
        empty = line.spark.createDataFrame([], RECORDS_DDL + ", file string")
        whole = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames, empty)
        # What is there counts until it is replaced.
        work = line.work(before.number + 1 if before else 0, None, numbered)
        planned = connector == PYTHON and set(history.values()) <= {KAFKA, NONE}
        return line.batch(whole, work, before, by="bootstrap", planned=planned)
    except Exception as error:
        raise translate_error(error) from error


def refuse_histories(history: Mapping[str, str], made: Sequence[Stage]) -> None:
    """Raises UsageError where one is missing, or is one too many; NotFound for its files."""
    external = {topic for stage in made for topic in stage.external}
    if more := sorted(history.keys() - external):
        near = get_close_matches(more[0], external - history.keys(), n=1)
        raise UsageError(
            f"no history is read of {', '.join(more)}: what comes from outside is "
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
        if spec in (KAFKA, NONE) or "://" in spec or "{" in spec:  # which Spark knows
            continue
        if not (files := glob(spec.removeprefix("file:"))):
            raise NotFound(f"no such file: {spec}: history of {topic}: give what is there")
        if unread := sorted(filter(PASSED_OVER.search, files)):
            raise UsageError(f"Spark does not read a file of this name: {unread[0]}: rename it")


def of_kafka(
    line: Pipeline, topics: list[str], connector: str, until_ms: int | None
) -> "DataFrame":
    """From the first record on."""
    together = [
        kept for stage in line.stages if (kept := [t for t in stage.external if t in topics])
    ]
    options = options_of(line.name)
    options |= {"subscribe": ",".join(topics), "tasks": json.dumps(together)}
    # Once: Spark's own connector looks again for each job.
    options |= {"endingOffsets": json.dumps(there(SourceOptions(options)).at(LATEST))}
    rows = frame(line.spark, connector, options)
    return rows if until_ms is None else cut(rows, until_ms, True)


def cut(rows: "DataFrame", until_ms: int, has_offsets: bool) -> "DataFrame":
    """A prefix of each partition: what comes behind has an offset above all that was taken."""
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
    """As RECORDS, and whether they have offsets. Raises UsageError."""
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
        return f.struct(*parts)  # a cast goes by place

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
    """With the columns of all of them."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, StructType

    kind = FORMATS[PurePath(path).suffix]
    # Else the columns, and the types, of one file are taken for those of all.
    rows = spark.read.option("mergeSchema", "true").format(kind).load(path)
    if kind != "json":
        return rows
    # As JSON, what follows the first object of a line would be passed over.
    schema = StructType([each for each in rows.schema if each.name != "_corrupt_record"])
    objects = f.from_json(f.format_string("[%s]", "value"), ArrayType(schema))
    torn = f.format_string("%s: a line that is no JSON: %.80s", "_metadata.file_path", "value")
    parsed = f.inline(f.coalesce(objects, f.raise_error(torn)))
    return spark.read.text(path).select("_metadata", parsed)


def placed(partitions: int) -> Callable[..., "Column"]:
    """By key, as producers do it; else by value, which is the same each time."""
    from pyspark.sql.pandas.functions import arrow_udf

    def place(keys: pa.Array, values: pa.Array) -> pa.Array:
        return pa.array(partitions_of(pc.coalesce(keys, values, b""), partitions))

    made: Any = arrow_udf
    return made(place, "int")  # type: ignore[no-any-return]
