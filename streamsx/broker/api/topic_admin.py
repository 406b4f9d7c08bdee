"""Handlers that create, grow and delete topics: each topic succeeds or fails for itself."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

from streamsx.broker.configs import CONFIGS, crossed, told, wrong
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.broker.refusal import Refused, each, why_not
from streamsx.broker.service import NODE_ID, PARTITIONS_AT_ONCE, PartitionRoom, Service
from streamsx.broker.topics import NAME, StoredTopic, alike
from streamsx.protocol.error_codes import ErrorCode

DEFAULT = -1
NO_ID = bytes(16)


def create_topics(service: Service, call: ServedRequest) -> ReplyBody:
    """Create topics; return the result for each.

    With a manual assignment, the number of its entries is the number of partitions.
    """
    seen_as = {alike(name) for name in service.topics.by_name}
    wanted = list[tuple[StoredTopic, int]]()
    room = service.room()

    def create(asked: Any) -> ReplyBody:
        partitions = len(asked.assignments) or asked.num_partitions
        partitions = service.options.partitions if partitions == DEFAULT else partitions
        check(service, asked, partitions, seen_as, room.left)
        room.left -= partitions
        seen_as.add(alike(asked.name))
        configs = {config.name: config.value for config in asked.configs}
        topic_id = service.fresh_id().bytes
        wanted.append((StoredTopic(asked.name, topic_id, configs), partitions))
        return {
            "topic_id": topic_id,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": told(CONFIGS, configs),
        }

    replies = each_once(call.body.topics, create, "name")
    return {"topics": done(partial(service.topics.grow, wanted), call, replies)}


def done(
    change: Callable[[], None], call: ServedRequest, replies: list[ReplyBody]
) -> list[ReplyBody]:
    """Carry out all changes that were not refused; if that fails, put the error into their
    replies.
    """
    if getattr(call.body, "validate_only", False) or all("error_code" in each for each in replies):
        return replies
    try:
        change()
    except OSError as error:
        why = why_not(error)
        return [reply if "error_code" in reply else {**reply, **why} for reply in replies]
    return replies


def check(service: Service, asked: Any, partitions: int, seen_as: set[str], room: int) -> None:
    """Check the creation of one topic.

    Raises:
        Refused: The first rule that the request breaks.
    """
    bad_config = next((why for c in asked.configs if (why := wrong(c.name, c.value))), None)
    bad_config = bad_config or crossed({config.name: config.value for config in asked.configs})
    replicas = asked.replication_factor
    name = asked.name
    no_replicas = ErrorCode.INVALID_REPLICATION_FACTOR
    by_hand = {place.partition_index: place.broker_ids for place in asked.assignments}
    told_twice = bool(by_hand) and (asked.num_partitions, replicas) != (DEFAULT, DEFAULT)
    misplaced = not placed_here(by_hand.values()) or sorted(by_hand) != list(range(len(by_hand)))
    looked_at = (
        (not NAME.fullmatch(name), ErrorCode.INVALID_TOPIC_EXCEPTION, "not a valid topic name"),
        (name in service.topics.by_name, ErrorCode.TOPIC_ALREADY_EXISTS, "it exists"),
        (alike(name) in seen_as, ErrorCode.INVALID_TOPIC_EXCEPTION, "too similar to a topic"),
        (told_twice, ErrorCode.INVALID_REQUEST, "give numbers or an assignment, not both"),
        (partitions < 1, ErrorCode.INVALID_PARTITIONS, "at least one partition is needed"),
        (partitions > room, ErrorCode.POLICY_VIOLATION, f"there is room for {room} partitions"),
        (replicas not in (DEFAULT, 1), no_replicas, "there is only one broker"),
        (misplaced, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "there is only one broker"),
        (bad_config is not None, ErrorCode.INVALID_CONFIG, bad_config),
    )
    for bad, code, why in looked_at:
        if bad:
            raise Refused(code, error_message=why)


def placed_here(places: Iterable[Iterable[int]]) -> bool:
    """Return whether manually placed replicas are on this broker only."""
    return all(list(brokers) == [NODE_ID] for brokers in places)


def create_partitions(service: Service, call: ServedRequest) -> ReplyBody:
    """Add partitions to topics; return the result for each."""

    wanted = list[tuple[StoredTopic, int]]()
    room = service.room()

    def grow(asked: Any) -> ReplyBody:
        topic = service.topics.find(asked.name)
        more = asked.count - len(topic.logs)
        if more <= 0:
            why = f"it has {len(topic.logs)} partitions, and can only have more"
            raise Refused(ErrorCode.INVALID_PARTITIONS, error_message=why)
        if more > room.left:
            why = f"it has {len(topic.logs)}, and there is room for {room.left} more"
            raise Refused(ErrorCode.POLICY_VIOLATION, error_message=why)
        places = [place.broker_ids for place in asked.assignments or ()]
        if places and (len(places) != more or not placed_here(places)):
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        room.left -= more
        wanted.append((topic, asked.count))
        return {}

    replies = each_once(call.body.topics, grow, "name")
    return {"results": done(partial(service.topics.grow, wanted), call, replies)}


def delete_topics(service: Service, call: ServedRequest) -> ReplyBody:
    """Delete topics; return the result for each.

    Older versions name topics without ids. Topics beyond the number of partitions that can be
    deleted at once fail with a time-out, so that clients retry.
    """

    wanted = dict[str, StoredTopic]()
    room = PartitionRoom(PARTITIONS_AT_ONCE)

    def delete(asked: Any) -> ReplyBody:
        if (asked.name is None) == (asked.topic_id == NO_ID):
            raise Refused(ErrorCode.INVALID_REQUEST, error_message="a name or an id is needed")
        topic = service.topics.find(asked.name, asked.topic_id)
        if topic.name in wanted:  # requested by name and once more by id
            raise Refused(ErrorCode.INVALID_REQUEST, error_message="named twice")
        if room.left <= 0:
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, name=topic.name, topic_id=topic.id)
        room.left -= len(topic.logs)
        wanted[topic.name] = topic
        return {"name": topic.name, "topic_id": topic.id}

    names = getattr(call.body, "topic_names", ())
    by_name = [SimpleNamespace(name=name, topic_id=NO_ID) for name in names]
    replies = each_once(by_name or call.body.topics, delete, "name", "topic_id")
    return {"responses": done(lambda: service.topics.delete(*wanted.values()), call, replies)}


def each_once(
    asked: Iterable[Any], answer: Callable[[Any], ReplyBody], *same: str
) -> list[ReplyBody]:
    """Return what `answer` returns for each item; items requested twice get one refusal."""
    keys = [tuple(getattr(item, name) for name in same) for item in asked]
    times = Counter(keys)

    def once(item: Any) -> ReplyBody:
        if times[tuple(getattr(item, name) for name in same)] > 1:
            raise Refused(ErrorCode.INVALID_REQUEST, error_message="named twice")
        return answer(item)

    return each(dict(zip(keys, asked, strict=True)).values(), once, *same)
