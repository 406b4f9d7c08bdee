"""Next records of the source, by options and offsets; without Spark."""

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from streamsx.client.admin import Bounds
from streamsx.errors import SettingError, TopicGone
from streamsx.model import TopicPartition
from streamsx.spark.reading import TopicRange
from streamsx.spark.source import (
    OffsetsJson,
    SourceOptions,
    StreamReader,
    TopicBounds,
    advanced,
    planned,
)
from streamsx.state.snapshot import Manifest, Position, commit, newest
from streamsx.state.snapshot_files import open_files
from streamsx.testing import Broker
from tests.support.client import Client

THERE = TopicBounds(
    {
        TopicPartition("a", 0): Bounds(5, 10),
        TopicPartition("a", 1): Bounds(0, 0),
        TopicPartition("b", 0): Bounds(0, 7),
    }
)


def asked(**options: str) -> SourceOptions:
    return SourceOptions({"Subscribe": "a, b", **options})


def test_each_topic_is_a_task_unless_tasks_option_groups_topics() -> None:
    assert asked().tasks == [["a"], ["b"]]
    assert asked(tasks='[["b", "a"]]').tasks == [["b", "a"]]
    assert SourceOptions({"subscribe": "a,b,c", "tasks": '[["c", "a"]]'}).tasks == [
        ["c", "a"],
        ["b"],
    ]
    assert SourceOptions({"subscribe": "a,b,a"}).tasks == [
        ["a"],
        ["b"],
    ]  # or it would be read twice


@pytest.mark.parametrize(
    "tasks", ['[["a", "b"], ["a"]]', '[["x"]]', "[[", "5", '{"a": 5}', '["a"]', "[[5]]"]
)
def test_invalid_tasks_option_is_refused(tasks: str) -> None:
    with pytest.raises(SettingError, match="option tasks"):
        _ = asked(tasks=tasks).tasks


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("earliest", {"a": {"0": 5, "1": 0}, "b": {"0": 0}}),
        ("latest", {"a": {"0": 10, "1": 0}, "b": {"0": 7}}),
        ('{"a": {"0": 8}}', {"a": {"0": 8, "1": 0}, "b": {"0": 0}}),
        ('{"a": {"0": -1}, "b": {"0": -2}}', {"a": {"0": 10, "1": 0}, "b": {"0": 0}}),
    ],
)
def test_offset_options_follow_kafka_connector_format(text: str, offsets: OffsetsJson) -> None:
    assert asked(startingOffsets=text).place("startingOffsets", "earliest", THERE) == offsets


@pytest.mark.parametrize(
    "text", ['{"a": {"7": 0}}', '{"c": {"0": 0}}', "soon", "[5]", '{"a": 5}', '{"a": {"0": "x"}}']
)
def test_invalid_offsets_option_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="option endingOffsets"):
        asked(endingOffsets=text).place("endingOffsets", "latest", THERE)


def test_missing_subscribe_option_is_refused() -> None:
    with pytest.raises(SettingError, match="option subscribe is missing"):
        _ = SourceOptions({}).topics


def test_topics_of_task_form_one_range_and_empty_ranges_are_left_out() -> None:
    end = {"a": {"0": 10, "1": 4}, "b": {"0": 7}, "c": {"0": 1}}
    start = {"a": {"0": 5, "1": 4}, "b": {"0": 0}, "c": {"0": 0}}
    found = planned([["a", "b"], ["c"]], start, end, {"a": {0: 99}})
    assert [(each.number, each.stretches) for each in found] == [
        (0, [TopicRange("a", 5, 10, 99), TopicRange("b", 0, 7, -1)]),
        (0, [TopicRange("c", 0, 1, -1)]),
    ]


@pytest.mark.parametrize(
    ("most", "ends"),
    [
        (None, (100, 10, 3)),
        (500, (100, 10, 3)),
        (50, (45, 4, 1)),  # of 44.2, 4.4 and 1.3, and one more
        (1, (1, 1, 1)),
        (-5, (1, 1, 1)),
        (113, (100, 10, 3)),
    ],
)
def test_offset_limit_is_shared_among_partitions(
    most: int | None, ends: tuple[int, int, int]
) -> None:
    end = {"a": {"0": 100, "1": 10}, "b": {"0": 3}}
    start = {"a": {"0": 0, "1": 0}, "b": {"0": 0}}
    found = advanced(start, end, most)
    assert (found["a"]["0"], found["a"]["1"], found["b"]["0"]) == ends


def test_offset_limit_is_kept_and_every_end_is_reached() -> None:
    at, end = {"a": {"0": 0, "1": 9}}, {"a": {"0": 23, "1": 10}}
    for _ in range(5):
        at, before = advanced(at, end, 5), at
        moved = [at["a"][n] - before["a"][n] for n in "01"]
        assert 0 < sum(moved) <= 5
    assert at == end


def test_small_partition_advances_while_large_one_lags() -> None:
    at, end = {"a": {"0": 0}, "b": {"0": 0}}, {"a": {"0": 1000}, "b": {"0": 5}}
    for _ in range(5):
        at = advanced(at, end, 10)
        end["a"]["0"] += 1000
    assert at["b"] == {"0": 5}


def test_recreated_topic_raises_topic_gone() -> None:
    """The topic would be skipped until it has as many records as before."""
    with pytest.raises(TopicGone, match=r"a-0 end before .*: start with a new checkpoint"):
        advanced({"a": {"0": 8}}, {"a": {"0": 3}}, None)


@pytest.mark.parametrize("text", ["lots", "1.5", "[]"])
def test_invalid_offset_limit_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="option maxOffsetsPerTrigger"):
        StreamReader(asked(maxOffsetsPerTrigger=text)).getDefaultReadLimit()


def test_records_before_available_now_query_starts_are_not_skipped() -> None:
    """Spark asks where to begin after it has told where to end."""
    with Broker(topics={"a": 1}) as broker:
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "a"}
        reader = StreamReader(SourceOptions({**given, "startingOffsets": "latest"}))
        reader.prepareForTriggerAvailableNow()
        client = Client(broker.bootstrap)
        client.send(TopicPartition("a", 0), [(None, b"late")])
        client.close()
        start = reader.initialOffset()
        assert reader.latestOffset(start, ReadAllAvailable()) == start == {"a": {"0": 0}}
        assert reader.partitions(start, start) == []


def test_order_continues_from_newest_snapshot(tmp_path: Path) -> None:
    uri = str(tmp_path)
    assert asked(state=uri).highs() == asked().highs() == {}
    files = open_files(uri)
    for number, high in enumerate((7, 9)):
        at = {"a": {1: Position(5, 10, high)}}
        made = Manifest("app", "t", number, "r", "run", 0, positions=at)
        commit(files, made, before=newest(files))
    assert asked(state=uri).highs() == {"a": {1: 9}}
