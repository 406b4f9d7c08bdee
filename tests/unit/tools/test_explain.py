"""`streamsx explain`: its sentences, and the event files that it reads."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from streamsx.assignor.model import MemberMetadata
from streamsx.assignor.observer import GroupReport, Instance
from streamsx.assignor.round import RULES
from streamsx.assignor.verify import WHY, WHY_STANDBY
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.tools import explain
from streamsx.tools.cli.app_input import AppInput, CommittedOffset, TaskInput
from streamsx.tools.cli.group_status import STOPPED
from streamsx.topology.time_links import stage_of_topics

STAGE = {"task": "0_3", "decision": "stage", "why": "b is 9 records behind (limit 5); a goes on",
         "owner": "a", "to": "b", "lag": 9}  # fmt: skip
LEFT = {"task": "0_4", "decision": "promote", "why": "no worker has it now; b takes over",
        "owner": None, "to": "b", "lag": 0}  # fmt: skip


def plan(generation: int, at: float, *decisions: dict[str, Any], by: str = "a") -> str:
    event = {"t": at, "mono": 1.0, "instance": by, "event": "plan", "generation": generation}
    return json.dumps({**event, "decisions": decisions}) + "\n"


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["explain", *map(str, words)])
    with pytest.raises(SystemExit) as exit_:
        explain.main()
    return exit_.value.code


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Return the event files of two leaders in turn; the second one was killed while it wrote."""
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    a.write_text(plan(7, 60.0, STAGE, LEFT) + '{"event": "left", "t": 61}\n')
    b.write_text(plan(8, 120.0, by="b") + plan(9, 130.0, LEFT, by="b")[:40])
    return [b, a]


def test_rebalances_are_listed_newest_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], files: list[Path]
) -> None:
    assert run(monkeypatch, "--events", *files) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1970-01-01T00:02:00Z, generation 8, led by b:",
        "  each task stays where it is, and no worker learns one",
        "1970-01-01T00:01:00Z, generation 7, led by a:",
        ("  0_3 will move to b, which learns it first: b is 9 records behind (limit 5); a goes on"),
        "  0_4 moves to b: no worker has it now; b takes over",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_explain_breaks_lines_between_words_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, files: list[Path]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    assert run(monkeypatch, "--events", *files) == 0
    shown = out.getvalue()
    assert max(map(len, shown.splitlines())) <= 40
    assert "which learns it first: b is 9 records behind" in " ".join(shown.split())


def test_explain_filters_by_task_or_generation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], files: list[Path]
) -> None:
    assert run(monkeypatch, "--json", "--events", *files, "--task", "0_4") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"generation": 7, "at": 60.0, "leader": "a", "joined": [], "left": [], "gone": [], **LEFT}
    ]

    assert run(monkeypatch, "--events", *files, "--task", "0_9") == 0
    assert "0_9 is in none of these: it stays where it is, if" in capsys.readouterr().out

    assert run(monkeypatch, "--events", *files, "--generation", "8") == 0
    assert "generation 7" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "explain what?"),
        (("--app", "a", "--events", "x"), "or --events FILE for all, not both"),
        (("--events", "nope.jsonl"), "no such file: nope.jsonl"),
        (("--app", "a", "--task", "three"), "--task: not a task: 'three': expected SUBTOPOLOGY_"),
        (("--app", "a", "--task", "0_1_0"), "not a task: '0_1_0'"),
    ],
)
def test_explain_refuses_bad_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...],
    says: str,
) -> None:  # fmt: skip
    assert run(monkeypatch, *words) == 2
    assert says in capsys.readouterr().err


def test_files_without_a_plan_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    foreign = (
        {"event": "plan"},
        {"event": "plan", "generation": 1, "instance": "a", "t": "now", "decisions": []},
        {"event": "plan", "generation": 1, "instance": "a", "t": 1e30, "decisions": []},
        {"event": "plan", "generation": 1, "instance": "a", "t": 1.0, "decisions": 5},
        {"event": "plan", "generation": 1, "instance": "a", "t": 1.0, "decisions": [{"task": "x"}]},
    )
    lines = ["[1]", '{"event": "left", "t": 61}', *map(json.dumps, foreign)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    assert run(monkeypatch, "--events", tmp_path / "a.jsonl") == 2
    assert "give the leader's file too" in capsys.readouterr().err


def test_generation_in_no_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], files: list[Path]
) -> None:
    assert run(monkeypatch, "--events", *files, "--generation", "9") == 2
    assert "no plan of generation 9: there are 7 to 8" in capsys.readouterr().err


def test_each_decision_has_a_sentence() -> None:
    decisions = {*(row.name for row in RULES), *WHY, *WHY_STANDBY} - {"keep"}
    assert explain.SENTENCES.keys() == decisions


