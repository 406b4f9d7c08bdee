"""Events: lines of a file for programs, lines of the log for people."""

import json
import logging
from pathlib import Path

import pytest

from streamsx.errors import UsageError
from streamsx.journal import Journal


class Stopped:
    """Clock that stands still."""

    def now(self) -> float:
        return 5.0

    def wall(self) -> float:
        return 1e9


def told(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_event_is_written_to_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    journal = Journal("w", Stopped(), path)
    journal("promoted", task="1_0", lag=12)
    stamp = {"t": 1e9, "mono": 5.0, "instance": "w"}
    assert told(path) == [{**stamp, "event": "promoted", "task": "1_0", "lag": 12}]
    journal.close()


def test_journal_starts_a_new_line_after_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"event": "to')
    for _ in range(2):
        journal = Journal("w", Stopped(), path)
        journal("left")
        journal.close()
    torn, *whole = path.read_text().splitlines()
    assert torn == '{"event": "to'
    assert [json.loads(line)["event"] for line in whole] == ["left", "left"]


def test_unopenable_events_file_is_an_error_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "none" / "w.jsonl"
    with pytest.raises(UsageError, match=f"events file: {path}: No such file"):
        Journal("w", Stopped(), path)


def test_full_events_file_is_closed_and_the_worker_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = Journal("w", Stopped(), Path("/dev/full"))
    journal("left")
    journal("left")
    (line,) = (r.getMessage() for r in caplog.records if r.levelno == logging.ERROR)
    assert (
        line == "Events file /dev/full: No space left on device. No more events are written to it."
    )


@pytest.mark.parametrize(
    ("event", "level"), [("cooled", logging.INFO), ("commit", logging.DEBUG), ("error", 40)]
)
def test_event_without_a_sentence_is_logged_with_spaces_quoted(
    event: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Events that the table does not know, and events without the fields that it expects."""
    caplog.set_level(logging.DEBUG, "streamsx")
    Journal("w", Stopped())(event, a="a b", tasks=["0_1", "1_1"], why="")
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (
        level, f'{event} a="a b" tasks=0_1,1_1 why=""',
    )  # fmt: skip


def test_log_record_of_an_event_keeps_its_name_and_fields_beside_the_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "streamsx")
    Journal("w", Stopped())("left", directory="d/0")
    (record,) = caplog.records
    assert record.getMessage() == "Worker w left the group; its state stays in d/0."
    assert vars(record)["fields"] == {"event": "left", "directory": "d/0"}


@pytest.mark.parametrize(("as_json", "level"), [(False, logging.DEBUG), (True, logging.INFO)])
def test_rounds_stay_information_in_the_json_log(
    as_json: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "streamsx")
    journal = Journal("w", Stopped(), as_json=as_json)
    journal("revoked", tasks=["0_1"])
    journal("commit", tasks=1, records=2, ms=3.0)
    assert [record.levelno for record in caplog.records] == [level, logging.DEBUG]


def test_logged_event_shows_deadline_as_utc_and_no_monotonic_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The line showed `deadline=1795734538.540551` and `at=5468.41406111`."""
    caplog.set_level(logging.INFO, "streamsx")
    path = tmp_path / "w.jsonl"
    journal = Journal("w", Stopped(), path)
    journal("leaving", deadline=1795734538.540551)
    journal("leaving", deadline=None)
    journal("cooled", task="1_0", at=5468.41406111)
    leaves = "Worker w leaves: others take over its tasks first; it is gone"
    assert caplog.messages == [
        f"{leaves} by 2026-11-26T23:08:58Z at the latest.",
        f"{leaves} as soon as others have them.",
        "cooled task=1_0",
    ]
    assert '"deadline": 1795734538.540551' in path.read_text()
    assert '"at": 5468.41406111' in path.read_text()
    journal.close()
