"""3 Metadata: this broker leads everything; topic ids since 10 (KIP-516).

A topic that is not there is made if the request allows it and the broker does (`auto_create`).
Not: authorized operations, racks.
"""

from typing import Any

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.service import CLUSTER_ID, LEADER_EPOCH, NO_OPERATIONS, NODE_ID, Service
from streamsx.broker.topics import NAME, StoredTopic
from streamsx.kafka.errors import ErrorCode

VERSIONS = (0, 13)
NULL_IS_ALL_SINCE = 1
REQUEST_ALLOWS_SINCE = 4


def answer(service: Service, call: Call) -> ReplyBody:
    """All topics, or those that were asked for, at the address where the client reached us."""
    asked = call.body.topics
    if asked is None or (not asked and call.version < NULL_IS_ALL_SINCE):
        topics = [describe(topic) for _, topic in sorted(service.topics.by_name.items())]
    else:
        topics = [find(service, call, one) for one in asked]
    host, port = call.connection.address
    return {
        "brokers": [{"node_id": NODE_ID, "host": host, "port": port}],
        "cluster_id": CLUSTER_ID,
        "controller_id": NODE_ID,
        "topics": topics,
        "cluster_authorized_operations": NO_OPERATIONS,
    }


def find(service: Service, call: Call, asked: Any) -> ReplyBody:
    """One topic, made if that is wanted."""
    name = asked.name
    if topic := service.topics.find(name, getattr(asked, "topic_id", b"")):
        return describe(topic)
    if name is None:
        return {"error_code": ErrorCode.UNKNOWN_TOPIC_ID, "topic_id": asked.topic_id}
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not NAME.fullmatch(name):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif may_create(service, call):
        topic_id = service.fresh_id().bytes
        return describe(service.topics.create(name, topic_id, service.options.partitions, {}))
    return {"error_code": code, "name": name}


def may_create(service: Service, call: Call) -> bool:
    """Whether both sides want it and there is room."""
    allowed = call.version < REQUEST_ALLOWS_SINCE or call.body.allow_auto_topic_creation
    partitions = service.topics.partitions + service.options.partitions
    return service.options.auto_create and allowed and partitions <= service.limits.partitions_max


def describe(topic: StoredTopic) -> ReplyBody:
    """One topic that is there."""
    replicas = [NODE_ID]
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "partitions": [
            {
                "partition_index": partition,
                "leader_id": NODE_ID,
                "leader_epoch": LEADER_EPOCH,
                "replica_nodes": replicas,
                "isr_nodes": replicas,
            }
            for partition in range(len(topic.logs))
        ],
    }
