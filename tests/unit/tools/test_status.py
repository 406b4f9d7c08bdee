"""What `streamsx status` says."""

import io
import json
import sys
from pathlib import Path

import pytest

from streamsx.assignor.model import LeaveRequest, MemberMetadata
from streamsx.assignor.observer import GroupReport, Instance
from streamsx.group.admin.describe import GroupDescription
from streamsx.model import TaskId, brief
from streamsx.testing import Broker
from streamsx.tools import status

T = TaskId
SEEN = GroupDescription(
    "Stable",
    GroupReport(
        generation=7,
        leader="m2",
        instances=(
            Instance(
                MemberMetadata("m1", "b", "p1", leaving=LeaveRequest(9), version="0.1.0"),
                (T(0, 0), T(1, 0)),
                failures={T(1, 0): "task stopped: 1_0: {why}"},
            ),
            Instance(
                MemberMetadata("m2", "a", "p2", version="0.1.0", metrics={"rebalance-total": 2.0}),
                (T(0, 1),),
                {T(1, 0): 120, T(1, 2): None},
                stalled=(T(1, 0),),
            ),
            Instance(MemberMetadata("m3", opaque=True)),
        ),
        withheld=(T(1, 1), T(1, 2)),
        marks={},
    ),
)
DATA = {
    "app": "shop",
    "state": "Stable",
    "generation": 7,
    "leader": "a",
    "instances": {
        "a": {
            "state": "running",
            "active": ["0_1"],
            "lag": {"0_1": 7},
            "stopped": [],
            "failures": [
                {"task": "1_0", "what": "stalled", "why": status.STALLED.format("1_0")},
            ],
            "standby": [],
            "learner": [{"task": "1_0", "lag": 120}, {"task": "1_2", "lag": None}],
            "version": "0.1.0",
            "member": "m2",
            "process": "p2",
            "metrics": {"rebalance-total": 2.0},
            "note": "",
        },
        "b": {
            "state": "leaving",
            "active": ["0_0", "1_0"],
            "lag": {"0_0": 0, "1_0": None},
            "stopped": ["1_0"],
            "failures": [{"task": "1_0", "what": "stopped", "why": "task stopped: 1_0: {why}"}],
            "standby": [],
            "learner": [],
            "version": "0.1.0",
            "member": "m1",
            "process": "p1",
            "metrics": {},
            "note": "",
        },
        "m3": {
            "state": "unknown",
            "active": [],
            "lag": {},
            "stopped": [],
            "failures": [],
            "standby": [],
            "learner": [],
            "version": "",
            "member": "m3",
            "process": "",
            "metrics": {},
            "note": "",
        },
    },
    "tasks": 5,
    "unassigned": ["1_1", "1_2"],
    "note": "",
}


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """The exit code of one in this process."""
    monkeypatch.setattr(sys, "argv", ["status", *arguments])
    with pytest.raises(SystemExit) as exit_:
        status.main()
    return exit_.value.code


def test_status_json_has_the_contract_form() -> None:
    lags = {T(0, 0): 0, T(0, 1): 7}
    assert json.loads(json.dumps(status.as_data("shop", SEEN, lags))) == DATA
    assert list(status.as_data("shop", SEEN, {})["instances"]) == ["a", "b", "m3"]


def settled(*instances: Instance) -> GroupDescription:
    return GroupDescription("Stable", GroupReport(7, "m1", instances, (), {}))


def runs(member: str, instance: str, process: str, *tasks: TaskId, alike: bool = True) -> Instance:
    return Instance(MemberMetadata(member, instance, process), tasks, alike=alike)


def test_workers_with_the_same_name_have_a_distinct_row_each() -> None:
    """The second one hid the first: half of the tasks were not shown."""
    seen = settled(
        runs("m1", "a", "3f9c12abcd", T(0, 0)), runs("m2", "a", "77aa01becd", T(0, 1)),
        runs("m3", "b", "0c", T(0, 2)),
    )  # fmt: skip

    data = status.as_data("shop", seen, {})

    rows = {name: (it["active"], it.get("ambiguous")) for name, it in data["instances"].items()}
    assert rows == {
        "a@3f9c12ab": (["0_0"], True), "a@77aa01be": (["0_1"], True), "b": (["0_2"], None),
    }  # fmt: skip
    assert data["leader"] == "a@3f9c12ab"
    assert "2 workers have the name a" in data["instances"]["a@3f9c12ab"]["note"]


