"""View of the group from its workers' events: the tasks of each worker, and whether any task moves.

The events of all workers (`worker --events`) are read in the order of their monotonic times. Not
here: the results of moves (`verdict`), the drawing (`screen`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SeenEvent = Mapping[str, Any]
"""Line of an events file."""

MOVES = frozenset({"rebalance_started", "assigned", "task"})
LEARNER = "learner"
TAILING = "tailing"
RUNNING = "running"
CLOSED = "closed"


class EventsFile:
    """Reader of a worker's events file that still grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def more(self) -> list[SeenEvent]:
        """Return the events since the last call; none while the file does not exist.

        An incomplete last line is left for a later call. A complete line that is no JSON is
        skipped: a killed worker left part of a line, and its successor wrote on behind that part.
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
    """Task on one worker.

    `role` and `state` are those of the event `task`. `restored` of `end` changelog rows are
    learned.
    """

    role: str = ""
    state: str = ""
    restored: int = 0
    end: int = 0


@dataclass(slots=True)
class SeenWorker:
    """Worker as seen in the events.

    `doing` is its activity in a word. A worker is `settled` if no rebalance has begun since its
    last assignment.
    """

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
                self.settled = True
                self.generation = event["generation"]
                self.doing = self.doing.replace("starts", "runs")
            case "task" if event["to"] == CLOSED:
                self.tasks.pop(event["task"], None)
            case "task":
                held = self.tasks.setdefault(event["task"], SeenTask())
                held.role = event["role"]
                held.state = event["to"]
            case "restore_progress" if event["task"] in self.tasks:
                held = self.tasks[event["task"]]
                held.restored = event["restored"]
                held.end = event["end"]
            case "commit":
                self.commits = self.commits + 1
                self.records = self.records + event["records"]
            case "leaving":
                self.doing = "leaves"
            case "left":
                self.doing = "has left"


@dataclass(slots=True)
class DemoGroup:
    """Workers by name; `moved_at` is the time of the last change, in monotonic seconds."""

    workers: dict[str, SeenWorker] = field(default_factory=dict)
    moved_at: float = 0.0

    def at_rest(self, names: Sequence[str], tasks: int) -> bool:
        """Return whether the named workers run all tasks, each of them once, without learners."""
        members = [self.workers.get(name, SeenWorker()) for name in names]
        held = [(task, each.state) for member in members for task, each in member.tasks.items()]
        return (
            all(member.settled for member in members)
            and len({member.generation for member in members}) == 1
            and all(state == RUNNING for _, state in held)
            and len({task for task, _ in held}) == len(held) == tasks
        )


def group_of(events: Iterable[SeenEvent]) -> DemoGroup:
    """Return the group as of the last of these events."""
    group = DemoGroup()
    for event in events:
        group.workers.setdefault(event["instance"], SeenWorker()).hear(event)
        if event["event"] in MOVES:
            group.moved_at = event["mono"]
    return group
