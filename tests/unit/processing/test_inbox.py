"""processing/inbox.py: values that an inbox hands out, and records that are done."""

from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest

from streamsx.errors import DecodeFailed
from streamsx.model import TaskId
from streamsx.processing.batch import Batch, Chunk
from streamsx.processing.inbox import Inbox, TaskContext, Values
from streamsx.serde.codec import Quick
from streamsx.serde.record import BLESSED
from streamsx.topology.nodes import Source
from tests.support.codecs import coded
from tests.unit.processing.conftest import Sent

PLAIN = coded(lambda raw: raw)
SOURCE = Source("t", PLAIN, PLAIN)


def refuse(error: Exception) -> None:
    raise error


def batch(first: int, *words: bytes) -> Batch:
    offsets = range(first, first + len(words))
    return Batch("t", 0, words, words, offsets, offsets, None, first + len(words))


class Empty:
    """Gate that never opens."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def inbox_of(*chunks: Chunk) -> tuple[Inbox, AsyncIterator[Any]]:
    inbox = Inbox(chunks[0].batch.offsets[chunks[0].start], refuse)
    inbox.chunks.extend(chunks)
    inbox.gate = Empty()
    return inbox, aiter(Values(inbox, SOURCE))


def step(stream: AsyncIterator[Any]) -> object:
    """Return the next value; None at the end of the inbox."""
    try:
        stream.__anext__().__await__().send(None)
    except StopIteration as given:
        return given.value
    return None


def test_fresh_inbox_has_not_ended() -> None:
    inbox, _ = inbox_of(Chunk(batch(0, b"a"), 0, 1))
    assert inbox.ended is False


def test_record_is_done_when_the_next_record_is_requested() -> None:
    inbox, stream = inbox_of(Chunk(batch(5, b"a", b"b", b"c"), 1, 3))
    seen = [(step(stream), inbox.position, inbox.ordinal) for _ in range(3)]
    assert seen == [(b"b", 6, 0), (b"c", 7, 1), (None, 8, 2)]


def test_inbox_hands_out_nothing_after_the_current_record_once_cut() -> None:
    first, second = batch(0, b"a", b"b", b"c"), batch(3, b"d")
    inbox, stream = inbox_of(Chunk(first, 0, 3), Chunk(second, 0, 1))
    assert step(stream) == b"a"
    inbox.cut()
    assert inbox.position == 0
    assert (step(stream), inbox.position, inbox.ordinal) == (None, 1, 1)


def test_cut_of_an_unstarted_inbox_keeps_the_position() -> None:
    inbox, _ = inbox_of(Chunk(batch(7, b"a"), 0, 1))
    inbox.cut()
    assert (inbox.position, list(inbox.chunks)) == (7, [])


def test_skipped_record_counts_as_handed_out() -> None:
    inbox, stream = inbox_of(Chunk(batch(0, b"a", b"b", b"c"), 0, 3))
    step(stream)
    step(stream)
    inbox.skip()
    assert (inbox.position, inbox.ordinal) == (2, 2)
    again = aiter(Values(inbox, SOURCE))
    assert (step(again), inbox.position, inbox.ordinal) == (b"c", 2, 2)
    inbox.skip()
    assert (inbox.position, inbox.ordinal, list(inbox.chunks)) == (3, 3, [])


def keyed(*records: tuple[bytes, bytes]) -> Chunk:
    keys, values = [key for key, _ in records], [value for _, value in records]
    offsets = range(len(records))
    return Chunk(Batch("t", 0, keys, values, offsets, offsets, None, len(records)), 0, len(records))


LETTERS = [(b"%d" % n, letter) for n, letter in enumerate((b"a", b"b", b"c", b"d"))]


@pytest.mark.parametrize("items", [False, True], ids=["values", "items"])
def test_loop_after_an_abandoned_loop_continues_behind_the_record(
    items: bool,
) -> None:
    """No record is repeated or missing, also if the second loop begins within the first, which then
    continues after the second's records.
    """

    def loop(values: Values) -> AsyncIterator[Any]:
        return values.items() if items else aiter(values)

    def of(*numbers: int) -> list[object]:
        return [LETTERS[n] if items else LETTERS[n][1] for n in numbers]

    for nested in (False, True):
        inbox, _ = inbox_of(keyed(*LETTERS))
        values = Values(inbox, SOURCE)
        outer = loop(values)
        seen = [step(outer), step(outer)]
        assert inbox.position == 1
        inner = loop(values)
        seen.append(step(inner))
        assert (inbox.position, inbox.ordinal) == (2, 2)
        last = outer if nested else inner
        seen.append(step(last))
        assert seen == of(0, 1, 2, 3)
        assert (step(last), inbox.position, inbox.ordinal) == (None, 4, 4)


def strict(raw: bytes | None) -> str:
    """Decode like a codec that reads the first field of a line."""
    assert raw is not None, "a codec that knows no None"
    return next(iter(raw.decode()))


def test_key_behind_a_cut_is_not_decoded() -> None:
    """A record whose key only the slow decoder reads was handed out, and then again elsewhere."""
    source = Source("t", PLAIN._replace(quick=Quick(strict)), PLAIN._replace(quick=Quick(None)))
    offsets = range(3)
    inbox, _ = inbox_of(
        Chunk(Batch("t", 0, [None] * 3, [b"a", b"b", b"c"], offsets, offsets, None, 3), 0, 3)
    )
    stream = Values(inbox, source).items()
    assert step(stream) == (None, b"a")
    inbox.cut()
    assert (step(stream), inbox.position) == (None, 1)


def test_outer_loop_decodes_no_keys_taken_by_an_inner_loop() -> None:
    source = Source("t", PLAIN._replace(quick=Quick(strict)), PLAIN._replace(quick=Quick(None)))
    first, second = (
        Batch("t", 0, [None] * len(words), words, offsets, offsets, None, offsets.stop)
        for words, offsets in (([b"a", b"b", b"c"], range(3)), ([b"d"], range(3, 4)))
    )
    inbox, _ = inbox_of(Chunk(first, 0, 3), Chunk(second, 0, 1))
    outer, inner = Values(inbox, source).items(), Values(inbox, source).items()
    seen = [step(each) for each in (outer, inner, inner, inner)]
    assert seen == [(None, b"a"), (None, b"b"), (None, b"c"), (None, b"d")]
    assert (step(outer), inbox.position, inbox.ordinal) == (None, 4, 4)


@pytest.mark.parametrize("items", [False, True])
def test_codec_raising_stop_iteration_fails_only_the_record(items: bool) -> None:
    """StopIteration ended the loop over a chunk like its end: the rest counted as read."""
    errors: list[Exception] = []
    source = Source("t", coded(strict), coded(strict))
    inbox, _ = inbox_of(Chunk(batch(0, b"", b"a", b"", b"", b"b", b""), 0, 6))
    inbox.undecodable = errors.append
    values = Values(inbox, source)
    stream = values.items() if items else aiter(values)
    seen = [step(stream) for _ in range(3)]
    assert seen == ([("a", "a"), ("b", "b"), None] if items else ["a", "b", None])
    assert ([type(error) for error in errors], inbox.position) == ([StopIteration] * 4, 6)


@pytest.mark.parametrize("items", [False, True])
def test_internal_error_type_from_a_codec_fails_only_the_record(items: bool) -> None:
    """The error was taken for the end of the task: the body failed with the record before, and so
    did each body after it at the same record.
    """

    def ours(raw: bytes | None) -> bytes | None:
        if raw == b"bad":
            raise DecodeFailed("mine")
        return raw

    errors: list[Exception] = []
    inbox, _ = inbox_of(Chunk(batch(0, b"bad", b"a", b"bad", b"bad", b"b"), 0, 5))
    inbox.undecodable = errors.append
    values = Values(inbox, Source("t", coded(ours), coded(ours)))
    stream = values.items() if items else aiter(values)
    seen = [step(stream) for _ in range(3)]
    assert seen == ([(b"a", b"a"), (b"b", b"b"), None] if items else [b"a", b"b", None])
    assert ([type(error) for error in errors], inbox.position) == ([DecodeFailed] * 3, 5)
    inbox, _ = inbox_of(Chunk(batch(0, b"bad", b"a"), 0, 2))
    values = Values(inbox, Source("t", coded(ours), coded(ours)))
    with pytest.raises(DecodeFailed, match="mine"):
        step(values.items() if items else aiter(values))
    assert inbox.position == 0, "one failure too many"


@pytest.mark.parametrize("quick", [Quick(None, blessed=True), None])
def test_body_catching_the_terminating_failure_goes_on_behind_the_record(
    quick: Quick | None,
) -> None:
    """The body is over already, and must reach its next wait: nothing else runs until then."""

    def unknown(raw: Any) -> Any:
        if b"bad" in raw:
            raise ValueError(raw)
        return raw

    rows: Any = [{BLESSED: b"bad"} if quick else b"bad", b"a"] * 3
    inbox, _ = inbox_of(Chunk(batch(0, *rows), 0, 6))
    codec = coded(unknown if quick is None else lambda raw: unknown(raw[BLESSED]))
    codec = codec if quick is None else codec._replace(quick=quick)
    values = Values(inbox, Source("t", codec, codec))
    seen: list[object] = []
    stream = aiter(values)
    while not seen or seen[-1] is not None:
        try:
            seen.append(step(stream))
        except ValueError:
            seen.append("failed")
            stream = aiter(values)
        assert len(seen) < 9, "for ever"
    assert seen == ["failed", b"a", "failed", b"a", "failed", b"a", None]


def test_record_that_is_taken_back_comes_again_with_all_behind_it() -> None:
    inbox, _ = inbox_of(Chunk(batch(5, b"a", b"b", b"c"), 0, 3), Chunk(batch(8, b"d"), 0, 1))
    codec = coded(lambda raw: raw)
    values = Values(inbox, Source("t", codec, codec))
    stream = aiter(values)
    assert [step(stream), step(stream)] == [b"a", b"b"]
    inbox.take_back()

    assert (inbox.position, inbox.ordinal) == (6, 1)
    stream = aiter(values)
    assert step(stream) is None, "it waits"
    assert inbox.give_back()
    stream = aiter(values)
    assert [step(stream) for _ in range(3)] == [b"b", b"c", b"d"]
    assert (inbox.position, inbox.ordinal) == (8, 3)


class Known:
    """Object like a table, whose class knows which thread may use it."""

    store = "none"


def test_values_bound_for_a_body_are_restored_when_resumed() -> None:
    """Each wake looked all of them up again."""
    known = Known()
    running = TaskContext(TaskId(0, 0), {}, Sent(), Inbox(0, refuse))
    running.resumed()
    running.bind(known, "store", "its task's")
    seen = [known.store]
    for step_of in (running.paused, running.resumed, running.paused, running.resumed):
        step_of()
        seen.append(known.store)
    assert seen == ["its task's", "none", "its task's", "none", "its task's"]
