"""`streamsx topic`: topics that it creates, describes, and refuses to delete."""

import argparse
import asyncio
import io
import json
import sys
from collections.abc import Iterator

import pytest

from streamsx.model import TopicPartition
from streamsx.testing import Broker
from streamsx.tools.topic import (
    Loss,
    description,
    new_topic,
    perhaps_users,
    setting,
    users_of,
)
from tests.support.client import Client
from tests.support.command import error_line, streamsx


@pytest.fixture
def bootstrap() -> Iterator[str]:
    with Broker(topics={"orders": 2, "empty": 1}) as broker:
        client = Client(broker.bootstrap)
        client.send(TopicPartition("orders", 0), [(b"a", b"1")] * 3)
        client.close()
        yield broker.bootstrap


def topic(bootstrap: str, *arguments: str) -> tuple[int, str, str]:
    done = streamsx("topic", *arguments, "--bootstrap", bootstrap)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("text", "found"), [("orders", ("orders", -1)), ("orders:12", ("orders", 12))]
)
def test_new_topic_has_a_name_and_maybe_a_count(text: str, found: tuple[str, int]) -> None:
    assert new_topic(text) == found


@pytest.mark.parametrize("text", ["", ":4", "orders:", "orders:0", "orders:x", "a:-1"])
def test_other_topics_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write NAME or NAME:PARTITIONS"):
        new_topic(text)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["a b:2"], "'a b': use letters, digits, dots, dashes and underscores"),
        ([".."], "'..': use letters, digits, dots, dashes and underscores"),
        (["x" * 250], "a name has at most 249 letters"),
        (["x:99999999999"], "a topic has at most 2147483647 partitions"),
        (["x", "--replication", "32768"], "'32768': a partition has at most 32767 copies"),
    ],
)
def test_topic_that_kafka_cannot_have_is_refused(arguments: list[str], why: str) -> None:
    code, out, err = topic("127.0.0.1:1", "create", *arguments)
    assert (code, out) == (2, "")
    assert why in error_line(err)


@pytest.mark.parametrize("text", ["retention.ms", "=4"])
def test_config_without_a_name_and_a_value_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write NAME=VALUE"):
        setting(text)


def test_group_uses_the_topics_it_reads_and_those_with_its_name() -> None:
    groups = {"shop": ["orders"], "bank": ["bills"]}
    assert users_of("orders", groups) == ["shop"]
    assert users_of("shop-totals-changelog", groups) == ["shop"]
    assert users_of("shops", groups) == []


def test_group_of_unknown_topics_may_use_any() -> None:
    groups = {"shop": ["orders"], "share": None, "news": None}
    assert users_of("orders", groups) == ["shop"]
    assert perhaps_users(groups) == ["news", "share"]
    told = {"topic": "orders", "configs": {}, "replication": 1, "records": 0, "partitions": []}
    users = {"read_by": ["shop"], "perhaps_read_by": ["news"]}
    assert description(told | users)[2:4] == [
        "running groups that use it: shop",
        "running groups that may use it: news: the broker does not tell what they read",
    ]


def test_loss_names_all_running_users() -> None:
    assert str(Loss("t", 1, ["a"], [])) == "t: at most 1 record, in use by a, which runs now"
    assert str(Loss("t", 0, ["a", "b"], ["c"])) == (
        "t: at most 0 records, in use by a, b, which run now, perhaps in use by c: the broker does "
        "not tell what they read"
    )


def test_topics_are_made_with_partitions_and_configs(bootstrap: str) -> None:
    made = topic(bootstrap, "create", "new:3", "plain", "--config", "retention.ms=60000")
    assert made[:2] == (0, "new: made, 3 partitions\nplain: made, 1 partition\n")
    code, out, _ = topic(bootstrap, "describe", "new", "--json")
    told = json.loads(out.splitlines()[-1])
    assert code == 0
    assert told["configs"] == {"retention.ms": "60000"}
    assert [each["partition"] for each in told["partitions"]] == [0, 1, 2]


def test_existing_topic_is_not_made_again(bootstrap: str) -> None:
    code, out, err = topic(bootstrap, "create", "new", "orders:9")
    assert (code, out) == (1, "")
    assert error_line(err).startswith("error: exists already: topic orders, with 2 partitions: ")
    assert topic(bootstrap, "describe", "new")[0] == 3


def test_config_that_the_broker_refuses_exits_with_1(bootstrap: str) -> None:
    code, _, err = topic(bootstrap, "create", "new", "--config", "nothing=1")
    assert code == 1
    assert error_line(err).startswith("error: the broker refused: INVALID_CONFIG: topic new: ")


def test_description_has_offsets_and_counts(bootstrap: str) -> None:
    code, out, _ = topic(bootstrap, "describe", "orders")
    first, configs, users, _, *rows, note = out.splitlines()
    assert code == 0
    assert first == "orders: 2 partitions, 1 copy of each, at most 3 records"
    assert configs == "configs that differ from the broker's: retention.ms=-1"
    assert users == "running groups that use it: none"
    assert [row.split() for row in rows] == [["0", "0", "3", "3"], ["1", "0", "0", "0"]]
    assert note.startswith("records: at most so many")


def test_list_has_a_line_per_topic(bootstrap: str) -> None:
    assert topic(bootstrap, "list")[:2] == (0, "empty\t1 partition\norders\t2 partitions\n")


@pytest.mark.parametrize("command", ["describe", "delete"])
def test_unknown_topic_exits_with_3(bootstrap: str, command: str) -> None:
    code, out, err = topic(bootstrap, command, "nowhere")
    assert (code, out) == (3, "")
    assert error_line(err).startswith("error: unknown topic: nowhere: ")


def test_empty_unused_topic_is_deleted_at_once(bootstrap: str) -> None:
    assert topic(bootstrap, "delete", "empty")[:2] == (0, "empty: deleted\n")


def test_topic_with_records_is_deleted_only_with_yes(bootstrap: str) -> None:
    code, out, err = topic(bootstrap, "delete", "orders", "empty")
    assert (code, out) == (2, "")
    assert "orders: at most 3 records\n" in err
    assert "say --yes" in err
    assert topic(bootstrap, "describe", "empty")[0] == 0
    assert topic(bootstrap, "delete", "orders", "--yes")[:2] == (0, "orders: deleted\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 1), ("", 1), ("no\n", 1)])
def test_person_is_asked(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    found = topic(bootstrap, "delete", "orders")
    assert found[0] == code
    assert "delete 1 topic for good? [y/N]" in found[2]
    assert topic(bootstrap, "describe", "orders")[0] == (0 if code else 3)


def test_topic_of_a_running_group_is_named_with_the_group(bootstrap: str) -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def story() -> tuple[int | None, bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            "empty", group_id="readers", bootstrap_servers=bootstrap
        )
        await consumer.start()
        try:
            deletes = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "streamsx", "topic", "delete", "empty"),
                *("--bootstrap", bootstrap),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            _, err = await deletes.communicate()
            return deletes.returncode, err
        finally:
            await consumer.stop()

    code, err = asyncio.run(story())
    assert code == 2
    assert b"empty: at most 0 records, in use by readers, which runs now\n" in err
