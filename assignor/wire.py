"""Wire format of the user data in Kafka's Subscription and Assignment.

The tables `JOIN` and `ASSIGNMENT` are the format, tag by tag; `codec` has the layout.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from streamsx.assignor import codec
from streamsx.assignor.codec import Reader, TagField
from streamsx.assignor.model import (
    METRICS,
    Copy,
    CopyRole,
    Decision,
    LeaveRequest,
    Mark,
    MarkState,
    MemberMetadata,
    Memory,
    PastPlan,
    TaskKind,
)
from streamsx.model import TaskId

JOIN_FLAGS = {"leaving": 1, "eager": 2, "fresh": 4, "observer": 16}
ASSIGNMENT_FLAGS = {
    "more": 1, "no_takers": 2, "leader": 8, "shared_name": 16, "leader_leaves": 32,
}  # fmt: skip
"""Bits of the boolean fields in the field `flags`."""
DECISIONS_MAX = 1000
DECISIONS_BYTES_MAX = 1 << 20
"""Limits of a plan's decisions: their number, and the bytes that a reader decompresses.

1,000 decisions take some 15 KB of the record that a coordinator keeps of a group.
"""
PLANS_MAX = 40
PLAN_DECISIONS_MAX = 500
PAST_DECISIONS_MAX = 2000
PAST_BYTES_MAX = 16 << 10
"""Limits of the past plans that a leader passes on: plans, decisions of one, decisions of all, and
compressed bytes."""
REASONS_MAX = 8
REASON_CHARS_MAX = 500
"""Limits of the reasons in a join.

