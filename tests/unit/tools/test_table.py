"""What `streamsx table` is told."""

import argparse
import asyncio

import pytest

from streamsx.clock import SystemClock
from streamsx.errors import UsageError
from streamsx.serde.codec import table_codec, topic_codec
from streamsx.state.framed import entries_codec, sessions_codec, timed_codec
from streamsx.state.layout import BUFFER, WINDOW, StoreNode, Timing, time_bytes
from streamsx.tools.table import entries, show


@pytest.mark.parametrize(
    ("app", "words", "form"),
    [(None, ["totals"], "APP NAME"), ("shop", ["totals", "ann", "x"], "NAME")],
)
def test_ambiguous_table_arguments_get_the_expected_form(
    app: str | None, words: list[str], form: str
) -> None:
    with pytest.raises(UsageError, match=rf"{' '.join(words)}: say {form} \[KEY\]"):
        asyncio.run(show(argparse.Namespace(app=app, words=words), SystemClock()))


TEXT = topic_codec(str, None, "raw", key=True)
JSON = table_codec(None)


def shown(key: bytes, value: bytes) -> list[tuple[str, str, str]]:
    return [(each.key, each.plain, each.value) for each in entries(0, key, value)]


def test_windows_sessions_and_joined_records_are_shown_with_their_times() -> None:
    timing = Timing(10_000, 10_000, 12_000)
    node = StoreNode("views", "log", TEXT, JSON, kind=WINDOW, timing=timing)
    (key,) = node.changelog_keys([time_bytes(1_700_000_000_000) + b"ann"])
    assert shown(key, b"7") == [('["ann", 1700000000000, 1700000010000]', "ann", "7")]

    raw = sessions_codec(JSON).encode([[1000, 1500, 2], [9000, 9000, {"n": 1}]])
    assert shown(b"ann", raw or b"") == [
        ('["ann", 1000, 1500]', "ann", "2"), ('["ann", 9000, 9000]', "ann", '{"n":1}'),
    ]  # fmt: skip

    buffer = StoreNode("left", "log", TEXT, JSON, kind=BUFFER, timing=timing)
    (key,) = buffer.changelog_keys([time_bytes(0) + b"ann"])
    raw = entries_codec(JSON).encode([[1200, True, "x"], [1300, False, None]])
    assert shown(key, raw or b"") == [
        ('["ann", 1200]', "ann", '"x"'), ('["ann", 1300]', "ann", "null"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "key", [b"ann", b'"ann"', b'["ann",[1,2,3]]', b'["ann",[1,2]]', b"[1,2]", b"5", b"\xff"]
)
def test_key_without_a_window_is_shown_unchanged(key: bytes) -> None:
    text = key.decode(errors="backslashreplace")
    assert shown(key, b'{"n":1}') == [(text, text, '{"n":1}')]


def test_rows_with_a_time_show_their_values_only() -> None:
    raw = timed_codec(JSON).encode((1200, {"n": 1}))
    assert shown(b"ann", raw or b"") == [("ann", "ann", '{"n":1}')]
    raw = sessions_codec(JSON).encode([[1000, 1500, 2], [1200, 1700, None]])
    assert shown(b"ann", raw or b"") == [('["ann", 1000, 1500]', "ann", "2")]
    assert shown(b"\0\0\0\1xy", b"\0" * 8 + b"x") == [("\0\0\0\1xy", "\0\0\0\1xy", "\0" * 8 + "x")]
