"""assignor/document.py and tools/assign.py: groups and plans as JSON, and input that is refused."""

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from streamsx.tools.assign import EXAMPLE, answers

Told = dict[str, Any]


def planned(document: object) -> Any:
    (answer,) = answers([json.dumps(document)])
    return answer


def told(error: str, document: object) -> None:
    assert error in planned(document)["error"]


def settled(tasks: int, members: int) -> Told:
    """Return a group whose members have started together."""
    ids = [{"id": f"0_{n}", "stateful": True} for n in range(tasks)]
    names = [f"m{n:03}" for n in range(members)]
    first = planned({"tasks": ids, "members": [{"id": name} for name in names]})
    owned = {name: first["members"][name]["active"] for name in names}
    assert sum(map(len, owned.values())) == tasks
    return {
        "tasks": ids, "members": [{"id": n, "owned": owned[n]} for n in names],
        "memory": first["memory"],
    }  # fmt: skip


@pytest.mark.parametrize(("restoring", "withheld"), [({}, []), ({"0_0": 90_000}, ["0_0"])])
def test_restoring_owner_does_not_run_the_task(restoring: Told, withheld: list[str]) -> None:
    """A member whose copy is nearer by half does not wait for the owner."""
    owner = {"id": "a", "owned": ["0_0"], "restoring": restoring, "leaving": True}
    learner = {"id": "b", "learner": {"0_0": 40_000}}
    plan = planned({"tasks": [{"id": "0_0"}], "members": [owner, learner]})
    assert [*plan["withheld"]] == withheld


def test_copies_listed_beside_ownership_do_not_change_the_plan() -> None:
    """An owner's own learner and standby copies are left out."""
    owner = {"id": "a", "owned": ["0_0"], "leaving": True}
    other = {"id": "b", "learner": {"0_0": 40_000}}
    plans = [
        planned({"tasks": [{"id": "0_0"}], "members": [{**owner, **more}, other]})
        for more in ({}, {"standby": {"0_0": 90_000}, "on_disk": {"0_0": 90_000}})
    ]
    assert plans[0] == plans[1]
    assert not plans[0]["withheld"]


@pytest.mark.parametrize("fresh", [False, True])
def test_mark_ends_when_the_marked_instance_joins_fresh(fresh: bool) -> None:
    memory = {"marks": {"a": {"state": "LEAVING"}}}
    members = [{"id": "a", "fresh": fresh}]
    plan = planned({"tasks": [{"id": "0_0"}], "members": members, "memory": memory})
    assert plan["members"]["a"]["active"] == ["0_0"] * fresh


def test_task_kind_listed_twice_is_balanced_once() -> None:
    """A kind of task listed twice as stateful was taken for one without state."""
    group = settled(6, 1)
    group["members"].append({"id": "new"})
    inside = {"imbalance_percentage": 1}
    plans = [
        planned({**group, "config": inside, "memory": {"balancing": kinds}})["moves"]
        for kinds in (["STATEFUL"], ["STATEFUL", "STATEFUL"], ["STATELESS"])
    ]
    assert plans == [3, 3, 0]


def test_input_order_does_not_change_the_plan() -> None:
    group = settled(30, 7)
    group["members"].append({"id": "new", "on_disk": {"0_3": 10, "0_4": 0}})
    first = planned(group)
    for seed in range(5):
        for each in (
            group["tasks"],
            group["members"],
            *(m.get("owned", []) for m in group["members"]),
        ):
            random.Random(seed).shuffle(each)
        again = planned(group)
        assert again == first
    assert first["members"]["new"]["learner"] or first["members"]["new"]["active"]


def test_marks_and_moves_in_progress_return_with_the_memory() -> None:
    group = settled(8, 2)
    mark = {"state": "LEAVING", "deadline_ms": 90_000, "swap_to": None, "epoch_ms": 5}
    memory = {"round": 1, "balancing": ["STATEFUL", "STATELESS"], "marks": {"m001": mark}}
    plan = planned({**group, "memory": memory, "now_ms": 1000})
    assert plan["memory"]["marks"] == {"m001": mark}
    assert plan["target"]["m001"] == []
    assert planned({**group, "memory": plan["memory"], "now_ms": 1000})["target"] == plan["target"]


def test_restoring_standby_and_on_disk_tasks_count_as_copies() -> None:
    copies: Told = {"standby": {"0_0": 5}, "on_disk": {"0_1": None}, "learner": {"0_2": 7}}
    for role, lag in copies.items():
        (name,) = lag
        alone = {"tasks": [{"id": name}], "members": [{"id": "a"}, {"id": "b", role: lag}]}
        assert planned(alone)["members"]["b"]["active"] == [name]
    group: Told = {
        "config": {"acceptable_recovery_lag": 10},
        "tasks": [{"id": "0_0"}, {"id": "0_1"}],
        "members": [{"id": "a", "owned": ["0_0", "0_1"], "restoring": {"0_0": 4000}}, {"id": "b"}],
    }
    assert planned(group)["members"]["a"]["active"] == ["0_0", "0_1"]