def test_row_without_tasks_shows_the_reason() -> None:
    seen = settled(
        runs("m1", "a", "p1", T(0, 0), T(0, 1)), runs("m2", "b", "p2", alike=False),
        runs("m3", "c", "p3"),
    )  # fmt: skip

    data = status.as_data("shop", seen, {})

    assert [it["note"] for it in data["instances"].values()] == [
        "", "its code is not the leader's: it gets tasks when nobody with that code stays",
        "there are more workers than tasks",
    ]  # fmt: skip
    out = io.StringIO()
    with status.painter(out, live=False) as paint:
        paint(status.drawn(data))
    assert "\nc: there are more workers than tasks\n" in out.getvalue()


def test_worker_of_an_app_without_tasks_is_not_noted_as_surplus() -> None:
    data = status.as_data("shop", settled(runs("m1", "a", "p1")), {})
    assert data["instances"]["a"]["note"].startswith("there are no tasks: the app reads no topic")


def test_standby_column_is_shown_when_there_are_standbys() -> None:
    seen = settled(
        runs("m1", "a", "p1", T(0, 0)), Instance(MemberMetadata("m2", "b"), standbys={T(0, 0): 7})
    )

    data = status.as_data("shop", seen, {})

    assert [it["standby"] for it in data["instances"].values()] == [[], ["0_0"]]
    assert not data["instances"]["b"]["note"], "it has something to do"
    out = io.StringIO()
    with status.painter(out, live=False) as paint:
        paint(status.drawn(data))
    words = [line.split() for line in out.getvalue().splitlines()]
    assert words[1][-2:] == ["standby", "version"]
    assert words[3] == ["b", "running", "0_0"]


def test_rebalancing_group_shows_state_and_member_ids() -> None:
    blank = Instance(MemberMetadata("m1", opaque=True))
    seen = GroupDescription("PreparingRebalance", GroupReport(-1, None, (blank,), (), {}))

    data = status.as_data("shop", seen, {})

    assert (data["state"], data["generation"], data["leader"]) == ("PreparingRebalance", -1, None)
    assert data["instances"]["m1"]["state"] == "unknown"


def test_status_table_has_no_control_characters() -> None:
    out = io.StringIO()

    with status.painter(out, live=True) as paint:
        paint(status.drawn(DATA))

    told = out.getvalue()
    assert {letter for letter in told if not letter.isprintable()} == {"\n"}
    assert [" ".join(line.split()) for line in told.splitlines() if line.strip()] == [
        "shop: Stable, generation 7, leader a, 5 tasks, unassigned: 1_1-2",
        "instance state active behind learner (behind) version",
        "a running 0_1 7 (0_1 7) 1_0 (120), 1_2 (?) 0.1.0",
        "b leaving, 1 stopped 0_0 1_0 0 (1_0 ?) 0.1.0",
        "m3 unknown",
        "a: learner 1_0 has not come nearer for a minute: its worker or the broker may be too busy",
        "b: task stopped: 1_0: {why}",
    ]


def test_empty_group_is_reported_as_standing_still() -> None:
    """`Empty, generation -1, leader not known, 0 tasks` looked as if all was well."""
    data = status.as_data("shop", GroupDescription("Empty", GroupReport(-1, None, (), (), {})), {})

    assert data["note"] == status.NOBODY
    out = io.StringIO()
    with status.painter(out, live=False) as paint:
        paint(status.drawn(data))
    assert " ".join(out.getvalue().split()) == (
        "shop: Empty: no worker runs, and the app's tasks stand still: streamsx worker MODULE "
        "starts one"
    )


def test_row_shows_the_tasks_with_the_largest_lags() -> None:
    lags = {"0_0": 5, "0_1": 0, "0_2": 70, "1_0": 1, "1_1": 30}
    assert status.far_of(lags) == "106 (0_2 70, 1_1 30, 0_0 5, ...)"
    assert status.far_of({"0_0": 0, "0_1": 0}) == "0"
    assert status.far_of({}) == ""


def test_adjacent_task_ids_are_shown_as_ranges() -> None:
    assert brief([]) == ""
    assert brief(["0_0", "0_1", "0_2", "0_5", "1_3", "2_7", "2_8"]) == "0_0-2,5 1_3 2_7-8"
    assert brief([T(0, 9), T(0, 10), T(10, 1)]) == "0_9-10 10_1"


def test_unknown_app_is_exit_code_3_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Broker(tmp_path / "broker") as broker:
        where = ("--bootstrap", broker.bootstrap)

        assert command(monkeypatch, "--app", "shop", *where) == 3

    assert capsys.readouterr() == (
        "",
        "error: no such app: shop: this cluster has no group of that id: check the id\n",
    )
