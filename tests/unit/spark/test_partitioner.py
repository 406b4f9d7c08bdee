"""murmur2 over a column: of each key what `kafka.partitioner` says."""

import random

import pyarrow as pa
import pytest

from streamsx.protocol import partitioner
from streamsx.spark.partitioner import murmur2, partitions_of

RNG = random.Random(7)


def test_column_murmur2_equals_scalar_murmur2() -> None:
    keys = [RNG.randbytes(RNG.randrange(40)) for _ in range(20_000)]
    column = pa.array(keys, pa.binary())
    wanted = [partitioner.murmur2(key) for key in keys]
    assert murmur2(column).tolist() == wanted
    assert murmur2(column[777:-3]).tolist() == wanted[777:-3]
    assert murmur2(column[19_999:]).tolist() == wanted[19_999:]
    assert partitions_of(column[:1000], 7).tolist() == [
        partitioner.partition_of(key, 7) for key in keys[:1000]
    ]


@pytest.mark.parametrize("length", range(40))
def test_murmur2_is_right_for_any_key_length_and_slice(length: int) -> None:
    keys = [RNG.randbytes(length) for _ in range(3)]
    for column in (pa.array(keys, pa.binary()), pa.array([b"x", *keys], pa.binary())[1:]):
        assert murmur2(column).tolist() == [partitioner.murmur2(key) for key in keys]


@pytest.mark.parametrize("column", [pa.array([], pa.binary()), pa.array([b"a"], pa.binary())[1:]])
def test_empty_column_has_no_hashes(column: pa.BinaryArray) -> None:
    assert murmur2(column).tolist() == []


def test_missing_key_raises_assertion_error() -> None:
    with pytest.raises(AssertionError, match="no key"):
        murmur2(pa.array([b"a", None], pa.binary()))
