"""21 DeleteRecords: everything before an offset (KIP-107); -1 stands for the end."""

from typing import Any

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.log import Log
from streamsx.broker.service import Service
from streamsx.kafka.errors import ErrorCode

VERSIONS = (0, 2)
END = -1


def answer(service: Service, call: Call) -> ReplyBody:
    """Where each partition begins now."""
    topics = []
    for asked in call.body.topics:
        topic = service.topics.by_name.get(asked.name)
        partitions = [
            delete(topic.log(p.partition_index) if topic else None, p) for p in asked.partitions
        ]
        topics.append({"name": asked.name, "partitions": partitions})
    return {"topics": topics}


def delete(log: Log | None, asked: Any) -> ReplyBody:
    """Of one partition."""
    body: ReplyBody = {"partition_index": asked.partition_index, "low_watermark": -1}
    if log is None:
        return {**body, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    if not END <= asked.offset <= log.high_watermark:
        return {**body, "error_code": ErrorCode.OFFSET_OUT_OF_RANGE}
    log.delete_before(log.high_watermark if asked.offset == END else asked.offset)
    return {**body, "low_watermark": log.start}
