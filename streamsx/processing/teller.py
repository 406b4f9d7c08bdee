"""Telling of a task's stream time to the tasks behind repartition topics.

A task tells with each commit, behind the records of that commit and to each partition, if the time
has moved since it told last. A task that begins tells its time anew.
"""

from collections.abc import Iterable, Mapping, Sequence

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
        self._sends: dict[str, list[Send]] = {}

    @property
    def topics(self) -> Iterable[str]:
        return self._links.partitions

    @property
    def idle_ms(self) -> Mapping[str, int]:
        """Return the time without input after which a topic is told that the task is idle."""
        return self._links.idle_ms

    def awake(self) -> None:
        """Note that the task has input."""
        self._idle.clear()

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
        self._told[topic] = told
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
