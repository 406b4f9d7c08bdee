"""44 IncrementalAlterConfigs: of topics (KIP-339): set, delete, and for lists append and subtract.

Not: of the broker.
"""

from typing import Any

from streamsx.broker.configs import CONFIGS, ConfigType, wrong
from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.service import Service
from streamsx.broker.topics import StoredTopic
from streamsx.kafka.errors import ErrorCode

VERSIONS = (0, 1)
TOPIC = 2
SET, DELETE, APPEND, SUBTRACT = range(4)


def answer(service: Service, call: Call) -> ReplyBody:
    """Each topic by itself, all of its changes or none."""
    validate_only = call.body.validate_only
    return {"responses": [alter(service, asked, validate_only) for asked in call.body.resources]}


def alter(service: Service, asked: Any, validate_only: bool) -> ReplyBody:
    """One topic, or why not."""
    resource = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
    if asked.resource_type != TOPIC:
        return {**resource, "error_code": ErrorCode.INVALID_REQUEST}
    topic = service.topics.by_name.get(asked.resource_name)
    if topic is None:
        return {**resource, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    configs = dict(topic.configs)
    for change in asked.configs:
        if why := apply(topic, configs, change):
            return {**resource, "error_code": ErrorCode.INVALID_CONFIG, "error_message": why}
    if not validate_only:
        service.topics.configure(topic, configs)
    return resource


def apply(topic: StoredTopic, configs: dict[str, str], change: Any) -> str | None:
    """Changes one of the configurations, or says what is wrong."""
    name, value, operation = change.name, change.value, change.config_operation
    if name not in CONFIGS:
        return wrong(name, value)
    if operation == DELETE:
        configs.pop(name, None)
        return None
    if operation in (APPEND, SUBTRACT):
        if CONFIGS[name].kind is not ConfigType.LIST:
            return f"{name}: it is no list"
        had = [part for part in configs.get(name, CONFIGS[name].default).split(",") if part]
        given = (value or "").split(",")
        rest = [part for part in had if part not in given]
        value = ",".join([*rest, *given] if operation == APPEND else rest)
    if why := wrong(name, value):
        return why
    configs[name] = value
    return None