def test_task_revoked_before_join_is_assigned_at_once() -> None:
    members: list[Told] = [{"id": "a", "owned": ["0_0", "0_1"]}, {"id": "b", "learner": {"0_1": 0}}]
    group = {"tasks": [{"id": "0_0"}, {"id": "0_1"}], "members": members}
    plan = planned(group)
    assert (plan["members"]["b"]["active"], plan["follow_up"]) == ([], True)
    assert plan["withheld"].keys() == plan["heirs"].keys() == {"0_1"}
    for more in (
        {"config": {"revoke_before_join": "being_learned"}},
        {"config": {"revoke_before_join": "all"}},
        {"members": [{**members[0], "protocol": "eager"}, members[1]]},
    ):
        plan = planned(group | more)
        assert (plan["members"]["b"]["active"], plan["follow_up"]) == (["0_1"], False), more


MEMBER: Mapping[str, Any] = {"id": "a", "owned": ["0_0"]}


def with_member(**changes: Any) -> Told:
    return {"tasks": [{"id": "0_0"}], "members": [{**MEMBER, **changes}]}


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ([], "line 1: an object: expected an object, found []"),
        ({"tasks": []}, "an object: no members"),
        ({"tasks": [], "members": [], "membres": []}, "no such field: membres: there are config,"),
        ({"tasks": [{"id": "0"}], "members": []}, "a task: id: cannot be '0'"),
        ({"tasks": [{"id": "0_-1"}], "members": []}, "expected SUBTOPOLOGY_PARTITION"),
        ({"tasks": [{"id": "0_0"}] * 2, "members": []}, "tasks: one is named twice"),
        ({"tasks": [], "members": [{"id": "a"}] * 2}, "members: one is named twice"),
        (with_member(owned=["0_1"]), "member 'a': no such task: 0_1: name it in tasks"),
        (with_member(on_disk={"0_1": 3}), "no such task: 0_1"),
        (with_member(learner={"0_0": -1}), "learner: cannot be {'0_0': -1}: expected 0 or more"),
        (with_member(capacity=0), "capacity: cannot be 0: expected 1 or more"),
        (with_member(capacity=True), "capacity: cannot be True: expected int"),
        (with_member(protocol="lazy"), "expected cooperative or eager"),
        (with_member(tags={"zone": 1}), "a member: tags: cannot be {'zone': 1}: expected str"),
        (with_member(leaving={"swap_to": 5}), "leaving: swap_to: cannot be 5: expected str"),
        ({**with_member(), "config": {"standby": -1}}, "config: standby: cannot be -1: expected 0"),
        ({**with_member(), "config": {"max_learners": -1}}, "max_learners: cannot be -1"),
        ({**with_member(), "memory": {"balancing": ["X"]}}, "memory: cannot be"),
        (
            {**with_member(), "config": {"imbalance_percentage": math.inf}},
            "0 or more, and finite",
        ),
        (
            {**with_member(), "config": {"imbalance_percentage": math.nan}},
            "0 or more, and finite",
        ),
    ],
)
def test_invalid_group_is_reported_with_line_and_field(document: object, error: str) -> None:
    told(error, document)


def test_help_example_is_a_valid_group() -> None:
    assert planned(json.loads(EXAMPLE))["members"]["b"]["learner"]


def test_assign_command_with_bad_lines_reports_each_and_exits_2(tmp_path: Path) -> None:
    """The command runs as a process, with random hashes."""
    good = json.dumps(settled(12, 5))
    deep = "[" * 100_000
    lines = good, "", deep, "\xe9", good
    (tmp_path / "groups").write_bytes("\n".join(lines).encode("latin1"))
    said = set()
    for seed in ("1", "2"):
        ended = subprocess.run(
            [sys.executable, "-m", "streamsx", "assign", "--input", str(tmp_path / "groups")],
            env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 2
        said.add(ended.stdout)
    first, wrong, torn, last = map(json.loads, said.pop().splitlines())
    assert not said
    assert first == last == planned(json.loads(good))
    assert wrong["error"].startswith("line 3: nested too deep")
    assert torn["error"].startswith("line 4: 'utf-8' codec can't decode")
    missing = [sys.executable, "-m", "streamsx", "assign", "--input", str(tmp_path / "none")]
    ended = subprocess.run(missing, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: cannot read ")
