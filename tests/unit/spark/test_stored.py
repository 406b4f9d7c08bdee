"""spark/stored.py: the newest rows of a changelog are those of a dict that takes them in turn."""

from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest

from streamsx.spark.stored import PIECE_BYTES, newest_rows, pieces

Record = tuple[bytes | None, bytes | None]


def batches(log: list[Record], size: int) -> Iterator[pa.RecordBatch]:
    columns = {"topic": pa.string(), "key": pa.binary(), "value": pa.binary()}
    for at in range(0, len(log), size):
        rows = [("t", *record) for record in log[at : at + size]]
        yield pa.RecordBatch.from_pylist(
            [dict(zip(columns, row, strict=True)) for row in rows], pa.schema(columns)
        )


@pytest.mark.parametrize("fold_bytes", [1, 200, 2000, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_newest_rows_equal_a_replay(seed: int, fold_bytes: int) -> None:
    random = Random(seed)
    keys = [None, b"", b"\xff\x00", "ä".encode(), *(b"k%d" % n for n in range(30))]
    log: list[Record] = [
        (random.choice(keys), random.choice([None, b"", b"%d" % at])) for at in range(300)
    ]
    replayed: dict[bytes, bytes] = {}
    for key, value in log:
        if key is not None and value is None:
            replayed.pop(key, None)
        elif key is not None and value is not None:
            replayed[key] = value
    found = newest_rows(batches(log, 11), fold_bytes)
    pairs = zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True)
    assert list(pairs) == sorted(replayed.items())


def test_empty_log_and_only_tombstones_give_no_rows() -> None:
    assert newest_rows(iter(())).num_rows == 0
    assert newest_rows(batches([(b"a", b"1"), (b"a", None), (None, b"x")], 1)).num_rows == 0


def test_large_values_are_folded_within_memory_limit() -> None:
    def log() -> Iterator[pa.RecordBatch]:
        for _ in range(200):
            yield from batches([(b"a", b"x" * (1 << 20))], 1)
            most.append(pa.total_allocated_bytes() - before)

    before, most = pa.total_allocated_bytes(), list[int]()
    assert newest_rows(log(), 8 << 20).num_rows == 1
    assert max(most) < 40 << 20


def test_piece_of_large_rows_has_few_rows() -> None:
    rows = [(b"%d" % n, b"x" * (PIECE_BYTES // 4)) for n in range(10)]
    assert [batch.num_rows for batch in pieces(rows)] == [4, 4, 2]
    assert [batch.num_rows for batch in pieces((b"%d" % n, b"") for n in range(4001))] == [
        2000, 2000, 1,
    ]  # fmt: skip
