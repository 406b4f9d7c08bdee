"""Topics made, grown and deleted: each by itself, or why not."""

from collections import Counter
from typing import Any

from streamsx.broker.configs import CONFIGS, told, wrong
from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.service import Service
from streamsx.broker.topics import NAME, unknown
from streamsx.kafka.errors import ErrorCode

DEFAULT = -1


def create_topics(service: Service, call: Call) -> ReplyBody:
    """What was made of each. An assignment by hand says how many partitions there are."""
    names = Counter(asked.name for asked in call.body.topics)
    return {"topics": [create(service, call, asked, names) for asked in call.body.topics]}


def create(service: Service, call: Call, asked: Any, names: Counter[str]) -> ReplyBody:
    """One topic, or why not."""
    partitions = len(asked.assignments) or asked.num_partitions
    partitions = service.options.partitions if partitions == DEFAULT else partitions
    code, why = refusal(service, asked, partitions, names)
    if code:
        return {"name": asked.name, "error_code": code, "error_message": why}
    configs = {config.name: config.value for config in asked.configs}
    topic_id = service.fresh_id().bytes
    if not call.body.validate_only:
        service.topics.create(asked.name, topic_id, partitions, configs)
    return {
        "name": asked.name,
        "topic_id": topic_id,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": told(CONFIGS, configs),
    }


def refusal(
    service: Service, asked: Any, partitions: int, names: Counter[str]
) -> tuple[ErrorCode, str | None]:
    """What is wrong with it, the first thing."""
    bad_config = next((why for c in asked.configs if (why := wrong(c.name, c.value))), None)
    replicas, room = asked.replication_factor, service.room
    no_replicas = ErrorCode.INVALID_REPLICATION_FACTOR
    looked_at = (
        (names[asked.name] > 1, ErrorCode.INVALID_REQUEST, "named twice"),
        (not NAME.fullmatch(asked.name), ErrorCode.INVALID_TOPIC_EXCEPTION, "no name for a topic"),
        (asked.name in service.topics.by_name, ErrorCode.TOPIC_ALREADY_EXISTS, "it exists"),
        (partitions < 1, ErrorCode.INVALID_PARTITIONS, "at least one partition is needed"),
        (partitions > room, ErrorCode.POLICY_VIOLATION, f"there is room for {room} partitions"),
        (replicas not in (DEFAULT, 1), no_replicas, "there is one broker"),
        (bad_config is not None, ErrorCode.INVALID_CONFIG, bad_config),
    )
    return next(((code, why) for bad, code, why in looked_at if bad), (ErrorCode.NONE, None))


def create_partitions(service: Service, call: Call) -> ReplyBody:
    """What became of each topic."""
    validate_only = call.body.validate_only
    return {"results": [grow(service, asked, validate_only) for asked in call.body.topics]}


def grow(service: Service, asked: Any, validate_only: bool) -> ReplyBody:
    """One topic, or why not."""
    topic = service.topics.by_name.get(asked.name)
    if topic is None:
        return {"name": asked.name, "error_code": unknown(asked.name)}
    more, room = asked.count - len(topic.logs), service.room
    if not 0 < more <= room:
        why = f"it has {len(topic.logs)}, and there is room for {room} more"
        code = ErrorCode.INVALID_PARTITIONS if more <= 0 else ErrorCode.POLICY_VIOLATION
        return {"name": asked.name, "error_code": code, "error_message": why}
    if not validate_only:
        service.topics.grow(topic, asked.count)
    return {"name": asked.name}


def delete_topics(service: Service, call: Call) -> ReplyBody:
    """What became of each topic; older versions have their names alone."""
    by_name = [(name, b"") for name in getattr(call.body, "topic_names", ())]
    responses = []
    for name, topic_id in by_name or [(asked.name, asked.topic_id) for asked in call.body.topics]:
        topic = service.topics.find(name, topic_id)
        if topic is None:
            code = unknown(name)
            responses.append({"name": name, "topic_id": topic_id, "error_code": code})
        else:
            service.topics.delete(topic)
            responses.append({"name": topic.name, "topic_id": topic.id})
    return {"responses": responses}
