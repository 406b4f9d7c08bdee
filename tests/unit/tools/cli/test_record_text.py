"""Records on one line, and as objects."""

import json

import pytest

from streamsx.errors import DecodeFailed
from streamsx.model import Headers, TaskId
from streamsx.processing.batch import Batch
from streamsx.processing.dead_letters import headers_of
from streamsx.processing.failure_policy import FailedRecord, Failure
from streamsx.tools.cli.record_text import as_data, json_text, line, parsed_text, time_text

AT_MS = 1_795_866_095_349
AT = "2026-11-28T11:41:35.349Z"


def batch(key: bytes | None, value: bytes | None, headers: Headers | None = None) -> Batch:
    return Batch("orders", 3, [key], [value], [AT_MS], [17], [headers] if headers else None, 18)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        (b"ann", b'{"n": 1}', 'ann\t{"n": 1}'),
        (None, b"text", "-\ttext"),
        (b"gone", None, "gone\t(tombstone)"),
        (b"", b"", '""\t""'),
        (b"\xff\x00", b"a\tb\nc", "0xff00\ta\\tb\\nc"),
        ("é".encode(), "\u202e".encode(), "é\t\\u202e"),
    ],
)
def test_record_is_one_line_whatever_its_bytes_are(
    key: bytes | None, value: bytes | None, shown: str
) -> None:
    assert line(batch(key, value), 0, headers=False) == f"3\t17\t{AT}\t{shown}"


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [(0, "1970-01-01T00:00:00.000Z"), (-1, "-"), (1 << 60, f"{1 << 60}ms")],
)
def test_time_is_utc_with_milliseconds(time_ms: int, text: str) -> None:
    assert time_text(time_ms) == text


def test_headers_stand_behind_the_value() -> None:
    found = line(batch(b"k", b"v", [("trace", b"7"), ("none", None)]), 0, headers=True)
    assert found.endswith("\tk\tv\ttrace=7 none=")


def test_dead_letter_says_which_error_and_where_it_came_from() -> None:
    record = FailedRecord(b"k", b"{}", AT_MS, [("trace", b"7")])
    error = ValueError("no\nprice")
    failure = Failure(TaskId(0, 2), "bills", 2, 41, "shop.count", False, error, record, attempt=3)
    found = line(batch(b"k", b"{}", headers_of(failure, record)), 0, headers=True)
    assert found.endswith(
        "\ttrace=7 failed: ValueError: no\\nprice, from bills partition 2 offset 41, "
        "in shop.count, task 0_2, 3 tries"
    )


def test_refused_output_says_where_it_was_to_go() -> None:
    about: Headers = [
        ("__streams.errors.exception", b"MESSAGE_TOO_LARGE"),
        ("__streams.errors.message", b"too large"),
        ("__streams.errors.topic", b"out"),
        ("__streams.errors.partition", b"0"),
    ]
    found = line(batch(b"k", b"v", about), 0, headers=True)
    assert found.endswith("\tfailed: MESSAGE_TOO_LARGE: too large, to out partition 0")


def test_object_has_decoded_json_else_text() -> None:
    found = as_data(batch(b"ann", b'{"n": 1}', [("h", b"x"), ("h", None)]), 0)
    assert found == {
        "topic": "orders", "partition": 3, "offset": 17, "timestamp": AT_MS, "key": "ann",
        "value": {"n": 1}, "headers": [["h", "x"], ["h", None]],
    }  # fmt: skip
    assert as_data(batch(None, b"\xff"), 0)["value"] == "\\xff"
    assert as_data(batch(None, None), 0)["value"] is None


def test_damaged_record_is_named() -> None:
    damaged = batch(b"k", None)._replace(
        values=[DecodeFailed("bad length")],  # type: ignore[list-item]  # as the fetcher does
        unreadable=True,
    )
    assert line(damaged, 0, headers=False).endswith("\t(damaged: bad length)")
    assert as_data(damaged, 0)["value"] is None


@pytest.mark.parametrize(
    "text", ["NaN", "-Infinity", "1e999", '{"a": [Infinity]}', "9" * 5000, "[" * 9999 + "]" * 9999]
)
def test_text_that_json_cannot_say_stays_text(text: str) -> None:
    assert parsed_text(text) == text
    assert json.loads(json_text(as_data(batch(None, text.encode()), 0)))["value"] == text


@pytest.mark.parametrize("depth", range(150, 1100, 7))
def test_value_of_any_depth_makes_a_line(depth: int) -> None:
    text = "[" * depth + "]" * depth
    assert json_text(as_data(batch(None, text.encode()), 0))


def test_half_of_a_surrogate_pair_is_escaped() -> None:
    found = as_data(batch("é".encode(), b'"\\ud83d"'), 0)
    shown = json_text(found)
    assert shown.isascii()
    assert json.loads(shown) == found
    assert '"é"' in json_text(as_data(batch("é".encode(), b"1"), 0))
