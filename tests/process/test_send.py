"""`streamsx send` and `streamsx table`: an app tried with nothing else, on both brokers."""

import json
import subprocess
import sys

import pytest

from tests.support.apache_kafka import ApacheKafka
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

TIMEOUT_S = 60.0


def streamsx(
    broker: EmbeddedBroker | ApacheKafka, *arguments: str, given: str = ""
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "streamsx", *arguments, "--bootstrap", broker.bootstrap]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, input=given, timeout=TIMEOUT_S
    )


def test_what_is_sent_is_counted_and_can_be_looked_at(
    broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount, workers: Workers
) -> None:
    app, lines = wordcount.app, wordcount.lines[0].topic
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
        done = streamsx(broker, "table", app, "counts", "--json")
        return done.returncode == 0 and json.loads(done.stdout)["rows"] == expected

    workers.until(counted, "all words in the table")
    done = streamsx(broker, "table", app, "counts")
    assert done.stdout.splitlines() == [f"{word}\t{n}" for word, n in sorted(expected.items())]
    assert streamsx(broker, "table", app, "counts", "not").stdout == "not\t1\n"
    for arguments in (("counts", "nowhere"), ("nothing",)):
        done = streamsx(broker, "table", app, *arguments)
        assert (done.returncode, done.stdout) == (3, "")
        assert arguments[-1] in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("nowhere", "x"), 3, "error: unknown topic: nowhere: make it"),
        (("LINES", "x", "--partition", "9"), 2, "error: no such partition: LINES-9: it has 4"),
    ],
)
def test_what_cannot_be_sent_is_said(
    broker: EmbeddedBroker | ApacheKafka,
    wordcount: WordCount,
    arguments: tuple[str, ...],
    code: int,
    error: str,
) -> None:
    named = [word.replace("LINES", wordcount.lines[0].topic) for word in arguments]
    done = streamsx(broker, "send", *named)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(error.replace("LINES", wordcount.lines[0].topic))
