"""Rows between tasks on Spark: what records look like there, and the outbox that writes them.

`kind`: OUT for whoever reads the topic, INNER for a later stage, LOG for a changelog, META for what
a task says of itself, as JSON in `meta`. Of what a task sends, `offset` is the order of writers,
and `head` the highest timestamp that its writer has sent by then: what is late stays in its order.

Not here: who sorts them, where they go.
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
from streamsx.protocol.record_batch import NO_HEADERS
from streamsx.spark.partitioner import partitions_of
from streamsx.spark.plan import META, Stage

RECORDS: Final = pa.schema(
    {
        "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(),
        "timestamp": pa.int64(), "key": pa.binary(), "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)  # fmt: skip
"""What a record of Kafka is on Spark; its timestamp in ms since 1970, -1 for none. Headers are
never null: handing Spark's Java a null list on to Python costs it 8 us per row, an empty one 0.1.
"""
RECORDS_DDL: Final = (
    "topic string, partition int, offset long, timestamp long, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
ROWS: Final = pa.schema(
    [("kind", pa.string()), *RECORDS, ("head", pa.int64()), ("meta", pa.string())]
)
DDL: Final = f"kind string, {RECORDS_DDL}, head long, meta string"
"""Both as Spark has them."""
STAGE_SHIFT: Final = 56
PARTITION_SHIFT: Final = 40
PIECE_ROWS: Final = 2000
"""An Arrow column of bytes ends at 2 GiB; so many of the largest records fit."""

_Lane = list[tuple[int, int, bytes | None, bytes | None, Headers | None, int | None]]


class ArrowOutbox(Outbox):
    """Of one task: its records by topic, until they are drained. `sent`: how many of each kind."""

    def __init__(self, stage: Stage, partition: int) -> None:
        self._stage, self._partition = stage, partition
        self._offsets = count((stage.number << STAGE_SHIFT) + (partition << PARTITION_SHIFT))
        self._lanes: dict[tuple[str, int | None], _Lane] = {}
        self._head = -1
        self.sent: Counter[str] = Counter()

    def to(self, topic: str, partition: int | None = None) -> Send:
        """Raises NotFound, UsageError, NotOnSpark; what it gives raises what a worker's does."""
        check_place(topic, partition, self._stage.counts.get(topic, 0))
        lane, offsets = self._lane(topic, partition), self._offsets

        def send(
            key: bytes | None, value: bytes | None, at_ms: int, headers: Headers | None
        ) -> None:
            if headers or len(key or b"") + len(value or b"") > RECORD_BYTES_MAX:
                tp = TopicPartition(topic, partition or 0)
                OutputPartition(tp, "none", bool).open(at_ms, key, value, headers or NO_HEADERS)
            self._head = max(self._head, at_ms)
            lane.append((next(offsets), at_ms, key, value, headers, self._head))

        return send

    def rows(self, topic: str, partition: int) -> SendRows:
        lane, offsets = self._lane(topic, partition), self._offsets

        def send(keys: Sequence[bytes], values: Sequence[bytes | None], at_ms: int) -> None:
            pairs = zip(keys, values, strict=True)
            lane.extend((next(offsets), at_ms, key, value, None, None) for key, value in pairs)

        return send

    def _lane(self, topic: str, partition: int | None) -> _Lane:
        self._stage.kind(topic)
        return self._lanes.setdefault((topic, partition), [])

    def drain(self) -> Iterator[pa.RecordBatch]:
        """What was sent since the last time."""
        for (topic, partition), lane in self._lanes.items():
            kind = self._stage.kind(topic)
            self.sent[kind] += len(lane)
            for start in range(0, len(lane), PIECE_ROWS):
                piece = lane[start : start + PIECE_ROWS]
                offsets, times, keys, values, headers, heads = zip(*piece, strict=True)
                size = len(piece)
                found = self._partitions(topic, keys) if partition is None else [partition] * size
                columns = (
                    [kind] * size, [topic] * size, found, offsets, times, keys, values,
                    [each or () for each in headers],  # null ones are slow in Java, see RECORDS
                    heads, [None] * size,
                )  # fmt: skip
                yield batch_of(columns)
            lane.clear()

    def _partitions(self, topic: str, keys: Sequence[bytes | None]) -> list[int]:
        """A record without a key stays where its writer is, as far as there are partitions."""
        many, column = self._stage.counts[topic], pa.array(keys, pa.binary())
        found = partitions_of(column.fill_null(b""), many)
        found[column.is_null().to_numpy(zero_copy_only=False)] = self._partition % many
        return found.tolist()  # type: ignore[no-any-return]


def batch_of(columns: Sequence[Any], schema: pa.Schema = ROWS) -> pa.RecordBatch:
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def meta_row(partition: int, text: str) -> pa.RecordBatch:
    none = (None,)
    return batch_of(((META,), none, (partition,), *[none] * 6, (text,)))
