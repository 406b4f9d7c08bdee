"""Telling of a task's stream time to the tasks behind repartition topics.

A task tells with each commit, behind the records of that commit and to each partition, if the time
has moved since it told last. A task that begins tells its time anew. That it is idle, or has input
again, it tells at once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from streamsx.errors import RecordRefused
from streamsx.processing.inbox import Outbox, Send
from streamsx.processing.progress import HEADERS, NOTHING, Told
from streamsx.topology.time_links import TimeLinks


class Teller:
    """Sender of the times of one task; `topics` are those that carry them."""

    def __init__(self, links: TimeLinks, outbox: Outbox) -> None:
        self._links = links
        self._outbox = outbox
        self._told: dict[str, Told] = {}
        self._idle: set[str] = set()
        """Topics for which the task rests; each is told so with the next commit at the latest."""
        self._unaware = set(links.idle_ms)
        """Topics whose readers may take the task for idle; also those that it has told nothing."""
        self._sends: dict[str, list[Send]] = {}

    @property
    def topics(self) -> Iterable[str]:
        return self._links.partitions

    @property
    def idle_ms(self) -> Mapping[str, int]:
        """Return the time without input after which a topic is told that the task is idle."""
        return self._links.idle_ms

    def awake(self, topics: Collection[str]) -> None:
        """Tell topics at once that the task is not idle, because it has input for them.

        The race without this: an idle task gets a bad record and stops before its next commit; its
        readers take it for idle and close their windows; the task goes on, and its records are
        late. A task that begins has that race too, with what the task before it has told.
        """
        for topic in self._unaware.intersection(topics):
            last = self._told.get(topic)
            self._tell(topic, Told(self._links.writer, NOTHING if last is None else last.time))
        self._idle.difference_update(topics)

    def rests(self, topic: str) -> bool:
        """Note that the task is idle for a topic; return False if that was known."""
        known = topic in self._idle
        self._idle.add(topic)
        return not known

    def tell(self, topic: str, times: Sequence[int | None]) -> None:
        """Tell the newest of the times of a topic's records.

        Nothing is told if one of the times is None, or if nothing has changed. A task that has told
        that it is idle is so until it has input.
        """
        found = [each for each in times if each is not None]
        told = Told(self._links.writer, max(found, default=NOTHING), topic in self._idle)
        last = self._told.get(topic, Told(told.writer, NOTHING))
        if len(found) < len(times) or (told.idle == last.idle and told.time <= last.time):
            return
        self._tell(topic, told)

    def _tell(self, topic: str, told: Told) -> None:
        self._told[topic] = told
        if told.idle:
            self._unaware.add(topic)
        else:
            self._unaware.discard(topic)
        self._send(topic, told)

    def _send(self, topic: str, told: Told) -> None:
        sends = self._sends.get(topic)
        if sends is None:
            partitions = range(self._links.partitions[topic])
            sends = self._sends[topic] = [self._outbox.to(topic, n) for n in partitions]
        value = told.encode()
        for send in sends:
            try:
                send(None, value, max(told.time, 0), HEADERS)
            except RecordRefused:  # later than the topic takes: as late as any record can be
                send(None, value, 0, HEADERS)
