"""Which source of a task is next: always the one with the smallest running maximum of timestamps.

The running maximum of a topic is the larger of its head's timestamp and the highest timestamp that
was taken from it. Heads alone would make the order depend on where batches are cut. Equal ones go
by topic name. A worker counts since its task was opened, its commits do not keep it; who makes a
task anew for each batch hands it what the one before had. When a queue is empty and its
topic is not caught up, nothing is guessed: the others wait for it.
"""

from collections import deque
from collections.abc import Collection, Mapping

from streamsx.processing.batch import Chunk

Queues = Mapping[str, deque[Chunk]]


class Merge:
    """Over the queues of one task. `high`: of each topic, the highest timestamp taken from it, in
    ms. A single topic waits for nobody: of it nothing is counted.
    """

    def __init__(self, queues: Queues, high: Mapping[str, int]) -> None:
        self._queues = queues
        self.high = {topic: high.get(topic, -1) for topic in queues}

    def next(self, limit: int, caught_up: Collection[str]) -> Chunk | None:
        """Up to `limit` records of the topic whose turn it is; None when it cannot be told."""
        if len(self._queues) == 1:
            queue = next(iter(self._queues.values()))
            return self._take(queue, limit) if queue else None
        waiting = sorted(self._heads())
        if not waiting or any(t not in caught_up for t, q in self._queues.items() if not q):
            return None
        topic = waiting[0][1]
        count = limit if len(waiting) == 1 else self._before(topic, waiting[1], limit)
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
        """An empty batch only moves the position: no timestamp keeps it back."""
        times = chunk.batch.timestamps
        return times[chunk.start] if chunk.start < chunk.stop else -1

    def _before(self, topic: str, rival: tuple[int, str], limit: int) -> int:
        """How many records of `topic` come before the rival's head."""
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
