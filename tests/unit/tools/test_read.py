"""`streamsx read`: first offsets, output and end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from threading import Timer

import pytest

from streamsx.model import TopicPartition
from streamsx.testing import Broker
from streamsx.tools.cli import records
from streamsx.tools.read import ReadStart, first, start, time_ms
from tests.support.client import Client
from tests.support.command import error_line, streamsx

NOW_S = 1_000.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("earliest", "earliest"),
        ("Latest", "latest"),
        ("17", 17),
        ("-3", -3),
        ("10m", timedelta(minutes=10)),
        ("2026-11-28", datetime(2026, 11, 28, tzinfo=UTC)),
        ("2026-11-28T12:30:00Z", datetime(2026, 11, 28, 12, 30, tzinfo=UTC)),
        ("2026-11-28T12:30+01:00", datetime(2026, 11, 28, 11, 30, tzinfo=UTC)),
    ],
)
def test_place_to_begin_has_many_forms(text: str, found: ReadStart) -> None:
    assert start(text) == found


@pytest.mark.parametrize("text", ["", "soon", "--3", "10 apples"])
def test_other_places_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match=r"no place to read from: write earliest, latest"):
        start(text)


@pytest.mark.parametrize(
    ("begin", "at_time", "offset"),
    [
        ("earliest", None, 5),
        ("latest", None, 20),
        (7, None, 7),
        (0, None, 5),
        (99, None, 20),
        (-3, None, 17),
        (-99, None, 5),
        (timedelta(1), 12, 12),
        (timedelta(1), -1, 20),
        (timedelta(1), 25, 20),
    ],
)
def test_first_offset_stays_between_start_and_end(
    begin: ReadStart, at_time: int | None, offset: int
) -> None:
    assert first(begin, 5, 20, at_time) == offset


def test_time_is_in_milliseconds_since_1970() -> None:
    assert time_ms(timedelta(seconds=10), NOW_S) == 990_000
    assert time_ms(timedelta(days=9), NOW_S) == 0
    assert time_ms(datetime(1970, 1, 1, 0, 1, tzinfo=UTC), NOW_S) == 60_000
    assert time_ms(17, NOW_S) is None


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """Topic of two partitions: three records in the first, one in the second."""
    with Broker(topics={"orders": 2}) as broker:
        client = Client(broker.bootstrap)
        client.send(TopicPartition("orders", 0), [(b"a", b"1"), (b"b", b"2"), (b"c", None)])
        client.send(TopicPartition("orders", 1), [(b"d", b'{"n": 4}')])
        client.close()
        yield broker.bootstrap


def read(bootstrap: str, *arguments: str) -> list[list[str]]:
    done = streamsx("read", "orders", "--bootstrap", bootstrap, *arguments)
    assert done.returncode == 0, done.stderr
    return [row.split("\t") for row in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        ("", "abcd"),
        ("--partition 1", "d"),
        ("--limit 2", "ab"),
        ("--from -1", "cd"),
        ("--from 1", "bc"),
        ("--from latest", ""),
        ("--from 1h", "abcd"),
        ("--from 2999-01-01", ""),
        ("--follow --limit 4", "abcd"),
    ],
)
def test_read_ends_where_it_was_told(bootstrap: str, arguments: str, keys: str) -> None:
    rows = read(bootstrap, *arguments.split())
    assert [row[3] for row in rows] == [*keys]


def test_line_has_partition_offset_time_key_value(bootstrap: str) -> None:
    *_, tombstone, last = read(bootstrap)
    assert (tombstone[:2], tombstone[3:]) == (["0", "2"], ["c", "(tombstone)"])
    assert (last[:2], last[3:]) == (["1", "0"], ["d", '{"n": 4}'])
    assert datetime.fromisoformat(last[2]).tzinfo == UTC


def test_json_is_an_object_a_record(bootstrap: str) -> None:
    done = streamsx("read", "orders", "--bootstrap", bootstrap, "--json", "--partition", "1")
    found = json.loads(done.stdout)
    assert found.pop("timestamp") > 0
    assert found == {
        "topic": "orders", "partition": 1, "offset": 0, "key": "d", "value": {"n": 4},
        "headers": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        ("nowhere", 3, "error: unknown topic: nowhere: streamsx topic list"),
        ("orders --partition 2", 2, "error: no such partition: orders 2: it has 0 to 1"),
        ("orders --from soon", 2, "error: argument --from: 'soon' is no place to read from"),
        (
            "orders --from 999999d",
            2,
            "error: argument --from: a time ago is at most 36500d: ",
        ),
        ("orders --from 9999999999999999d", 2, "error: argument --from: a time ago is at most"),
        ("orders --limit 0", 2, "error: argument --limit: "),
    ],
)
def test_unreadable_place_is_reported(
    bootstrap: str, arguments: str, code: int, error: str
) -> None:
    done = streamsx("read", *arguments.split(), "--bootstrap", bootstrap)
    assert (done.returncode, done.stdout) == (code, "")
    assert error_line(done.stderr).startswith(error)


def test_follow_prints_new_records_until_interrupted(bootstrap: str) -> None:
    command = [sys.executable, "-m", "streamsx", "read", "orders", "--follow", "--from", "latest"]
    with subprocess.Popen(
        [*command, "--bootstrap", bootstrap], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as reader:  # fmt: skip
        assert reader.stdout is not None
        assert reader.stderr is not None
        note = "end of the topic: waiting for new records, Ctrl-C ends\n"
        while reader.stderr.readline() != note:
            pass
        client = Client(bootstrap)
        client.send(TopicPartition("orders", 1), [(b"new", b"5")])
        client.close()
        assert reader.stdout.readline().split("\t")[3:] == ["new", "5\n"]
        reader.send_signal(signal.SIGINT)
        assert reader.wait(10) == 130
        assert reader.stderr.read() == ""


def test_follow_of_a_deleted_topic_ends_with_3(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LOOK_EVERY_S", 0.1)
    client = Client(bootstrap)
    deletes = Timer(0.5, client.delete, ["orders"])
    deletes.start()
    done = streamsx("read", "orders", "--follow", "--bootstrap", bootstrap)
    deletes.join()
    client.close()
    assert (done.returncode, len(done.stdout.splitlines())) == (3, 4)
    assert "error: the topic was deleted: orders: " in done.stderr


def test_closed_pipe_ends_the_read_quietly(bootstrap: str) -> None:
    out, into = os.pipe()
    os.close(out)
    with os.fdopen(into, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "streamsx", "read", "orders", "--bootstrap", bootstrap],
            check=False, stdout=closed, stderr=subprocess.PIPE,
        )  # fmt: skip
    said = [row for row in done.stderr.splitlines() if not row.startswith(b"waiting for ")]
    assert (done.returncode, said) == (141, [])
