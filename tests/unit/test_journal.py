"""What is told: lines of a file for programs, lines of the log for people."""

import json
import logging
from pathlib import Path

import pytest

from streamsx.errors import UsageError
from streamsx.journal import Journal


class Stopped:
    """A clock that stands."""

    def now(self) -> float:
        return 5.0

    def wall(self) -> float:
        return 1e9


def told(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_is_a_line_of_the_file_as_soon_as_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    journal = Journal("w", Stopped(), path)
    journal("promoted", task="1_0", lag=12)
    stamp = {"t": 1e9, "mono": 5.0, "instance": "w"}
    assert told(path) == [{**stamp, "event": "promoted", "task": "1_0", "lag": 12}]
    journal.close()


def test_a_successor_writes_behind_the_line_that_its_predecessor_tore(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"event": "to')
    for _ in range(2):
        journal = Journal("w", Stopped(), path)
        journal("left")
        journal.close()
    torn, *whole = path.read_text().splitlines()
    assert torn == '{"event": "to'
    assert [json.loads(line)["event"] for line in whole] == ["left", "left"]


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none" / "w.jsonl"
    with pytest.raises(UsageError, match=f"events file: {path}: No such file"):
        Journal("w", Stopped(), path)


def test_a_file_that_is_full_ends_itself_and_not_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = Journal("w", Stopped(), Path("/dev/full"))
    journal("left")
    journal("left")
    (line,) = (r.getMessage() for r in caplog.records if r.levelno == logging.ERROR)
    assert line == "events file: /dev/full: No space left on device: no more events are written"


@pytest.mark.parametrize(
    ("event", "level"), [("promoted", logging.INFO), ("commit", logging.DEBUG), ("error", 40)]
)
def test_people_see_it_at_its_level_and_with_spaces_quoted(
    event: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "streamsx")
    Journal("w", Stopped())(event, what="a b", tasks=["0_1", "1_1"], why="")
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (
        level, f'{event} what="a b" tasks=0_1,1_1 why=""',
    )  # fmt: skip


def test_the_log_has_a_deadline_as_its_own_times_and_no_monotonic_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It showed `deadline=1795734538.540551` and `at=5468.41406111`."""
    caplog.set_level(logging.INFO, "streamsx")
    path = tmp_path / "w.jsonl"
    journal = Journal("w", Stopped(), path)
    journal("leaving", deadline=1795734538.540551)
    journal("leaving", deadline=None)
    journal("promoted", task="1_0", at=5468.41406111)
    assert caplog.messages == [
        "leaving deadline=2026-11-26T23:08:58Z", "leaving deadline=None", "promoted task=1_0",
    ]  # fmt: skip
    assert '"deadline": 1795734538.540551' in path.read_text()
    assert '"at": 5468.41406111' in path.read_text()
    journal.close()
