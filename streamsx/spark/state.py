"""Store as a DataFrame: the data source `streamsx-state`, of a snapshot or of the live changelog.

    spark.dataSource.register(StateSource)
    spark.read.format("streamsx-state").options(app="shop.app", store="totals", path="s3://b/shop")

| option | |
|---|---|
| `app`, `store` | MODULE[:ATTR], and one of its stores |
| `path` | URI of snapshots, of which the newest is read; without it the changelog |
| `kafka.bootstrap.servers` | HOST:PORT[,HOST:PORT]: counts more than the app's |
| `raw` | `true`: bytes, as the changelog has them |

The columns are `partition`, `key` and `value`. Key and value are text; values of other types are
JSON. Keys of windows and sessions are `[key, start, end]` in ms, and a session is a row of its own.
A changelog is read up to the end of committed records, without any effect on the workers. The
use of the rows is not defined here.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from streamsx.app.lookup import app_named
from streamsx.errors import DecodeFailed, SettingError
from streamsx.serde.codec import to_json
from streamsx.spark.session import session
from streamsx.spark.source import SourceOptions
from streamsx.spark.stored import (
    InChangelog,
    InSnapshot,
    asked_stores,
    in_changelogs,
    in_snapshot,
    node_of,
)
from streamsx.state.layout import StoreNode
from streamsx.state.snapshot_files import absolute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "streamsx-state"
TEXT_DDL: Final = "partition int, key string, value string"
RAW_DDL: Final = "partition int, key binary, value binary"


class StateSource(DataSource):
    """Data source that Spark makes of the options, on the driver and in each task."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return RAW_DDL if is_raw(self.options) else TEXT_DDL

    def reader(self, schema: object) -> "StateReader":
        return StateReader(self.options)


class StateReader(DataSourceReader):
    """Reader with one Spark partition for each partition of the store."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the store.

        Raises:
            UsageError: an option is missing or wrong.
            NotFound: the store or the snapshot is not there.
            WorldError: the brokers do not answer.
        """
        asked = SourceOptions(self._options)
        stores = asked_stores(asked.get("app"), [asked.get("store")])
        if "path" in {name.lower() for name in self._options}:
            if not (uri := asked.get("path")):
                raise SettingError("path is empty: give a URI of snapshots, or none: the changelog")
            return [InputPartition(part) for part in in_snapshot(stores, uri)[1]]
        brokers = asked.get("kafka.bootstrap.servers", "") or None
        return [InputPartition(part) for part in in_changelogs(stores, brokers)[1]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part = partition.value
        if not isinstance(part, InSnapshot | InChangelog):
            return  # a partition of Spark's own, made where the store has none
        raw = is_raw(self._options)
        node = node_of(SourceOptions(self._options).get("app"), part.store)
        kind = pa.binary() if raw else pa.string()
        for batch in part.rows():
            keys, values = (column.to_pylist() for column in batch.columns)
            if raw:
                keys = node.changelog_keys([key[1:] for key in keys])
            else:
                keys, values = _texts(node, part.partition, zip(keys, values, strict=True))
            yield pa.RecordBatch.from_arrays(
                [
                    pa.repeat(pa.scalar(part.partition, pa.int32()), len(keys)),
                    pa.array(keys, kind),
                    pa.array(values, kind),
                ],
                names=["partition", "key", "value"],
            )


def is_raw(options: Mapping[str, str]) -> bool:
    return options.get("raw", "").lower() == "true"


def _texts(
    node: StoreNode, partition: int, rows: Iterable[tuple[bytes, bytes]]
) -> tuple[list[str], list[str]]:
    """Return the texts of keys and of values in some rows."""
    keys = list[str]()
    values = list[str]()
    for row, raw in rows:
        try:
            entries = [*node.entries(row, raw)]
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise DecodeFailed(
                f"not what the table holds: store {node.name}-{partition}: key {row[1:81]!r}, "
                f"value {raw[:80]!r}: {what}: correct the type, or read it with raw=true"
            ) from error
        keys += (_text(key) for key, _ in entries)
        values += (_text(value) for _, value in entries)
    return keys, values


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return to_json(value).decode()


def state(
    app: str,
    store: str,
    *,
    path: str | None = None,
    bootstrap: str | None = None,
    value: str | None = None,
    spark: "SparkSession | None" = None,
) -> "DataFrame":
    """Return a store as a DataFrame: of the newest snapshot under `path`, else of the live
    changelog.

    `value` names the columns of values that are JSON, as in "count long, total double". They become
    `value.count` and `value.total`.

    Raises:
        UsageError: an option or the app is wrong.
        NotFound: the store or the snapshot is not there.
        WorldError: the brokers do not answer.
    """
    from pyspark.sql.functions import from_json

    brokers = bootstrap or ",".join(app_named(app).conf.bootstrap)  # of this process
    options = {"app": app, "store": store, "kafka.bootstrap.servers": brokers}
    if path is not None:
        options["path"] = absolute(path)
    StateReader(options).partitions()  # raises errors early, before a JVM starts
    spark = spark or session({})
    spark.dataSource.register(StateSource)
    frame = spark.read.format(NAME).options(**options).load()
    return frame if value is None else frame.withColumn("value", from_json("value", value))
