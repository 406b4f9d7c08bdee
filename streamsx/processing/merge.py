"""Choice of the next source of a task: the one with the smallest running maximum of timestamps.

The running maximum of a topic is the larger of its head's timestamp and the highest timestamp taken
from the topic. By heads alone, the order would depend on the cuts between batches. Ties go by topic
name. A worker counts from the opening of a task, and commits do not keep the maximum; a driver that
makes a task anew for each batch passes the maximum of the previous one. While a queue is empty and
its topic is not caught up, the other topics wait: nothing is guessed.
"""

from collections import deque
from collections.abc import Collection, Mapping

from streamsx.processing.batch import Chunk

Queues = Mapping[str, deque[Chunk]]


class Merge:
    """Merge of the queues of one task.

    `high` is the highest timestamp taken from each topic, in ms. A single topic has nothing to wait
    for, and is not counted.
    """

    def __init__(self, queues: Queues, high: Mapping[str, int]) -> None:
        self._queues = queues
        self.high = {topic: high.get(topic, -1) for topic in queues}

    def next(self, limit: int, caught_up: Collection[str]) -> Chunk | None:
        """Take up to `limit` records of the topic that is next.

        Returns:
            None while no topic can be chosen.
        """
        if len(self._queues) == 1:
            queue = next(iter(self._queues.values()))
            return self._take(queue, limit) if queue else None
        waiting = sorted(self._heads())
        if not waiting or any(t not in caught_up for t, q in self._queues.items() if not q):
            return None
        topic = waiting[0][1]
        count = limit if len(waiting) == 1 else self._count_before(topic, waiting[1], limit)
        chunk = self._take(self._queues[topic], count)
        taken = chunk.batch.timestamps[chunk.start : chunk.stop]
        self.high[topic] = max(self.high[topic], *taken) if taken else self.high[topic]
        return chunk

    def _heads(self) -> list[tuple[int, str]]:
        return [
            (max(self.high[topic], self._head(queue[0])), topic)
            for topic, queue in self._queues.items()
            if queue
        ]

    def _head(self, chunk: Chunk) -> int:
        """Return the timestamp of a head; -1 for an empty batch, which only moves the position."""
        times = chunk.batch.timestamps
        return times[chunk.start] if chunk.start < chunk.stop else -1

    def _count_before(self, topic: str, rival: tuple[int, str], limit: int) -> int:
        """Count the records of `topic` that come before the rival's head, at most `limit`."""
        chunk = self._queues[topic][0]
        stop = min(chunk.stop, chunk.start + limit)
        for index in range(chunk.start, stop):
            highest = max(self.high[topic], chunk.batch.timestamps[index])
            if (highest, topic) > rival:
                return index - chunk.start
        return stop - chunk.start

    def _take(self, queue: deque[Chunk], limit: int) -> Chunk:
        chunk = queue[0]
        if chunk.stop - chunk.start <= limit:
            return queue.popleft()
        stop = chunk.start + limit
        queue[0] = chunk._replace(start=stop)
        return chunk._replace(stop=stop)
