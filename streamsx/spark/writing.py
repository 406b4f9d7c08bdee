"""Arrow rows into topics: numbered, so that a retry of ours is not there twice, and acknowledged.

At least once: a row that Spark hands over again is a new one. Not here: transactions.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streamsx.clock import SystemClock
from streamsx.engine.produce import Producer
from streamsx.engine.records import STALL_S, writing
from streamsx.errors import SettingError, WorldError
from streamsx.kafka.cluster import Cluster
from streamsx.task.stream import Send

COLUMNS: Final = ("topic", "partition", "key", "value", "headers", "timestamp")
CHUNK_ROWS: Final = 1000
"""Between two looks at how much is not acknowledged."""


async def write(cluster: Cluster, batches: Iterator[pa.RecordBatch]) -> int:
    """How many rows. Without a partition the key counts, without a timestamp this moment.

    Raises NotFound for a topic that is not there, UsageError for a partition, WorldError, and what
    the broker refuses.
    """
    count, clock = 0, SystemClock()
    try:
        await cluster.start()
        async with writing(cluster, clock) as producer:
            async with asyncio.timeout(STALL_S):
                await producer.start()
            for batch in batches:
                if "topic" not in batch.schema.names:
                    raise SettingError("column topic is missing: of the rows to write: add it")
                await cluster.follow(pc.unique(batch.column("topic")).to_pylist())
                now, to = int(clock.wall() * 1000), dict[tuple[str, int | None], Send]()
                for start in range(0, batch.num_rows, CHUNK_ROWS):
                    for topic, partition, key, value, headers, at in _rows(batch, start):
                        if (send := to.get((topic, partition))) is None:
                            send = to[topic, partition] = producer.to(topic, partition)
                        send(key, value, now if at is None else at, headers)
                    if producer.full():
                        await _flushed(producer)
                await _flushed(producer)
                count += batch.num_rows
    finally:
        await cluster.stop()
    return count


def _rows(batch: pa.RecordBatch, start: int) -> Iterator[tuple[Any, ...]]:
    """Some of them, in the order of COLUMNS; null where there is no such column."""
    some = batch.slice(start, CHUNK_ROWS)
    columns: list[list[Any]] = [
        some.column(name).to_pylist() if name in some.schema.names else [None] * some.num_rows
        for name in COLUMNS
    ]
    at = COLUMNS.index("headers")
    columns[at] = [each and [(h["key"], h["value"]) for h in each] for each in columns[at]]
    return zip(*columns, strict=True)


async def _flushed(producer: Producer) -> None:
    try:
        async with asyncio.timeout(STALL_S):
            await producer.flush()
    except TimeoutError:
        why = f"nothing was acknowledged for {STALL_S:g} s"
        raise WorldError(f"rows cannot be written: {why}: see the brokers' logs") from None
