"""Groups and plans written in one line each.

`group("0_0 0_1 | 9_0", m1="owns 0_0 9_0", m2="learner 0_1=500 leaving")`: tasks with state, then
those without; then the words of each member. After owns, restoring, ran (not claimed; with a lag it
was restoring), learner, standby, disk, promised, wanted, stalled come tasks, with a lag behind =
(?: unknown). Further words: leaving, leaving=MS, capacity=N, knows=N,N, zone=Z, fresh, opaque,
observer.

`tell(plan)`: the tasks of each member, with + before those it learns, ~ before its standbys, !
before standbys it shall get, ^ before tasks that are promised to it.
"""

from collections.abc import Callable

import pytest

from streamsx.assignor.model import (
    Copy,
    CopyRole,
    Group,
    LeaveRequest,
    MemberMetadata,
    Memory,
    Plan,
    PlannedTask,
)
from streamsx.model import TaskId, TopicPartition

ROLES = {
    "ran": CopyRole.RUNNING,
    "restoring": CopyRole.RESTORING,
    "learner": CopyRole.LEARNER,
    "standby": CopyRole.STANDBY,
    "disk": CopyRole.DORMANT,
}


def source(task: TaskId) -> TopicPartition:
    return TopicPartition(f"t{task.subtopology}", task.partition)


def read_member(name: str, text: str) -> MemberMetadata:
    lists: dict[str, list[TaskId]] = {"owns": [], "promised": [], "stalled": [], "wanted": []}
    copies: dict[TaskId, Copy] = {}
    settings: dict[str, str] = {}
    mode = ""
    for word in text.split():
        key, _, value = word.partition("=")
        if key in lists or key in ROLES:
            mode = key
        elif not key[0].isdigit():
            settings[key] = value
        elif mode in lists:
            lists[mode].append(TaskId.parse(key))
        else:
            lag = None if value == "?" else int(value or 0)
            role = CopyRole.RESTORING if mode == "ran" and lag else ROLES[mode]
            copies[TaskId.parse(key)] = Copy(role, lag)
            if mode == "restoring":
                lists["owns"].append(TaskId.parse(key))
    deadline = settings.get("leaving")
    return MemberMetadata(
        f"id-{name}",
        instance=name,
        capacity=int(settings.get("capacity", 1)),
        leaving=None if deadline is None else LeaveRequest(int(deadline) if deadline else None),
        fresh="fresh" in settings,
        observer="observer" in settings,
        opaque="opaque" in settings,
        claims=frozenset(map(source, lists["owns"])),
        copies=copies,
        heirs=frozenset(lists["promised"]),
        wanted=frozenset(lists["wanted"]),
        tags={key: settings[key] for key in ("zone", "rack") if key in settings},
        stalled=frozenset(lists["stalled"]),
        knows=frozenset(map(int, settings["knows"].split(","))) if "knows" in settings else None,
    )


def build(tasks: str, memory: Memory | None = None, now_ms: int = 0, **members: str) -> Group:
    stateful, _, stateless = tasks.partition("|")
    return Group(
        [
            PlannedTask(task, kind, (source(task),))
            for kind, words in ((True, stateful), (False, stateless))
            for task in map(TaskId.parse, words.split())
        ],
        [read_member(name, text) for name, text in members.items()],
        memory,
        now_ms,
    )


def read_plan(plan: Plan) -> dict[str, str]:
    told = {}
    for member, active in plan.active.items():
        learns = [
            f"{'^' if plan.heirs.get(task) == member else '+'}{task}"
            for task in plan.learner[member]
        ]
        follows = [
            f"{'^' * (plan.heirs.get(task) == member)}"
            f"{'!' if plan.wanted.get(task) == member else '~'}{task}"
            for task in plan.standby[member]
        ]
        told[member.removeprefix("id-")] = " ".join([*map(str, active), *learns, *follows])
    return told


@pytest.fixture
def group() -> Callable[..., Group]:
    return build


@pytest.fixture
def tell() -> Callable[[Plan], dict[str, str]]:
    return read_plan
