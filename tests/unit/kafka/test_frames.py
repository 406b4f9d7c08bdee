"""The cutter gives the same frames however the network cuts what it sends."""

import random

import pytest

from streamsx.kafka.compiler import Malformed
from streamsx.kafka.frames import FIRST_BYTES, LARGE_BYTES, SCRATCH_BYTES, Frames

LEAST, MOST = 8, 1 << 20


def sent(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4) + frame for frame in frames)


def feed(cutter: Frames, data: bytes) -> list[bytes]:
    """What a transport does."""
    found: list[bytes] = []
    while data:
        buffer = cutter.buffer()
        count = min(len(buffer), len(data))
        assert count
        buffer[:count], data = data[:count], data[count:]
        found += map(bytes, cutter.received(count))
    return found


def test_each_split_of_small_frames_gives_the_same() -> None:
    frames = [b"12345678", b"x" * 40, b"y" * 9]
    data = sent(frames)
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            cutter, found = Frames(LEAST, MOST), []
            for part in (data[:first], data[first:second], data[second:]):
                found += feed(cutter, part)
            assert found == frames


@pytest.mark.parametrize(
    "size", [LARGE_BYTES - 1, LARGE_BYTES, SCRATCH_BYTES - 4, SCRATCH_BYTES, MOST]
)
def test_each_split_near_a_border_of_a_large_frame_gives_the_same(size: int) -> None:
    frames = [b"before..", random.Random(size).randbytes(size), b"behind..", b"and more"]
    data = sent(frames)
    near = [
        *range(30),
        *range(size, size + 60),
        SCRATCH_BYTES - 1,
        SCRATCH_BYTES,
        SCRATCH_BYTES + 1,
    ]
    for split in near:
        cutter = Frames(LEAST, MOST)
        assert feed(cutter, data[:split]) + feed(cutter, data[split:]) == frames
        assert cutter.held == 0


def test_a_large_frame_is_counted_while_it_comes() -> None:
    cutter = Frames(LEAST, MOST)
    feed(cutter, sent([bytes(100_000)])[:10])
    assert cutter.held == 100_000
    feed(cutter, bytes(100_000 - 6))
    assert cutter.held == 0


@pytest.mark.parametrize("size", [FIRST_BYTES + 1, 2 * FIRST_BYTES, 5 * FIRST_BYTES])
def test_a_frame_takes_no_more_than_twice_what_has_come_of_it(size: int) -> None:
    cutter, frame, most = Frames(LEAST, 1 << 30), random.Random(size).randbytes(size), FIRST_BYTES
    data, at, found = sent([frame]), 0, list[bytes]()
    while at < len(data):
        found += feed(cutter, data[at : at + 100_003])
        at += 100_003
        assert cutter.held <= min(size, max(most, 2 * at))
    assert found == [frame]
    assert cutter.held == 0


@pytest.mark.parametrize("size", [-1, 0, 7, MOST + 1, 2**31 - 1])
def test_a_length_that_cannot_be_is_malformed_and_allocates_nothing(size: int) -> None:
    with pytest.raises(Malformed, match=f"a frame of {size} bytes"):
        feed(Frames(LEAST, MOST), size.to_bytes(4, signed=True) + bytes(8))
