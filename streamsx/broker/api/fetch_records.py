"""Handler of Fetch: returns about as many bytes as requested, or waits until they are there."""

import asyncio
import logging
from typing import Any

from streamsx.broker.api.partitions import READ_COMMITTED
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.log.log import Log
from streamsx.broker.log.segment import LEADER_EPOCH
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.broker.refusal import NamedOnce, Refused
from streamsx.broker.service import Service
from streamsx.errors import CorruptRecord
from streamsx.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

WHOLE = (-1, 0)
"""Session epochs of full requests: -1 without a session, 0 to begin one."""
FETCH_BYTES_MAX = 8 << 20
"""Limit of bytes in one response, whatever the client requests. Kafka's fetch.max.bytes is 55 MB,
which Kafka sends from its files. Here the bytes are in memory until they are sent, and there may be
many readers.
"""


def answer(service: Service, call: ServedRequest) -> ReplyBody | None:
    """Answer at once if enough bytes are there or an error occurs; otherwise let the call wait."""
    if call.body.session_epoch not in WHOLE:
        return {"error_code": ErrorCode.FETCH_SESSION_ID_NOT_FOUND}
    reading = Reading(service, call)
    if reading.failed or reading.size >= call.body.min_bytes or call.body.max_wait <= 0:
        return reading.body
    wait(service, call, reading)
    return None


class Reading:
    """One read of all requested partitions; `body` is the response as of now."""

    def __init__(self, service: Service, call: ServedRequest) -> None:
        self._topics = service.topics
        self.size = 0
        self.failed = not call.body.topics
        self.logs: list[Log] = []
        self._once = NamedOnce()
        self._left = min(call.body.max_bytes, FETCH_BYTES_MAX)
        self.committed = call.body.isolation_level == READ_COMMITTED
        responses = []
        for asked in call.body.topics:
            name = getattr(asked, "topic", None)  # newer versions have topic ids only
            partitions = [self._partition(name, asked.topic_id, p) for p in asked.partitions]
            responses.append({"topic": name, "topic_id": asked.topic_id, "partitions": partitions})
        self.body: ReplyBody = {"responses": responses}

    def _partition(self, name: str | None, topic_id: bytes, asked: Any) -> ReplyBody:
        number = asked.partition
        try:
            self._once(name, topic_id, number)
            log = self._topics.find(name, topic_id).log(number, asked.current_leader_epoch)
            return self._read(log, asked)
        except Refused as why:
            self.failed = True
            nothing = {"high_watermark": -1, "log_start_offset": -1, "records": b""}
            return {"partition_index": number, **nothing, **why.answer}

    def _read(self, log: Log, asked: Any) -> ReplyBody:
        offset = asked.fetch_offset
        known = asked.last_fetched_epoch <= LEADER_EPOCH
        # An unknown epoch or an offset outside the log belongs to another log.
        if not (known and log.start <= offset <= log.high_watermark):
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        self.logs.append(log)
        most = min(asked.partition_max_bytes, self._left)
        # KIP-74: the first batch is returned even if it is larger than the requested bytes.
        room = self._left > 0 or not self.size
        try:
            records = log.read(offset, most, committed=self.committed) if room else b""
            ended = log.aborted(offset, records) if self.committed else ()
        except CorruptRecord as error:
            raise Refused(ErrorCode.CORRUPT_MESSAGE) from error
        except OSError as error:
            logger.error("Reading from %s failed: %s.", log.folder, error)
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR) from None
        self._left -= len(records)
        self.size += len(records)
        aborted = [
            {"producer_id": producer_id, "first_offset": first} for producer_id, first in ended
        ]
        return {
            "partition_index": asked.partition,
            "high_watermark": log.high_watermark,
            "last_stable_offset": log.last_stable_offset,
            "log_start_offset": log.start,
            "aborted_transactions": aborted if self.committed else None,
            "records": records,
        }


def wait(service: Service, call: ServedRequest, reading: Reading) -> None:
    """Keep the call waiting until enough is appended, the wait time is over, or the client
    is gone.
    """
    missing = call.body.min_bytes - reading.size

    def wake(size: int) -> None:
        nonlocal missing
        missing -= size
        if missing <= 0:
            answer_now()

    def answer_now() -> None:
        end()
        call.reply(Reading(service, call).body)

    def end() -> None:
        timer.cancel()
        for log in reading.logs:
            log.waiters.pop(wake, None)

    # A waiting connection is not checked for idleness; its client may be gone.
    idle_s = service.limits.connections_max_idle_s
    wait_s = min(call.body.max_wait / 1000, idle_s)
    timer = asyncio.get_running_loop().call_later(wait_s, answer_now)
    call.gone = end
    for log in reading.logs:
        log.waiters[wake] = reading.committed
