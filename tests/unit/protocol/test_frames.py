"""Cutter of frames: the same frames, however the network cuts the bytes."""

import os
import random
import tracemalloc
from pathlib import Path

import pytest

from streamsx.protocol.compiler import Malformed
from streamsx.protocol.frames import BELIEVED_BYTES, LARGE_BYTES, SCRATCH_BYTES, Frames

LEAST, MOST = 8, 1 << 20


def sent(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4) + frame for frame in frames)


def feed(cutter: Frames, data: bytes) -> list[bytes]:
    """Feed bytes as a transport does."""
    found: list[bytes] = []
    while data:
        buffer = cutter.buffer()
        count = min(len(buffer), len(data))
        assert count
        buffer[:count], data = data[:count], data[count:]
        found += map(bytes, cutter.received(count))
    return found


def test_small_frames_reassembled_from_any_split() -> None:
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
def test_large_frames_reassembled_from_splits_near_borders(size: int) -> None:
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


def test_large_frame_counted_as_held_while_arriving() -> None:
    cutter = Frames(LEAST, MOST)
    feed(cutter, sent([bytes(100_000)])[:10])
    assert cutter.held == 100_000
    feed(cutter, bytes(100_000 - 6))
    assert cutter.held == 0


@pytest.mark.parametrize("size", [BELIEVED_BYTES, BELIEVED_BYTES + 1, 5 << 20])
def test_huge_frame_holds_only_bytes_received(size: int) -> None:
    cutter, frame = Frames(LEAST, 1 << 30), random.Random(size).randbytes(size)
    data, found, step = sent([frame]), list[bytes](), 10_007
    for at in range(0, len(data), step):
        found += feed(cutter, data[at : at + step])
        come = at + step - 4 if at + step < len(data) else 0
        assert cutter.held == (size if size <= BELIEVED_BYTES and come else come)
    assert found == [frame]


def test_idle_frame_buffers_take_no_memory() -> None:
    """Most of 512 connections that are accepted at once may exceed the limit."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        made = [Frames(LEAST, MOST) for _ in range(100)]
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert now - before < SCRATCH_BYTES
    assert {len(frames.buffer()) for frames in made} == {SCRATCH_BYTES}


@pytest.mark.perf
def test_announced_frame_length_takes_no_memory() -> None:
    cutters = [Frames(LEAST, 1 << 30) for _ in range(20)]
    before = resident_mib()
    for cutter in cutters:
        feed(cutter, (1 << 30).to_bytes(4) + bytes(10_000))
    assert resident_mib() < before + 20


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@pytest.mark.parametrize("size", [-1, 0, 7, MOST + 1, 2**31 - 1])
def test_invalid_frame_length_is_malformed(size: int) -> None:
    with pytest.raises(Malformed, match=f"a frame of {size} bytes"):
        feed(Frames(LEAST, MOST), size.to_bytes(4, signed=True) + bytes(8))


@pytest.mark.parametrize("cut", range(1, 7))
def test_large_request_limited_by_api_key_once_known(cut: int) -> None:
    limit = 2 * SCRATCH_BYTES  # what the scratch buffer holds is cut from it
    for size, key, good in ((limit, 3, True), (limit + 1, 3, False), (limit + 1, 4, True)):
        cutter = Frames(LEAST, 10 * limit, of_api=lambda key: limit if key == 3 else 10 * limit)
        frame = key.to_bytes(2) + bytes(size - 2)
        data = sent([frame])
        if good:
            assert feed(cutter, data[:cut]) + feed(cutter, data[cut:]) == [frame]
            continue
        with pytest.raises(Malformed, match=f"request 3 of {size} bytes: {limit} can be"):
            assert feed(cutter, data[:cut]) + feed(cutter, data[cut:])
        assert cutter.held == 0
