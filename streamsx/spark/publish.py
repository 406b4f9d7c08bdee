"""Changelog rows of a batch into their topics: for each store partition all of them or none.

The newest value of each key, in one transaction of a store partition. An attempt that begins fences
those before it: one that comes late would write old values over those of the next batch.

Not here: which rows there are, who makes the topics, what becomes of the offsets.
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
"""What is held in memory of a changelog partition; each key is once in it."""
PLACE: Final = ["topic", "partition"]
ENDS: Final = pa.schema({"topic": pa.string(), "partition": pa.int32(), "next": pa.int64()})
ENDS_DDL: Final = "topic string, partition int, next long"


def require_transactions(name: str, remedy: str) -> None:
    """Whether the brokers of the app MODULE[:ATTR] can publish: to be asked before anything is
    written. Raises UsageError where they cannot, with the `remedy`, WorldError.
    """
    conf = app_named(name).conf
    try:
        SourceOptions(options_of(name)).ask(
            lambda c: admin.find_transactions(c, f"{conf.id}-spark")
        )
    except (WorldError, UsageError):
        raise
    except StreamsxError as error:  # it knows none, or not even the question
        raise UsageError(
            f"changelogs cannot be written: {','.join(conf.bootstrap)}: brokers without "
            f"transactions: {remedy}"
        ) from error


def options_of(name: str) -> dict[str, str]:
    """Of our source, so that executors ask the brokers that the driver asks."""
    return {"app": name, "kafka.bootstrap.servers": ",".join(app_named(name).conf.bootstrap)}


def changelog_ids(name: str) -> Mapping[str, str | None]:
    """Of those that are there, as hex; None from brokers that know none."""
    logs = changelogs(name)
    found = SourceOptions(options_of(name)).ask(lambda cluster: admin.topic_ids(cluster, logs))
    return {topic: hex_id(each) for topic, each in found.items() if each is not None}


def filled(name: str, counts: Mapping[str, int]) -> Collection[TopicPartition]:
    """The changelog partitions that hold anything. `counts`: of partitions, by topic."""
    tps = [TopicPartition(log, n) for log in changelogs(name) for n in range(counts[log])]
    bounds = SourceOptions(options_of(name)).ask(lambda cluster: admin.bounds(cluster, tps))
    return {tp for tp, (start, end, *_) in bounds.items() if start < end}


def changelogs(name: str) -> list[str]:
    plans = app_named(name).topology().subtopologies
    return [node.changelog for plan in plans for node in plan.stores]


def publish(log: "DataFrame", name: str) -> Mapping[str, Mapping[int, int]]:
    """By changelog and partition, the offset behind what was written; those without rows are not
    in it. `log`: ROWS of kind LOG, those of a changelog partition in one of Spark's, in the order
    in which they were sent, as tasks give them; `name`: of the app, MODULE[:ATTR].

    Raises what `transaction` does, as Spark tells it.
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
    """The offset behind what is committed, by changelog partition. Raises as `transaction`."""
    ends, sends = dict[TopicPartition, int](), dict[TopicPartition, SendKeyed]()
    async with AsyncExitStack() as open_ones:
        for piece in pieces(batches):
            for tp, rows in by_place(newest(piece)):
                if tp not in sends:
                    made = transaction(*brokers, transaction_name(app_id, tp))
                    sends[tp] = await open_ones.enter_async_context(made)
                columns = (rows[name].to_pylist() for name in ("key", "value", "timestamp"))
                ends[tp] = await sends[tp](tp, zip(*columns, strict=True))
    return ends


def transaction_name(app_id: str, tp: TopicPartition) -> str:
    """Whoever begins one of this name fences those before."""
    return f"{app_id}-spark-{tp.topic}-{tp.partition}"


def pieces(batches: Iterable[pa.RecordBatch], most: int = PIECE_BYTES) -> Iterator[pa.Table]:
    """Of about so many bytes."""
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= most:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def newest(rows: pa.Table) -> pa.Table:
    """The last row of each key of each changelog partition, in the order of `offset`."""
    by, rows = [*PLACE, "key"], rows.sort_by("offset")
    at = rows.select(by).append_column("row", pa.array(np.arange(len(rows))))
    last = pa.TableGroupBy(at, by, use_threads=False).aggregate([("row", "max")])
    return rows.take(last.sort_by("row_max")["row_max"])


def by_place(rows: pa.Table) -> Iterator[tuple[TopicPartition, pa.Table]]:
    """The rows of each changelog partition, as they are."""
    for place in rows.group_by(PLACE).aggregate([]).to_pylist():
        tp = TopicPartition(**place)
        here = (pc.field("topic") == tp.topic) & (pc.field("partition") == tp.partition)
        yield tp, rows.filter(here)
