"""Who reads a source of a task: the loop of its branches, or one of its agents' bodies.

A reader knows how far it is, and which records in a row it has failed on, a loop for each of its
branches. It goes on behind a record that failed, unless its task has ended over it.

Not here: which records come next, whether a failure ends the task (`task`).
"""

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from streamsx.errors import StreamsxError, TaskFailed
from streamsx.task.batch import Batch, Chunk
from streamsx.task.compile import compiled
from streamsx.task.policy import Failure, Streak
from streamsx.task.stream import Inbox, Running, Values
from streamsx.topology.nodes import AgentNode, Source

if TYPE_CHECKING:
    from streamsx.task.task import Task


class Place(NamedTuple):
    """How far a reader is: next offset that is safe to commit, and the stream time before it."""

    position: int
    stream_time: int


class Scope:
    """What fails under one agent's name, in its body or ahead of it."""

    def __init__(self, agent: str, task: "Task") -> None:
        self._agent, self._task = agent, task
        self._streak = Streak(task.policy.consecutive_failures_max)
        self.reset = self._streak.reset

    def place(self, ordinal: int, reached: int) -> Place:
        """`ordinal`: of the record at hand, or the next one; a streak that lasts holds both."""
        streak = self._streak
        if streak.lasts(ordinal):
            return Place(streak.first, streak.since)
        return Place(reached, self._task.stream_time)

    def failed(
        self, batch: Batch, index: int, ordinal: int, error: Exception, *, decode: bool
    ) -> None:
        """Raises what ends the task."""
        task, offset = self._task, batch.offsets[index]
        place = (task.id, batch.topic, batch.partition, offset)
        task.failed(Failure(*place, self._agent, decode, error), self._streak, ordinal)


class AgentRun:
    """One agent of one task: its inbox and its actor."""

    def __init__(self, agent: AgentNode, source: Source, task: "Task") -> None:
        self.agent, self.topic, self._task = agent.name, source.topic, task
        self._inbox = Inbox(task.taken[source.topic], partial(self._tell, decode=True))
        self._scope = Scope(agent.name, task)
        running = Running(task.id, task.stores, task.outbox, self._inbox)
        self.actor = task.start(agent, Values(self._inbox, source), running, self._failed)
        self.cut = self._inbox.cut

    @property
    def reached(self) -> int:
        """Next offset that its body has not read, whatever failed before it."""
        return self._inbox.position

    @property
    def place(self) -> Place:
        """Of its body."""
        return self._scope.place(self._inbox.ordinal, self._inbox.position)

    def run(self, chunk: Chunk) -> None:
        self._inbox.chunks.append(chunk)
        self.actor.wake()

    def reset(self, position: int) -> None:
        """Go on there; what is queued is dropped."""
        self._inbox.reset(position)
        self._scope.reset()

    def _failed(self, error: Exception) -> bool:
        """The body is over: its record counts as failed, the rest goes to the next one, if any."""
        where = f"agent {self.agent}"
        if (
            self._task.ended is not None
            or isinstance(error, TaskFailed)
            or self._inbox.batch is None
        ):
            self._task.end(error, where)
            return False
        try:
            self._tell(error, decode=False)
        except StreamsxError as fatal:
            self._task.end(fatal, where)
            return False
        self._inbox.skip()
        return True

    def _tell(self, error: Exception, *, decode: bool) -> None:
        batch, index = self._inbox.batch, self._inbox.index
        assert batch is not None, "a failure without a record"
        self._scope.failed(batch, index, self._inbox.ordinal, error, decode=decode)


class LoopRun:
    """The branches of a source, record by record; each has a scope of its own."""

    def __init__(self, source: Source, task: "Task") -> None:
        self._loop = compiled(source, task.plan.number, task.outbox.to)
        self._scopes = [Scope(branch.agent, task) for branch in source.branches]
        self._passed, self._reached = 0, task.taken[source.topic]

    @property
    def place(self) -> Place:
        """Of the slowest branch, and of the one that holds the time back most."""
        places = [scope.place(self._passed, self._reached) for scope in self._scopes]
        return Place(*map(min, zip(*places, strict=True)))

    def run(self, chunk: Chunk) -> None:
        batch, start, stop = chunk.batch, chunk.start, chunk.stop
        if not batch.unreadable:
            self._run(batch, start, stop)
            return
        for at in range(start, stop):
            self._run(batch, at, at + 1)

    def _run(self, batch: Batch, start: int, stop: int) -> None:
        """Hand on records `start` to `stop`: a single one where some cannot be read."""

        def failed(index: int, error: Exception, branch: int | None) -> None:
            for scope in self._scopes if branch is None else [self._scopes[branch]]:
                at, ordinal = start + index, self._passed + index
                scope.failed(batch, at, ordinal, error, decode=branch is None)

        if (error := batch.error(start)) is not None:
            failed(0, error, None)
        else:
            columns = (batch.keys, batch.values, batch.timestamps)
            headers = batch.headers[start:stop] if batch.headers else repeat(None)
            cut = (column[start:stop] for column in columns)
            self._loop(zip(*cut, headers, strict=False), failed)  # headers may be endless
        self._passed, self._reached = self._passed + stop - start, batch.following(stop)

    def reset(self, position: int) -> None:
        """Go on there."""
        self._reached = position
        for scope in self._scopes:
            scope.reset()
