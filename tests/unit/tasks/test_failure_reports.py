"""Reports of failed records, limited so that they do not fill the log."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from streamsx.clock import Clock
from streamsx.journal import Journal
from streamsx.metrics import MetricRegistry
from streamsx.model import TaskId
from streamsx.operators.operator import Counts
from streamsx.processing.failure_policy import Failure, FailureAction
from streamsx.serde.codec import topic_codec
from streamsx.tasks import failure_reports
from streamsx.tasks.failure_reports import FailureReports


class Still(Clock):
    """Clock that stands still."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at


def reports(
    clock: Clock | None = None,
    registry: MetricRegistry | None = None,
    journal: Journal | None = None,
    row_max: int | None = None,
) -> FailureReports:
    clock = clock or Still()
    journal = journal or Journal("w", clock)
    return FailureReports(clock, registry or MetricRegistry(), journal, row_max)


def failure(operator: str, offset: int) -> Failure:
    return Failure(TaskId(0, 1), "lines", 1, offset, operator, True, ValueError("no text"))


ROW = " The task stops if 10 in a row fail."


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Each line says what happens to the task: a row that lasts is held, and fixed code
    reads it.
    """
    assert all(message.endswith(ROW) for message in caplog.messages)
    return [message.removesuffix(ROW) for message in caplog.messages]


def test_first_failure_of_each_operator_is_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    some = reports(row_max=10)
    for operator, offset in (("split", 7), ("split", 8), ("count", 9)):
        some.report(failure(operator, offset))
    what = "Record cannot be decoded and is skipped"
    assert told(caplog) == [
        f"{what}: lines-1 offset 7, task 0_1, in split: ValueError: no text.",
        f"{what}: lines-1 offset 9, task 0_1, in count: ValueError: no text.",
    ]


@pytest.mark.parametrize(
    ("kept", "outcome"),
    [
        ("", "is skipped"),
        ("kept in shop-dlq", "was kept in shop-dlq"),
        ("not in shop-dlq: too large", "is skipped, not in shop-dlq: too large"),
    ],
)
def test_line_of_a_failed_record_names_its_outcome(
    kept: str, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    reports().report(replace(failure("split", 7), decode=False, kept=kept))
    assert caplog.messages == [
        f"Record failed and {outcome}: lines-1 offset 7, task 0_1, in split: ValueError: no text."
    ]


def test_further_failures_are_counted_once_a_second_and_at_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(failure_reports, "LOG_EVERY_S", 0.01)
    path = tmp_path / "w.jsonl"
    journal = Journal("w", Still(), path)

    async def fail(some: FailureReports) -> None:
        running = asyncio.create_task(some.run())
        for seconds, count in ((0.1, 5), (0.0, 1)):
            for offset in range(count):
                some.report(failure("split", offset))
            await asyncio.wait([running], timeout=seconds)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(fail(reports(journal=journal, row_max=10)))
    journal.close()
    assert told(caplog)[1:] == [
        f"4 more records of split failed, the last one at lines-1 offset 4; each is in {path}.",
        f"1 more record of split failed, the last one at lines-1 offset 0; each is in {path}.",
    ]


def raised(kind: type[Exception], again: bool = False) -> Exception:
    try:
        if again:
            raise kind("bad")
        raise kind("bad")
    except Exception as error:
        return error


def test_line_of_a_failure_that_stops_its_task_says_so(caplog: pytest.LogCaptureFixture) -> None:
    some = reports(row_max=10)
    some.report(replace(failure("split", 7), action=FailureAction.STOP_TASK))
    (line,) = caplog.messages
    assert line.startswith("Record cannot be decoded and stops its task: lines-1 offset 7, ")
    assert line.endswith("ValueError: no text.")


@pytest.mark.parametrize(
    ("stopped", "going", "row"), [(1, [], ""), (1, [1, 1], ""), (1, [1, 2], ROW), (3, [2], ROW)]
)
def test_number_of_failures_warns_of_a_stop_while_a_failing_task_goes_on(
    stopped: int, going: list[int], row: str,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(failure_reports, "LOG_EVERY_S", 0.01)
    some = reports(row_max=10)

    async def fail() -> None:
        running = asyncio.create_task(some.run())
        first = failure("split", 0)
        some.report(first)
        for number in going:
            some.report(replace(first, task=TaskId(0, number)))
        stops = FailureAction.STOP_TASK
        some.report(replace(first, task=TaskId(0, stopped), action=stops))
        await asyncio.wait([running], timeout=0.1)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(fail())
    _, line = caplog.messages
    assert line.endswith(f"each on file.{row}")


def traceback_of(caplog: pytest.LogCaptureFixture) -> list[bool]:
    return [record.exc_info is not None for record in caplog.records]


def test_first_failure_of_each_operator_type_and_line_has_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Still()
    some = reports(clock)
    kinds = [("a", ValueError, False), ("a", ValueError, False), ("a", KeyError, False)]
    for operator, kind, again in [*kinds, ("b", ValueError, False), ("b", ValueError, True)]:
        some.report(replace(failure(operator, 1), error=raised(kind, again)))
        clock.at += 2.0
    assert traceback_of(caplog) == [True, False, True, True, True]
    assert 'raise kind("bad")' in caplog.text


def test_value_that_our_codec_refuses_has_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(msgspec.DecodeError) as refused:
        topic_codec(int, None, "json").decode(b"x")
    error = refused.value
    while error.__traceback__ and not error.__traceback__.tb_frame.f_globals["__name__"].startswith(
        "streamsx."
    ):
        error.__traceback__ = error.__traceback__.tb_next  # those of this test
    reports().report(replace(failure("split", 7), error=error))
    reports().report(replace(failure("split", 7), error=error, decode=False))
    assert [record.exc_info is not None for record in caplog.records] == [False, True]


def test_failures_of_too_many_kinds_are_logged_without_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_reports, "KINDS_MAX", 1)
    some = reports()
    for operator in "abc":
        some.report(replace(failure(operator, 1), error=raised(ValueError)))
    assert traceback_of(caplog) == [True, False, False]


def test_agent_without_allow_empty_is_warned_of_tombstones_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    some = reports()
    for operator, offset in (("split", 7), ("split", 8), ("count", 9)):
        some.passed(failure(operator, offset))
    says = (
        "A record without a value was skipped, as are all that follow: lines-1 offset {}, task "
        "0_1, agent {}. "
    )
    assert [message[: message.index("Write")] for message in caplog.messages] == [
        says.format(7, "split"), says.format(9, "count"),
    ]  # fmt: skip
    assert all("allow_empty=True" in message for message in caplog.messages)


def test_first_late_record_of_a_store_is_logged_and_all_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = MetricRegistry()
    some = reports(registry=registry)
    for late in (2, 3):
        some.untaken(TaskId(0, 1), "per-hour", Counts(skipped=0, late=late))
    some.untaken(TaskId(0, 1), "per-hour", Counts(skipped=1, late=0))
    assert [record.getMessage()[:60] for record in caplog.records] == [
        "A record came too late: its window in per-hour of task 0_1 h",
        "A record without a key, a value or a time was skipped by per",
    ]
    assert "grace=" in caplog.text
    values = {(s.name, s.labels): s.value for s in registry.samples() if s.labels}
    assert values == {
        ("streamsx_records_late_total", (("store", "per-hour"),)): 5,
        ("streamsx_records_skipped_total", (("store", "per-hour"),)): 1,
    }


def test_each_failed_record_is_in_the_events_file_and_not_in_the_log(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level("DEBUG")
    path = tmp_path / "w.jsonl"
    journal = Journal("w", Still(), path)
    some = reports(journal=journal)
    for offset in range(1000):
        some.note(replace(failure("split", offset), action=FailureAction.DLQ))
    journal.close()
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["offset"] for each in told] == list(range(1000))
    about = {name: value for name, value in told[7].items() if name not in {"t", "mono"}}
    assert about == {
        "instance": "w", "event": "failed", "task": "0_1", "topic": "lines", "partition": 1,
        "offset": 7, "operator": "split", "exception": "ValueError", "action": "dlq",
        "attempt": 1,
    }  # fmt: skip
    assert caplog.messages == []


def test_record_that_is_tried_again_is_logged_once_and_no_flood(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Still()
    registry = MetricRegistry()
    some = reports(clock, registry)
    for offset in range(100):
        for attempt in (1, 2):
            some.retried(replace(failure("split", offset), attempt=attempt, wait_s=1.04))
    clock.at = 2.0
    some.retried(replace(failure("split", 100), wait_s=0.25))

    says = r"Record failed and is tried again in (.*): lines-1 offset (\d+), task 0_1, in split: "
    lines = [re.match(says, message) for message in caplog.messages]
    assert [each and each.groups() for each in lines] == [("1 s", "0"), ("0.25 s", "100")]
    counted = {each.name: each.value for each in registry.samples() if "retried" in each.name}
    assert list(counted.values()) == [201]
