"""murmur2: the numbers that Kafka's own tests expect."""

import random

import pytest
from aiokafka.partitioner import murmur2 as theirs  # type: ignore[import-untyped]  # has no types

from streamsx.protocol.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_matches_java_kafka(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF


def test_murmur2_matches_aiokafka_for_any_key_length() -> None:
    rng = random.Random(1)
    keys = [rng.randbytes(length) for length in range(70)]
    assert [murmur2(key) for key in keys] == [theirs(key) for key in keys]


def test_key_partition_is_stable() -> None:
    assert [partition_of(b"foobar", count) for count in (1, 2, 10, 1000)] == [0, 0, 6, 166]
    assert partition_of(b"foobar", 10) == (-790332482 & 0x7FFFFFFF) % 10
