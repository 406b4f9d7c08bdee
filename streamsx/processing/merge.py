"""Choice of the next source of a task: the one with the smallest running maximum of timestamps.

The running maximum of a topic is the larger of its head's timestamp and the highest timestamp taken
from the topic. By heads alone, the order would depend on the cuts between batches. Ties go by topic
name. A record counts as at most a day later than the slowest of the other topics when the record
becomes the head: a single time of the far future would hold its topic back for good. That is for
the order alone. A worker counts from the opening of a task, and commits do not keep the maximum; a
driver that makes a task anew for each batch passes the maximum of the previous one. While a queue
is empty and its topic is not caught up, the other topics wait: nothing is guessed.

The order also depends on what had arrived when a topic was chosen. So a merge keeps its turns since
the last commit, and a task that runs the interval again takes the same ones first. "A record is
joined with a row of the other topic, and the result leaves. The task goes back. A newer row, which
is earlier in time, has arrived in between": by times, that row would be joined now, and its result
would be taken for the one that has left.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from streamsx.processing.batch import Chunk

NEVER: Final = 1 << 62
AHEAD_MAX_MS: Final = 24 * 3600 * 1000
"""Most ms by which a topic may be ahead of the slowest other one."""
TURNS_MAX: Final = 1 << 17
"""Most turns that are kept: 12 MB. A busy task takes about as many in two seconds, where each
record is a turn."""
Queues = Mapping[str, deque[Chunk]]
Turn = tuple[str, int]
"""Topic that was taken, and the offset behind its records."""


class Merge:
    """Merge of the queues of one task.

    `high` is the highest timestamp taken from each topic, in ms. `again` are turns to take ahead of
    all others; each ends behind the position of its topic. A single topic has nothing to wait for,
    and is not counted.
    """

    def __init__(self, queues: Queues, high: Mapping[str, int], again: Iterable[Turn] = ()) -> None:
        self._queues = queues
        self.high = {topic: high.get(topic, -1) for topic in queues}
        self.turns = deque[Turn](maxlen=TURNS_MAX)
        """Turns since the last commit, those that are kept."""
        self._again = deque(again)
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
        if self._again and (turn := self._turn_again(caught_up)):
            topic, end = turn
            if not self._queues[topic]:
                return None
            rival = NEVER, ""
            limit = min(limit, self._count_below(topic, end))
        elif not waiting or any(t not in caught_up for t, q in self._queues.items() if not q):
            return None
        else:
            topic = waiting[0][1]
            rival = waiting[1] if len(waiting) > 1 else (NEVER, "")
        times = {t: at for at, t in waiting}
        latest = self._slowest(topic, times) + AHEAD_MAX_MS
        count = self._count_before(topic, rival, limit, latest)
        chunk = self._take(self._queues[topic], count)
        batch, start, stop, _ = chunk
        if start < stop:
            self.high[topic] = times[topic]
        if start + 1 < stop:
            newest = max(batch.timestamps[start + 1 : stop])
            self.high[topic] = max(times[topic], min(newest, latest))
        end = batch.following(stop)
        self.turns.append((topic, end))
        if self._again and self._again[0][0] == topic and self._again[0][1] <= end:
            self._again.popleft()
        return chunk

    @property
    def keeps_all(self) -> bool:
        """Return whether all turns since the last commit are kept."""
        return len(self.turns) < TURNS_MAX

    def committed(self, positions: Mapping[str, int]) -> None:
        """Forget the turns that no task will take again."""
        self.turns = deque(turns_behind(self.turns, positions), TURNS_MAX)

    def reset(self, topic: str) -> None:
        """Forget the turns of a topic that continues at another offset."""
        self.turns = deque((turn for turn in self.turns if turn[0] != topic), TURNS_MAX)
        self._again = deque(turn for turn in self._again if turn[0] != topic)

    def _turn_again(self, caught_up: Collection[str]) -> Turn | None:
        """Return the next turn to take again, without those whose records are gone."""
        while self._again:
            topic, end = self._again[0]
            queue = self._queues[topic]
            if queue:
                gone = queue[0].start < queue[0].stop and not self._count_below(topic, end)
            else:
                gone = topic in caught_up  # the log was cut
            if not gone:
                return topic, end
            self._again.popleft()
        return None

    def _count_below(self, topic: str, end: int) -> int:
        """Count the records of the topic's first chunk that are below an offset."""
        chunk = self._queues[topic][0]
        return bisect_left(chunk.batch.offsets, end, chunk.start, chunk.stop) - chunk.start

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


def turns_behind(turns: Iterable[Turn], positions: Mapping[str, int]) -> list[Turn]:
    """Return the turns that reach behind positions. A topic without a position has none."""
    return [(topic, end) for topic, end in turns if end > positions.get(topic, end)]
