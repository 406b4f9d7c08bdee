"""The word count of the examples under load: lines in at a pace, and what must come out of them.

Lines are the help texts of the standard library, again and again. Each test has an app, that is
topics and a group, of its own.

Not here: the workers that count (`workers`).
"""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import cycle, islice
from typing import Self

from streamsx.clock import Clock
from streamsx.model import TopicPartition
from streamsx.tools.demonstration.traffic import lines
from tests.support.client import Client
from tests.support.feed import Feed


class WordCount:
    """A context manager: an app id with its topics. `feed` sends lines to it, beside the test."""

    def __init__(
        self,
        bootstrap: str,
        *,
        partitions: int = 4,
        between: str = "{app}-words",
        words_of: Callable[[str], Iterable[str]] = str.split,
        clock: Clock | None = None,
    ) -> None:
        """`between`: the topic that the app counts from; `words_of`: what it counts of a line."""
        self.app, self.partitions = f"wc-{uuid.uuid4().hex[:8]}", partitions
        self._between, self._words_of = between.format(app=self.app), words_of
        self.env = {
            "WORDCOUNT_NAME": self.app, "STREAMSX_TOPIC_PARTITIONS": str(partitions),
        }  # fmt: skip
        """Of its workers."""
        self.client = Client(bootstrap)
        self._feeder = Client(bootstrap)
        self._lines = cycle(lines())
        self._feed = Feed(self._send, clock)
        self.fed = 0
        """Lines."""
        self.words: Counter[str] = Counter()
        """What the app must count."""

    @property
    def lines(self) -> list[TopicPartition]:
        return self._of(f"{self.app}-lines")

    @property
    def counted(self) -> list[TopicPartition]:
        return self._of(self._between)

    @property
    def changelog(self) -> list[TopicPartition]:
        return self._of(f"{self.app}-counts-changelog")

    def _of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, n) for n in range(self.partitions)]

    def __enter__(self) -> Self:
        self.client.create(f"{self.app}-lines", self.partitions)
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.end()
        self.client.close()
        self._feeder.close()

    # -- in

    def send(self, lines: int) -> None:
        """At once, spread over all partitions; not while a feed is on."""
        assert not self._feed.on, "a feed is on"
        self._send(lines)

    def feed(self, lines_per_s: int) -> None:
        """From now on, in a thread of its own, until `enough`."""
        self._feed.start(lines_per_s)

    def enough(self) -> None:
        """No more lines; all that were fed are there."""
        self._feed.enough()

    def _send(self, lines: int) -> None:
        taken = list(islice(self._lines, lines))
        for tp in self.lines:
            mine = taken[tp.partition :: self.partitions]
            if mine:
                self._feeder.send(tp, [(None, line.encode()) for line in mine])
        self.fed += lines
        self.words.update(word for line in taken for word in self._words_of(line))

    # -- out

    @property
    def drained(self) -> bool:
        """All that was fed is processed and committed, lines and what is counted of them."""
        return all(map(self._committed, (self.lines, self.counted)))

    def _committed(self, tps: list[TopicPartition]) -> bool:
        ends = self.client.ends(tps)
        committed = self.client.committed(self.app, tps)
        return all(committed[tp] >= end for tp, end in ends.items() if end)

    def committed(self) -> dict[TopicPartition, int]:
        """As the group has it, of lines and of what is counted of them."""
        return self.client.committed(self.app, [*self.lines, *self.counted])

    def uncommitted(
        self, committed: Mapping[TopicPartition, int], tasks: Collection[str] | None = None
    ) -> int:
        """Words that are counted twice at most by who goes on from there: those of the lines behind
        it, which are sent again, and those that are there to be counted. However long a commit
        took, nobody can have done more. `tasks`: of these alone.
        """
        found = 0
        for number, tps in enumerate((self.lines, self.counted)):
            for tp, end in self.client.ends(tps).items():
                if tasks is None or f"{number}_{tp.partition}" in tasks:
                    begin = max(committed[tp], 0)
                    found += end - begin if number else self._words_behind(tp, begin)
        return found

    def _words_behind(self, tp: TopicPartition, begin: int) -> int:
        lines = (record.value for record in self.client.read(tp, begin))
        return sum(len([*self._words_of(line.decode())]) for line in lines if line)

    def surplus(self) -> int:
        """By how much all counts together exceed the truth. Raises AssertionError for a word that
        was counted too seldom.
        """
        counts = self.counts()
        missing = {w: (counts[w], n) for w, n in self.words.items() if counts[w] < n}
        assert not missing, f"counted too seldom, of {len(self.words)} words: {missing}"
        return counts.total() - self.words.total()

    def counts(self, since: int | None = None) -> Counter[str]:
        """The newest count of each word, from the changelog; `since`: of those that changed from
        an offset of each partition on.
        """
        found: Counter[str] = Counter()
        for tp in self.changelog:
            newest = {record.key: record.value for record in self.client.read(tp, since)}
            found.update(
                {
                    json.loads(key): json.loads(value)
                    for key, value in newest.items()
                    if key and value
                }
            )
        return found
