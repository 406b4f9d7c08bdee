"""`streamsx topic`, `read` and `table --list` beside a running app, on both brokers."""

import json
from subprocess import CompletedProcess

from tests.process.conftest import SLOW_ON_KAFKA
from tests.support.apache_kafka import ApacheKafka
from tests.support.command import error_line, streamsx
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.wordcount import WordCount
from tests.support.workers import Workers


@SLOW_ON_KAFKA
def test_topic_is_made_described_read_and_deleted(
    broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount
) -> None:
    topic = f"{wordcount.app}-notes"

    def run(*words: str) -> CompletedProcess[str]:
        return streamsx(*words, "--bootstrap", broker.bootstrap)

    made = run("topic", "create", f"{topic}:2", "--config", "retention.ms=86400000", "--json")
    assert json.loads(made.stdout.splitlines()[-1]) == {"created": {topic: 2}}, made.stderr
    assert run("topic", "create", topic).returncode == 1
    assert run("topic", "create", f"{topic}-2", "--config", "no.such=1").returncode == 1
    assert f"{topic}\t2 partitions\n" in run("topic", "list").stdout

    assert run("send", topic, "a=1", "b=2", "c=3", "--partition", "1").returncode == 0
    read = run("read", topic, "--from", "1h", "--limit", "2")
    assert [line.split("\t")[3:] for line in read.stdout.splitlines()] == [["a", "1"], ["b", "2"]]
    assert run("read", topic, "--from", "2999-01-01").stdout == ""

    told = json.loads(run("topic", "describe", topic, "--json").stdout.splitlines()[-1])
    assert told["configs"]["retention.ms"] == "86400000"
    assert told["partitions"][1] == {"partition": 1, "start": 0, "end": 3, "records": 3}
    assert run("topic", "delete", topic).returncode == 2
    assert run("topic", "delete", topic, "--yes").returncode == 0
    assert run("read", topic).returncode == 3


@SLOW_ON_KAFKA
def test_topic_of_a_running_app_is_not_deleted_by_mistake(
    broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount, workers: Workers
) -> None:
    app, lines = wordcount.app, wordcount.lines[0].topic
    where = "--bootstrap", broker.bootstrap
    workers.start("a")
    workers.until(lambda: len(workers.held("a")) == 8, "a runs all tasks")

    for topic in (lines, f"{app}-counts-changelog"):
        done = streamsx("topic", "delete", topic, *where)
        assert done.returncode == 2
        assert f"{topic}: at most 0 records, in use by {app}, which runs now\n" in done.stderr
        assert error_line(done.stderr.splitlines()[-1]).endswith("say --yes")
    told = streamsx("topic", "describe", lines, "--json", *where).stdout.splitlines()[-1]
    assert json.loads(told)["read_by"] == [app]
    listed = streamsx("table", app, "--list", *where).stdout
    assert listed == f"counts\t4 partitions\tat most 0 rows\t{app}-counts-changelog\n"
