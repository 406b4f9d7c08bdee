"""`scenarios.json`, the specification, played round by round: by the function and in bytes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamsx.assignor.model import Copy, CopyRole, LeaveRequest, Plan, Rules
from streamsx.model import TaskId

if TYPE_CHECKING:
    from tests.properties.assignor.conftest import Play

SPECIFICATION = json.loads(Path(__file__).with_name("scenarios.json").read_text())
SCENARIOS = 21
Scenario = dict[str, Any]


def each() -> Iterator[Any]:
    """Yield each scenario under each of its policies."""
    for scenario in SPECIFICATION["scenarios"]:
        for policy in scenario["policies"]:
            yield pytest.param(scenario, policy, id=f"{scenario['id']}-{policy}")


def task(text: str) -> TaskId:
    """Return a task by its name: T1 is the first task with state, U1 the first one without."""
    return TaskId("TU".index(text[0]), int(text[1:]) - 1)


def tasks(texts: list[str]) -> set[TaskId]:
    return set(map(task, texts))


def begin(play: "type[Play]", scenario: Scenario, policy: str) -> "Play":
    kinds, config = scenario["tasks"], scenario.get("config", {})
    group = play(
        sorted(tasks(kinds.get("stateful", []))),
        sorted(tasks(kinds.get("stateless", []))),
        Rules(**{**config, "tags": tuple(config.get("tags", ()))}),
        policy,
    )
    for name, has in scenario.get("start", {}).items():
        group.start(name, tasks(has["active"]), eager=has.get("protocol") == "eager")
        seat = group.seats[name]
        seat.tags = has.get("tags", {})
        for text, lag_ in has.get("standby", {}).items():
            seat.copies[task(text)] = Copy(CopyRole.STANDBY, lag_)
    return group


def join(group: "Play", names: list[str]) -> None:
    for name in names:
        group.start(name)


def gone(group: "Play", names: list[str]) -> None:
    for name in names:
        del group.seats[name]


def leaving(group: "Play", names: list[str]) -> None:
    for name in names:
        group.seats[name].leaving = LeaveRequest()


def cancel(group: "Play", names: list[str]) -> None:
    for name in names:
        group.seats[name].leaving = None


def swap(group: "Play", instances: dict[str, str]) -> None:
    for old, new in instances.items():
        group.seats[old].leaving = LeaveRequest(swap_to=new)


def ready(group: "Play", reached: dict[str, list[str]]) -> None:
    lag(group, {name: dict.fromkeys(texts, 0) for name, texts in reached.items()})


def lag(group: "Play", lags: dict[str, dict[str, int]]) -> None:
    for name, records in lags.items():
        for text, behind in records.items():
            group.seats[name].reach(task(text), behind)


def memory_lost(group: "Play", _: object) -> None:
    group.forget()


def time_passes(_: "Play", __: object) -> None:
    """Do nothing: a revoked task is released by the next round anyway."""


EVENTS: dict[str, Callable[["Play", Any], None]] = {
    "join": join,
    "crash": gone,
    "left": gone,
    "leaving": leaving,
    "cancel": cancel,
    "swap": swap,
    "ready": ready,
    "lag": lag,
    "memory_lost": memory_lost,
    "released": time_passes,
    "follow_up": time_passes,
}


def shown(group: "Play", plan: Plan, before: dict[str, set[TaskId]]) -> Scenario:
    """Return a plan in the form of the specification, without empty lists."""
    return {
        "plan": {
            name: {
                "active": set(plan.active[name]),
                "learner": set(plan.learner[name]),
                "standby": set(plan.standby[name]),
                "revoked": before[name] - set(plan.active[name]),
            }
            for name in group.seats
        },
        "withheld": {t: f"{w.owner} -> {w.heir}" for t, w in plan.withheld.items()},
        "parked": dict(plan.parked),
        "no_takers": plan.no_takers,
    }


def expected(round_: Scenario) -> Scenario:
    return {
        "plan": {
            name: {
                role: tasks(has.get(role, []))
                for role in ("active", "learner", "standby", "revoked")
            }
            for name, has in round_["plan"].items()
        },
        "withheld": {task(t): way for t, way in round_.get("withheld", {}).items()},
        "parked": {task(t): to for t, to in round_.get("parked", {}).items()},
        "no_takers": round_.get("no_takers", False),
    }


@pytest.mark.parametrize(("scenario", "policy"), list(each()))
def test_the_plan_is_the_specified_one(play: "type[Play]", scenario: Scenario, policy: str) -> None:
    group = begin(play, scenario, policy)
    for number, round_ in enumerate(scenario["policies"][policy], 1):
        for event in round_["events"]:
            for what, details in event.items():
                EVENTS[what](group, details)
        before = {name: seat.active for name, seat in group.seats.items()}

        plan = group.round()

        assert shown(group, plan, before) == expected(round_), f"round {number}"


def test_all_scenarios_are_played() -> None:
    assert len({param.values[0]["id"] for param in each()}) == SCENARIOS
