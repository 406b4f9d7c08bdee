"""Registry of metrics, and the metrics that a worker and a broker feed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamsx.errors import Bug
from streamsx.metrics import LATENCY_BOUNDS_S, Counter, Gauge, Metric, MetricRegistry, Sample
from streamsx.model import TaskId
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from tests.unit.conftest import app_of
from tests.unit.tasks.test_produce_errors import refusing

if TYPE_CHECKING:
    from streamsx import App, Stream
    from streamsx.broker.groups.coordinator_events import ReplyBody
    from streamsx.broker.net.client_connection import ServedRequest
    from streamsx.broker.service import Service
    from tests.unit.conftest import VirtualCluster

T0 = TaskId(0, 0)
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
ROW = re.compile(r"^\| `(streamsx_\w+)` \|", re.MULTILINE)


def test_counter_counts_each_combination_of_label_values() -> None:
    registry = MetricRegistry()
    counter = registry.counter("requests_total", "Requests.", labels=("api", "result"))
    assert list(counter.samples()) == []
    counter.add(2, "produce", "ok")
    counter.add(1, "fetch", "ok")
    counter.add(3, "produce", "ok")
    assert (counter.value("produce", "ok"), counter.value("join", "ok"), counter.total()) == (
        5,
        0,
        6,
    )
    assert list(registry.samples()) == [
        Sample("streamsx_requests_total", (("api", "fetch"), ("result", "ok")), 1),
        Sample("streamsx_requests_total", (("api", "produce"), ("result", "ok")), 5),
    ]


def test_counter_without_labels_is_shown_from_the_start() -> None:
    registry = MetricRegistry("x_")
    counter = registry.counter("sent_bytes_total", "Bytes.", unit="bytes")
    assert list(registry.samples()) == [("x_sent_bytes_total", (), 0)]
    counter.add(7)
    assert counter.value() == counter.total() == 7


@pytest.mark.parametrize("values", [(), ("produce", "ok")])
def test_wrong_number_of_label_values_is_a_bug(values: tuple[str, ...]) -> None:
    counter = MetricRegistry().counter("requests_total", "Requests.", labels=("api",))
    with pytest.raises(Bug, match="streamsx_requests_total"):
        counter.add(1, *values)
    assert list(counter.samples()) == []


def test_gauge_is_asked_at_each_reading() -> None:
    registry = MetricRegistry()
    open_files = [1]
    registry.gauge("files", "Open files.", lambda: len(open_files))
    assert [sample.value for sample in registry.samples()] == [1]
    open_files.append(2)
    assert [sample.value for sample in registry.samples()] == [2]


def test_histogram_buckets_are_cumulative_and_include_their_bounds() -> None:
    registry = MetricRegistry()
    latency = registry.latency("commit_seconds", "Time of a commit.")
    assert (latency.mean, latency.max) == (0.0, 0.0)
    for seconds in (0.0, 0.005, 0.006, 60.0, 61.0):
        latency.observe(seconds)
    assert (latency.count, latency.max) == (5, 61.0)
    assert latency.sum == latency.mean * 5 == pytest.approx(121.011)
    *buckets, total, count = registry.samples()
    assert {sample.name for sample in buckets} == {"streamsx_commit_seconds_bucket"}
    assert [dict(sample.labels)["le"] for sample in buckets] == [
        *(f"{bound:g}" for bound in LATENCY_BOUNDS_S), "+Inf",
    ]  # fmt: skip
    assert [sample.value for sample in buckets] == [2, *[3] * 11, 4, 5]
    assert total == ("streamsx_commit_seconds_sum", (), latency.sum)
    assert count == ("streamsx_commit_seconds_count", (), 5)


@pytest.mark.parametrize(
    ("name", "unit"),
    [("requests", ""), ("sent_total", "bytes"), ("Sent_total", ""), ("first-total", "")],
)
def test_counter_with_a_name_of_another_form_is_a_bug(name: str, unit: str) -> None:
    with pytest.raises(Bug, match=f"metric (streamsx_)?{name}: "):
        MetricRegistry().counter(name, "Something.", unit=unit)


def test_metric_declared_twice_is_a_bug() -> None:
    registry = MetricRegistry()
    registry.gauge("tasks", "Tasks.", lambda: 1)
    with pytest.raises(Bug, match="streamsx_tasks: declared twice"):
        registry.gauge("tasks", "Tasks.", lambda: 2)
    assert len(registry.metrics()) == 1


# -- a worker and a broker


def failing() -> App:
    """Counts words and fails on some; its agent and its timer send records that are refused.

    Words have no keys, and the bad ones come late.
    """
    app = app_of(on_produce_error="log", on_error="retry(2, 10ms, log)")
    out = app.topic("out", partitions=1, value_type=str, value_serializer="raw")
    counts = app.Table("counts", default=int, key_type=str, value_type=int)

    words = app.topic("words", value_type=str, value_serializer="raw")
    times = {"good": 100, "bad": 10}
    late = app.flow(words, timestamp=times.get).deduplicate(key=str, within=1, name="seen")
    late.group_by_key().count("without-a-key")

    @app.agent(words)
    async def agent(stream: Stream[str]) -> None:
        async for word in stream:
            if word == "bad":
                raise ValueError(word)
            counts[word] += 1
            await out.send(key=word, value=word)

    @app.timer(interval=1.0)
    async def tick() -> None:
        await out.send(key="tick", value="tick")

    return app


class Answers:
    """Broker that refuses all records of `out`, and answers other requests as a test wants."""

    def __init__(self) -> None:
        self.next: dict[Api, ErrorCode | Exception] = {}
        """Error that the next request gets, or its handler raises."""
        self._others = refusing(ErrorCode.INVALID_RECORD, "out", lambda _: True)

    def __call__(self, service: Service, call: ServedRequest) -> ReplyBody | None:
        wrong = self.next.pop(call.api, None)
        if isinstance(wrong, Exception):
            raise wrong
        return self._others(service, call) if wrong is None else {"error_code": wrong}


def fed(metric: Metric) -> bool:
    """Return whether a metric has been fed; a gauge must have an answer."""
    if isinstance(metric, Gauge):
        return metric.value() >= 0
    return metric.total() > 0 if isinstance(metric, Counter) else metric.count > 0


def test_worker_and_broker_feed_each_metric_that_they_declare(bench: VirtualCluster) -> None:
    """A counter without a feed shows zero for ever, as if all were well."""
    bench.create("out", 1)
    answers = bench.answer = Answers()
    answers.next[Api.JOIN_GROUP] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    answers.next[Api.FETCH] = ValueError("planted")
    station = bench.station(failing(), by_hand=False)
    bench.until(lambda: "running" in station.states(T0))
    for word in ("good", "bad", "good"):
        bench.feed(0, word)
    other = bench.station(failing(), "w2", by_hand=False)
    bench.until(lambda: "running" in other.states(T0))
    answers.next[Api.HEARTBEAT] = ErrorCode.UNKNOWN_MEMBER_ID
    bench.until(lambda: station.told("lost"))
    bench.run(10)

    for registry in (station.metrics, bench.broker.metrics):
        unfed = [metric.declared.name for metric in registry.metrics() if not fed(metric)]
        assert unfed == []


def test_each_metric_of_a_worker_and_a_broker_is_listed_in_the_architecture(
    bench: VirtualCluster,
) -> None:
    station = bench.begun(failing())
    metrics = (*station.metrics.metrics(), *bench.broker.metrics.metrics())
    assert all(metric.declared.help.endswith(".") for metric in metrics)
    assert sorted(ROW.findall(PAGE.read_text())) == sorted(each.declared.name for each in metrics)
