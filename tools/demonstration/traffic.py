"""Input and output of the demo: lines at a limited pace, and the counts at the end.

The lines are the help texts of the standard library, again and again. The expected counts are
computed while the lines are sent. Not here: the workers between the two ends.
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
"""Most lines per second. At full speed two workers would drain the default number of lines before
any step of the demo could be shown."""
SHOW_S = 40.0
RESERVE_S = 10.0
TICK_S = 0.01
TICK_MAX_S = 0.1
"""Longest time that counts between two ticks: a feed that was held up longer does not catch up."""


def lines() -> list[str]:
    """Return the lines of the standard library's help texts, without blank lines."""
    from pydoc_data.topics import topics

    return [line for text in topics.values() for line in text.splitlines() if line.strip()]


def pace(records: int, left: int, *, shown: bool) -> float:
    """Return the pace in lines per second; lines must last until all steps have been shown.

    At this pace all lines last for 40 s. In the last 10 s the pace decreases with the lines that
    are left, so that they never run out. After all steps the rest goes at full pace.
    """
    return PACE_MAX if shown else min(PACE_MAX, records / SHOW_S, left / RESERVE_S)


class Feed:
    """Feed that sends lines to all partitions of a topic in turn."""

    def __init__(self, clock: Clock, topic: str, records: int) -> None:
        self._clock = clock
        self._topic = topic
        self._records = records
        self._lines = cycle(lines())
        self.begun_at = inf
        self.sent = 0
        self.words: Counter[str] = Counter()
        self.shown = self.done = False
        """`shown`: all steps of the demo have been shown. `done`: all lines are acknowledged."""

    async def run(self, cluster: Cluster) -> None:
        """Send all lines, and wait until the broker has acknowledged them.

        Raises:
            WorldError: the broker refuses a record for good.
        """
        async with writing(cluster, self._clock) as producer:
            await producer.start()
            places = range(cluster.partitions(self._topic))
            turns = cycle([producer.to(self._topic, place) for place in places])
            self.begun_at = then = self._clock.now()
            due = 1.0
            while self.sent < self._records:
                await asyncio.sleep(TICK_S)
                now = self._clock.now()
                left = self._records - self.sent
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
    """Return the newest count of each word from the changelog.

    Raises:
        WorldError: the brokers do not answer, or refuse.
        CorruptRecord: a record batch is damaged.
    """
    await cluster.follow([changelog])
    found = await newest(cluster, clock, changelog)
    return {json.loads(key): json.loads(value) for (_, key), value in found.items()}
