"""`streamsx send` and `streamsx table` alone try an app out, on both brokers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from subprocess import PIPE

import pytest

from tests.process.conftest import SLOW_ON_KAFKA
from tests.support.apache_kafka import ApacheKafka
from tests.support.command import error_line
from tests.support.command import streamsx as called
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

TIMEOUT_S = 60.0
HASTY = "import sys; from streamsx.tools import send; send.SILENT_S = 1.0; send.main()"
"""`streamsx send`, which gives brokers one second."""


def streamsx(
    broker: EmbeddedBroker | ApacheKafka, *arguments: str, given: str = ""
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "streamsx", *arguments, "--bootstrap", broker.bootstrap]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, input=given, timeout=TIMEOUT_S
    )


@SLOW_ON_KAFKA
def test_sent_records_are_counted_and_shown_by_table(
    broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount, workers: Workers
) -> None:
    app, lines = wordcount.app, wordcount.lines[0].topic
    where = "--bootstrap", broker.bootstrap
    done = streamsx(broker, "send", lines, "to be", "or=not to be", "{=}")
    assert (done.returncode, done.stdout) == (0, f"{lines}: 3 records, acknowledged\n"), done.stderr
    many = "".join(f"k{number}\tmany words\n" for number in range(20_000))
    done = streamsx(broker, "send", lines, "-", "--json", given=many + "last")
    told = json.loads(done.stdout)
    assert (told["topic"], told["records"]) == (lines, 20_001), done.stderr
    assert sum(told["partitions"].values()) == 20_001

    workers.start("a")
    expected = {"to": 2, "be": 2, "not": 1, "{=}": 1, "many": 20_000, "words": 20_000, "last": 1}

    def counted() -> bool:
        done = called("table", app, "counts", "--json", *where)
        rows = map(json.loads, done.stdout.splitlines())
        return {row["key"]: row["value"] for row in rows} == expected

    workers.until(counted, "all words in the table")
    done = called("table", app, "counts", *where)
    assert done.stdout.splitlines() == [f"{word}\t{n}" for word, n in sorted(expected.items())]
    assert called("table", app, "counts", "not", *where).stdout == "not\t1\n"
    done = called("table", "--app", app, "counts", "--limit", "2", "--json", *where)
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["key"], second["key"]) == tuple(sorted(expected))[:2]
    assert {first["partition"], second["partition"]} <= set(range(4))
    for arguments, code in ((("counts", "nowhere"), 1), (("nothing",), 3)):
        done = called("table", app, *arguments, *where)
        assert (done.returncode, done.stdout) == (code, "")
        assert arguments[-1] in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("nowhere", "x"), 3, "error: unknown topic: nowhere: make it"),
        (("LINES", "x", "--partition", "9"), 2, "error: no such partition: LINES-9: it has 4"),
    ],
)
@SLOW_ON_KAFKA
def test_unsendable_records_are_reported(
    broker: EmbeddedBroker | ApacheKafka,
    wordcount: WordCount,
    arguments: tuple[str, ...],
    code: int,
    error: str,
) -> None:
    named = [word.replace("LINES", wordcount.lines[0].topic) for word in arguments]
    done = called("send", *named, "--bootstrap", broker.bootstrap)
    assert (done.returncode, done.stdout) == (code, "")
    assert error_line(done.stderr).startswith(error.replace("LINES", wordcount.lines[0].topic))


@pytest.fixture
def typed(
    broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount, workers: Workers
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a send of lines that somebody types; the first one is acknowledged."""
    topic = wordcount.lines[0].topic
    command = [sys.executable, "-c", HASTY, topic, "-", "--bootstrap", broker.bootstrap]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, bufsize=0) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        try:
            workers.until(
                lambda: sum(wordcount.client.ends(wordcount.lines).values()) > 0, "the first line"
            )
            yield process
        finally:
            process.kill()


@SLOW_ON_KAFKA
def test_send_waits_for_typed_lines_without_a_limit(typed: subprocess.Popen[bytes]) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        typed.wait(2.5)
    out, error = typed.communicate(b"second", TIMEOUT_S)
    assert out.endswith(b": 2 records, acknowledged\n"), error
    said = [line for line in error.splitlines() if not line.startswith(b"waiting for ")]
    assert (typed.returncode, said) == (0, [])


@SLOW_ON_KAFKA
def test_interrupted_send_does_not_wait_for_another_line(typed: subprocess.Popen[bytes]) -> None:
    typed.send_signal(signal.SIGINT)
    assert typed.wait(TIMEOUT_S / 4) == 130


@SLOW_ON_KAFKA
def test_send_accepts_arguments_of_any_bytes(
    broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount
) -> None:
    topic = wordcount.lines[0].topic
    done = streamsx(broker, "send", topic, os.fsdecode(b"\xfe=\xff"), "--partition", "0")
    assert done.returncode == 0, done.stderr
    assert [(each.key, each.value) for each in wordcount.client.read(wordcount.lines[0])] == [
        (b"\xfe", b"\xff")
    ]


@SLOW_ON_KAFKA
def test_null_marker_is_sent_as_a_tombstone(
    broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount
) -> None:
    topic = wordcount.lines[0].topic
    words = [topic, "a=", "b=NULL", "NULL", "-", "--null-marker", "NULL", "--partition", "0"]
    done = streamsx(broker, "send", *words, given="c\tNULL\nd\tNULLS\n")
    assert done.returncode == 0, done.stderr
    assert [(each.key, each.value) for each in wordcount.client.read(wordcount.lines[0])] == [
        (b"a", b""), (b"b", None), (None, None), (b"c", None), (b"d", b"NULLS")
    ]  # fmt: skip


@SLOW_ON_KAFKA
def test_headers_go_with_each_record(
    broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount
) -> None:
    topic = wordcount.lines[0].topic
    where = "--partition", "0", "--bootstrap", broker.bootstrap
    headers = "--header", "source=web=1", "--header", os.fsdecode(b"empty=\xff")
    done = called("send", topic, "a", "k=b", *headers, *where)
    assert done.returncode == 0, done.stderr
    expected = [("source", b"web=1"), ("empty", b"\xff")]
    found = [each.headers for each in wordcount.client.read(wordcount.lines[0])]
    assert found == [expected, expected]
    for wrong in ("=web", "web", os.fsdecode(b"\xff=web")):
        done = called("send", topic, "a", "--header", wrong, *where)
        assert done.returncode == 2
        assert f"bad header: {wrong!r}: write NAME=VALUE" in done.stderr


@SLOW_ON_KAFKA
def test_overlong_line_is_refused_before_the_end_is_read(
    broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount
) -> None:
    """A line of 30 MB took 9 s, because each block was copied with all blocks before it."""
    topic = wordcount.lines[0].topic
    done = streamsx(broker, "send", topic, "-", given="x" * 3_000_000)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: record too large: {topic}: 1" in done.stderr


@SLOW_ON_KAFKA
def test_send_reports_a_closed_stdin(
    broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount
) -> None:
    command = [sys.executable, "-m", "streamsx", "send", wordcount.lines[0].topic, "-"]
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command, "--bootstrap", broker.bootstrap],
        check=False, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 2
    says = "error: nothing to read: stdin is closed: give values, or lines"
    assert error_line(done.stderr) == says
