"""Writes the ends of transactions into logs, and finds what is open in them."""

import logging
from collections.abc import Callable

from streamsx.broker.groups.coordinator_events import OpenInLogs, WriteMarkers
from streamsx.broker.log.flusher import Flusher
from streamsx.broker.log.log import Log
from streamsx.broker.refusal import Refused
from streamsx.broker.topics import TopicStore
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import marker, scan

logger = logging.getLogger(__name__)


class MarkerWriter:
    """One per broker. With `sync` a marker is written when it is on the disk."""

    def __init__(self, topics: TopicStore, flusher: Flusher, *, sync: bool) -> None:
        self._topics, self._flusher, self._sync = topics, flusher, sync

    def write(self, asked: WriteMarkers, wall_ms: int, later: Callable[[], None]) -> bool:
        """Whether all of it is there; if it still has to reach the disk, `later` is called then. If
        something could not be written, it must be asked for again. What is gone, or not open any
        more, needs no marker.
        """
        logs, failed = list[Log](), False
        for topic, partition in asked.places:
            try:
                log = self._topics.find(topic).log(partition)
                if asked.owner[0] in log.producers.open:
                    self._append(log, asked, wall_ms)
                logs.append(log)
            except Refused as why:
                failed |= why.code is ErrorCode.KAFKA_STORAGE_ERROR  # or else it was deleted
            except OSError as error:
                if not failed:  # one line for all of them
                    logger.error("marker_failed topic=%s-%d error=%r", topic, partition, str(error))
                self._flusher.heal()
                failed = True
        if failed or not (self._sync and logs):
            return not failed
        self._flusher.when_flushed(lambda: None if any(log.failed for log in logs) else later())
        return False

    def found_open(self, wall_ms: int) -> OpenInLogs:
        """In all logs."""
        found = [
            ((producer_id, begun.epoch), (topic.name, number))
            for topic in self._topics.by_name.values()
            for number, log in enumerate(topic.logs)
            for producer_id, begun in log.producers.open.items()
        ]
        return OpenInLogs(tuple(found), wall_ms)

    def _append(self, log: Log, asked: WriteMarkers, wall_ms: int) -> None:
        batch = memoryview(marker(*asked.owner, wall_ms, commit=asked.commit))
        ((_, _, header),) = scan(batch, check=False)
        log.append(batch, header)
        self._flusher.appended(log)
