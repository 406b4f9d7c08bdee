"""spark/stored.py: the newest rows of a changelog are those of a dict that takes them in turn."""

from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest

from streamsx.spark.stored import newest_rows

Record = tuple[bytes | None, bytes | None]


def batches(log: list[Record], size: int) -> Iterator[pa.RecordBatch]:
    columns = {"topic": pa.string(), "key": pa.binary(), "value": pa.binary()}
    for at in range(0, len(log), size):
        rows = [("t", *record) for record in log[at : at + size]]
        yield pa.RecordBatch.from_pylist(
            [dict(zip(columns, row, strict=True)) for row in rows], pa.schema(columns)
        )


@pytest.mark.parametrize("fold_rows", [1, 7, 50, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_the_newest_rows_are_those_of_a_replay(seed: int, fold_rows: int) -> None:
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
    found = newest_rows(batches(log, 11), fold_rows)
    pairs = zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True)
    assert list(pairs) == sorted(replayed.items())


def test_nothing_and_only_tombstones_are_no_rows() -> None:
    assert newest_rows(iter(())).num_rows == 0
    assert newest_rows(batches([(b"a", b"1"), (b"a", None), (None, b"x")], 1)).num_rows == 0
