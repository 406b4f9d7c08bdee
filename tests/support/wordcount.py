"""Word count of the examples under load: lines in at a steady rate, and the expected counts.

Lines are the help texts of the standard library, again and again. Each test has an app of its own,
with its topics and group.

Not here: the workers (`workers`).
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
    """App id with its topics. A context manager; `feed` sends lines beside the test."""

    def __init__(
        self,
        bootstrap: str,
        *,
        partitions: int = 4,
        between: str = "{app}-words",
        words_of: Callable[[str], Iterable[str]] = str.split,
        clock: Clock | None = None,
    ) -> None:
        """Prepare an app.

        Args:
            between: Topic that the app counts from.
            words_of: What it counts of a line.
        """
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
        """Send lines at once, spread over all partitions; not during a feed."""
        assert not self._feed.on, "a feed is on"
        self._send(lines)

    def feed(self, lines_per_s: int) -> None:
        """Send lines from now on, in a thread, until `enough`."""
        self._feed.start(lines_per_s)

    def enough(self) -> None:
        """Stop the feed; all lines that were sent are stored."""
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
        """Return whether all lines and words are processed and committed."""
        return all(map(self._committed, (self.lines, self.counted)))

    def _committed(self, tps: list[TopicPartition]) -> bool:
        ends = self.client.ends(tps)
        committed = self.client.committed(self.app, tps)
        return all(committed[tp] >= end for tp, end in ends.items() if end)

    def committed(self) -> dict[TopicPartition, int]:
        """Return the committed offsets of the group, of lines and of words."""
        return self.client.committed(self.app, [*self.lines, *self.counted])

    def uncommitted(
        self, committed: Mapping[TopicPartition, int], tasks: Collection[str] | None = None
    ) -> int:
        """Return the number of words that a successor may count twice.

        These are the words of uncommitted lines, which are sent again, and the uncommitted words.
        However long a commit took, a worker cannot have counted more. `tasks`: of these alone.
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
        """Return by how much all counts together exceed the truth.

        Raises:
            AssertionError: a word was counted too seldom.
        """
        counts = self.counts()
        missing = {w: (counts[w], n) for w, n in self.words.items() if counts[w] < n}
        assert not missing, f"counted too seldom, of {len(self.words)} words: {missing}"
        return counts.total() - self.words.total()

    def counts(self, since: int | None = None) -> Counter[str]:
        """Return the newest count of each word, from the changelog.

        `since`: only counts that changed after these offsets.
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