def test_tasks_of_which_the_same_is_true_share_a_line() -> None:
    cold: dict[str, Any] = {
        "decision": "cold",
        "why": "no worker has a copy",
        "owner": None,
        "to": "a",
        "lag": 0,
    }
    held = {"decision": "withheld", "why": "still owned by a", "owner": "a", "to": "b", "lag": 0}
    tasks = {"0_0": cold, "0_1": held, "0_2": cold, "0_3": cold, "1_0": {**cold, "to": "b"}}
    assert list(explain.sentences({"task": task, **each} for task, each in tasks.items())) == [
        "0_0,2-3: each moves to a: no worker has a copy",
        "0_1 moves to b as soon as a has released it",
        "1_0 moves to b: no worker has a copy",
    ]


def test_heading_names_workers_that_joined_left_or_are_gone() -> None:
    known = {"generation": 7, "at": 60.0, "leader": "a", "joined": ("b", "c"), "left": ("d",),
             "gone": ("e",)}  # fmt: skip
    at = "1970-01-01T00:01:00Z"
    assert (
        explain.heading(known) == f"{at}, generation 7, led by a; b, c joined; d left; e is gone:"
    )
    assert explain.of_all(known) == known
    assert explain.heading({**known, "gone": ("e", "f")}).endswith("; d left; e, f are gone:")
    nothing = {"generation": 7, "at": None, "leader": None, "joined": (), "left": (), "gone": ()}
    assert explain.heading(nothing) == "generation 7:"


def test_decision_of_a_later_release_is_explained_by_its_reason() -> None:
    later = {"task": "0_0", "decision": "x", "why": "{so}", "owner": None, "to": None, "lag": None}
    assert list(explain.sentences([later])) == ["0_0 {so}"]


def test_task_is_told_as_it_is_now() -> None:
    noon = 1_700_000_000_000
    stage = f"{stage_of_topics(['in']):08x}"
    ahead = OffsetMetadata(noon, committed_s=1000)
    held = OffsetMetadata(
        noon, committed_s=1000, closed={"s": noon - 90_000}, told={stage: [noon, noon - 90_000]}
    )
    tasks = {
        TaskId(0, 0): TaskInput(0, {TopicPartition("in", 0): CommittedOffset(1, ahead)}),
        TaskId(0, 1): TaskInput(None, {}),
        TaskId(1, 0): TaskInput(7, {TopicPartition("mid", 0): CommittedOffset(1, held)}),
    }
    runs = Instance(MemberMetadata("m1", "a"), (TaskId(0, 0), TaskId(1, 0)))
    report = GroupReport(7, "m1", (runs,), (TaskId(0, 1),), {}, {0: ("in",), 1: ("mid",)})

    def now(task: TaskId) -> list[str]:
        return list(explain.task_now(task, report, AppInput(tasks, 7, 1000), 1041.0))

    assert now(TaskId(0, 0)) == ["Now: 0_0 runs on a, 0 records behind, last commit 41 s ago."]
    assert now(TaskId(0, 1)) == ["Now: 0_1 moves."]
    assert now(TaskId(9, 0)) == ["9_0 is no task of this app now."]
    gone = AppInput({}, None, None, absent=("mid", "other"))
    assert list(explain.task_now(TaskId(1, 0), report, gone, 1041.0)) == [
        "1_0 is no task of this app now.",
        "topic mid is not there: its tasks wait until it is created again.",
    ]
    still = AppInput({TaskId(1, 0): TaskInput(None, {})}, None, None, absent=("mid",))
    assert list(explain.task_now(TaskId(1, 0), report, still, 1041.0)) == [
        "Now: 1_0 runs on a.",
        "topic mid is not there: its tasks wait until it is created again.",
    ]
    first, times, why = now(TaskId(1, 0))
    assert first == "Now: 1_0 runs on a, 7 records behind, last commit 41 s ago."
    assert times == (
        "Event time 2023-11-14T22:13:20Z, windows at 2023-11-14T22:11:50Z (a window closes when "
        "`windows at` passes its end and its grace)."
    )
    assert why == (
        "1_0: event time stands still while others are at 2023-11-14T22:13:20Z, because the "
        "progress of task 0_1 (topic in, partition 1) is not known now."
    )


def test_stopped_task_is_told_with_its_reason() -> None:
    task = TaskId(0, 0)
    found = AppInput({task: TaskInput(1, {})}, None, None)

    def now(why: str) -> list[str]:
        runs = Instance(MemberMetadata("m1", "a"), (task,), failures={task: why})
        report = GroupReport(7, "m1", (runs,), (), {}, {0: ("in",)})
        return list(explain.task_now(task, report, found, 1041.0))

    assert now("a record failed") == [
        "Now: 0_0 is stopped on a, 1 record behind.",
        "a record failed.",
    ]
    assert now("")[1] == f"{STOPPED.format(task)}."
