"""32 DescribeConfigs: of topics, with types (KIP-226, KIP-569); of the broker, what it has of them.

Not: synonyms, documentation.
"""

from typing import Any

from streamsx.broker.configs import CONFIGS, ConfigDef, ConfigType, told
from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.service import Service
from streamsx.kafka.errors import ErrorCode

VERSIONS = (1, 4)
TOPIC, BROKER = 2, 4


def answer(service: Service, call: Call) -> ReplyBody:
    """Each topic or broker by itself."""
    return {"results": [describe(service, asked) for asked in call.body.resources]}


def describe(service: Service, asked: Any) -> ReplyBody:
    """One of them: all configurations, or those that were asked for."""
    resource = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
    given: dict[str, str] = {}
    if asked.resource_type == TOPIC:
        topic = service.topics.by_name.get(asked.resource_name)
        if topic is None:
            return {**resource, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        found, given = CONFIGS, topic.configs
    elif asked.resource_type == BROKER:
        auto_create = str(service.options.auto_create).lower()
        found = {
            "auto.create.topics.enable": ConfigDef(auto_create, ConfigType.BOOLEAN),
            "default.replication.factor": ConfigDef("1", ConfigType.INT),
            "num.partitions": ConfigDef(str(service.options.partitions), ConfigType.INT),
        }
    else:
        return {**resource, "error_code": ErrorCode.INVALID_REQUEST}
    if (wanted := asked.configuration_keys) is not None:
        found = {name: config for name, config in found.items() if name in wanted}
    configs = told(found, given, read_only=asked.resource_type == BROKER)
    return {**resource, "configs": configs}
