"""Transaction markers: writes the ends of transactions into logs, and finds open transactions."""

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
NOT_WRITTEN = "The end of a transaction was not written to %s-%d: %s. It is tried again."


class MarkerWriter:
    """Writer of transaction markers, one per broker. With `sync` a marker counts as written once it
    is flushed.
    """

    def __init__(self, topics: TopicStore, flusher: Flusher, *, sync: bool) -> None:
        self._topics = topics
        self._flusher = flusher
        self._sync = sync

    def write(self, asked: WriteMarkers, wall_ms: int, later: Callable[[], None]) -> bool:
        """Append the markers of one transaction to the logs of its partitions.

        If the markers still have to reach the disk, `later` is called after the flush. If a marker
        could not be written, the caller must ask again. A deleted partition, or one in which the
        transaction is no longer open, needs no marker.

        Returns:
            Whether all markers are written.
        """
        logs = list[Log]()
        failed = False
        for topic, partition in asked.places:
            try:
                log = self._topics.find(topic).log(partition)
                if asked.owner[0] in log.producers.open:
                    self._append(log, asked, wall_ms)
                logs.append(log)
            except Refused as why:
                # Any other refusal means that the partition was deleted.
                failed |= why.code is ErrorCode.KAFKA_STORAGE_ERROR
            except OSError as error:
                if not failed:  # log one line for all partitions
                    logger.error(NOT_WRITTEN, topic, partition, error)
                self._flusher.heal()
                failed = True
        if failed or not (self._sync and logs):
            return not failed
        self._flusher.when_flushed(lambda: None if any(log.failed for log in logs) else later())
        return False

    def found_open(self, wall_ms: int) -> OpenInLogs:
        """Return the transactions that are open in any log."""
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
