"""What goes in and what comes out: lines at a pace, the counts at the end.

The lines are the help texts of the standard library, again and again; what must come of them is
counted as they are sent. Not here: the workers between the two ends.
"""

import asyncio
import json
from collections import Counter
from itertools import cycle, islice
from math import inf

from streamsx.client.cluster import Cluster
from streamsx.client.range_reader import writing
from streamsx.clock import Clock
from streamsx.tools.cli.records import newest

PACE_MAX = 5_000.0
"""Lines per second. At full speed two workers drain the default before anything can be shown."""
SHOW_S = 40.0
RESERVE_S = 10.0
TICK_S = 0.01
TICK_MAX_S = 0.1
"""What a feed that was held up for longer has missed is not made up for."""


def lines() -> list[str]:
    """Of the standard library's help texts; not a blank one among them."""
    from pydoc_data.topics import topics

    return [line for text in topics.values() for line in text.splitlines() if line.strip()]


def pace(records: int, left: int, *, shown: bool) -> float:
    """Lines per second, so that there are some for as long as there is something to show.

    All would last for 40 s; the last 10 s of them become ever slower, and never run out. Once
    everything was shown the rest goes at full pace.
    """
    return PACE_MAX if shown else min(PACE_MAX, records / SHOW_S, left / RESERVE_S)


class Feed:
    """Sends lines to all partitions of a topic in turn."""

    def __init__(self, clock: Clock, topic: str, records: int) -> None:
        self._clock, self._topic, self._records = clock, topic, records
        self._lines = cycle(lines())
        self.begun_at = inf
        self.sent = 0
        self.words: Counter[str] = Counter()
        self.shown = self.done = False
        """`shown`: there is nothing more to show. `done`: all lines are acknowledged."""

    async def run(self, cluster: Cluster) -> None:
        """Until it is done. Raises what the broker refuses for good."""
        async with writing(cluster, self._clock) as producer:
            await producer.start()
            places = range(cluster.partitions(self._topic))
            turns = cycle([producer.to(self._topic, place) for place in places])
            self.begun_at = then = self._clock.now()
            due = 1.0
            while self.sent < self._records:
                await asyncio.sleep(TICK_S)
                now, left = self._clock.now(), self._records - self.sent
                if not producer.full():
                    due += pace(self._records, left, shown=self.shown) * min(now - then, TICK_MAX_S)
                    stamp = int(self._clock.wall() * 1000)
                    for line in islice(self._lines, min(int(due), left)):
                        next(turns)(None, line.encode(), stamp, None)
                        self.words.update(line.split())
                        self.sent += 1
                    due %= 1
                then = now
            await producer.flush()
        self.done = True


async def counts(cluster: Cluster, clock: Clock, changelog: str) -> dict[str, int]:
    """The newest value of each key. Raises WorldError, CorruptRecord."""
    await cluster.follow([changelog])
    found = await newest(cluster, clock, changelog)
    return {json.loads(key): json.loads(value) for (_, key), value in found.items()}
