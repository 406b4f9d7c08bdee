"""19 CreateTopics: with configurations; answers with what came of them since 5 (KIP-525).

Not: replicas on other brokers. An assignment by hand says how many partitions there are.
"""

from collections import Counter
from typing import Any

from streamsx.broker.configs import CONFIGS, told, wrong
from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.service import Service
from streamsx.broker.topics import NAME
from streamsx.kafka.errors import ErrorCode

VERSIONS = (2, 7)
DEFAULT = -1


def answer(service: Service, call: Call) -> ReplyBody:
    """Each topic by itself."""
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
    room = service.limits.partitions_max - service.topics.partitions
    bad_config = next((why for c in asked.configs if (why := wrong(c.name, c.value))), None)
    looked_at = (
        (names[asked.name] > 1, ErrorCode.INVALID_REQUEST, "named twice"),
        (not NAME.fullmatch(asked.name), ErrorCode.INVALID_TOPIC_EXCEPTION, "no name for a topic"),
        (asked.name in service.topics.by_name, ErrorCode.TOPIC_ALREADY_EXISTS, "it exists"),
        (partitions < 1, ErrorCode.INVALID_PARTITIONS, "at least one partition is needed"),
        (partitions > room, ErrorCode.POLICY_VIOLATION, f"there is room for {room} partitions"),
        (
            asked.replication_factor not in (DEFAULT, 1),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "there is one broker",
        ),
        (bad_config is not None, ErrorCode.INVALID_CONFIG, bad_config),
    )
    return next(((code, why) for bad, code, why in looked_at if bad), (ErrorCode.NONE, None))