The coordinator keeps every one of them, and many stopped tasks usually have one cause.
"""


class ErrorWord(IntEnum):
    """Cause for which a leader left all claims in place."""

    NONE = 0
    SOURCE_TOPIC_MISSING = 1
    ASSIGNMENT_FAILED = 2


@dataclass(frozen=True, slots=True)
class AssignmentView:
    """Leader's message to one member, beside the member's partitions.

    `learners`, `standbys`: tasks to learn and tasks to follow.
    `wanted`: standbys that the member will be given when they are ready, as with learners.
    `promises`: learners or standbys that the member will be given at the next rebalance, ready or
        not, so the member need not announce that they are ready.
    `more`: another rebalance may follow soon.
    `no_takers`: a leaver need not wait.
    `shared_name`: a worker of another state directory has the reader's instance name.
    `error`: with an error the member keeps its tasks.
    `stop_app`: reason for which the reader has to end, as all workers of the app; empty: go on.
    `heard`: nonce of the reader's newest join that the leader knows.
    `led_by`: name of the leader, for the log of the next one. `leader_leaves`: it is leaving.
    `differs`: sub-topologies of the reader that the leader runs otherwise, or not at all.
    `idle`: reason for which the reader has no tasks, and will not have any; empty if there is none.

    The leader alone gets its `generation`, the tasks `withheld`, the source `topics` of each
    sub-topology, its own `decisions` and the newest `plans`, for tools to read. The first of the
    plans is this one; its decisions are in `decisions` alone.

    Two fields are not on the wire. `mark`: a tool's request to the reader, which counts when it is
    newer than the last one. `problem`: the reason why the bytes cannot be read.
    """

    memory: Memory = field(default_factory=Memory)
    more: bool = False
    no_takers: bool = False
    shared_name: bool = False
    leader: bool = False
    learners: frozenset[TaskId] = frozenset()
    standbys: frozenset[TaskId] = frozenset()
    wanted: frozenset[TaskId] = frozenset()
    promises: frozenset[TaskId] = frozenset()
    error: ErrorWord = ErrorWord.NONE
    stop_app: str = ""
    heard: int = 0
    led_by: str = ""
    leader_leaves: bool = False
    differs: frozenset[int] = frozenset()
    idle: str = ""
    generation: int = 0
    withheld: frozenset[TaskId] = frozenset()
    topics: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    plans: tuple[PastPlan, ...] = ()
    mark: Mark | None = None
    problem: str = ""


def _copies(held: Mapping[TaskId, Copy]) -> bytes:
    """Encode copies per role: number and tasks. A running copy has no lag."""
    out = b""
    for role in CopyRole:
        lags = {task: copy.lag for task, copy in held.items() if copy.role is role}
        if lags:
            known = None if role is CopyRole.RUNNING else lags
            out += codec.number(role) + codec.tasks(lags, known)
    return out


def _read_copies(reader: Reader) -> dict[TaskId, Copy]:
    found: dict[TaskId, Copy] = {}
    known = set(CopyRole)  # a role of a later version has the same form and is skipped
    while reader.more:
        role = reader.number()
        lags = codec.read_lags(reader, lags=role != CopyRole.RUNNING)
        if role in known:
            runs = role == CopyRole.RUNNING
            found.update((task, Copy(CopyRole(role), 0 if runs else lags[task])) for task in lags)
    return found


def _tags(tags: Mapping[str, str]) -> bytes:
    return b"".join(codec.text(key) + codec.text(value) for key, value in sorted(tags.items()))


def _read_tags(reader: Reader) -> dict[str, str]:
    found = {}
    while reader.more:
        key = reader.text()
        found[key] = reader.text()
    return found


def _marks(marks: Mapping[str, Mark]) -> bytes:
    return b"".join(
        codec.text(instance)
        + codec.text(mark.swap_to or "")
        + codec.number(mark.state)
        + codec.number(0 if mark.deadline_ms is None else mark.deadline_ms + 1)
        + codec.number(mark.epoch_ms)
        for instance, mark in sorted(marks.items())
    )


def _read_marks(reader: Reader) -> dict[str, Mark]:
    found = {}
    known = set(MarkState)
    while reader.more:
        instance = reader.text()
        swap_to = reader.text() or None
        state = reader.number()
        deadline = reader.number()
        epoch_ms = reader.number()
        if state in known:
            at = deadline - 1 if deadline else None
            found[instance] = Mark(MarkState(state), at, swap_to, epoch_ms)
    return found


def _memory(memory: Memory) -> bytes:
    """Encode kinds (1 stateful, 2 stateless), then the marks. The round has its own tag."""
    return codec.number(memory.balancing) + _marks(memory.marks)


def _read_memory(reader: Reader) -> Memory:
    return Memory(balancing=TaskKind(reader.number()), marks=_read_marks(reader))


def _read_error(reader: Reader) -> ErrorWord:
    word = reader.number()
    return ErrorWord(word) if word in set(ErrorWord) else ErrorWord.ASSIGNMENT_FAILED


def _signatures(values: tuple[int, ...]) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def _read_signatures(reader: Reader) -> tuple[int, ...]:
    return tuple(signature for (signature,) in struct.iter_unpack(">I", reader.rest()))


def _topics(named: Mapping[int, tuple[str, ...]]) -> bytes:
    """Encode source topics per sub-topology: number, count, names."""
    return b"".join(
        codec.number(subtopology) + codec.number(len(names)) + b"".join(map(codec.text, names))
        for subtopology, names in sorted(named.items())
    )


def _read_topics(reader: Reader) -> dict[int, tuple[str, ...]]:
    found = {}
    while reader.more:
        subtopology = reader.number()
        count = reader.number()
        found[subtopology] = tuple(reader.text() for _ in range(count))
    return found


def _metrics(values: Mapping[str, float]) -> bytes:
    """Encode the metrics in the order of METRICS as floats: 56 bytes."""
    return struct.pack(f">{len(METRICS)}f", *(values[name] for name in METRICS))


def _read_metrics(reader: Reader) -> dict[str, float]:
    """Read the metrics known here; a newer member sends more of them."""
    values = (value for (value,) in struct.iter_unpack(">f", reader.rest()))
    return dict(zip(METRICS, values, strict=False))


def _decisions(decisions: tuple[Decision, ...]) -> bytes:
    """Encode decisions as compressed JSON, cut to a size that a reader accepts.

    Compression leaves a tenth, because the sentences of many tasks are much alike. The byte limit
    counts too, because names may be long.
    """
    decisions = decisions[:DECISIONS_MAX]
    data = _json(_rows(decisions))
    if len(data) > DECISIONS_BYTES_MAX:
        return _decisions(decisions[: len(decisions) // 2])
    return zlib.compress(data)


def _rows(decisions: Iterable[Decision]) -> list[list[object]]:
    return [[str(d.task), d.decision, d.why, d.owner, d.to, d.lag] for d in decisions]


def _json(rows: object) -> bytes:
    return json.dumps(rows, separators=(",", ":")).encode()


def _decisions_of(rows: Iterable[Any]) -> tuple[Decision, ...]:
    return tuple(Decision(TaskId.parse(task), *rest) for task, *rest in rows)


def _read_decisions(reader: Reader) -> tuple[Decision, ...]:
    try:
        return _decisions_of(json.loads(_inflated(reader)))
    except (zlib.error, TypeError, AttributeError) as error:
        raise ValueError(f"decisions: {error}") from error


def _inflated(reader: Reader) -> bytes:
    return zlib.decompressobj().decompress(reader.rest(), DECISIONS_BYTES_MAX)


def _plans(plans: tuple[PastPlan, ...]) -> bytes:
    """Encode plans as compressed JSON. The oldest ones are left out until the limits hold."""
    count = 0
    rows: list[list[object]] = []
    for plan in plans[:PLANS_MAX]:
        decisions = _rows(plan.decisions[:PLAN_DECISIONS_MAX])
        count += len(decisions)
        if count > PAST_DECISIONS_MAX:
            break
        people = [list(plan.joined), list(plan.left)]
        gone = [list(plan.gone)] if plan.gone else []
        rows.append([plan.generation, plan.at_ms, plan.leader, *people, decisions, *gone])
    plain = _json(rows)
    data = zlib.compress(plain)
    if rows and (len(data) > PAST_BYTES_MAX or len(plain) > DECISIONS_BYTES_MAX):
        return _plans(plans[: len(rows) // 2])
    return data


def _read_plans(reader: Reader) -> tuple[PastPlan, ...]:
    try:
        rows = json.loads(_inflated(reader))
        return tuple(_plan(*row) for row in rows)
    except (zlib.error, TypeError, AttributeError) as error:
        raise ValueError(f"plans: {error}") from error


def _plan(
    generation: int,
    at_ms: int,
    leader: str,
    joined: Iterable[str],
    left: Iterable[str],
    decisions: Iterable[Any],
    gone: Iterable[str] = (),
    *_: object,
) -> PastPlan:
    """Return the plan of a row. Leaders of before `gone` was kept write shorter rows."""
    return PastPlan(
        int(generation),
        int(at_ms),
        str(leader),
        tuple(joined),
        tuple(left),
        _decisions_of(decisions),
        tuple(gone),
    )


def _reason(why: str) -> bytes:
    """Encode a reason, cut to its limit, whatever text it quotes."""
    return why[:REASON_CHARS_MAX].encode(errors="replace")


def _read_reason(reader: Reader) -> str:
    return reader.rest().decode(errors="replace")


def _reasons(reasons: Mapping[TaskId, str]) -> bytes:
    """Encode reasons per task: number of the sub-topology, number of the partition, text.

    Reasons quote exceptions of users' code, and some of that text cannot be encoded.
    """
    return b"".join(
        codec.number(task.subtopology)
        + codec.number(task.partition)
        + codec.text(_reason(why).decode())
        for task, why in sorted(reasons.items())[:REASONS_MAX]
    )


def _read_reasons(reader: Reader) -> dict[TaskId, str]:
    found = {}
    while reader.more:
        task = TaskId(reader.number(), reader.number())
        found[task] = reader.text()
    return found


def _numbers(values: frozenset[int]) -> bytes:
    return b"".join(map(codec.number, sorted(values)))


def _read_numbers(reader: Reader) -> frozenset[int]:
    found = set()
    while reader.more:
        found.add(reader.number())
    return frozenset(found)


JOIN = (
    TagField(1, "process", "", bytes.fromhex, lambda reader: reader.rest().hex()),
    codec.numeric(3, "capacity", 1),
    codec.numeric(4, "flags"),
    codec.numeric(5, "deadline_ms", None),
    codec.numeric(6, "nonce"),
    TagField(8, "tags", {}, _tags, _read_tags),
    TagField(9, "copies", {}, _copies, _read_copies),
    codec.listing(10, "heirs"),
    TagField(11, "marks", {}, _marks, _read_marks),
    codec.numeric(12, "round"),
    TagField(13, "signatures", (), _signatures, _read_signatures),
    codec.textual(14, "instance", None),
    codec.textual(15, "swap_to", None),
    codec.listing(17, "wanted"),
    codec.listing(18, "stalled"),
    codec.textual(19, "version", ""),
    codec.listing(20, "stopped"),
    TagField(21, "reasons", {}, _reasons, _read_reasons),
    TagField(22, "metrics", {}, _metrics, _read_metrics),
    TagField(23, "stops_app", "", _reason, _read_reason),
    codec.numeric(24, "session_ms"),
    codec.numeric(25, "commit_ms"),
)
ASSIGNMENT = (
    codec.numeric(1, "round"),
    codec.numeric(2, "flags"),
    codec.listing(3, "standbys"),
    codec.listing(4, "learners"),
    codec.listing(6, "wanted"),
    TagField(9, "memory", Memory(), _memory, _read_memory),
    codec.listing(10, "promises"),
    codec.numeric(11, "generation"),
    TagField(12, "error", ErrorWord.NONE, codec.number, _read_error),
    codec.listing(14, "withheld"),
    TagField(15, "topics", {}, _topics, _read_topics),
    TagField(16, "decisions", (), _decisions, _read_decisions),
    codec.numeric(18, "heard"),
    TagField(19, "stop_app", "", _reason, _read_reason),
    codec.textual(20, "led_by", ""),
    TagField(21, "differs", frozenset(), _numbers, _read_numbers),
    TagField(22, "idle", "", _reason, _read_reason),
    TagField(24, "plans", (), _plans, _read_plans),
)


def _flags(data: object, bits: Mapping[str, int]) -> int:
    return sum(bit for name, bit in bits.items() if getattr(data, name))


def _read_flags(flags: int, bits: Mapping[str, int]) -> dict[str, Any]:
    return {name: bool(flags & bit) for name, bit in bits.items()}


def write_join(member: MemberMetadata) -> bytes:
    """Encode a member without its id, its claims and `knows`, which travel elsewhere."""
    flags = _flags(member, JOIN_FLAGS)
    out = member.leaving or LeaveRequest()
    leave_fields = {"deadline_ms": out.deadline_ms, "swap_to": out.swap_to}
    return codec.write_fields(member, JOIN, flags=flags, **leave_fields)


def read_join(data: bytes) -> MemberMetadata:
    """Read a member, without id and claims.

    Raises:
        Unreadable: the data are damaged or too new.
    """
    values = codec.read_fields(data, JOIN)
    values |= _read_flags(values.pop("flags"), JOIN_FLAGS)
    way_out = LeaveRequest(values.pop("deadline_ms"), values.pop("swap_to"))
    values["leaving"] = way_out if values["leaving"] else None
    if not values["capacity"]:
        raise codec.Unreadable("user data with capacity 0: tag 3: the least is 1")
    return MemberMetadata(id="", **values)


def write_assignment(data: AssignmentView) -> bytes:
    flags = _flags(data, ASSIGNMENT_FLAGS)
    return codec.write_fields(data, ASSIGNMENT, flags=flags, round=data.memory.round)


def read_assignment(data: bytes) -> AssignmentView:
    """Read an assignment.

    Raises:
        Unreadable: the data are damaged or too new.
    """
    values = codec.read_fields(data, ASSIGNMENT)
    values |= _read_flags(values.pop("flags"), ASSIGNMENT_FLAGS)
    values["memory"] = replace(values["memory"], round=values.pop("round"))
    return AssignmentView(**values)
