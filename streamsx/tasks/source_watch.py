"""Watch over the sources of running tasks: logs that were cut, and topics that were made anew.

A fetch finds such a source: the offset is out of range, or the broker knows no topic of that id.
Brokers that have ids and fetch by name alone (Kafka 2.8 to 3.0) give no such error; for them a look
at the metadata every few seconds finds the new topic (`worker/app_topics`).

The offset at which a task goes on is decided in `tasks/start_positions`.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress

from streamsx.client.cluster import Cluster
from streamsx.client.fetcher import Fetcher
from streamsx.errors import BrokerUnreachable
from streamsx.journal import LOG
from streamsx.log_sentences import sentence
from streamsx.model import TaskId, TopicPartition
from streamsx.tasks.active_task import Active
from streamsx.tasks.log_bounds import LogBounds
from streamsx.tasks.start_positions import Move, made_anew, other


class SourceWatch:
    """Watch over the sources of all active tasks of one worker."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        spawn: Callable[..., object],
        bounds: LogBounds,
        fetcher: Fetcher,
        actives: Mapping[TaskId, Active],
    ) -> None:
        self._cluster = cluster
        self._spawn = spawn
        self._bounds = bounds
        self._fetcher = fetcher
        self._actives = actives
        self._left = set[str]()
        """Ids of deleted topics that tasks have left: a lagging broker may name one again."""
        cluster.watch(self.look)

    def add(self, active: Active) -> None:
        """Fetch all sources of a task from the task's positions."""
        task = active.task
        for tp in active.sources:
            self._fetcher.add(tp, task.taken[tp.topic], task.topic_ids.get(tp.topic))

    def remove(self, active: Active) -> None:
        """Fetch nothing more for a task."""
        for tp in active.sources:
            self._fetcher.remove(tp)

    def look(self) -> None:
        """Find sources whose topic is another one now, in the newest metadata."""
        for active in self._actives.values():
            for tp in active.sources:
                if self._anew(tp, active):
                    _ = self._spawn(self._begin_anew(tp, active), name=f"{tp} anew")

    def cut(self, tp: TopicPartition) -> None:
        """Go on at an offset that the broker has: the next one is gone, or not there yet."""
        for active in self._actives.values():
            if tp in active.sources:
                _ = self._spawn(self._go_on(tp, active), name=f"reset {tp}")

    def _anew(self, tp: TopicPartition, active: Active) -> bool:
        now = self._cluster.topic_id(tp.topic)
        return other(active.task.topic_ids.get(tp.topic), now) and now not in self._left

    async def _go_on(self, tp: TopicPartition, active: Active) -> None:
        """Move a source to an offset in its log, or to the start of a new topic.

        The fetcher has dropped its records of the partition, so the task goes on after those that
        were offered to it.
        """
        with suppress(BrokerUnreachable):  # the look-up below asks again
            await self._cluster.refresh()
        start, end = (await self._bounds.of([tp]))[tp]
        offset = active.task.wanted(tp.topic)
        if self._anew(tp, active):
            self._move(tp, active, made_anew(tp, offset, start))
            return
        known = active.task.topic_ids.get(tp.topic)
        same = known is not None and known == self._cluster.topic_id(tp.topic)
        done = active.task.positions[tp.topic]
        rule = self._bounds.reset
        to = rule.out_of_range(tp, offset, start, end, done=done, same=same)
        self._move(tp, active, to, keeps=to.offset >= offset and not idle(active, tp.topic))

    async def _begin_anew(self, tp: TopicPartition, active: Active) -> None:
        start, _ = (await self._bounds.of([tp]))[tp]
        if self._anew(tp, active):  # else an answer out of range came first
            self._move(tp, active, made_anew(tp, active.task.taken[tp.topic], start))

    def _move(self, tp: TopicPartition, active: Active, to: Move, *, keeps: bool = False) -> None:
        """Go on at another offset.

        Args:
            tp: the source partition.
            active: the task; one that has ended, or is suspended, does not move.
            to: the offset and the reason.
            keeps: whether the task first processes the earlier records in hand.
        """
        if self._actives.get(active.id) is not active or active.suspended:
            return  # the task may have begun again, at another position
        if to.why:
            LOG.warning("%s", sentence(to.why))
        task = active.task
        now = self._cluster.topic_id(tp.topic)
        if anew := self._anew(tp, active):
            self._left.add(task.topic_ids[tp.topic])
        if anew or (to.offset != task.taken[tp.topic] and not keeps):
            task.reset(tp.topic, to.offset, now if anew else None)
        self._fetcher.add(tp, to.offset, task.topic_ids.get(tp.topic))


def idle(active: Active, topic: str) -> bool:
    """Return whether the task has processed all records of a topic that were offered."""
    task = active.task
    return not task.waiting(topic) and task.positions[topic] == task.taken[topic]
