"""spark/task.py: a worker's task over files and Arrow gives what a TestDriver gives, in any cut."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from streamsx.errors import NotOnSpark, TaskFailed, TaskStopped, UsageError, ValueRefused
from streamsx.processing.failure_policy import FailureAction, Policy
from streamsx.spark.checkout import discard_all
from streamsx.spark.plan import INNER, LOG, OUT
from streamsx.spark.rows import ROWS
from streamsx.spark.task import RUN_ROWS, TaskReport, run_task
from streamsx.state.snapshot import Position, commit, to_json
from streamsx.testing import TestDriver
from streamsx.topology.nodes import reader_name
from tests.unit.spark import apps
from tests.unit.spark.conftest import Batches, Fed, Row, driven, fed, merged

Make = Callable[..., Batches]
APPS = "tests.unit.spark.apps"


def lines(count: int) -> list[Fed]:
    draw = random.Random(count)
    words = [f"w{n}" for n in range(40)]
    made = []
    for at in range(count):
        text = " ".join(draw.choices(words, k=5))
        made.append(Fed("wordcount-lines", at % 2, at, None, text.encode()))
    return made


def orders(count: int) -> list[Fed]:
    draw = random.Random(count)
    return [
        Fed(
            "orders", draw.randrange(2), draw.randrange(1000), None,
            orjson.dumps({"user": f"u{draw.randrange(30)}", "amount": n}),
        )
        for n in range(count)
    ]  # fmt: skip


def pairs(count: int) -> list[Fed]:
    """Out of order, and with headers."""
    draw = random.Random(count)
    return [
        Fed(
            draw.choice(["lefts", "rights"]), draw.randrange(2), at + draw.randrange(-9, 9) + 9,
            None, draw.choice("abcdef").encode(),
            ((("from", b"%d" % at),) if draw.random() < 0.5 else ()),
        )
        for at in range(count)
    ]  # fmt: skip


def edits(count: int) -> list[Fed]:
    draw = random.Random(count)
    values = ["1", "22", "333", "delete", "delete"]
    return [fed("edits", 2, f"k{draw.randrange(25)}", draw.choice(values), n) for n in range(count)]


WORDS = {"wordcount-lines": 2, "wordcount-words": 2}
CASES: dict[str, tuple[str, dict[str, int], list[Fed]]] = {
    "words": ("streamsx.examples.wordcount", WORDS, lines(120)),
    "group_by": (f"{APPS}:grouped", {}, orders(300)),
    "two topics": (f"{APPS}:paired", {}, merged(pairs(300))),
    "tombstones": (f"{APPS}:keeper", {}, edits(300)),
}


@pytest.mark.parametrize("cuts", [1, 7, 50])
@pytest.mark.parametrize("case", CASES)
def test_any_number_of_batches_equals_test_driver_result(
    batches: Make, case: str, cuts: int
) -> None:
    name, counts, records = CASES[case]
    made = batches(name, **counts)
    rows = made.rows(records)
    size = -(-len(rows) // cuts)
    for at in range(0, len(rows), size):
        made.batch(rows[at : at + size])
    stored = made.stored()
    assert len(stored) > 1
    assert stored == driven(made.app, records, counts)


# -- attempts


def test_repeated_batch_gives_same_rows_and_counts_once(batches: Make) -> None:
    made = batches("streamsx.examples.wordcount", **WORDS)
    records = lines(60)
    rows = made.rows(records)
    made.batch(rows[:40])
    work, first = made.work(), made.stages[0]
    once, again = (made.task(work, first, 1, rows[40:]) for _ in range(2))
    assert [row for row in once if row["kind"] != "meta"] == [
        row for row in again if row["kind"] != "meta"
    ]
    made.batch(rows[40:])
    made.batch(rows[20:])  # a source that starts too early
    assert sum(report.records for report in made.reports if report.stage == 0) == len(rows)
    assert made.stored() == driven(made.app, records, WORDS)


def test_failed_attempt_after_spill_leaves_no_trace(batches: Make) -> None:
    made = batches(f"{APPS}:keeper")
    records = edits(200)
    rows = made.rows(records)
    made.batch(rows[:100])
    work = replace(made.work(), task_bytes=1)
    mine = [row for row in rows[100:] if row["partition"] == 0]

    def torn() -> Any:
        yield pa.RecordBatch.from_pylist(mine[:10], ROWS)
        yield pa.RecordBatch.from_pylist(mine[10:20], ROWS)
        raise ConnectionError("the executor is gone")

    with pytest.raises(ConnectionError):
        list(run_task(work, 0, torn()))
    made.batch(rows[100:])
    assert made.stored() == driven(made.app, records, {})


@pytest.mark.parametrize("chunk", [1, 7])
def test_state_beyond_memory_limit_is_spilled(batches: Make, chunk: int) -> None:
    made = batches(f"{APPS}:keeper")
    made.chunk, made.more = chunk, {"task_bytes": 1}
    records = edits(160)
    rows = made.rows(records)
    made.batch(rows[:100])
    made.batch(rows[100:])
    assert made.stored() == driven(made.app, records, {})
    logged = [row for row in made.outs if row["kind"] == LOG]
    assert len(logged) > sum(len(entries) for entries in made.stored().values())
    newest = {(row["partition"], row["key"]): row["value"] for row in logged}
    live = {(place, key): value for (place, key), value in newest.items() if value is not None}
    assert live == {
        (place, key[1:]): value
        for (_, place), entries in made.stored().items()
        for key, value in entries
    }


def test_output_within_one_chunk_is_sent_before_chunk_ends(batches: Make) -> None:
    made = batches(f"{APPS}:grouped")
    chunk = [each._replace(partition=0) for each in orders(2500)]
    batch = pa.RecordBatch.from_pylist(made.rows(chunk), ROWS)
    sent = list(run_task(replace(made.work(), task_bytes=1), 0, [batch]))
    assert [each.num_rows for each in sent if each["kind"][0].as_py() == INNER] == [
        RUN_ROWS
    ] * 2 + [500]
    keeper = batches(f"{APPS}:keeper")
    chunk = [each._replace(partition=0) for each in edits(2500)]
    batch = pa.RecordBatch.from_pylist(keeper.rows(chunk), ROWS)
    *_, last = run_task(replace(keeper.work(), task_bytes=1), 0, [batch])
    report = TaskReport.from_json(last.column("meta")[0].as_py())
    assert (len(report.chains["kept"]), report.records) == (3, 2500)


def test_chain_is_restarted_before_length_limit(batches: Make) -> None:
    """Without tombstones, of which nothing below is left to be hidden."""
    made = batches(f"{APPS}:keeper")
    records = [fed("edits", 2, "often", str(n), n) for n in range(20)]
    records[10:10] = [fed("edits", 2, "often", "delete"), fed("edits", 2, "never", "delete")]
    place = records[0].partition
    records = [each._replace(partition=place) for each in records]
    lengths = []
    for row in made.rows(records):
        chain = made.batch([row]).stores["kept"].partitions[place].chain
        assert [file.full for file in chain] == [True] + [False] * (len(chain) - 1)
        lengths.append(len(chain))
        discard_all()
    assert max(lengths) <= 16
    assert lengths.count(1) > 1
    assert made.stored() == driven(made.app, records, {})


def test_store_with_all_rows_deleted_has_no_files(batches: Make) -> None:
    made = batches(f"{APPS}:keeper")
    one = fed("edits", 2, "one", "1")
    first = made.batch(made.rows([one])).stores["kept"].partitions[one.partition].chain
    made.more = {}
    chain = first
    while chain:
        chain = (
            made.batch(made.rows([one._replace(value=b"delete")]))
            .stores["kept"]
            .partitions[one.partition]
            .chain
        )
    assert made.stored() == {}
    made.batch(made.rows([one]))
    assert made.stored() == driven(made.app, [one], {})


# -- what it says of itself, what it sends


def test_task_report_holds_positions_and_counts(batches: Make) -> None:
    made = batches("streamsx.examples.wordcount", **WORDS)
    made.batch(made.rows([Fed("wordcount-lines", 1, 7, None, b"a b a")]))
    split, *counted = made.reports
    assert (split.stage, split.partition, split.records, split.outputs) == (0, 1, 1, 3)
    assert split.positions == {"wordcount-lines": Position(1, 7, 7)}
    assert (split.chains, split.failed, split.failures) == ({}, 0, ())
    assert sum(each.records for each in counted) == 3
    assert sum(row["kind"] == LOG for row in made.outs) == 2
    assert all(set(each.chains) == {"counts"} for each in counted)
    assert TaskReport.from_json(to_json(counted[0]).decode()) == counted[0]
    words = [row for row in made.outs if row["topic"] == "wordcount-words"]
    assert {row["kind"] for row in words} == {INNER}
    assert [row["offset"] - (1 << 40) for row in words] == [0, 1, 2]
    assert all(row["timestamp"] == 7 for row in words)


def test_inner_rows_are_numbered_across_batches(batches: Make) -> None:
    made = batches("streamsx.examples.wordcount", **WORDS)
    for n in (1, 2, 3):
        manifest = made.batch(made.rows([Fed("wordcount-lines", 0, 0, None, b"a a")]))
        (position,) = manifest.positions["wordcount-words"].values()
        assert position.next == 2 * n


def test_output_records_carry_headers_and_partition_within_limits(batches: Make) -> None:
    made = batches(f"{APPS}:waiter")
    values = [b'"log"', b'"large"', b'"log"']
    made.batch(made.rows([Fed("requests", 0, 5, None, value) for value in values]))
    out = [row for row in made.outs if row["kind"] == OUT]
    assert [(row["value"], row["headers"], row["partition"]) for row in out] == [
        (b"log", [{"key": "h", "value": b"1"}], 0)
    ] * 2
    (report,) = made.reports
    assert report.failed == 1
    assert "record too large: requests-log" in report.failures[0]


# -- what fails


def one(made: Batches, *values: bytes, **more: Any) -> None:
    """A batch of the first topic."""
    (topic,) = made.stages[0].external
    made.more = more
    made.batch(made.rows([Fed(topic, 0, 0, b"key", value) for value in values]))


def test_failed_record_is_skipped_and_reported(batches: Make) -> None:
    """Nothing holds the position there: the source has moved on."""
    made = batches(f"{APPS}:keeper")
    one(made, b"1", b"boom", b"2", b"boom", b"boom")
    (report,) = made.reports
    assert (report.failed, report.positions["edits"].next) == (3, 5)
    assert report.failures[0] == "record failed: edits-0 offset 1, task 0_0, keep: ValueError: boom"
    one(made, b"3")
    assert made.reports[-1].records == 1
    records = [Fed("edits", 0, 0, b"key", value) for value in (b"1", b"boom", b"2", b"3")]
    assert made.stored() == driven(made.app, records, {}, raises=False)


def test_failed_record_is_a_dead_letter_among_the_outputs(batches: Make) -> None:
    made = batches(f"{APPS}:burying")
    one(made, b"1", b"boom", policy=Policy(dead_letters="burying-dlq"))
    (row,) = (row for row in made.outs if row["topic"] == "burying-dlq")
    assert (row["kind"], row["key"], row["value"]) == (OUT, b"key", b"boom")
    headers = {header["key"]: header["value"] for header in row["headers"]}
    assert headers["__streams.errors.offset"] == b"1"


def test_stop_policy_or_failures_in_a_row_end_attempt(batches: Make) -> None:
    made = batches(f"{APPS}:keeper")
    with pytest.raises(TaskFailed, match="edits-0 offset 1, task 0_0, keep: ValueError"):
        one(made, b"1", b"boom", policy=Policy(FailureAction.STOP))
    made.offsets.clear()
    with pytest.raises(TaskStopped, match="10 records in a row"):
        one(made, *[b"boom"] * 10)
    assert made.work().base is None


def test_unencodable_value_fails_record_on_second_attempt(
    batches: Make,
) -> None:
    made = batches(f"{APPS}:keeper")
    rows = made.rows([Fed("edits", 0, 0, b"k", value) for value in (b"1", b"set", b"2", b"set")])
    batch = pa.RecordBatch.from_pylist(rows, ROWS)
    with pytest.raises(ValueRefused):
        list(run_task(made.work(), 0, [batch]))
    *_, last = run_task(made.work(), 0, [batch], careful=True)
    report = TaskReport.from_json(last.column("meta")[0].as_py())
    assert (report.failed, report.records) == (2, 4)
    with TestDriver(made.app, raises=False) as driver:
        driver.pipe("edits", [("k", value) for value in ("1", "set", "2", "set")], partition=0)
        assert len(driver.failures) == 2
    for alike, line in zip(driver.failures, report.failures, strict=True):
        assert line.startswith(f"record failed: {alike.place}, keep: ValueRefused: value does not")


def test_body_awaiting_outside_event_is_refused_with_line(batches: Make) -> None:
    made = batches(f"{APPS}:waiter")
    one(made, b'"thread"', b'"turn"', b'"log"')
    source = Path(apps.__file__).read_text().splitlines()
    line = 1 + next(n for n, text in enumerate(source) if "sleep(60)" in text)
    with pytest.raises(NotOnSpark) as raised:
        one(made, b'"sleep"', b'"log"')
    assert str(raised.value) == (
        f"agent 'wait' (tests/unit/spark/apps.py:{line}): waits for something outside its stream: "
        "run it in a worker"
    )


def test_send_to_undiscovered_topic_already_read_is_refused(batches: Make) -> None:
    with pytest.raises(NotOnSpark, match=r"sends to 'requests', .*\(wait, requests-0 offset 0"):
        one(batches(f"{APPS}:waiter"), b'"back"')


@pytest.mark.parametrize("chunk", [1, 100])
def test_backward_rows_in_batch_end_attempt_unless_committed(batches: Make, chunk: int) -> None:
    """As files in another order than that of their offsets would give them."""
    made = batches(f"{APPS}:keeper")
    rows = made.rows([Fed("edits", 0, 0, b"key", b"%d" % n) for n in range(6)])

    def taken(given: list[Row]) -> TaskReport:
        parts = [
            pa.RecordBatch.from_pylist(given[at : at + chunk], ROWS)
            for at in range(0, len(given), chunk)
        ]
        *_, last = run_task(made.work(), 0, parts)
        return TaskReport.from_json(last.column("meta")[0].as_py())

    with pytest.raises(AssertionError, match="edits-0 offset 0 was given after 5"):
        taken(rows[3:] + rows[:3])
    with pytest.raises(UsageError, match="record given twice: edits-0 offset 2"):
        taken(rows[:3] + rows[2:])
    made.batch(rows[:3])
    assert taken(rows[1:3] + rows[:1] + rows[3:]).records == 3


def test_executor_with_other_app_is_refused(batches: Make) -> None:
    with pytest.raises(UsageError, match=r"another app on this executor: .*:waiter on "):
        one(batches(f"{APPS}:waiter"), b'"log"', signatures=(1,))


def test_a_task_without_rows_is_not_run(batches: Make) -> None:
    made = batches(f"{APPS}:waiter")
    assert list(run_task(made.work(), 0, [pa.RecordBatch.from_pylist([], ROWS)])) == []


def test_reader_left_ahead_by_workers_skips_processed_records(batches: Make) -> None:
    """Also where a batch ends before that: the next one still knows."""
    made = batches(f"{APPS}:pair")
    rows = made.rows([Fed("both", 0, n, b'"k"', b"%d" % n) for n in range(9)])
    base = made.batch(rows[:2])
    ahead = {reader_name("one"): 6}
    left = base.positions["both"][0]._replace(readers=ahead)
    commit(made.files, replace(base, number=1, positions={"both": {0: left}}), before=base)
    assert made.batch(rows[2:4]).positions["both"][0].readers == ahead
    assert made.batch(rows[4:]).positions["both"][0] == Position(9, 8, 8)
    values = {name: value for (name, _), ((_, value),) in made.stored().items()}
    assert values == {"ones": b"22", "twos": b"36"}
