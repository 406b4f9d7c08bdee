"""spark/events.py, what of it needs no Spark: which files, and which of them are refused."""

from pathlib import Path
from typing import Any

import pytest

from streamsx.errors import NotFound, UsageError
from streamsx.spark.events import check, files_of


def test_folder_expands_to_event_logs_each_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.jsonl", "b.jsonl.gz", "a.log"):
        (tmp_path / name).touch()
    (tmp_path / "c.jsonl").mkdir()
    logs = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl.gz")]
    monkeypatch.chdir(tmp_path)
    assert files_of([str(tmp_path), ".", "a.jsonl"]) == logs
    assert files_of([str(tmp_path / "a.log")]) == [str(tmp_path / "a.log")]
    assert files_of(["s3://bucket/*.jsonl"]) == ["s3://bucket/*.jsonl"]


def test_missing_event_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no such file: .*/gone: give files that"):
        files_of([str(tmp_path / "gone")])
    with pytest.raises(UsageError, match=r"no event log: folder .*: there is no \*\.jsonl or"):
        files_of([str(tmp_path)])


@pytest.mark.parametrize("name", ["_a.jsonl", ".a.jsonl", "w[1].jsonl", "w{1}.jsonl", "a?.jsonl"])
def test_file_name_skipped_by_spark_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    for word in (tmp_path, tmp_path / name):
        with pytest.raises(
            UsageError, match=r"Spark does not read a file of this name: .*: rename"
        ):
            files_of([str(word)])


def found(**more: Any) -> dict[str, Any]:
    told = {"path": "file:///logs/my%20a.jsonl", "lines": 9, "torn": 0, "starts": 1}
    return {**told, "example": None, "apps": ["shop"], **more}


@pytest.mark.parametrize(
    "files",
    [
        [found()],
        [found(torn=1, starts=0)],
        [found(torn=3, starts=3), found(apps=[])],
    ],
)
def test_one_torn_line_per_process_is_accepted(files: list[dict[str, Any]]) -> None:
    check(files)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "no events: all the files are empty"),
        ([found(torn=2, example="x" * 99)], "/logs/my a.jsonl: 2 of 9 lines are none, as 'x{60}':"),
        ([found(torn=1, lines=1, example="{")], "not an event log: /logs/my a.jsonl: 1 of 1 lines"),
        (
            [found(), found(path="hdfs://b", apps=["mall"])],
            "events of 2 apps: mall in hdfs://b, shop in /logs/my a.jsonl: give those of one",
        ),
    ],
)
def test_files_not_logged_by_one_app_are_refused(files: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check(files)
