"""23 OffsetForLeaderEpoch: there is one leader in one epoch, so nothing was ever cut (KIP-320)."""

from typing import Any

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.log import Log
from streamsx.broker.service import LEADER_EPOCH, Service
from streamsx.kafka.errors import ErrorCode

VERSIONS = (2, 4)


def answer(service: Service, call: Call) -> ReplyBody:
    """The end of each partition."""
    topics = []
    for asked in call.body.topics:
        topic = service.topics.by_name.get(asked.topic)
        partitions = [end(topic.log(p.partition) if topic else None, p) for p in asked.partitions]
        topics.append({"topic": asked.topic, "partitions": partitions})
    return {"topics": topics}


def end(log: Log | None, asked: Any) -> ReplyBody:
    """Of one partition."""
    body: ReplyBody = {"partition": asked.partition}
    if log is None:
        return {**body, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    return {**body, "leader_epoch": LEADER_EPOCH, "end_offset": log.high_watermark}
