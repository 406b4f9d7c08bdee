"""Handlers of configurations: those of topics, and read-only those of the broker."""

from functools import partial
from typing import Any

from streamsx.broker.configs import CONFIGS, ConfigDef, ConfigType, crossed, listed, told, wrong
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.broker.refusal import NamedOnce, Refused, each
from streamsx.broker.service import NODE_ID, Service
from streamsx.broker.topics import NAME, StoredTopic
from streamsx.protocol.error_codes import ErrorCode

TOPIC = 2
BROKER = 4
ALL_BROKERS = ""
"""Resource name of all brokers; no configuration is set there."""
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(service: Service, call: ServedRequest) -> ReplyBody:
    """Return the configurations of each resource: all of them, or the requested ones."""
    found = partial(find, service, NamedOnce())
    return {"results": each(call.body.resources, found, "resource_type", "resource_name")}


def alter(service: Service, call: ServedRequest) -> ReplyBody:
    """Change configurations of each topic: all changes of a topic, or none."""
    changed = partial(change, service, NamedOnce(), call.body.validate_only)
    return {"responses": each(call.body.resources, changed, "resource_type", "resource_name")}


def find(service: Service, once: NamedOnce, asked: Any) -> ReplyBody:
    """Return the configurations of one resource.

    Raises:
        Refused: The resource is unknown or named twice.
    """
    once(asked.resource_type, asked.resource_name)
    given: dict[str, str] = {}
    if asked.resource_type == TOPIC:
        known = CONFIGS
        given = topic_of(service, asked).configs
    elif (asked.resource_type, asked.resource_name) == (BROKER, ALL_BROKERS):
        known = {}
    elif (asked.resource_type, asked.resource_name) == (BROKER, str(NODE_ID)):
        retention_ms = service.groups.config.offsets_retention_ms
        auto_create = str(service.options.auto_create).lower()
        known = {
            "auto.create.topics.enable": ConfigDef(auto_create, ConfigType.BOOLEAN),
            "default.replication.factor": ConfigDef("1", ConfigType.INT),
            "offsets.retention.minutes": ConfigDef(str(retention_ms // 60_000), ConfigType.INT),
            "num.partitions": ConfigDef(str(service.options.partitions), ConfigType.INT),
        }
    else:
        raise Refused(ErrorCode.INVALID_REQUEST)
    if wanted := asked.configuration_keys:  # an empty list requests all, as null does
        known = {name: config for name, config in known.items() if name in wanted}
    return {"configs": told(known, given, read_only=asked.resource_type == BROKER)}


def change(service: Service, once: NamedOnce, validate_only: bool, asked: Any) -> ReplyBody:
    """Apply the changes of one topic.

    Raises:
        Refused: The resource is not a topic, or a change is not valid.
    """
    once(asked.resource_type, asked.resource_name)
    if asked.resource_type != TOPIC:
        message = "only topics have configs here: options of the broker are given when it starts"
        raise Refused(ErrorCode.INVALID_REQUEST, error_message=message)
    topic = topic_of(service, asked)
    configs = dict(topic.configs)
    if len({one.name for one in asked.configs}) < len(asked.configs):
        raise Refused(ErrorCode.INVALID_REQUEST, error_message="a config is named twice")
    for one in asked.configs:
        if one.value is None and one.config_operation != DELETE:
            raise Refused(ErrorCode.INVALID_REQUEST, error_message=f"{one.name}: a value is needed")
        if why := apply(configs, one):
            raise Refused(ErrorCode.INVALID_CONFIG, error_message=why)
    if why := crossed(configs):
        raise Refused(ErrorCode.INVALID_CONFIG, error_message=why)
    if not validate_only:
        service.topics.configure(topic, configs)
    return {}


def topic_of(service: Service, asked: Any) -> StoredTopic:
    """Return the topic of a resource.

    Raises:
        Refused: There is no such topic.
    """
    if not NAME.fullmatch(asked.resource_name):
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
    return service.topics.find(asked.resource_name)


def apply(configs: dict[str, str], change: Any) -> str | None:
    """Apply one change to `configs`; return the error text, or None if the change is valid."""
    name = change.name
    value = change.value
    operation = change.config_operation
    if operation == DELETE:
        configs.pop(name, None)
        return None
    if name not in CONFIGS:
        return wrong(name, value)
    if not SET <= operation <= SUBTRACT:
        return f"{name}: unknown operation {operation}"
    if operation in (APPEND, SUBTRACT):
        if CONFIGS[name].kind is not ConfigType.LIST:
            return f"{name}: not a list"
        had = [part for part in listed(configs.get(name, CONFIGS[name].default)) if part]
        given = dict.fromkeys(listed(value))
        rest = [part for part in had if part not in given]
        value = ",".join([*rest, *given] if operation == APPEND else rest)
    if why := wrong(name, value):
        return why
    configs[name] = value
    return None
