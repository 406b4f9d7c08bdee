"""Late records under `on_late="dlq"`: one dead letter each, and no failure of their flow."""

from collections.abc import Callable
from typing import Any

import pytest

from streamsx import App, hopping, session, sliding, tumbling
from streamsx.app.flow import Flow
from streamsx.errors import TaskStopped
from streamsx.processing.compile import source_text
from streamsx.testing import TestDriver
from streamsx.testing.driver import Record

ERRORS = "__streams.errors."
ROW = {"id": 1}


@pytest.fixture
def app() -> App:
    return App("x", topic_partitions=1, store="memory://")


def windowed(window: Any, emit: str = "update") -> Callable[[Flow], object]:
    return lambda flow: (
        flow.group_by_key().window(window).count("n", emit=emit, on_late="dlq").to("out")
    )


def joined(flow: Flow, kind: str = "inner") -> None:
    other = flow.place.app.flow("other")
    pairs = flow.join(
        other, lambda a, b: [a, b], within="10s", grace=0, kind=kind, name="n", on_late="dlq"
    )
    pairs.to("out")


def first_of_each(flow: Flow) -> None:
    flow.deduplicate(
        key=lambda row: row["id"], within="10s", name="n", on_late="dlq"
    ).to("out")  # fmt: skip


def texts(letter: Record) -> dict[str, str]:
    return {key: text.decode() for key, text in letter.headers.items() if text is not None}


LATE: dict[str, tuple[Callable[[Flow], object], str, str]] = {
    "tumbling": (windowed(tumbling("10s", grace=0)), "n", "0 to 10000"),
    "at a commit": (windowed(tumbling("10s", grace=0), "commit"), "n", "0 to 10000"),
    "final": (windowed(tumbling("10s", grace=0), "final"), "n", "0 to 10000"),
    "hopping": (windowed(hopping("10s", "5s", grace=0)), "n", "0 to 10000"),
    "session": (windowed(session("10s", grace=0)), "n", "5000 to 5000"),
    "sliding": (windowed(sliding("10s", grace=0)), "n", "0 to 10000"),
    "join": (joined, "n-left", "-5000 to 15000"),
    "left join": (lambda flow: joined(flow, "left"), "n-left", "-5000 to 15000"),
    "deduplicate": (first_of_each, "n", "-5000 to 15000"),
}


@pytest.mark.parametrize("step", LATE)
def test_late_record_is_a_dead_letter_with_where_and_why(app: App, step: str) -> None:
    make, store, bounds = LATE[step]
    make(app.flow("in"))
    with TestDriver(app) as driver:
        driver.pipe("in", [("a", ROW, 100.0), ("a", ROW, 5.0), ("a", ROW, 101.0)])
        (letter,) = driver.read("x-dlq")
        (task,) = driver._tasks.values()
        assert task.counts["n-left" if "join" in step else "n"].late >= 1
    assert (letter.key, letter.value, letter.timestamp) == (b"a", ROW, 5.0)
    told = texts(letter)
    stack = told.pop(f"{ERRORS}stacktrace")
    operator = told.pop("__streamsx.operator")
    assert operator.startswith("flow of in")
    reason = (
        f"record too late: {store}: time 5000 is 95000 ms behind, and {bounds} had closed: raise "
        "grace= to wait longer"
    )
    assert stack == f"streamsx.errors.RecordTooLate: {reason}\n"
    assert told == {
        f"{ERRORS}exception": "streamsx.errors.RecordTooLate",
        f"{ERRORS}message": reason,
        f"{ERRORS}topic": "in",
        f"{ERRORS}partition": "0",
        f"{ERRORS}offset": "1",
        "__streamsx.task": "0_0",
        "__streamsx.attempt": "1",
    }


def test_late_record_of_the_other_side_of_a_join_is_a_dead_letter(app: App) -> None:
    joined(app.flow("in"))
    with TestDriver(app) as driver:
        driver.pipe("in", [("a", ROW, 100.0)])
        driver.pipe("other", [("a", ROW, 100.0), ("a", ROW, 5.0)])
        (letter,) = driver.read("x-dlq")
    told = texts(letter)
    assert told[f"{ERRORS}topic"] == "other"
    assert "n-right" in told[f"{ERRORS}message"]


def test_record_of_several_closed_windows_has_one_letter(app: App) -> None:
    windowed(hopping("10s", "1s", grace=0))(app.flow("in"))
    with TestDriver(app) as driver:
        driver.pipe("in", [("a", ROW, 100.0), ("a", ROW, 95.5), ("a", ROW, 50.0)])
        assert [each.timestamp for each in driver.read("x-dlq")] == [95.5, 50.0]
        (task,) = driver._tasks.values()
        assert task.counts["n"].late == 15


def test_values_of_one_late_record_have_one_letter_with_the_record(app: App) -> None:
    values = app.flow("in").flat_map_values(lambda row: [row, row])
    windowed(tumbling("10s", grace=0))(values)
    with TestDriver(app) as driver:
        driver.pipe("in", [("a", ROW, 100.0), ("a", ROW, 5.0)])
        assert [each.value for each in driver.read("x-dlq")] == [ROW]


