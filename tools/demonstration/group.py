"""The group as its workers tell it: who holds what, and whether anything is on the move.

Read off the events that workers write (`worker --events`): of all of them, in the order of their
monotonic times. Not here: what came of a move (`verdict`), how it is drawn (`screen`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SeenEvent = Mapping[str, Any]
"""A line of an events file."""

MOVES = frozenset({"rebalance_started", "assigned", "task"})
LEARNER, TAILING, RUNNING, CLOSED = "learner", "tailing", "running", "closed"


class EventsFile:
    """What a worker writes, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def more(self) -> list[SeenEvent]:
        """Those since the last call; none while there is no file. The last line may be torn, and
        waits for its end; so was one that a killed worker left, before its successor wrote on.
        """
        found: list[SeenEvent] = []
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                with suppress(ValueError):
                    found.append(json.loads(line))
        return found


@dataclass(slots=True)
class SeenTask:
    """A task on one worker, with `role` and `state` as in the event `task`; rows to learn."""

    role: str = ""
    state: str = ""
    restored: int = 0
    end: int = 0


@dataclass(slots=True)
class SeenWorker:
    """`doing`: in a word. `settled`: it has an assignment, and no rebalance has begun since."""

    doing: str = "starts"
    tasks: dict[str, SeenTask] = field(default_factory=dict)
    generation: int = -1
    settled: bool = False
    commits: int = 0
    records: int = 0

    def learns(self) -> dict[str, SeenTask]:
        return {task: held for task, held in self.tasks.items() if held.role == LEARNER}

    def hear(self, event: SeenEvent) -> None:
        match event["event"]:
            case "rebalance_started":
                self.settled = False
            case "assigned":
                self.settled, self.generation = True, event["generation"]
                self.doing = self.doing.replace("starts", "runs")
            case "task" if event["to"] == CLOSED:
                self.tasks.pop(event["task"], None)
            case "task":
                held = self.tasks.setdefault(event["task"], SeenTask())
                held.role, held.state = event["role"], event["to"]
            case "restore_progress" if event["task"] in self.tasks:
                held = self.tasks[event["task"]]
                held.restored, held.end = event["restored"], event["end"]
            case "commit":
                self.commits, self.records = self.commits + 1, self.records + event["records"]
            case "leaving":
                self.doing = "leaves"
            case "left":
                self.doing = "has left"


@dataclass(slots=True)
class DemoGroup:
    """Workers by name. `moved_at`: monotonic seconds, when something last changed."""

    workers: dict[str, SeenWorker] = field(default_factory=dict)
    moved_at: float = 0.0

    def at_rest(self, names: Sequence[str], tasks: int) -> bool:
        """These workers share all the tasks, each running once, and nobody learns any more."""
        members = [self.workers.get(name, SeenWorker()) for name in names]
        held = [(task, each.state) for member in members for task, each in member.tasks.items()]
        return (
            all(member.settled for member in members)
            and len({member.generation for member in members}) == 1
            and all(state == RUNNING for _, state in held)
            and len({task for task, _ in held}) == len(held) == tasks
        )


def group_of(events: Iterable[SeenEvent]) -> DemoGroup:
    """As it stands after these events."""
    group = DemoGroup()
    for event in events:
        group.workers.setdefault(event["instance"], SeenWorker()).hear(event)
        if event["event"] in MOVES:
            group.moved_at = event["mono"]
    return group
