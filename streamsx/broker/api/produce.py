"""Records that clients append, and the ids by which batches that come twice are recognised."""

import logging
from functools import partial
from typing import Any

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.refusal import Refused, each
from streamsx.broker.service import Service
from streamsx.kafka.errors import ErrorCode

logger = logging.getLogger(__name__)

NO_OFFSET = -1


def answer(service: Service, call: Call) -> ReplyBody | None:
    """The offset of each batch; with `sync`, once it is on the disk."""
    acks, responses = call.body.acks, []
    for asked in call.body.topic_data:
        name = getattr(asked, "name", None)  # newer versions name topics by id alone
        answered = partial(append, service, acks, name, asked.topic_id)
        partitions = each(asked.partition_data, answered, "index", base_offset=NO_OFFSET)
        responses.append(
            {"name": name, "topic_id": asked.topic_id, "partition_responses": partitions}
        )
    reply = {"responses": responses}
    if acks == 0:
        call.reply(None)
        return None
    if not service.options.sync:
        return reply
    service.flusher.when_flushed(lambda done: call.reply(reply if done else not_stored(reply)))
    return None


def append(service: Service, acks: int, name: str | None, topic_id: bytes, asked: Any) -> ReplyBody:
    """Appends one batch to one partition. Raises Refused, CorruptRecord."""
    topic = service.topics.find(name, topic_id)
    log = topic.log(asked.index)
    if acks not in (-1, 0, 1):
        raise Refused(ErrorCode.INVALID_REQUIRED_ACKS)
    try:
        offset = log.append(asked.records, int(topic.config("max.message.bytes")))
    except OSError:
        logger.exception("append_failed folder=%s", log.folder)
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR) from None
    service.flusher.appended(log)
    return {"base_offset": offset, "log_start_offset": log.start}


def not_stored(reply: ReplyBody) -> ReplyBody:
    """The disk failed: all of it is to be sent again, and will be recognised if it is there."""
    for topic in reply["responses"]:
        for partition in topic["partition_responses"]:
            partition |= {"error_code": ErrorCode.KAFKA_STORAGE_ERROR, "base_offset": NO_OFFSET}
    return reply


def producer_id(service: Service, call: Call) -> ReplyBody:
    """An id that nobody had, at epoch 0."""
    if call.body.transactional_id is not None:
        return {"error_code": ErrorCode.INVALID_REQUEST, "producer_epoch": -1}
    return {"producer_id": service.meta.next_producer_id(), "producer_epoch": 0}
