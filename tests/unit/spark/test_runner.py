"""spark/runner.py, as far as it only decides; what it does with Spark is in tests/spark."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from streamsx.errors import (
    BrokerUnreachable,
    SettingError,
    SparkGone,
    StreamsxError,
    TaskFailed,
    TopicGone,
    UsageError,
)
from streamsx.spark import checkout
from streamsx.spark.runner import sink_of
from streamsx.spark.session import translate_error
from streamsx.state.snapshot import Position
from tests.unit.spark.conftest import Batches, fed

if TYPE_CHECKING:
    from streamsx.state.snapshot import Part

Make = Callable[..., Batches]


def test_store_left_out_of_changelog_once_stays_unpublished(batches: Make) -> None:
    made = batches("tests.unit.spark.apps:keeper", edits=1)
    log = made.stages[0].subtopology.stores[0].changelog

    def batch(key: str, published: dict[int, int]) -> int | None:
        made.published = {log: published} if published else {}
        rows = made.rows([fed("edits", 1, key, "1")])
        return made.batch(rows).stores["kept"].partitions[0].changelog_next

    assert [batch("a", {0: 1}), batch("b", {0: 2}), batch("c", {}), batch("d", {0: 4})] == [
        1, 2, None, None,
    ]  # fmt: skip


def test_unpublished_rows_without_timestamp_are_in_no_changelog(batches: Make) -> None:
    made = batches("tests.unit.spark.apps:keeper", edits=1)
    log = made.stages[0].subtopology.stores[0].changelog
    for key, published in (("a", {}), ("b", {0: 1})):
        made.published = {log: published} if published else {}
        kept = made.batch(made.rows([fed("edits", 1, key, "1", -1)])).stores["kept"]
        assert kept.partitions[0].changelog_next is None


def test_rows_numbered_by_runner_do_not_move_kafka_positions(batches: Make) -> None:
    made = batches("tests.unit.spark.apps:keeper", edits=1)
    made.more = {"numbered": frozenset({"edits"})}
    rows = made.rows([fed("edits", 1, "a", "1", 7), fed("edits", 1, "b", "1", 5)])
    made.batch([{**row, "offset": 0} for row in rows])
    assert made.reports[0].records == 2
    manifest = made.work().base
    assert manifest is not None
    assert manifest.positions["edits"][0] == Position(0, 7, 7)


TRACE = """An exception was thrown from the Python worker.
Traceback (most recent call last):
  File "task.py", line 1, in take
streamsx.errors.TaskFailed: record failed: orders-0 offset 7: stop

During handling
streamsx.errors.TopicGone: records are gone: a-0
"""


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (Exception(TRACE), TopicGone, "records are gone: a-0"),
        (Exception(TRACE.partition("During")[0]), TaskFailed, "record failed: orders-0 offset"),
        (
            Exception("x [PATH_NOT_FOUND] Path: file:/a SQLSTATE"),
            UsageError,
            "spark: [PATH_NOT_FOUND] Path: file:/a",
        ),
        (Exception("streamsx.errors.NoSuch: gone"), StreamsxError, "gone"),
        (BrokerUnreachable("no broker"), BrokerUnreachable, "no broker"),
        (ConnectionRefusedError(111, "Connection refused"), SparkGone, "its JVM has ended"),
        (Py4JNetworkError("Answer from Java side is empty"), SparkGone, "its JVM has ended"),
        (ValueError("[INTERNAL_ERROR] x"), ValueError, "INTERNAL"),
    ],
)
def test_error_wrapped_by_spark_is_unwrapped(
    error: Exception, kind: type[Exception], text: str
) -> None:
    assert type(found := translate_error(error)) is kind
    assert text in str(found)


def test_unknown_sink_is_refused() -> None:
    with pytest.raises(SettingError, match="'kafak': write kafka, noop or parquet=DIR"):
        sink_of("kafak", {})


def test_recreated_changelog_invalidates_published_positions(batches: Make) -> None:
    made = batches("tests.unit.spark.apps:keeper", edits=2)
    log = made.stages[0].subtopology.stores[0].changelog

    def batch(partition: int, changelog_id: str | None) -> tuple[str | None, list[int | None]]:
        made.ids = {log: changelog_id}
        made.published = {log: {partition: 7}}
        key = {0: "b", 1: "a"}[partition]
        rows = made.rows([fed("edits", 2, key, "1")._replace(partition=partition)])
        kept = made.batch(rows).stores["kept"]
        return kept.changelog_id, [kept.partitions[n].changelog_next for n in range(2)]

    assert batch(0, "one") == ("one", [7, None])
    assert batch(1, "one") == ("one", [7, 7])
    assert batch(0, None) == ("one", [7, 7])  # nobody said
    assert batch(1, "two") == ("two", [None, None])


def test_changelog_holding_earlier_rows_is_not_whole(batches: Make) -> None:
    made = batches("tests.unit.spark.apps:keeper", edits=1)
    log = made.stages[0].subtopology.stores[0].changelog
    made.filled = {(log, 0)}
    for key, end in (("a", 8), ("b", 9)):
        made.published = {log: {0: end}}
        kept = made.batch(made.rows([fed("edits", 1, key, "1")])).stores["kept"]
        assert kept.partitions[0].changelog_next is None


def test_tombstone_for_unkept_key_advances_changelog(batches: Make) -> None:
    made = batches("tests.unit.spark.apps:keeper", edits=1)
    log = made.stages[0].subtopology.stores[0].changelog
    ends = []
    for end in (1, 2):
        made.published = {log: {0: end}}
        rows = made.rows([fed("edits", 1, "b", "1"), fed("edits", 1, "b", "delete")])
        ends.append(made.batch(rows).stores["kept"].partitions[0])
    assert ends == [((), 1), ((), 2)]


def test_changelog_lacking_tombstones_stays_incomplete(
    batches: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = batches("tests.unit.spark.apps:keeper", edits=1)
    log = made.stages[0].subtopology.stores[0].changelog
    monkeypatch.setattr(checkout, "CHAIN_MAX", 1)
    parts: list[Part] = []
    for key, word, published in (("a", "1", {0: 1}), ("a", "delete", {}), ("b", "1", {0: 2})):
        made.published = {log: published} if published else {}
        made.filled = {(log, 0)} if parts else set()
        rows = made.rows([fed("edits", 1, key, word)])
        parts.append(made.batch(rows).stores["kept"].partitions[0])
    assert [bool(part.chain) for part in parts] == [True, False, True]
    assert [part.changelog_next for part in parts] == [1, None, None]
