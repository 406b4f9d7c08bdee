"""`streamsx leave`: its output and exit codes."""

import asyncio
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from streamsx.assignor.model import MemberMetadata
from streamsx.assignor.observer import GroupReport, Instance
from streamsx.group.admin.leave_progress import LeaveProgress, LeaveState
from streamsx.model import TaskId
from streamsx.testing import Broker
from streamsx.tools import leave
from streamsx.tools.cli import progress

T0, T1 = TaskId(1, 0), TaskId(1, 4)
GONE = LeaveProgress(
    instance="b",
    cancels=False,
    state=LeaveState.LEFT,
    members=frozenset({"m2"}),
    tasks=frozenset({T0, T1}),
    left=frozenset(),
    asked_ms=1_000,
    deadline_ms=61_000,
    epoch_ms=1_000,
    seen_ms=4_230,
    gone=True,
)
GOING = replace(GONE, state=LeaveState.LEAVING, left=frozenset({T1}), gone=False)


def learner(name: str, task: TaskId, lag: int | None) -> Instance:
    return Instance(MemberMetadata(name, name), learners={task: lag})


def ended(*states: LeaveState, cancel: bool = False) -> int:
    departures = {str(n): replace(GONE, state=state) for n, state in enumerate(states)}
    return leave.exit_code(departures, cancel=cancel)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Run the command in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["leave", *arguments])
    with pytest.raises(SystemExit) as exit_:
        leave.main()
    return exit_.value.code


def test_leave_json_has_the_contract_form() -> None:
    departures = {"b": GONE, "c": replace(GOING, instance="c")}

    assert json.loads(json.dumps(leave.as_data("shop", departures))) == {
        "app": "shop",
        "instances": {
            "b": {"state": "left", "tasks_moved": 2, "tasks_left": 0, "ms": 3_230},
            "c": {"state": "leaving", "tasks_moved": 1, "tasks_left": 1, "ms": 3_230},
        },
    }


def test_exit_code_is_0_when_all_instances_complied() -> None:
    assert ended(LeaveState.LEFT, LeaveState.LEAVING) == 0
    assert ended(LeaveState.CANCELLED, cancel=True) == 0


def test_exit_code_is_3_for_an_unknown_instance() -> None:
    assert ended(LeaveState.LEFT, LeaveState.UNKNOWN) == 3
    assert ended(LeaveState.CANCELLED, LeaveState.UNKNOWN, cancel=True) == 3


def test_exit_code_is_1_for_an_instance_that_did_not_comply() -> None:
    assert ended(LeaveState.LEFT, LeaveState.TIMEOUT, LeaveState.UNKNOWN) == 1
    assert ended(LeaveState.CANCELLED) == 1
    assert ended(LeaveState.LEFT, cancel=True) == 1


def test_leave_text_shows_remaining_tasks_and_learners() -> None:
    others = (learner("a", T1, 1_200), learner("c", T0, 7), learner("d", T1, None))
    report = GroupReport(4, "a", others, (), {})
    going = {"b": GOING, "z": replace(GONE, instance="z")}

    assert leave.line_of(going, report) == (
        "b: 1 of 2 tasks still to move; a learns 1_4 (1200 behind); d learns 1_4 (? behind)"
    )
    blank = GroupReport(-1, None, (learner("m1", T0, None),), (), {})
    assert leave.line_of(going, blank) == (
        "b: 1 of 2 tasks still to move; the group is rebalancing"
    )
    assert leave.result_of("b", GONE) == "b: left: 2 of 2 tasks moved, 3.2 s"


def test_leave_of_all_workers_warns_that_tasks_stand_still() -> None:
    last = Instance(MemberMetadata("m2", "b"), (T0, T1))
    alone = GroupReport(4, "m2", (last,), (), {})
    assert leave.nobody_stays({"b": GOING}, alone) == (
        "no worker of the app stays: its 2 tasks stand still until a worker is started"
    )
    report = GroupReport(4, "m2", (last, learner("a", T1, 7)), (), {})
    assert not leave.nobody_stays({"b": GOING}, report)


class Paper(io.StringIO):
    """Output that is no terminal; `written` is set with each line."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()

    def flush(self) -> None:
        self.written.set()


def test_progress_without_a_terminal_prints_the_newest_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "SAY_EVERY_S", 0.01)

    async def wait() -> str:
        paper = Paper()
        async with progress.progress(paper, "first") as say:
            await paper.written.wait()
            say("passed over")
            say("[second]")
            paper.written.clear()
            await paper.written.wait()
        return paper.getvalue()

    assert asyncio.run(wait()).splitlines() == ["first", "[second]"]


def test_instance_names_are_deduplicated_and_sorted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave.names("b, a,b,") == ["a", "b"]
    assert command(monkeypatch, "--app", "shop", "--instances", " ,") == 2
    assert capsys.readouterr().err == (
        "error: argument --instances: no name: write --instances a,b: streamsx leave: "
        "--help shows all options\n"
    )


@pytest.mark.parametrize("text", ["0s", "infinite", "8d", "soon"])
def test_leave_refuses_an_unlimited_or_bad_timeout(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "--app", "shop", "--instances", "b", "--timeout", text) == 2
    assert "60s or 10m" in capsys.readouterr().err


def test_unknown_app_is_exit_code_3_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Broker(tmp_path / "broker") as broker:
        monkeypatch.setenv("STREAMSX_BOOTSTRAP", broker.bootstrap)

        assert command(monkeypatch, "--app", "shop", "--instances", "b", "--json") == 3

    assert capsys.readouterr() == (
        "",
        "error: no such app: shop: this cluster has no group of that id: check the id\n",
    )
