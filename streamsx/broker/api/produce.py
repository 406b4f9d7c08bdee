"""Records that clients append, and the ids by which batches that come twice are recognised."""

import logging
from typing import Any

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.producer_state import BatchRefused
from streamsx.broker.service import Service
from streamsx.broker.topics import StoredTopic, unknown
from streamsx.kafka.errors import ErrorCode

logger = logging.getLogger(__name__)


def answer(service: Service, call: Call) -> ReplyBody | None:
    """The offset of each batch; with `sync`, once it is on the disk."""
    body, responses = call.body, []
    acks = body.acks in (-1, 0, 1)
    for asked in body.topic_data:
        name = getattr(asked, "name", None)  # newer versions name topics by id alone
        topic = service.topics.find(name, asked.topic_id) if acks else None
        code = unknown(name) if acks else ErrorCode.INVALID_REQUIRED_ACKS
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


def producer_id(service: Service, call: Call) -> ReplyBody:
    """An id that nobody had, at epoch 0."""
    if call.body.transactional_id is not None:
        return {"error_code": ErrorCode.INVALID_REQUEST, "producer_epoch": -1}
    return {"producer_id": service.meta.next_producer_id(), "producer_epoch": 0}
