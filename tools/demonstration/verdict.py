"""Verdict of the demo: hand-overs and gaps from the workers' events, and whether all checks held.

A hand-over lasts from the release of a task by the worker that ran the task to the first record at
the next worker, or to `running` if no input waits. Workers that were to receive the task in between
do not count.

A gap is the longest time between two processed records of a task while input for the task waits.
*Calm* gaps come from a stretch of at least 5 s under load before the first change of membership:
they are the floor to compare with. *Staying* gaps are those of tasks that stayed on their worker
during a rebalance. *Moving* gaps last from the last record at the old owner to the first record at
the new one; they are an upper bound if the input pauses.

Rebalances, promotions and gaps count from the first change until all steps were shown, so the start
and the end are left out. Not here: the source of the events, the words of the verdict.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from streamsx.tools.demonstration.group import LEARNER, RUNNING, SeenEvent

CALM_S = 5.0
ACTIVE = "active"
SUSPENDED = "suspended"
CLOSING = "closing"

DemoResult = dict[str, Any]
"""Object that `--json` prints. None stands for a result that was not reached. If not `ok`, `why` is
the check that failed."""


@dataclass(slots=True)
class HandOver:
    """Hand-over of a task from one worker to another, with times in monotonic seconds.

    `learn_s` is the time until the learner was ready; None if the task had no learner.
    """

    task: str
    source: str
    last_record: float
    released: float
    target: str = ""
    begun: float = inf
    learn_s: float | None = None

    @property
    def handover_ms(self) -> float:
        return round((self.begun - self.released) * 1000, 1)

    @property
    def gap_ms(self) -> float:
        return round((self.begun - self.last_record) * 1000, 1)


Learner = tuple[str, str]
"""Key of a learner: instance and task."""


@dataclass(slots=True)
class _Moves:
    """Hand-overs that the events have shown so far.

    `done` holds complete hand-overs, and `away` those without a new owner, by task. `since` is the
    start of each learner, and `learn_s` the time that each ready learner took.
    """

    done: list[HandOver] = field(default_factory=list)
    away: dict[str, HandOver] = field(default_factory=dict)
    since: dict[Learner, float] = field(default_factory=dict)
    learn_s: dict[Learner, float] = field(default_factory=dict)
    last_records: dict[Learner, float] = field(default_factory=dict)

    def hear(self, event: SeenEvent) -> None:
        instance = event["instance"]
        task = event.get("task", "")
        match event["event"]:
            case "assigned":
                self._assigned(instance, event)
            case "learner_ready" if since := self.since.get((instance, task)):
                self.learn_s.setdefault((instance, task), event["mono"] - since)
            case "task" if event["to"] == SUSPENDED:
                self.last_records[instance, task] = event["last_record"]
            case "task" if event["to"] == CLOSING and event["from"] in (RUNNING, SUSPENDED):
                last = self.last_records.pop((instance, task), event["mono"])
                self.away[task] = HandOver(task, instance, last, event["mono"])
            case "first_record" | "promoted":  # without waiting input only the second one comes
                self._begun(instance, task, event.get("at", event["mono"]))

    def _assigned(self, instance: str, event: SeenEvent) -> None:
        """Apply an assignment: a learner left out was dropped, and starts anew next time."""
        for key in [key for key in self.since if key[0] == instance]:
            if key[1] not in event[LEARNER] + event[ACTIVE]:
                self._forget(key)
        for task in event[LEARNER]:
            self.since.setdefault((instance, task), event["mono"])

    def _forget(self, key: Learner) -> float | None:
        """Remove a learner; return the time until it was ready, None if it was not."""
        self.since.pop(key, None)
        return self.learn_s.pop(key, None)

    def _begun(self, target: str, task: str, at: float) -> None:
        if move := self.away.pop(task, None):  # None for the first owner of a task
            move.target = target
            move.begun = at
            move.learn_s = self._forget((target, task))
            self.done.append(move)


def hand_overs(events: Iterable[SeenEvent]) -> list[HandOver]:
    """Return the complete hand-overs in the order of their ends; `events` are sorted by time."""
    moves = _Moves()
    for event in events:
        moves.hear(event)
    return moves.done


# -- the verdict


@dataclass(slots=True, kw_only=True)
class DemoFacts:
    """Facts that are not in the events.

    Times are in monotonic seconds; `inf` stands for a step that was not reached. `workers` are in
    the order of their start, the added one last. `failure` is the error that ended the story.
    `mismatches` is None if the counts could not be compared. `wrong` describes one mismatch.
    """

    records: int
    workers: tuple[str, ...]
    stateful: frozenset[int]
    fed_at: float = inf
    added_at: float = inf
    marked_at: float = inf
    shown_at: float = inf
    drained_at: float = inf
    exit_code: int | None = None
    forced: bool = False
    distinct: int = 0
    mismatches: int | None = None
    wrong: str = ""
    cpu_s: float = 0.0
    seconds: float = 0.0
    failure: str = ""

    @property
    def leaver(self) -> str:
        return self.workers[0]


def verdict(events: Sequence[SeenEvent], facts: DemoFacts) -> DemoResult:
    """Return the result of the demo from the events of all workers, in the order of their times."""
    shown = [event for event in events if facts.added_at < event["mono"] < facts.shown_at]
    moves = [m for m in hand_overs(events) if facts.added_at < m.begun < facts.shown_at]
    moved = [m for m in moves if m.source == facts.leaver and m.released > facts.marked_at]
    why = facts.failure or _why(facts, moves, moved)
    ends = (e["mono"] for e in shown if (e["event"], e["instance"]) == ("left", facts.leaver))
    left_s = next(ends, inf) - facts.marked_at
    return {
        "ok": not why,
        "records": facts.records,
        "distinct": facts.distinct,
        "mismatches": facts.mismatches,
        "workers": list(facts.workers),
        "rebalances": len({e["generation"] for e in shown if e["event"] == "assigned"}),
        "promotions": [_promotion(m, m.learn_s) for m in moves if m.learn_s is not None],
        "leave": {
            "instance": facts.leaver,
            "tasks_moved": len(moved),
            "ms": round(left_s * 1000, 1) if 0 < left_s < inf else None,
            "exit_code": facts.exit_code,
        },
        "calm_gap_ms_max": _calm_gap(shown, facts),
        "staying_gap_ms_max": max((e["ms"] for e in shown if e["event"] == "gap"), default=None),
        "moving_gap_ms_max": max((move.gap_ms for move in moves), default=None),
        "records_per_s": _ratio(facts.records, facts.drained_at - facts.fed_at),
        "records_per_cpu_s": _ratio(facts.records, facts.cpu_s),
        "seconds": round(facts.seconds, 1),
        "why": why,
    }


def _promotion(move: HandOver, learn_s: float) -> dict[str, Any]:
    learned = {"learn_ms": round(learn_s * 1000, 1), "handover_ms": move.handover_ms}
    return {"task": move.task, "from": move.source, "to": move.target, **learned}


def _why(facts: DemoFacts, moves: Sequence[HandOver], moved: Sequence[HandOver]) -> str:
    """Return the worst check that failed; empty if all checks held."""
    added = facts.workers[-1]
    leaver = facts.leaver
    learned = [move for move in moves if move.learn_s is not None]
    cold = [m for m in moves if m not in learned and int(m.task.split("_")[0]) in facts.stateful]
    found = {
        "the counts were not compared": facts.mismatches is None,
        f"{facts.mismatches} of {facts.distinct} counts are wrong: {facts.wrong}": facts.mismatches,
        f"no learner of the added worker {added} was promoted": all(
            move.target != added for move in learned
        ),
        f"{leaver} was forced out: no worker had learned its tasks in time": facts.forced,
        f"tasks with state moved to workers that had not learned them: {_named(cold)}": cold,
        f"{leaver} left, and no worker took over its tasks": not moved,
        f"{leaver} left with exit code {facts.exit_code}": facts.exit_code != 0,
    }
    return next((why for why, holds in found.items() if holds), "")


def _named(moves: Iterable[HandOver]) -> str:
    return ", ".join(f"{move.task} to {move.target}" for move in moves)


def _calm_gap(shown: Iterable[SeenEvent], facts: DemoFacts) -> float | None:
    """Return the longest gap in ms of the calm before the first change; None if too short.

    The first calm of each task on each worker counts, if the calm lasted for at least 5 s.
    """
    told = [e for e in shown if e["event"] == "calm_gap" and e["mono"] < facts.marked_at]
    first = {(e["instance"], e["task"]): e for e in reversed(told)}.values()
    long = [e for e in first if min(e["seconds"], e["mono"] - facts.fed_at) >= CALM_S]
    return max((e["ms"] for e in long), default=None)


def _ratio(records: int, seconds: float) -> float | None:
    return round(records / seconds, 1) if 0 < seconds < inf else None
