"""`streamsx table`: its output."""

import argparse
import asyncio
import json

import pytest

from streamsx.clock import SystemClock
from streamsx.errors import UsageError
from streamsx.model import TopicPartition
from streamsx.serde.codec import table_codec, topic_codec
from streamsx.state.framed import entries_codec, sessions_codec, timed_codec
from streamsx.state.layout import BUFFER, WINDOW, StoreNode, Timing, time_bytes
from streamsx.testing import Broker
from streamsx.tools.table import changelogs, entries, listed, show
from tests.support.client import Client
from tests.support.command import error_line, streamsx


@pytest.mark.parametrize(
    ("app", "words", "form"),
    [(None, ["totals"], "APP NAME"), ("shop", ["totals", "ann", "x"], "NAME")],
)
def test_ambiguous_table_arguments_get_the_expected_form(
    app: str | None, words: list[str], form: str
) -> None:
    with pytest.raises(UsageError, match=rf"{' '.join(words)}: say {form} \[KEY\]"):
        asyncio.run(show(argparse.Namespace(app=app, words=words), SystemClock()))


@pytest.mark.parametrize(
    ("app", "words", "form"),
    [(None, [], "APP --list"), (None, ["a", "b"], "APP --list"), ("a", ["b"], "--list alone")],
)
def test_list_takes_the_app_alone(app: str | None, words: list[str], form: str) -> None:
    with pytest.raises(UsageError, match=rf"cannot tell the app: .*: say {form}"):
        asyncio.run(listed(argparse.Namespace(app=app, words=words), SystemClock()))


def test_changelogs_of_an_app_are_found_by_their_names() -> None:
    topics = ["shop-b-changelog", "shop-a-changelog", "shop-changelog", "shops-c-changelog", "x"]
    assert changelogs("shop", topics) == {"a": "shop-a-changelog", "b": "shop-b-changelog"}


def test_list_has_a_line_per_table_of_the_app() -> None:
    with Broker(topics={"shop-a-changelog": 2, "shop-b-changelog": 1, "orders": 1}) as broker:
        client = Client(broker.bootstrap)
        client.send(TopicPartition("shop-a-changelog", 1), [(b"k", b"1"), (b"k", b"2")])
        client.close()
        where = "--list", "--bootstrap", broker.bootstrap
        told = streamsx("table", "shop", *where)
        rows = streamsx("table", "--app", "shop", *where, "--json")
        unknown = streamsx("table", "nobody", *where)
    assert told.stdout.splitlines() == [
        "a\t2 partitions\tat most 2 rows\tshop-a-changelog",
        "b\t1 partition\tat most 0 rows\tshop-b-changelog",
    ]
    assert [json.loads(row) for row in rows.stdout.splitlines()] == [
        {"table": "a", "partitions": 2, "rows_max": 2, "changelog": "shop-a-changelog"},
        {"table": "b", "partitions": 1, "rows_max": 0, "changelog": "shop-b-changelog"},
    ]
    assert unknown.returncode == 3
    assert error_line(unknown.stderr).startswith("error: no tables: app nobody: ")


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


@pytest.mark.parametrize("text", [b'"\\ud83d"', b"NaN", b"1e999", b"[" * 9999 + b"]" * 9999])
def test_keys_and_values_that_json_cannot_say_are_printed(text: bytes) -> None:
    with Broker(topics={"shop-a-changelog": 1}) as broker:
        client = Client(broker.bootstrap)
        client.send(TopicPartition("shop-a-changelog", 0), [(text, text)])
        client.close()
        plain = streamsx("table", "shop", "a", "--bootstrap", broker.bootstrap)
        row = streamsx("table", "shop", "a", "--json", "--bootstrap", broker.bootstrap)
    word = "\ud83d" if b"u" in text else text.decode()
    assert plain.stdout == f"{text.decode()}\t{text.decode()}\n"
    assert json.loads(row.stdout) == {"partition": 0, "key": word, "value": word}
