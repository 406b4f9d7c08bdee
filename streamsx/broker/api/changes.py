"""Topics made, grown and deleted: each by itself, or why not."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

from streamsx.broker.configs import CONFIGS, told, wrong
from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.refusal import Refused, each
from streamsx.broker.service import Service
from streamsx.broker.topics import NAME
from streamsx.kafka.errors import ErrorCode

DEFAULT = -1


def create_topics(service: Service, call: Call) -> ReplyBody:
    """What was made of each. An assignment by hand says how many partitions there are."""
    names = Counter(asked.name for asked in call.body.topics)

    def create(asked: Any) -> ReplyBody:
        partitions = len(asked.assignments) or asked.num_partitions
        partitions = service.options.partitions if partitions == DEFAULT else partitions
        check(service, asked, partitions, names)
        configs = {config.name: config.value for config in asked.configs}
        topic_id = service.fresh_id().bytes
        if not call.body.validate_only:
            service.topics.create(asked.name, topic_id, partitions, configs)
        return {
            "topic_id": topic_id,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": told(CONFIGS, configs),
        }

    return {"topics": each(call.body.topics, create, "name")}


def check(service: Service, asked: Any, partitions: int, names: Counter[str]) -> None:
    """Raises Refused with what is wrong with it, the first thing."""
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
    for bad, code, why in looked_at:
        if bad:
            raise Refused(code, error_message=why)


def create_partitions(service: Service, call: Call) -> ReplyBody:
    """What became of each topic."""

    def grow(asked: Any) -> ReplyBody:
        topic, room = service.topics.find(asked.name), service.room
        more = asked.count - len(topic.logs)
        if not 0 < more <= room:
            why = f"it has {len(topic.logs)}, and there is room for {room} more"
            code = ErrorCode.INVALID_PARTITIONS if more <= 0 else ErrorCode.POLICY_VIOLATION
            raise Refused(code, error_message=why)
        if not call.body.validate_only:
            service.topics.grow(topic, asked.count)
        return {}

    return {"results": each(call.body.topics, grow, "name")}


def delete_topics(service: Service, call: Call) -> ReplyBody:
    """What became of each topic; older versions have their names alone."""

    def delete(asked: Any) -> ReplyBody:
        topic = service.topics.find(asked.name, asked.topic_id)
        service.topics.delete(topic)
        return {"name": topic.name, "topic_id": topic.id}

    names = getattr(call.body, "topic_names", ())
    by_name = [SimpleNamespace(name=name, topic_id=b"") for name in names]
    return {"responses": each(by_name or call.body.topics, delete, "name", "topic_id")}
