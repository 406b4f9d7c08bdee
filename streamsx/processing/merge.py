"""Choice of the next source of a task: the one with the smallest running maximum of timestamps.

The running maximum of a topic is the larger of its head's timestamp and the highest timestamp taken
from the topic. By heads alone, the order would depend on the cuts between batches. Ties go by topic
name. A record counts as at most a day later than the slowest of the other topics when the record
becomes the head: a single time of the far future would hold its topic back for good. That is for
the order alone. A worker counts from the opening of a task, and commits do not keep the maximum; a
driver that makes a task anew for each batch passes the maximum of the previous one. While a queue
is empty and its topic is not caught up, the other topics wait: nothing is guessed.
"""

from collections import deque
from collections.abc import Collection, Mapping
from typing import Final

from streamsx.processing.batch import Chunk

NEVER: Final = 1 << 62
AHEAD_MAX_MS: Final = 24 * 3600 * 1000
"""Most ms by which a topic may be ahead of the slowest other one."""
Queues = Mapping[str, deque[Chunk]]


class Merge:
    """Merge of the queues of one task.

    `high` is the highest timestamp taken from each topic, in ms. A single topic has nothing to wait
    for, and is not counted.
    """

    def __init__(self, queues: Queues, high: Mapping[str, int]) -> None:
        self._queues = queues
        self.high = {topic: high.get(topic, -1) for topic in queues}
        self._latest: dict[str, tuple[int, int]] = {}
        """Offset of the head of each topic, and the latest time as which the head counts."""

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
        latest = self._slowest(topic, {t: at for at, t in waiting}) + AHEAD_MAX_MS
        rival = waiting[1] if len(waiting) > 1 else (NEVER, "")
        count = self._count_before(topic, rival, limit, latest)
        chunk = self._take(self._queues[topic], count)
        if chunk.start < chunk.stop:
            newest = max(chunk.batch.timestamps[chunk.start + 1 : chunk.stop], default=-1)
            self.high[topic] = max(waiting[0][0], min(newest, latest))
        return chunk

    def _slowest(self, topic: str, heads: Mapping[str, int]) -> int:
        """Return the least time of the other topics: of the head, else of the records taken."""
        times = (heads.get(other, at) for other, at in self.high.items() if other != topic)
        return min((at for at in times if at >= 0), default=NEVER)

    def _heads(self) -> list[tuple[int, str]]:
        """Return the time as which the head of each topic counts."""
        found = {t: max(self.high[t], self._head(q[0])) for t, q in self._queues.items() if q}
        for topic in found:
            chunk = self._queues[topic][0]
            offset = chunk.batch.following(chunk.start)
            if self._latest.get(topic, (-1, 0))[0] != offset:
                self._latest[topic] = offset, self._slowest(topic, found) + AHEAD_MAX_MS
        return [(min(at, self._latest[topic][1]), topic) for topic, at in found.items()]

    def _head(self, chunk: Chunk) -> int:
        """Return the timestamp of a head; -1 for an empty batch, which only moves the position."""
        times = chunk.batch.timestamps
        return times[chunk.start] if chunk.start < chunk.stop else -1

    def _count_before(self, topic: str, rival: tuple[int, str], limit: int, latest: int) -> int:
        """Count the records of `topic` that come before the rival's head, at most `limit`."""
        chunk = self._queues[topic][0]
        stop = min(chunk.stop, chunk.start + limit)
        for index in range(chunk.start + 1, stop):  # the head comes before the rival
            highest = max(self.high[topic], min(chunk.batch.timestamps[index], latest))
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
