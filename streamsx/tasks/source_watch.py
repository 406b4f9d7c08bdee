"""Sources of running tasks whose log does not go on: cut at an end, or of a topic made anew.

A fetch finds out: its offset is out of range, or the broker knows no topic of that id. Brokers that
have ids and fetch by name alone (Kafka 2.8 to 3.0) say nothing; there a look at the metadata does,
every few seconds (`worker/app_topics`).

Where a task goes on is decided in `tasks/start_positions`.
"""

from collections.abc import Mapping
from contextlib import suppress

from streamsx.client.fetcher import Fetcher
from streamsx.errors import BrokerUnreachable
from streamsx.journal import LOG
from streamsx.model import TaskId, TopicPartition
from streamsx.tasks.active_task import Active
from streamsx.tasks.log_bounds import LogBounds
from streamsx.tasks.start_positions import Move, made_anew, other
from streamsx.tasks.worker_context import WorkerContext


class SourceWatch:
    """Of all active tasks of one worker."""

    def __init__(
        self,
        given: WorkerContext,
        bounds: LogBounds,
        fetcher: Fetcher,
        actives: Mapping[TaskId, Active],
    ) -> None:
        self._cluster, self._spawn = given.cluster, given.owner.spawn
        self._bounds, self._fetcher, self._actives = bounds, fetcher, actives
        self._left = set[str]()
        """Ids of topics that were given up: a broker that lags behind may name one again."""
        given.cluster.watch(self.look)

    def add(self, active: Active) -> None:
        """Fetch all sources of a task from where it is."""
        task = active.task
        for tp in active.sources:
            self._fetcher.add(tp, task.taken[tp.topic], task.topic_ids.get(tp.topic))

    def look(self) -> None:
        """Find sources whose topic is another one now, in the newest metadata."""
        for active in self._actives.values():
            for tp in active.sources:
                if self._anew(tp, active):
                    _ = self._spawn(self._begin_anew(tp, active), name=f"{tp} anew")

    def cut(self, tp: TopicPartition) -> None:
        """Go on where the broker has records: it has not the next offset any more, or not yet."""
        for active in self._actives.values():
            if tp in active.sources:
                _ = self._spawn(self._go_on(tp, active), name=f"reset {tp}")

    def _anew(self, tp: TopicPartition, active: Active) -> bool:
        now = self._cluster.topic_id(tp.topic)
        return other(active.task.topic_ids.get(tp.topic), now) and now not in self._left

    async def _go_on(self, tp: TopicPartition, active: Active) -> None:
        """The fetcher has dropped what it held: what counts is what the task was offered."""
        with suppress(BrokerUnreachable):  # the next question asks again
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
        """Go on there. `keeps`: what the task holds of the records before is to be done first."""
        if self._actives.get(active.id) is not active or active.suspended:
            return  # it may be ours once more, at another position
        if to.why:
            LOG.warning("%s", to.why)
        task, now = active.task, self._cluster.topic_id(tp.topic)
        if anew := self._anew(tp, active):
            self._left.add(task.topic_ids[tp.topic])
        if anew or (to.offset != task.taken[tp.topic] and not keeps):
            task.reset(tp.topic, to.offset, now if anew else None)
        self._fetcher.add(tp, to.offset, task.topic_ids.get(tp.topic))


def idle(active: Active, topic: str) -> bool:
    """Return whether the task has done all that it was given of a topic."""
    task = active.task
    return not task.waiting(topic) and task.positions[topic] == task.taken[topic]
