"""Telling of a task's stream time to the tasks behind repartition topics.

A task tells with each commit, behind the records of that commit and to each partition, if the time
has moved since it told last. A task that begins tells its time anew.
"""

from collections.abc import Iterable

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
        self._sends: dict[str, list[Send]] = {}

    @property
    def topics(self) -> Iterable[str]:
        return self._links.partitions

    def tell(self, topic: str, times: Iterable[int | None]) -> None:
        """Tell the newest of the times of a topic's records; nothing if one of them is None."""
        found = [each for each in times if each is not None]
        told = Told(self._links.writer, max(found, default=NOTHING))
        last = self._told.get(topic)
        if None in (*times,) or told.time == NOTHING or (last is not None and told <= last):
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
