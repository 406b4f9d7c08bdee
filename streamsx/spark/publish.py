"""Publication of a batch's changelog rows: for each store partition all rows or none.

Each store partition has one transaction, with the newest value of each key. An attempt that begins
fences earlier attempts, because a late one would overwrite the values of the next batch with old
ones.

Not here: the choice of rows, the creation of topics, the use of the offsets.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamsx.app.lookup import app_named
from streamsx.client import admin
from streamsx.client.transaction import SendKeyed, transaction
from streamsx.errors import InvariantBroken, StreamsxError, UsageError, WorldError
from streamsx.event_loops import run
from streamsx.model import TopicPartition
from streamsx.spark.reading import Brokers
from streamsx.spark.source import SourceOptions
from streamsx.spark.stored import hex_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PIECE_BYTES: Final = 64 << 20
"""Bytes of rows held in memory before they are written; among them only the newest row of each key
is written."""
PLACE: Final = ["topic", "partition"]
ENDS: Final = pa.schema({"topic": pa.string(), "partition": pa.int32(), "next": pa.int64()})
ENDS_DDL: Final = "topic string, partition int, next long"


def require_transactions(name: str, remedy: str) -> None:
    """Check that the brokers of the app MODULE[:ATTR] support transactions.

    The caller makes this check before anything is written.

    Raises:
        UsageError: the brokers have no transactions; the message ends with `remedy`.
        WorldError: the brokers do not answer.
    """
    conf = app_named(name).conf
    try:
        SourceOptions(options_of(name)).ask(
            lambda c: admin.find_transactions(c, f"{conf.id}-spark")
        )
    except (WorldError, UsageError):
        raise
    except StreamsxError as error:  # no transactions, or the request is unknown to the broker
        raise UsageError(
            f"changelogs cannot be written: {','.join(conf.bootstrap)}: brokers without "
            f"transactions: {remedy}"
        ) from error


def options_of(name: str) -> dict[str, str]:
    """Return options of our source, so that executors use the same brokers as the driver."""
    return {"app": name, "kafka.bootstrap.servers": ",".join(app_named(name).conf.bootstrap)}


def changelog_ids(name: str) -> Mapping[str, str | None]:
    """Return the topic ids of the existing changelogs, as hex; None if the brokers have no ids."""
    logs = changelogs(name)
    found = SourceOptions(options_of(name)).ask(lambda cluster: admin.topic_ids(cluster, logs))
    return {topic: hex_id(each) for topic, each in found.items() if each is not None}


def filled(name: str, counts: Mapping[str, int]) -> Collection[TopicPartition]:
    """Return the changelog partitions that are not empty.

    `counts` holds the number of partitions by topic.
    """
    tps = [TopicPartition(log, n) for log in changelogs(name) for n in range(counts[log])]
    bounds = SourceOptions(options_of(name)).ask(lambda cluster: admin.bounds(cluster, tps))
    return {tp for tp, (start, end, *_) in bounds.items() if start < end}


def changelogs(name: str) -> list[str]:
    plans = app_named(name).topology().subtopologies
    return [node.changelog for plan in plans for node in plan.stores]


def publish(log: "DataFrame", name: str) -> Mapping[str, Mapping[int, int]]:
    """Write changelog rows to their topics.

    Args:
        log: ROWS of kind LOG, as tasks yield them: the rows of one changelog partition are in one
            Spark partition, in the order in which they were sent.
        name: the app, as MODULE[:ATTR].

    Returns:
        The offset after the written rows, by changelog and partition. Partitions without rows are
        missing.

    Raises:
        Errors of `transaction`, as Spark passes them on.
        InvariantBroken: two tasks wrote the same changelog partition.
    """
    write = partial(_attempt, app_named(name).conf.id, options_of(name))
    found: dict[str, dict[int, int]] = {}
    for topic, partition, end in log.mapInArrow(write, ENDS_DDL).collect():
        if partition in found.setdefault(topic, {}):
            raise InvariantBroken(f"two tasks wrote changelog {topic}-{partition}: which is newer?")
        found[topic][partition] = end
    return found


def _attempt(
    app_id: str, options: Mapping[str, str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    ends = run(written(app_id, SourceOptions(options).brokers, batches))
    yield pa.RecordBatch.from_pylist(
        [{**tp._asdict(), "next": end} for tp, end in ends.items()], ENDS
    )


async def written(
    app_id: str, brokers: Brokers, batches: Iterable[pa.RecordBatch]
) -> dict[TopicPartition, int]:
    """Write rows, and return the offset after the committed ones, by changelog partition.

    Errors of `transaction` pass through.
    """
    ends = dict[TopicPartition, int]()
    sends = dict[TopicPartition, SendKeyed]()
    cluster = brokers.cluster()
    async with AsyncExitStack() as open_ones:
        open_ones.push_async_callback(cluster.stop)
        for piece in pieces(batches):
            for tp, rows in by_place(newest(piece)):
                if not sends:
                    await cluster.start()
                if tp not in sends:
                    made = transaction(cluster, transaction_name(app_id, tp))
                    sends[tp] = await open_ones.enter_async_context(made)
                columns = (rows[name].to_pylist() for name in ("key", "value", "timestamp"))
                ends[tp] = await sends[tp](tp, zip(*columns, strict=True))
    return ends


def transaction_name(app_id: str, tp: TopicPartition) -> str:
    """Return the transactional id of a changelog partition.

    Each new transaction with this id fences the earlier ones.
    """
    return f"{app_id}-spark-{tp.topic}-{tp.partition}"


def pieces(batches: Iterable[pa.RecordBatch], most: int = PIECE_BYTES) -> Iterator[pa.Table]:
    """Group batches into tables of about `most` bytes."""
    held = list[pa.RecordBatch]()
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= most:
            yield pa.Table.from_batches(held)
            held = []
            size = 0
    if held:
        yield pa.Table.from_batches(held)


def newest(rows: pa.Table) -> pa.Table:
    """Return the last row of each key of each changelog partition, in the order of `offset`."""
    by = [*PLACE, "key"]
    rows = rows.sort_by("offset")
    at = rows.select(by).append_column("row", pa.array(np.arange(len(rows))))
    last = pa.TableGroupBy(at, by, use_threads=False).aggregate([("row", "max")])
    return rows.take(last.sort_by("row_max")["row_max"])


def by_place(rows: pa.Table) -> Iterator[tuple[TopicPartition, pa.Table]]:
    """Yield the rows of each changelog partition, in unchanged order."""
    for place in rows.group_by(PLACE).aggregate([]).to_pylist():
        tp = TopicPartition(**place)
        here = (pc.field("topic") == tp.topic) & (pc.field("partition") == tp.partition)
        yield tp, rows.filter(here)