def test_late_record_of_two_flows_has_a_letter_of_each(app: App) -> None:
    for name in ("n", "m"):
        groups = app.flow("in").group_by_key().window(tumbling("10s", grace=0))
        groups.count(name, on_late="dlq").to(f"out-{name}")
    with TestDriver(app) as driver:
        driver.pipe("in", [("a", ROW, 100.0), ("a", ROW, 5.0)])
        operators = [texts(each)["__streamsx.operator"] for each in driver.read("x-dlq")]
    assert len(set(operators)) == len(operators) == 2


def test_late_records_in_a_row_stop_no_task(app: App) -> None:
    windowed(tumbling("10s", grace=0))(app.flow("in"))
    rows = [("a", ROW, 100.0), *[("a", ROW, 5.0)] * 50, ("a", ROW, 101.0)]
    with TestDriver(app) as driver:
        driver.pipe("in", rows)
        assert len(driver.read("x-dlq")) == 50
        assert [each.value for each in driver.read("out")] == [1, 2]
        assert driver.failures == []


def test_late_record_between_failures_does_not_end_their_row() -> None:
    def refuse(row: Any) -> Any:
        if row is None or row["id"] != 1:
            raise ValueError(row)
        return row

    app = App("x", topic_partitions=1, store="memory://", consecutive_failures_max=3)
    flow = app.flow("in")
    windowed(tumbling("10s", grace=0))(flow.map_values(refuse))
    bad = {"id": 2}
    with TestDriver(app, raises=False) as driver:
        driver.pipe("in", [("a", ROW, 100.0), ("a", bad, 100.0), ("a", bad, 100.0)])
        driver.pipe("in", [("a", ROW, 5.0)])
        with pytest.raises(TaskStopped):
            driver.pipe("in", [("a", bad, 100.0)] * 3)
        assert len(driver.read("x-dlq")) == 1


def test_late_result_of_a_window_has_no_letter(app: App) -> None:
    first = app.flow("in").group_by_key().window(tumbling("10s", grace=0))
    finals = first.count("first", emit="final").to_flow()
    windowed(tumbling("1s", grace="10s"))(finals.rekey(lambda _: "all").repartition("r"))
    with TestDriver(app) as driver:
        driver.pipe("in", [("a", ROW, 5.0), ("a", ROW, 100.0)])
        assert driver.read("x-dlq") == []


def test_letter_that_does_not_fit_is_reported() -> None:
    app = App("x", topic_partitions=1, store="memory://")
    windowed(tumbling("10s", grace=0))(app.flow("in"))
    with TestDriver(app, raises=False) as driver:
        driver.pipe("in", [("a", ROW, 100.0), ("a", {"id": "x" * 999_850}, 5.0)])
        assert driver.read("x-dlq") == []
        (failure,) = driver.failures
    assert failure.exception == "streamsx.errors.RecordTooLate"
    assert "not in x-dlq: record too large" in failure.kept


def test_late_record_of_the_dead_letter_topic_is_not_sent_again(app: App) -> None:
    windowed(tumbling("10s", grace=0))(app.flow("x-dlq"))
    with TestDriver(app, raises=False) as driver:
        driver.pipe("x-dlq", [("a", ROW, 100.0), ("a", ROW, 5.0)])
        assert len(driver.read("x-dlq")) == 2
        assert [each.kept for each in driver.failures] == ["not sent to x-dlq again"]


def test_function_gets_the_late_records_of_a_join_and_of_deduplicate(app: App) -> None:
    late: list[Any] = []
    flow = app.flow("in")
    other = app.flow("other")
    flow.join(
        other, lambda a, _b: a, within=("1s", "2s"), name="j", on_late=late.append
    ).to("out")  # fmt: skip
    app.flow("in").deduplicate(
        key=lambda row: row["id"], within="3s", name="d", on_late=late.append
    ).to("firsts")  # fmt: skip
    with TestDriver(app) as driver:
        driver.pipe("in", [("a", ROW, 100.0), ("b", ROW, 5.0)])
        driver.pipe("other", [("c", ROW, 100.0), ("c", ROW, 6.0)])
    assert late == [
        (ROW, "b", 5000, 95_000, 4000, 7000),
        (ROW, "b", 5000, 95_000, 2000, 8000),
        (ROW, "c", 6000, 94_000, 4000, 7000),
    ]


def test_word_makes_the_topic_and_leaves_the_signature(app: App) -> None:
    windowed(tumbling("10s", grace=0))(app.flow("in"))
    made = app.topology()
    plain = App("x", topic_partitions=1, store="memory://")
    groups = plain.flow("in").group_by_key().window(tumbling("10s", grace=0))
    groups.count("n", emit="update").to("out")
    spec = next(each for each in made.topics if each.name == "x-dlq")
    assert spec.config["retention.ms"] == "-1"
    assert "x-dlq" not in {each.name for each in plain.topology().topics}
    assert made.signatures == plain.topology().signatures


def test_word_decodes_neither_key_nor_value(app: App) -> None:
    windowed(tumbling("10s", grace=0), "commit")(app.flow("in"))
    (plan,) = app.topology().subtopologies
    run = source_text(plan.sources[0]).split("def commit")[0]
    assert "branch_bury_0(index, too_late_0(" in run
    assert "decode_value" not in run
    assert "branch_key_0" not in run
