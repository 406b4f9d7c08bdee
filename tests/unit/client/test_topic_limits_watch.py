"""Limits and growth of output topics: a worker follows those of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from streamsx.broker.api.served import answered
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.partitioner import partition_of
from streamsx.protocol.record_batch import columns
from streamsx.protocol.wire import Api
from tests.unit.conftest import app_of, words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamsx import App, Stream
    from streamsx.broker.groups.coordinator_events import ReplyBody
    from streamsx.broker.net.client_connection import ServedRequest
    from streamsx.broker.service import Service
    from tests.unit.conftest import VirtualCluster, WorkerHarness

T0 = TaskId(0, 0)
CHANGELOG = "t-kept-changelog"
HOUR_MS = 3_600_000
ALL_CONFIGS = 10
"""At least, where all are asked for."""


def sending(size: int, **settings: Any) -> App:
    """Return an app that sends and keeps this many bytes for each word."""
    app = app_of(**settings)
    out = app.topic("out", value_serializer="raw", key_type=str)
    kept = app.Table("kept", key_type=str, value_type=str)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def agent(stream: Stream[str]) -> None:
        async for word in stream:
            await out.send(key=word, value=b"x" * size)
            kept[word] = "y" * size

    return app


def make(bench: VirtualCluster, topic: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic with such configs, with underscores in place of dots."""
    service = bench.broker.service
    given = {name.replace("_", "."): value for name, value in configs.items()}
    topic_id = service.fresh_id().bytes
    bench.at_broker(lambda: service.topics.create(topic, topic_id, partitions, given))
    bench.run(0.01)


def configure(bench: VirtualCluster, topic: str, configs: Mapping[str, str]) -> None:
    topics = bench.broker.service.topics
    found = topics.by_name[topic]
    bench.at_broker(lambda: topics.configure(found, {**found.configs, **configs}))
    bench.run(0.01)


def begun(bench: VirtualCluster, app: App) -> WorkerHarness:
    station = bench.begun(app)
    station.hand.plan(T0)
    bench.until(lambda: "running" in station.states(T0))
    return station


def committed(bench: VirtualCluster) -> int:
    return bench.committed.get(words(0), (0,))[0]


def out(bench: VirtualCluster, partitions: int = 1) -> list[list[bytes | None]]:
    """Return the keys in each partition."""
    rows = [bench.read(TopicPartition("out", n)) for n in range(partitions)]
    return [[key for key, _ in found] for found in rows]


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if line.startswith("Record failed")]


def test_topics_with_small_limits_get_small_batches_from_the_start(bench: VirtualCluster) -> None:
    """An output and a changelog: each record fits, but not all of them in one batch."""
    make(bench, "out", max_message_bytes="20000")
    make(bench, CHANGELOG, 3, cleanup_policy="compact", max_message_bytes="20000")
    station = begun(bench, sending(1000))
    bench.feed(0, *(f"{n}" for n in range(100)))
    bench.until(lambda: committed(bench) == 100)
    assert len(out(bench)[0]) == 100
    assert len(bench.read(TopicPartition(CHANGELOG, 0))) == 100
    assert station.told("error") == []


def test_batches_are_split_when_a_topic_limit_is_lowered(bench: VirtualCluster) -> None:
    make(bench, "out")
    station = begun(bench, sending(1000))
    for topic in ("out", CHANGELOG):
        configure(bench, topic, {"max.message.bytes": "20000"})
    bench.feed(0, *(f"{n}" for n in range(100)))
    bench.until(lambda: committed(bench) == 100)
    assert [len(set(keys)) for keys in out(bench)] == [100]
    assert len(out(bench)[0]) == 100, "each of them once"
    assert station.told("error") == []


