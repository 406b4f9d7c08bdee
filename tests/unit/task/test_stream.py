"""task/stream.py: what an inbox hands out, and what of it is done."""

from collections.abc import AsyncIterator, Generator
from typing import Any

from streamsx.task.batch import Batch, Chunk
from streamsx.task.stream import Inbox, Values
from streamsx.topology.nodes import Source

SOURCE = Source("t", lambda raw: raw, lambda raw: raw)


def refuse(error: Exception) -> None:
    raise error


def batch(first: int, *words: bytes) -> Batch:
    offsets = range(first, first + len(words))
    return Batch("t", 0, words, words, offsets, offsets, None, first + len(words))


class Empty:
    """A gate that nobody opens."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def inbox_of(*chunks: Chunk) -> tuple[Inbox, AsyncIterator[Any]]:
    inbox = Inbox(chunks[0].batch.offsets[chunks[0].start], refuse)
    inbox.chunks.extend(chunks)
    inbox.gate = Empty()
    return inbox, aiter(Values(inbox, SOURCE))


def step(stream: AsyncIterator[Any]) -> object:
    """The next value; None when the inbox is used up."""
    try:
        stream.__anext__().__await__().send(None)
    except StopIteration as given:
        return given.value
    return None


def test_a_record_is_done_when_the_next_one_is_asked_for() -> None:
    inbox, stream = inbox_of(Chunk(batch(5, b"a", b"b", b"c"), 1, 3))
    seen = [(step(stream), inbox.position, inbox.ordinal) for _ in range(3)]
    assert seen == [(b"b", 6, 0), (b"c", 7, 1), (None, 8, 2)]


def test_nothing_behind_the_record_at_hand_is_handed_out_after_a_cut() -> None:
    first, second = batch(0, b"a", b"b", b"c"), batch(3, b"d")
    inbox, stream = inbox_of(Chunk(first, 0, 3), Chunk(second, 0, 1))
    assert step(stream) == b"a"
    inbox.cut()
    assert inbox.position == 0
    assert (step(stream), inbox.position, inbox.ordinal) == (None, 1, 1)


def test_a_cut_of_what_was_not_begun_leaves_the_position_where_it_was() -> None:
    inbox, _ = inbox_of(Chunk(batch(7, b"a"), 0, 1))
    inbox.cut()
    assert (inbox.position, list(inbox.chunks)) == (7, [])


def test_what_is_skipped_counts_as_handed_out() -> None:
    inbox, stream = inbox_of(Chunk(batch(0, b"a", b"b", b"c"), 0, 3))
    step(stream)
    step(stream)
    inbox.skip()
    assert (inbox.position, inbox.ordinal) == (2, 2)
    again = aiter(Values(inbox, SOURCE))
    assert (step(again), inbox.position, inbox.ordinal) == (b"c", 2, 2)
    inbox.skip()
    assert (inbox.position, inbox.ordinal, list(inbox.chunks)) == (3, 3, [])
