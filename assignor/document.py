"""JSON form of a group and of the plan for that group: the assignor without a broker.

{"tasks": [{"id": "0_3", "stateful": true}], "members": [{"id": "m1", "owned": ["0_3"]}]}

With `revoke_before_join` members release tasks before they join; this module releases those tasks
for them, so `owned` lists the tasks that a member holds when the rebalance begins. Out of scope:
lines, files, exit codes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from streamsx.assignor.model import (
    Copy,
    CopyRole,
    Decision,
    Group,
    LeaveRequest,
    Mark,
    MarkState,
    MemberMetadata,
    Memory,
    Plan,
    PlannedTask,
    Rules,
    TaskKind,
)
from streamsx.errors import UsageError
from streamsx.model import TaskId, TopicPartition

NONE = "none"
BEING_LEARNED = "being_learned"
ALL = "all"
POLICIES: Final = (NONE, BEING_LEARNED, ALL)
EAGER = "eager"
COOPERATIVE = "cooperative"
COPIES: Final = {
    "restoring": CopyRole.RESTORING, "standby": CopyRole.STANDBY, "learner": CopyRole.LEARNER,
    "on_disk": CopyRole.DORMANT,
}  # fmt: skip
Document = Mapping[str, Any]


def group_of(document: object) -> tuple[Group, Rules]:
    """Return the group and the rules that a document describes.

    Raises:
        UsageError: the document describes no group.
    """
    top = fields(document, "an object", TOP)
    rules, policy = rules_of(fields(top["config"], "config", CONFIG))
    tasks = [task_of(each) for each in top["tasks"]]
    known = {task.id: task for task in tasks}
    if len(known) < len(tasks):
        raise UsageError("tasks: one is named twice: give each once")
    parsed = [fields(each, "a member", MEMBER) for each in top["members"]]
    if len({each["id"] for each in parsed}) < len(parsed):
        raise UsageError("members: one is named twice: give each once")
    for each in parsed:
        if astray := sorted(
            {*each["owned"], *each["heir"], *each["wanted"], *copies_of(each)} - known.keys()
        ):
            raise UsageError(f"member {each['id']!r}: no such task: {astray[0]}: name it in tasks")
    learned = {task for each in parsed for task in each["learner"]}
    members = [member_of(each, known, policy, learned) for each in parsed]
    return Group(tasks, members, top["memory"], top["now_ms"]), rules


def document_of(plan: Plan) -> Document:
    """Return the JSON form of a plan.

    To get the next plan, feed back the plan's `memory` and the members as the plan leaves them.
    """
    target: dict[str, list[str]] = {member: [] for member in plan.active}
    for task, member in plan.target.items():
        target[member].append(str(task))
    return {
        "members": {
            member: {
                "active": names(tasks),
                "standby": names(plan.standby[member]),
                "learner": names(plan.learner[member]),
                "revoke": names(plan.revoke[member]),
            }
            for member, tasks in plan.active.items()
        },
        "target": target,
        "withheld": {str(task): each.reason for task, each in plan.withheld.items()},
        "heirs": {str(task): member for task, member in plan.heirs.items()},
        "wanted": {str(task): member for task, member in plan.wanted.items()},
        "parked": {str(task): member for task, member in plan.parked.items()},
        "no_takers": plan.no_takers,
        "follow_up": bool(plan.withheld),
        "moves": plan.moves,
        "memory": {
            "round": plan.memory.round,
            "balancing": [kind.name for kind in TaskKind if kind in plan.memory.balancing],
            "marks": {
                instance: {"state": mark.state.name, "deadline_ms": mark.deadline_ms,
                           "swap_to": mark.swap_to, "epoch_ms": mark.epoch_ms}
                for instance, mark in plan.memory.marks.items()
            },
        },
        "explain": [decision_of(each) for each in plan.explain],
    }  # fmt: skip


def decision_of(decision: Decision) -> Document:
    return {"task": str(decision.task), "decision": decision.decision, "why": decision.why,
            "owner": decision.owner, "to": decision.to, "lag": decision.lag}  # fmt: skip


def names(tasks: Iterable[TaskId]) -> list[str]:
    return list(map(str, tasks))


# -- parts of a group


def task_of(raw: object) -> PlannedTask:
    task = fields(raw, "a task", TASK)
    at: TaskId = task["id"]
    source = TopicPartition(f"topic-{at.subtopology}", at.partition)
    return PlannedTask(at, task["stateful"], (source,))


def member_of(
    member: Document, tasks: Mapping[TaskId, PlannedTask], policy: str, learned: set[TaskId]
) -> MemberMetadata:
    owned = set(member["owned"])
    if policy == ALL or member["protocol"] == EAGER:
        owned = set()
    elif policy == BEING_LEARNED:
        owned -= learned
    claims = (partition for task in owned for partition in tasks[task].partitions)
    return MemberMetadata(
        id=member["id"], instance=member["id"], process=member["process"] or member["id"],
        capacity=member["capacity"], tags=member["tags"], leaving=member["leaving"],
        fresh=member["fresh"], claims=frozenset(claims), copies=copies_of(member),
        heirs=frozenset(member["heir"]), wanted=frozenset(member["wanted"]), knows=member["knows"],
    )  # fmt: skip


def copies_of(member: Document) -> dict[TaskId, Copy]:
    """Return the copies of a member; running comes before restoring, and so on."""
    found = dict.fromkeys(member["owned"], Copy(CopyRole.RUNNING, 0))
    for name, role in COPIES.items():
        for task, lag in member[name].items():
            if task not in found or role is CopyRole.RESTORING:
                found[task] = Copy(role, lag)
    return found


def rules_of(config: Document) -> tuple[Rules, str]:
    made = {name: raw for name, raw in config.items() if name != "revoke_before_join"}
    return Rules(**{**made, "tags": tuple(made["tags"])}), config["revoke_before_join"]


# -- fields


Parse = Callable[[Any], Any]


def fields(raw: object, what: str, known: Mapping[str, tuple[Parse, Any]]) -> dict[str, Any]:
    """Parse each field of an object with the field's parser, or take the default.

    A default of `...` means that the field is required.

    Raises:
        UsageError: the value is no object, or a field is unknown, missing or invalid.
    """
    if not isinstance(raw, dict):
        raise UsageError(f"{what}: expected an object, found {raw!r:.60}")
    if unknown := sorted(raw.keys() - known.keys()):
        raise UsageError(f"{what}: no such field: {unknown[0]}: there are {', '.join(known)}")
    made = {}
    for name, (parse, default) in known.items():
        if name not in raw and default is ...:
            raise UsageError(f"{what}: no {name}: {raw!r:.60}")
        try:
            made[name] = parse(raw[name]) if name in raw else default
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise UsageError(f"{what}: {name}: cannot be {raw[name]!r:.60}: {error}") from error
    return made


def of(kind: type, least: float | None = None) -> Parse:
    """Return a parser for a value of this JSON type."""

    def parse(raw: Any) -> Any:
        found: type = type(raw)
        if found is not kind and (kind, found) != (float, int):
            raise TypeError(f"expected {kind.__name__}")
        if least is not None and not least <= raw < math.inf:
            raise ValueError(f"expected {least} or more, and finite")
        return raw

    return parse


def maybe(parse: Parse) -> Parse:
    return lambda raw: None if raw is None else parse(raw)


def one_of(*words: str) -> Parse:
    def parse(raw: Any) -> Any:
        if raw not in words:
            raise ValueError(f"expected {' or '.join(words)}")
        return raw

    return parse


def many(parse: Parse) -> Parse:
    def each(raw: Any) -> Sequence[Any]:
        return [parse(one) for one in of(list)(raw)]

    return each


def lags(raw: Any) -> dict[TaskId, int | None]:
    return {task(name): maybe(of(int, 0))(lag) for name, lag in of(dict)(raw).items()}


def texts(raw: Any) -> dict[str, str]:
    return {key: of(str)(value) for key, value in of(dict)(raw).items()}


def task(raw: Any) -> TaskId:
    return TaskId.parse(of(str)(raw))


def way_out(raw: Any) -> LeaveRequest | None:
    if isinstance(raw, bool):
        return LeaveRequest() if raw else None
    return LeaveRequest(**fields(raw, "leaving", LEAVING))


def memory(raw: Any) -> Memory:
    found = fields(raw, "memory", MEMORY)
    kinds = TaskKind(sum({TaskKind[kind] for kind in found["balancing"]}))
    marks = {name: fields(mark, "a mark", MARK) for name, mark in found["marks"].items()}
    return Memory(found["round"], kinds, {name: Mark(**mark) for name, mark in marks.items()})


DEADLINE: Final = {"deadline_ms": (maybe(of(int, 0)), None)}
LEAVING: Final = {**DEADLINE, "swap_to": (maybe(of(str)), None)}
MARK: Final = {
    "state": (lambda raw: MarkState[raw], ...), **LEAVING, "epoch_ms": (of(int, 0), 0),
}  # fmt: skip
MEMORY: Final = {
    "round": (of(int, 0), 0), "balancing": (many(of(str)), ()), "marks": (of(dict), {}),
}  # fmt: skip
TASK: Final = {"id": (task, ...), "stateful": (of(bool), True)}
CONFIG: Final = {
    "standby": (of(int, 0), 0), "tags": (many(of(str)), ()),
    "acceptable_recovery_lag": (of(int, 0), 10_000), "imbalance_percentage": (of(float, 0), 0.2),
    "max_learners": (maybe(of(int, 0)), None), "max_learners_per_member": (maybe(of(int, 0)), 2),
    "revoke_before_join": (one_of(*POLICIES), NONE),
}  # fmt: skip
MEMBER: Final = {
    "id": (of(str), ...), "process": (of(str), ""), "capacity": (of(int, 1), 1),
    "owned": (many(task), ()), **{name: (lags, {}) for name in COPIES},
    "leaving": (way_out, None), "fresh": (of(bool), False), "tags": (texts, {}),
    "protocol": (one_of(COOPERATIVE, EAGER), COOPERATIVE),
    "heir": (many(task), ()), "wanted": (many(task), ()),
    "knows": (maybe(lambda raw: frozenset(many(of(int, 0))(raw))), None),
}  # fmt: skip
TOP: Final = {
    "config": (of(dict), {}), "tasks": (of(list), ...), "members": (of(list), ...),
    "memory": (maybe(memory), None), "now_ms": (of(int, 0), 0),
}  # fmt: skip
