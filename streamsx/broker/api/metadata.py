"""Handlers of cluster metadata: everything is on this broker, at the address that the
client reached.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.log.segment import LEADER_EPOCH
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.broker.refusal import Refused, each
from streamsx.broker.service import CLUSTER_ID, NO_OPERATIONS, NODE_ID, Service
from streamsx.broker.topics import NAME, StoredTopic, alike
from streamsx.protocol.error_codes import ErrorCode

NULL_IS_ALL_SINCE = 1
REQUEST_ALLOWS_SINCE = 4
GROUP = 0
TRANSACTION = 1


def metadata(service: Service, call: ServedRequest) -> ReplyBody:
    """Return the requested topics, or all of them.

    A missing topic is created if both the request and the broker (`auto_create`) allow that.
    """
    asked = call.body.topics
    if asked is None or (not asked and call.version < NULL_IS_ALL_SINCE):
        asked = [service.topics.by_name[name] for name in sorted(service.topics.by_name)]
    asked = {(topic.name, getattr(topic, "topic_id", b"")): topic for topic in asked}.values()
    found = partial(find, service, make_missing(service, call, asked))
    return {
        "brokers": [{"node_id": NODE_ID, **address(service, call)}],
        "cluster_id": CLUSTER_ID,
        "controller_id": NODE_ID,
        "topics": each(asked, found, "name", "topic_id"),
        "cluster_authorized_operations": NO_OPERATIONS,
    }


def coordinator(service: Service, call: ServedRequest) -> ReplyBody:
    """Return one coordinator per key.

    The coordinator also stands at the top of the response, where it was before version 4.
    """
    body = call.body
    if body.key_type not in (GROUP, TRANSACTION):
        why = "only groups and transactions have a coordinator here"
        us = {"node_id": -1, "error_code": ErrorCode.INVALID_REQUEST, "error_message": why}
    else:
        us = {"node_id": NODE_ID, **address(service, call)}
    return {**us, "coordinators": [{"key": key, **us} for key in body.coordinator_keys]}


def cluster(service: Service, call: ServedRequest) -> ReplyBody:
    """Return the cluster of one broker."""
    return {
        "cluster_id": CLUSTER_ID,
        "controller_id": NODE_ID,
        "brokers": [{"broker_id": NODE_ID, **address(service, call)}],
        "cluster_authorized_operations": NO_OPERATIONS,
        "endpoint_type": call.body.endpoint_type,
    }


def address(service: Service, call: ServedRequest) -> ReplyBody:
    """Return the advertised address, or the address at which the client reached the broker."""
    host, port = service.advertised or call.connection.address
    return {"host": host, "port": port}


def make_missing(service: Service, call: ServedRequest, asked: Iterable[Any]) -> OSError | None:
    """Create the missing topics if request and broker allow that, as far as there is room for
    partitions.

    The topics that find no room are answered with an error, so that clients ask again.

    Returns:
        The error if creating the topics failed.
    """
    allowed = call.version < REQUEST_ALLOWS_SINCE or call.body.allow_auto_topic_creation
    if not (service.options.auto_create and allowed):
        return None
    known = service.topics.by_name
    partitions = service.options.partitions
    unknown = dict.fromkeys(
        each.name for each in asked
        if each.name is not None and each.name not in known and not any(each.topic_id)
    )  # fmt: skip
    good = {alike(name): name for name in unknown if NAME.fullmatch(name)}
    taken = {alike(name) for name in known} if good else ()
    names = [name for seen_as, name in good.items() if seen_as not in taken]
    try:
        if names:
            names = names[: service.room().left // partitions]
            made = [StoredTopic(name, service.fresh_id().bytes, {}) for name in names]
            service.topics.grow([(topic, partitions) for topic in made])
    except OSError as error:
        return error
    return None


def find(service: Service, failed: OSError | None, asked: Any) -> ReplyBody:
    """Return the metadata of one topic.

    Raises:
        Refused: There is no such topic.
        OSError: The topic could not be created.
    """
    topics = service.topics
    replicas = [NODE_ID]
    topic_id = getattr(asked, "topic_id", b"")
    name = None if any(topic_id) else asked.name  # an id takes precedence over a name
    if name is not None and name not in topics.by_name:
        if not NAME.fullmatch(name):
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if failed:
            raise failed
    topic = topics.find(name, topic_id)
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
