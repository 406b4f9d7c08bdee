"""Source topics that grow while an app runs, and changelogs that are deleted.

Source topics that vanish are in tests/unit/worker/test_trouble.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamsx.model import TopicPartition
from tests.process.conftest import SLOW_ON_EMBEDDED, SLOW_ON_KAFKA
from tests.support.apache_kafka import ApacheKafka
from tests.support.client import Client
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.workers import Workers

APP = """
import streamsx

app = streamsx.App("{name}")
copied, counted = app.topic("{name}-a", "{name}-b"), app.topic("{name}-c")
out, counts = app.topic("{name}-out", partitions=1), app.Table("counts", default=int)


@app.agent(copied)
async def copy(stream):
    async for value in stream:
        await out.send(value=value)


@app.agent(counted)
async def count(stream):
    async for value in stream:
        counts[value] += 1
"""


class Topics:
    """App that copies `a` and `b` without state, in one sub-topology, and counts `c`."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.name = f"t{uuid.uuid4().hex[:8]}"
        self.client = Client(bootstrap)
        for topic, partitions in (("a", 4), ("b", 2), ("c", 2)):
            self.client.create(f"{self.name}-{topic}", partitions)
        folder.mkdir()
        (folder / "mirror.py").write_text(APP.format(name=self.name))
        self.sent: list[bytes] = []

    def send(self, topic: str, *partitions: int) -> None:
        """Send a record to each partition."""
        for partition in partitions:
            value = b'"%s-%d %d"' % (topic.encode(), partition, len(self.sent))
            self.client.send(TopicPartition(f"{self.name}-{topic}", partition), [(None, value)])
            self.sent.append(value)

    @property
    def counts(self) -> dict[bytes | None, bytes | None]:
        """Return the count of each value, by the changelog."""
        log = f"{self.name}-counts-changelog"
        return {
            record.key: record.value
            for partition in range(2)
            for record in self.client.read(TopicPartition(log, partition))
        }

    @property
    def all_counted(self) -> bool:
        return self.counts.keys() == set(self.sent)

    @property
    def all_copied(self) -> bool:
        out = self.client.read(TopicPartition(f"{self.name}-out", 0))
        return sorted(self.sent) == sorted(record.value or b"" for record in out)


@pytest.fixture
def topics(broker: EmbeddedBroker | ApacheKafka, tmp_path: Path) -> Iterator[Topics]:
    made = Topics(broker.bootstrap, tmp_path / "workers")
    yield made
    made.client.close()


@pytest.fixture
def workers(
    broker: EmbeddedBroker | ApacheKafka, topics: Topics, tmp_path: Path
) -> Iterator[Workers]:
    with Workers(broker.bootstrap, tmp_path / "workers", app="mirror") as workers:
        yield workers


@SLOW_ON_KAFKA
def test_stateless_agent_reads_the_partitions_added_to_topics(
    workers: Workers, topics: Topics
) -> None:
    workers.start("w")
    topics.send("a", 0, 1, 2, 3)
    topics.send("b", 0, 1)
    workers.until(lambda: topics.all_copied, "copied")
    topics.client.grow(f"{topics.name}-b", 6)
    topics.send("b", 0, 1, 2, 3, 4, 5)
    workers.until(lambda: topics.all_copied, "copied from what is new")
    topics.send("a", 2, 3)
    workers.until(lambda: topics.all_copied, "copied by what began anew")
    assert workers.stop("w") == [0]


@SLOW_ON_KAFKA
def test_stateful_app_ends_when_the_source_topic_grows(workers: Workers, topics: Topics) -> None:
    workers.start("w", "v", log_level="warning")
    workers.until_event("task", of="w", to="running")
    workers.until_event("task", of="v", to="running")
    topics.client.grow(f"{topics.name}-c", 4)
    assert [workers.code("w"), workers.code("v")] == [2, 2]
    says = f"error: partition count changed: {topics.name}-c has 4 partitions, the state of table "
    assert workers.error("w").startswith(f"{says}counts was made for 2: read a new topic with 2")
    assert len(workers.events("left")) == 2
    workers.start("w")
    assert workers.code("w") == 2
    assert workers.error("w").startswith(says)


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_deleted_changelog_does_not_replace_local_state(workers: Workers, topics: Topics) -> None:
    """The changelog was created again without a message, and its few records replaced the state on
    the disk.
    """
    client, log = topics.client, f"{topics.name}-counts-changelog"
    workers.start("w", commit_interval="200ms")
    topics.send("c", 0, 1)
    workers.until_event("commit", of="w", records=2)
    assert workers.stop("w") == [0]
    client.delete(log)
    workers.start("w")
    assert workers.code("w") == 2
    assert workers.error("w").startswith(f"error: changelog is gone: topic {log}: the state of ")
    assert client.partitions(log) == 0
    client.create(log, 2, {"cleanup.policy": "compact"})
    says = (
        f"error: changelog was deleted and created again: topic {log}: the state of table counts in"
    )
    workers.start("v", "w")
    assert workers.code("w") == 2
    assert workers.error("w").startswith(says)
    workers.until_event("task", of="v", to="running", count=4)
    client.delete(log)
    client.create(log, 2, {"cleanup.policy": "compact"})
    assert workers.code("v") == 2
    assert workers.error("v").startswith(says)
    assert not list(workers.all["w"].state.glob("*/kept/*"))


@SLOW_ON_EMBEDDED
def test_recreated_topic_is_read_from_the_start_running_or_stopped(
    workers: Workers, topics: Topics
) -> None:
    """The first records of the new topic were skipped, because they stood before the offset of the
    old topic.
    """
    client, name = topics.client, f"{topics.name}-c"
    workers.start("w", commit_interval="200ms")
    topics.send("c", 0, 0, 0, 1, 1)
    workers.until(lambda: topics.all_counted, "counted")
    workers.until_event("commit", of="w")

    def make_anew() -> None:
        client.delete(name)
        client.create(name, 2)

    make_anew()
    topics.send("c", 0, 0, 0, 0, 0, 1)  # longer than the old one, and shorter
    workers.until(lambda: topics.all_counted, "counted of the new topic")
    assert workers.stop("w") == [0]
    make_anew()
    topics.send("c", 0, 0, 0, 0, 0, 0, 0, 1)
    workers.start("w", commit_interval="200ms")
    workers.until(lambda: topics.all_counted, "counted of the newest topic")
    assert workers.stop("w") == [0]
    assert set(topics.counts.values()) == {b"1"}
