"""0 Produce: one batch per partition, idempotent (KIP-98), topic ids since 13 (KIP-516).

Not: transactions; batches of magic 0 and 1; error messages per record (KIP-467).
"""

import logging
from typing import Any

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.producer_state import BatchRefused
from streamsx.broker.service import Service
from streamsx.broker.topics import StoredTopic
from streamsx.kafka.errors import ErrorCode

VERSIONS = (3, 13)
TOPIC_IDS_SINCE = 13

logger = logging.getLogger(__name__)


def answer(service: Service, call: Call) -> ReplyBody | None:
    """The offset of each batch; with `sync`, once it is on the disk."""
    body, by_id = call.body, call.version >= TOPIC_IDS_SINCE
    acks = body.acks in (-1, 0, 1)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    code = unknown if acks else ErrorCode.INVALID_REQUIRED_ACKS
    responses = []
    for asked in body.topic_data:
        name = None if by_id else asked.name
        topic = service.topics.find(name, asked.topic_id) if acks else None
        partitions = [append(service, topic, p, code) for p in asked.partition_data]
        responses.append(
            {"name": name, "topic_id": asked.topic_id, "partition_responses": partitions}
        )
    reply = {"responses": responses}
    if body.acks == 0:
        call.reply(None)
        return None
    if not service.options.sync:
        return reply
    service.flusher.when_flushed(lambda done: call.reply(reply if done else not_stored(reply)))
    return None


def append(
    service: Service, topic: StoredTopic | None, asked: Any, unknown: ErrorCode
) -> ReplyBody:
    """Appends one batch to one partition."""
    log = topic.log(asked.index) if topic else None
    if topic is None or log is None:
        return refused(asked.index, unknown)
    try:
        offset = log.append(asked.records, int(topic.config("max.message.bytes")))
    except BatchRefused as why:
        return refused(asked.index, why.code)
    except OSError:
        logger.exception("append_failed folder=%s", log.folder)
        return refused(asked.index, ErrorCode.KAFKA_STORAGE_ERROR)
    service.flusher.appended(log)
    return {"index": asked.index, "base_offset": offset, "log_start_offset": log.start}


def refused(partition: int, code: ErrorCode) -> ReplyBody:
    """Nothing was appended."""
    return {"index": partition, "error_code": code, "base_offset": -1}


def not_stored(reply: ReplyBody) -> ReplyBody:
    """The disk failed: all of it is to be sent again, and will be recognised if it is there."""
    for topic in reply["responses"]:
        topic["partition_responses"] = [
            refused(p["index"], ErrorCode.KAFKA_STORAGE_ERROR) for p in topic["partition_responses"]
        ]
    return reply
