"""Watch over code of the app that takes long: one record that waits, or a loop that stood still.

Not here: what a slow body means for commits (`tasks/transactional_committer`).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from streamsx.journal import Journal
from streamsx.processing.task import Task

if TYPE_CHECKING:
    from streamsx.model import TaskId

SLOW_S: Final = 30.0
"""Time that one record may take before the first line; each further line comes twice as late."""
STILL_S: Final = 5.0
"""Time between two turns of the data loop that is logged. Turns are 1 s apart at most."""


class SlowCode:
    """Records that an agent has had at hand for long, by task and agent."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._turn_at: float | None = None
        self._since: dict[tuple[TaskId, str], tuple[int, float, float]] = {}
        """Offset at hand, the time of the first look at it, and the time of the next line."""

    def turn(self, now: float) -> None:
        """Note a turn of the data loop, and log a long time since the last one.

        The process was stopped, or a body or a timer has blocked the event loop.
        """
        if self._turn_at is not None and now - self._turn_at >= STILL_S:
            self._journal("stood_still", ms=round((now - self._turn_at) * 1000))
        self._turn_at = now

    def look(self, now: float, tasks: Iterable[Task]) -> None:
        """Log each record that an agent has had at hand for `SLOW_S`, with the line of its wait."""
        seen: dict[tuple[TaskId, str], tuple[int, float, float]] = {}
        for task in tasks:
            for body in task.bodies if task.busy else ():
                if body.actor.idle:
                    continue
                key = task.id, body.agent
                offset, since, due = self._since.get(key, (-1, now, 0.0))
                if offset != body.reached:
                    offset, since, due = body.reached, now, now + SLOW_S
                elif now >= due:
                    due = since + 2 * (now - since)
                    where = [f"{file}:{line}" for file, line in body.actor.lines()]
                    self._journal(
                        "record_takes_long", task=str(task.id), topic=body.topic,
                        partition=task.id.partition, offset=offset, operator=body.agent,
                        seconds=round(now - since), waits_at=where,
                    )  # fmt: skip
                seen[key] = offset, since, due
        self._since = seen
