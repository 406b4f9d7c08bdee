"""Who reads a source of a task: one of its branches, or one of its agents.

A reader knows how far it is, and which records in a row it has failed on. It goes on behind a
record that failed, unless its task has ended over it.

Not here: which records come next, whether a failure ends the task (`task`).
"""

from itertools import islice, repeat
from typing import TYPE_CHECKING

from streamsx.errors import StreamsxError, TaskFailed
from streamsx.task.batch import Batch, Chunk
from streamsx.task.compile import Branch, RecordFailed, compiled
from streamsx.task.policy import Failure, Streak
from streamsx.task.stream import Inbox, Running, Values
from streamsx.topology.nodes import AgentNode, Source

if TYPE_CHECKING:
    from streamsx.task.task import Task


class AgentRun:
    """One agent of one task: its inbox and its actor."""

    def __init__(self, agent: AgentNode, source: Source, task: "Task") -> None:
        self._agent, self._task = agent, task
        self._inbox = Inbox(task.taken[source.topic], self._undecodable)
        self._streak = Streak(task.policy.consecutive_failures_max)
        self._running = Running(task.id, task.stores, task.outbox, self._inbox)
        self.actor = task.start(agent, Values(self._inbox, source), self._running, self._failed)

    @property
    def position(self) -> int:
        """Next offset that is safe to commit."""
        return self._streak.position(self._inbox.ordinal, self._inbox.position)

    def run(self, chunk: Chunk) -> None:
        self._inbox.chunks.append(chunk)
        self.actor.wake()

    def reset(self, position: int) -> None:
        """Go on there; what is queued is dropped."""
        self._inbox.reset(position)
        self._streak.reset()

    def cut(self) -> None:
        """Nothing behind the record at hand."""
        self._inbox.cut()

    def _undecodable(self, error: Exception) -> None:
        self._tell(error, decode=True)

    def _failed(self, error: Exception) -> bool:
        """The body is over: its record counts as failed, the rest goes to the next one, if any."""
        where = f"agent {self._agent.name}"
        if self._task.ended or isinstance(error, TaskFailed) or self._inbox.batch is None:
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
        failure = _failure(self._task, batch, index, self._agent.name, error, decode=decode)
        self._task.failed(failure, self._streak, self._inbox.ordinal)


class LoopRun:
    """The operators of one branch of a source."""

    def __init__(self, source: Source, branch: Branch, task: "Task") -> None:
        self._task, self._name = task, f"{source.topic} loop"
        self._loop = compiled(source, branch, task.plan.number, task.outbox.to)
        self._streak = Streak(task.policy.consecutive_failures_max)
        self._passed, self._reached = 0, task.taken[source.topic]

    @property
    def position(self) -> int:
        """Next offset that is safe to commit."""
        return self._streak.position(self._passed, self._reached)

    def run(self, chunk: Chunk) -> None:
        """One failing record costs one start of the loop behind it."""
        batch, start, stop = chunk

        def undecodable(index: int, error: Exception) -> None:
            self._tell(batch, start + index, index, error, decode=True)

        while start < stop:
            columns = (batch.keys, batch.values, batch.timestamps)
            headers = islice(batch.headers, start, stop) if batch.headers else repeat(None)
            cut = (islice(column, start, stop) for column in columns)
            records = zip(*cut, headers, strict=False)  # headers may be endless
            try:
                done = self._loop(records, undecodable)
            except RecordFailed as error:
                index, cause = error.args[0], error.__cause__
                if self._task.ended or not isinstance(cause, Exception):
                    raise cause or error from None
                self._tell(batch, start + index, index, cause, decode=False)
                done = index + 1
            start, self._passed = start + done, self._passed + done
        self._reached = batch.following(stop)

    def reset(self, position: int) -> None:
        """Go on there."""
        self._reached = position
        self._streak.reset()

    def _tell(self, batch: Batch, at: int, index: int, error: Exception, *, decode: bool) -> None:
        failure = _failure(self._task, batch, at, self._name, error, decode=decode)
        self._task.failed(failure, self._streak, self._passed + index)


def _failure(
    task: "Task", batch: Batch, index: int, operator: str, error: Exception, *, decode: bool
) -> Failure:
    offset = batch.offsets[index]
    return Failure(task.id, batch.topic, batch.partition, offset, operator, decode, error)
