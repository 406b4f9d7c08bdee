"""Rows between tasks on Spark: their schema, and the outbox that writes them.

The column `kind` is OUT for a record that leaves through the sink, INNER for a later stage, LOG for
a changelog, and META for the report of a task, as JSON in `meta`. In rows that a task sends,
`offset` is the order of its writer. `head` is the highest timestamp that the writer has sent by
then: a late record keeps its place in the order.

Sorting and routing of rows are not done here.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final

import pyarrow as pa

from streamsx.client.record_accumulator import OutputPartition
from streamsx.model import RECORD_BYTES_MAX, Headers, TopicPartition
from streamsx.processing.inbox import Outbox, Send, SendRows
from streamsx.protocol.partitioner import check_place
from streamsx.protocol.record_batch import NO_HEADERS, BatchFormat
from streamsx.spark.partitioner import partitions_of
from streamsx.spark.plan import META, Stage

RECORDS: Final = pa.schema(
    {
        "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(),
        "timestamp": pa.int64(), "key": pa.binary(), "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)  # fmt: skip
"""Schema of a Kafka record on Spark; timestamps in ms since 1970, -1 for none.

Headers are never null: to hand a null list from Spark's Java to Python costs 8 us per row, an empty
one 0.1 us.
"""
RECORDS_DDL: Final = (
    "topic string, partition int, offset long, timestamp long, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
ROWS: Final = pa.schema(
    [("kind", pa.string()), *RECORDS, ("head", pa.int64()), ("meta", pa.string())]
)
DDL: Final = f"kind string, {RECORDS_DDL}, head long, meta string"
"""Schema of ROWS in the DDL of Spark; RECORDS_DDL is the one of RECORDS."""
STAGE_SHIFT: Final = 56
PARTITION_SHIFT: Final = 40
PIECE_ROWS: Final = 2000
"""Rows of a batch at most: an Arrow column of bytes ends at 2 GiB, and this many of the largest
records fit.
"""

_Lane = list[tuple[int, int, bytes | None, bytes | None, Headers | None, int | None, bytes | None]]
"""Records of a topic: offset, time, key, value, headers, head, and the key that places a record."""


class ArrowOutbox(Outbox):
    """Outbox of one task: records by topic until they are drained. `sent` counts them by kind."""

    def __init__(self, stage: Stage, partition: int) -> None:
        self._stage = stage
        self._partition = partition
        self._offsets = count((stage.number << STAGE_SHIFT) + (partition << PARTITION_SHIFT))
        self._lanes: dict[tuple[str, int | None], _Lane] = {}
        self._head = -1
        self.sent: Counter[str] = Counter()

    def to(self, topic: str, partition: int | None = None) -> Send:
        """Return the function that sends to a topic; errors of a call are those of a worker's.

        Raises:
            NotFound: the topic is not there.
            UsageError: the partition is not there.
            NotOnSpark: the topic cannot be written on Spark.
        """
        check_place(topic, partition, self._stage.counts.get(topic, 0))
        lane = self._lane(topic, partition)
        offsets = self._offsets

        def send(
            key: bytes | None,
            value: bytes | None,
            at_ms: int,
            headers: Headers | None,
            by: bytes | None = None,
        ) -> None:
            if headers or len(key or b"") + len(value or b"") > RECORD_BYTES_MAX:
                tp = TopicPartition(topic, partition or 0)
                OutputPartition(tp, BatchFormat(), bool).open(
                    at_ms, key, value, headers or NO_HEADERS
                )
            self._head = max(self._head, at_ms)
            placed_by = key if by is None else by
            lane.append((next(offsets), at_ms, key, value, headers, self._head, placed_by))

        return send

    def rows(self, topic: str, partition: int) -> SendRows:
        lane = self._lane(topic, partition)
        offsets = self._offsets

        def send(keys: Sequence[bytes], values: Sequence[bytes | None], at_ms: int) -> None:
            pairs = zip(keys, values, strict=True)
            lane.extend((next(offsets), at_ms, key, value, None, None, key) for key, value in pairs)

        return send

    def _lane(self, topic: str, partition: int | None) -> _Lane:
        self._stage.kind(topic)
        return self._lanes.setdefault((topic, partition), [])

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield the records that were sent since the last call."""
        for (topic, partition), lane in self._lanes.items():
            kind = self._stage.kind(topic)
            self.sent[kind] += len(lane)
            for start in range(0, len(lane), PIECE_ROWS):
                piece = lane[start : start + PIECE_ROWS]
                offsets, times, keys, values, headers, heads, by = zip(*piece, strict=True)
                size = len(piece)
                found = self._partitions(topic, by) if partition is None else [partition] * size
                columns = (
                    [kind] * size, [topic] * size, found, offsets, times, keys, values,
                    [each or () for each in headers],  # null lists are slow in Java, see RECORDS
                    heads, [None] * size,
                )  # fmt: skip
                yield batch_of(columns)
            lane.clear()

    def _partitions(self, topic: str, keys: Sequence[bytes | None]) -> list[int]:
        """Return the partition of each key.

        A record without a key stays at the partition number of its writer, modulo the number of
        partitions.
        """
        many = self._stage.counts[topic]
        column = pa.array(keys, pa.binary())
        found = partitions_of(column.fill_null(b""), many)
        found[column.is_null().to_numpy(zero_copy_only=False)] = self._partition % many
        return found.tolist()  # type: ignore[no-any-return]


def batch_of(columns: Sequence[Any], schema: pa.Schema = ROWS) -> pa.RecordBatch:
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def meta_row(partition: int, text: str) -> pa.RecordBatch:
    none = (None,)
    return batch_of(((META,), none, (partition,), *[none] * 6, (text,)))