def test_large_records_pass_where_topics_allow_them(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    make(bench, "out", max_message_bytes="5000000")
    make(bench, CHANGELOG, 3, cleanup_policy="compact", max_message_bytes="5000000")
    begun(bench, sending(2_000_000))
    bench.feed(0, "a", "b")
    bench.until(lambda: committed(bench) == 2)
    assert out(bench) == [[b"a", b"b"]]
    assert [len(value or b"") for _, value in bench.read(TopicPartition(CHANGELOG, 0))] == [
        2_000_002, 2_000_002,
    ]  # fmt: skip
    assert failures(caplog) == []


@pytest.mark.parametrize(
    ("limit", "good", "bad"), [(5_000_000, 2_000_000, 6_000_000), (20_000, 9_000, 30_000)]
)
def test_row_over_the_changelog_limit_fails_only_one_record(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture, limit: int, good: int, bad: int
) -> None:
    """In a rerun after a refused row all topics had a limit of 1 MB."""
    make(bench, CHANGELOG, 3, cleanup_policy="compact", max_message_bytes=f"{limit}")
    app = app_of()
    table = app.Table("kept", key_type=str, value_type=str)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def agent(stream: Stream[str]) -> None:
        async for word in stream:
            table[word] = "x" * (bad if word == "bad" else good)

    begun(bench, app)
    bench.feed(0, "a", "bad", "b")
    bench.until(lambda: committed(bench) == 3)
    assert [key for key, _ in bench.read(TopicPartition(CHANGELOG, 0))] == [b'"a"', b'"b"']
    (line,) = failures(caplog)
    assert "value too large: store kept, key 'bad'" in line


def test_record_over_the_topic_limit_fails_with_the_limit_named(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    make(bench, "out", max_message_bytes="5000")
    begun(bench, sending(6000))
    bench.feed(0, "a")
    bench.run(3)
    (line,) = failures(caplog)
    assert "record too large: out" in line
    assert "the limit is 5000 (max.message.bytes of the topic): split it, or raise that" in line


def test_raised_topic_limit_is_seen_after_the_first_refused_record(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    make(bench, "out", max_message_bytes="5000")
    begun(bench, sending(6000, consecutive_failures_max=None))
    configure(bench, "out", {"max.message.bytes": "10000"})
    bench.run(6)
    bench.feed(0, "a")
    bench.run(2)
    bench.feed(0, "b")
    bench.until(lambda: out(bench) == [[b"b"]])
    assert len(failures(caplog)) == 1


def test_worker_unable_to_describe_topics_learns_limits_from_refusals(
    bench: VirtualCluster,
) -> None:
    make(bench, "out", max_message_bytes="20000")
    make(bench, CHANGELOG, 3, cleanup_policy="compact", max_message_bytes="20000")

    def silent(service: Service, call: ServedRequest) -> ReplyBody | None:
        body = answered(service, call)
        if call.api is Api.DESCRIBE_CONFIGS and body is not None:
            for result in body["results"]:
                if len(result["configs"]) < ALL_CONFIGS:  # the producers' question
                    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    result |= {"error_code": code, "configs": []}
        return body

    bench.answer = silent
    station = begun(bench, sending(1000))
    bench.feed(0, *(f"{n}" for n in range(100)))
    bench.until(lambda: committed(bench) == 100)
    assert sorted(out(bench)[0], key=str) == sorted((b"%d" % n for n in range(100)), key=str)
    assert station.told("error") == []


def test_changelog_rows_of_records_from_the_future_get_the_current_time(
    bench: VirtualCluster,
) -> None:
    make(bench, "out", message_timestamp_after_max_ms=f"{2**63 - 1}")
    station = begun(bench, sending(10))
    bench.feed(0, "a", at_ms=10**15)
    bench.until(lambda: committed(bench) == 1)
    now_ms = int(station.process.clock.wall() * 1000)
    log = bench.log(TopicPartition(CHANGELOG, 0))
    times = columns(log.read(0, 1 << 20), 0).timestamps
    assert times
    assert all(abs(time - now_ms) < HOUR_MS for time in times)


def test_keys_go_to_new_partitions_soon_after_a_topic_grows(bench: VirtualCluster) -> None:
    make(bench, "out", 2)
    begun(bench, sending(10))
    bench.grow("out", 4)
    bench.run(6)
    names = [f"{n}" for n in range(40)]
    bench.feed(0, *names)
    bench.until(lambda: committed(bench) == 40)
    wanted: list[list[bytes | None]] = [[], [], [], []]
    for name in names:
        wanted[partition_of(name.encode(), 4)].append(name.encode())
    assert out(bench, 4) == wanted
