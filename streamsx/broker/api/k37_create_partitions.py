"""37 CreatePartitions: more of them for a topic (KIP-195)."""

from typing import Any

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.service import Service
from streamsx.kafka.errors import ErrorCode

VERSIONS = (0, 3)


def answer(service: Service, call: Call) -> ReplyBody:
    """Each topic by itself."""
    validate_only = call.body.validate_only
    return {"results": [grow(service, asked, validate_only) for asked in call.body.topics]}


def grow(service: Service, asked: Any, validate_only: bool) -> ReplyBody:
    """One topic, or why not."""
    topic = service.topics.by_name.get(asked.name)
    if topic is None:
        return {"name": asked.name, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    room = service.limits.partitions_max - service.topics.partitions
    more = asked.count - len(topic.logs)
    if not 0 < more <= room:
        why = f"it has {len(topic.logs)}, and there is room for {room} more"
        code = ErrorCode.INVALID_PARTITIONS if more <= 0 else ErrorCode.POLICY_VIOLATION
        return {"name": asked.name, "error_code": code, "error_message": why}
    if not validate_only:
        service.topics.grow(topic, asked.count)
    return {"name": asked.name}
