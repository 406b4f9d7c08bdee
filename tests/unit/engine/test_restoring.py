"""engine/restoring.py: what becomes of a task whose role changes while its stores are opened."""

from typing import Any

from streamsx.clock import SystemClock
from streamsx.engine.journal import Journal
from streamsx.engine.restoring import Restorer
from streamsx.kafka.admin import Bounds
from streamsx.model import Role, TaskId, TopicPartition
from streamsx.state.memory import MemoryRows

TASK, CHANGELOG = TaskId(0, 2), TopicPartition("app-counts-changelog", 2)


class Reading:
    """A fetcher that nothing comes from."""

    def __init__(self) -> None:
        self.reads: dict[TopicPartition, int] = {}

    def add(self, tp: TopicPartition, offset: int) -> None:
        self.reads[tp] = offset

    def remove(self, tp: TopicPartition) -> None:
        self.reads.pop(tp, None)


class Told:
    def __init__(self) -> None:
        self.done: list[tuple[Role, bool]] = []

    def restored(self, _: TaskId, role: Role, *, done: bool) -> None:
        self.done.append((role, done))


def test_a_learner_made_active_before_its_first_ends_are_read_is_done_at_its_end() -> None:
    """It went on following for ever, and the task ran nowhere."""
    clock, reading, told = SystemClock(), Reading(), Told()
    fetcher: Any = reading
    restorer = Restorer(clock, fetcher, Journal("w1", clock), told, limit=20)
    rows = MemoryRows()
    rows.write({b"a": b"1"}, 211)
    restorer.add(TASK, Role.LEARNER, "counts", CHANGELOG, rows)

    behind = restorer.ends(TASK, Role.ACTIVE, {CHANGELOG: Bounds(0, 211)})

    assert not behind
    assert told.done[-1] == (Role.ACTIVE, True)
