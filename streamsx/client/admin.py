"""Admin requests of a Kafka cluster: topics, configs, offsets, groups.

Every function takes a `Cluster`, and retries for `Cluster.tries_for_s` seconds. Functions with a
name that ends in `_now` make one attempt. Only `create_topics`, `delete_topics`, `delete_records`
and `commit_offsets` change anything.
"""

import asyncio
from collections import defaultdict
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from streamsx.client.cluster import NO_LEADER, RETRY_BACKOFF_S, TRANSACTION, Cluster
from streamsx.client.connection import Connection
from streamsx.errors import BrokerUnreachable, StreamsxError, UsageError, WorldError
from streamsx.model import TopicPartition
from streamsx.protocol.compiler import Malformed
from streamsx.protocol.consumer_protocol import PROTOCOL_TYPES, Subscription
from streamsx.protocol.error_codes import RETRIABLE, ErrorCode, failure, name_of
from streamsx.protocol.schema import UUID_ZERO
from streamsx.protocol.wire import Api, by_topic

P = ParamSpec("P")
T = TypeVar("T")

CHANGE_TIMEOUT_S = 10.0
"""Time that a broker may take to change topics or records."""
CHANGE_TIMEOUT_MS = int(CHANGE_TIMEOUT_S * 1000)
KNOWN_TRIES = 20
"""Polls of Metadata after CreateTopics, 2 s in all.

CreateTopics often returns some tens of milliseconds before Metadata knows the topic.
"""
LANE = "admin"
OFFSETS_LANE = "offsets"
"""Connection for offset requests.

A ListOffsets queued behind a waiting fetch took 254 ms and more.
"""

BROKER_DEFAULT = -1
EARLIEST = -2
LATEST = -1
NO_REPLICA = -1
READ_UNCOMMITTED = 0
READ_COMMITTED = 1
NOBODY = {"member_id": "", "generation_id_or_member_epoch": -1}
ABSENT = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
READERS = (*PROTOCOL_TYPES, "share", "streams")
"""Types of groups that read topics: KIP-932 and KIP-1071 have their own."""
EMPTY = "Empty"
DEAD = "Dead"
UNDESCRIBED = ("", DEAD)
"""States in DescribeGroups of groups that it knows nothing of."""
TOPIC_RESOURCE = 2
SET_FOR_THE_TOPIC = 1
"""Source of a config: the topic's own."""
RIGHTS: dict[int, str] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "let this user describe and read the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "let this user describe and read the group",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "let this user describe the transactional id",
}
"""Advice on a missing right, by error code, for brokers that send no message."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """Topic to create."""

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


class Bounds(NamedTuple):
    """Offset range of a partition: from `start` up to, but not including, `high_watermark`."""

    start: int
    high_watermark: int


class TopicFacts(NamedTuple):
    """Facts about a topic; `replicas` is the number of its copies, `internal` is Kafka's word."""

    partitions: int
    replicas: int
    internal: bool


class DescribedGroup(NamedTuple):
    """Group as described by its coordinator.

    A group that does not exist has state `Dead` and no members.
    """

    state: str
    protocol_type: str
    protocol: str
    members: tuple[tuple[str, bytes, bytes], ...]
    """Member id, metadata and assignment of each member. The group's protocol defines the bytes."""


def _persistent(
    attempt: Callable[Concatenate[Cluster, P], Awaitable[T]],
) -> Callable[Concatenate[Cluster, P], Coroutine[Any, Any, T]]:
    """Retry `attempt` while it raises WorldError, for at most `cluster.tries_for_s` seconds.

    Then raise the last WorldError. A retry may repeat a change that an earlier attempt made; that
    is no error.
    """

    @wraps(attempt)
    async def persist(cluster: Cluster, /, *args: P.args, **kwargs: P.kwargs) -> T:
        last: WorldError = BrokerUnreachable("no answer")
        try:
            async with asyncio.timeout(cluster.tries_for_s):
                while True:
                    try:
                        return await attempt(cluster, *args, **kwargs)
                    except WorldError as error:
                        last = error
                    await asyncio.sleep(RETRY_BACKOFF_S)
                    with suppress(BrokerUnreachable):  # the next attempt reports it
                        await cluster.refresh()
        except TimeoutError:
            raise type(last)(
                f"{last}: tried for {cluster.tries_for_s:g} s: try again when the brokers are up, "
                "or see their logs"
            ) from None

    return persist


@_persistent
async def create_topics(cluster: Cluster, topics: Collection[NewTopic]) -> None:
    """Create the topics that do not exist, and wait until Metadata knows all, at most 2 s.

    Existing topics keep their partitions and configs.

    Raises:
        SettingError: the broker refuses a topic; the message has the broker's words.
        WorldError: every attempt failed.
    """
    if not topics:
        return
    connection = await cluster.controller(LANE)
    wanted = [_new_topic(topic) for topic in topics]
    reply = await _change(connection, Api.CREATE_TOPICS, topics=wanted)
    _check_topics(reply.topics, ErrorCode.TOPIC_ALREADY_EXISTS)
    await _until_known(cluster, [topic.name for topic in topics])


@_persistent
async def delete_topics(cluster: Cluster, topics: Collection[str]) -> None:
    """Delete the topics that exist, with their records and the offsets committed for them.

    Raises:
        SettingError: the broker refuses to delete a topic; the message has the broker's words.
        WorldError: every attempt failed.
    """
    if topics:
        connection = await cluster.controller(LANE)
        reply = await _change(connection, Api.DELETE_TOPICS, topic_names=sorted(topics))
        _check_topics(reply.responses, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@_persistent
async def partition_counts(cluster: Cluster, topics: Collection[str]) -> dict[str, int]:
    """Return the number of partitions of each topic that exists.

    Raises:
        SettingError: this user may not describe a topic.
        WorldError: every attempt failed.
    """
    found = _check_topics((await cluster.metadata(topics)).topics, ABSENT)
    return {topic.name: len(topic.partitions) for topic in found if not topic.error_code}


@_persistent
async def all_topics(cluster: Cluster) -> dict[str, TopicFacts]:
    """Return every topic that this user may describe, by name.

    Raises:
        WorldError: every attempt failed.
    """
    connection = await cluster.any(LANE)
    body = {"topics": None, "allow_auto_topic_creation": False}
    reply = await connection.ask(Api.METADATA, body, cluster.timeout_s)
    return {
        topic.name: TopicFacts(
            len(topic.partitions),
            min((len(each.replica_nodes) for each in topic.partitions), default=0),
            topic.is_internal,
        )
        for topic in sorted(reply.topics, key=lambda topic: topic.name)
        if not topic.error_code
    }


@_persistent
async def topic_ids(cluster: Cluster, topics: Collection[str]) -> dict[str, bytes | None]:
    """Return the 16-byte id of each topic.

    A broker without topic ids gives zeros. A topic that does not exist gives None. Topics with any
    other error are left out.

    Raises:
        WorldError: every attempt failed.
    """
    return {
        topic.name: None if topic.error_code else getattr(topic, "topic_id", UUID_ZERO)
        for topic in (await cluster.metadata(topics)).topics
        if topic.error_code in (ErrorCode.NONE, ABSENT)
    }


@_persistent
async def topic_configs(
    cluster: Cluster, topics: Collection[str]
) -> dict[str, dict[str, str | None]]:
    """Return every config of the topics that exist, defaults included.

    A value that the broker hides is None.

    Raises:
        SettingError: this user may not read a topic's configs.
        WorldError: every attempt failed.
    """
    found = await _described_configs(cluster, topics)
    return {name: {each.name: each.value for each in configs} for name, configs in found.items()}


@_persistent
async def own_configs(cluster: Cluster, topic: str) -> dict[str, str | None]:
    """Return the configs that were set for a topic and so differ from the broker's defaults.

    Raises:
        SettingError: this user may not read the topic's configs.
        WorldError: every attempt failed.
    """
    found = await _described_configs(cluster, [topic])
    configs = found.get(topic, [])
    return {each.name: each.value for each in configs if each.config_source == SET_FOR_THE_TOPIC}


async def _described_configs(cluster: Cluster, topics: Collection[str]) -> dict[str, list[Any]]:
    """Return the configs of the topics that exist, as the broker describes them."""
    every = {"resource_type": TOPIC_RESOURCE, "configuration_keys": None}
    wanted = [{**every, "resource_name": topic} for topic in sorted(topics)]
    connection = await cluster.any(LANE)
    reply = await connection.ask(Api.DESCRIBE_CONFIGS, {"resources": wanted}, cluster.timeout_s)
    there = [r for r in reply.results if r.error_code != ABSENT]
    _check((r.error_code, f"topic {r.resource_name}", r.error_message) for r in there)
    return {r.resource_name: list(r.configs) for r in there}


async def configs_now(
    cluster: Cluster, topics: Collection[str], names: Sequence[str]
) -> dict[str, dict[str, str | None]]:
    """Return the configs `names` of the topics that this user may describe, in one attempt.

    Raises:
        WorldError: no broker answers.
    """
    asked = {"resource_type": TOPIC_RESOURCE, "configuration_keys": list(names)}
    wanted = [{**asked, "resource_name": topic} for topic in sorted(topics)]
    connection = await cluster.any(LANE)
    reply = await connection.ask(Api.DESCRIBE_CONFIGS, {"resources": wanted}, cluster.timeout_s)
    there = [r for r in reply.results if not r.error_code]
    return {r.resource_name: {c.name: c.value for c in r.configs} for r in there}


@_persistent
async def bounds(
    cluster: Cluster, tps: Collection[TopicPartition], *, committed: bool = False
) -> dict[TopicPartition, Bounds]:
    """Return the first offset and the end of each partition.

    By default the end is the high watermark, which counts committed and uncommitted records. With
    `committed`, the end is the last stable offset: no transaction is open below, so all records
    below can be read.

    Send two requests per leader, whatever the number of partitions. The cluster follows the topics
    from then on.

    Raises:
        TopicGone: a topic does not exist.
        WorldError: every attempt failed.
    """
    found, why = await bounds_now(cluster, tps, READ_COMMITTED if committed else READ_UNCOMMITTED)
    if why is not None:
        raise why
    return found


async def bounds_now(
    cluster: Cluster, tps: Iterable[TopicPartition], isolation: int = READ_UNCOMMITTED
) -> tuple[dict[TopicPartition, Bounds], StreamsxError | None]:
    """Return bounds in one attempt.

    Returns:
        Bounds of the partitions that could be read, and the error that kept the others out,
        or None.
    """
    wanted = sorted(set(tps))
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}

    async def ask(connection: Connection, some: list[TopicPartition]) -> None:
        await _together(
            _list_offsets(connection, some, EARLIEST, starts, cluster.timeout_s),
            _list_offsets(connection, some, LATEST, ends, cluster.timeout_s, isolation),
        )

    why: StreamsxError | None = None
    try:
        await _at_leaders(cluster, OFFSETS_LANE, wanted, ask)
    except StreamsxError as error:
        why = error
    return {tp: Bounds(starts[tp], ends[tp]) for tp in wanted if tp in starts and tp in ends}, why


@_persistent
async def begin_times(
    cluster: Cluster, tps: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the timestamp in ms of each partition's first record, -1 if there is none.

    The cluster follows the topics from then on.

    Raises:
        TopicGone: a topic does not exist.
        WorldError: every attempt failed.
    """
    times: dict[TopicPartition, int] = {}

    async def ask(connection: Connection, some: list[TopicPartition]) -> None:
        await _list_offsets(connection, some, 0, times, cluster.timeout_s, what="timestamp")

    await _at_leaders(cluster, OFFSETS_LANE, tps, ask)
    return times


@_persistent
async def offsets_at(
    cluster: Cluster, tps: Collection[TopicPartition], time_ms: int
) -> dict[TopicPartition, int]:
    """Return the first offset of each partition whose record is as new as a time, or newer.

    The offset is -1 if there is no such record. The cluster follows the topics from then on.

    Raises:
        TopicGone: a topic does not exist.
        WorldError: every attempt failed.
    """
    found: dict[TopicPartition, int] = {}

    async def ask(connection: Connection, some: list[TopicPartition]) -> None:
        await _list_offsets(connection, some, time_ms, found, cluster.timeout_s)

    await _at_leaders(cluster, OFFSETS_LANE, tps, ask)
    return found


@_persistent
async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Delete the records below an offset in each partition, and return the first offset left.

    The cluster follows the topics from then on.

    Raises:
        TopicGone: a topic does not exist.
        WorldError: every attempt failed.
        StreamsxError: an offset lies beyond the end of its partition.
    """
    starts: dict[TopicPartition, int] = {}

    async def ask(connection: Connection, some: list[TopicPartition]) -> None:
        topics = by_topic(
            (tp, {"partition_index": tp.partition, "offset": before[tp]}) for tp in some
        )
        reply = await _change(connection, Api.DELETE_RECORDS, topics=topics)
        _note(reply, "low_watermark", starts)

    await _at_leaders(cluster, LANE, before, ask)
    return starts


@_persistent
async def describe_group(cluster: Cluster, group: str) -> DescribedGroup:
    """Return the state of a group, and its members sorted by member id.

    Raises:
        SettingError: the broker refuses the group.
        WorldError: every attempt failed.
    """
    connection = await cluster.open(await cluster.coordinator(group), LANE)
    (reply,) = (await connection.ask(Api.DESCRIBE_GROUPS, {"groups": [group]})).groups
    _check([(reply.error_code, f"group {group}", "")])
    members = sorted((m.member_id, m.member_metadata, m.member_assignment) for m in reply.members)
    return DescribedGroup(
        reply.group_state, reply.protocol_type, reply.protocol_data, tuple(members)
    )


@_persistent
async def running_groups(cluster: Cluster) -> dict[str, frozenset[str] | None]:
    """Return the consumer groups that have members now, with the topics that they read.

    The topics are those of the subscriptions. While a group is rebalancing, the broker does not
    tell the subscriptions, and those with committed offsets stand for them. A group without either
    has None: it may read any topic. Groups of newer protocols (KIP-848) count too.

    Raises:
        SettingError: a broker refuses to list its groups.
        WorldError: every attempt failed.
    """
    connection = await cluster.any(LANE)
    body = {"topics": [], "allow_auto_topic_creation": False}
    brokers = (await connection.ask(Api.METADATA, body, cluster.timeout_s)).brokers
    found: dict[str, frozenset[str] | None] = {}
    for node in sorted(broker.node_id for broker in brokers):
        connection = await cluster.open(node, LANE)
        reply = await connection.ask(Api.LIST_GROUPS, {}, cluster.timeout_s)
        _check([(reply.error_code, f"groups of broker {node}", "")])
        listed = {each.group_id: each for each in reply.groups if each.protocol_type in READERS}
        if listed:
            asked = {"groups": [*listed]}
            reply = await connection.ask(Api.DESCRIBE_GROUPS, asked, cluster.timeout_s)
            for group in reply.groups:
                name = group.group_id
                if group.members:
                    found[name] = await _topics_read(cluster, group)
                elif group.group_state in UNDESCRIBED and _runs(listed[name]):
                    found[name] = await _topics_of_newer(cluster, connection, name)
    return found


def _runs(listed: Any) -> bool:
    """Return whether a group runs, by its state in the list of groups."""
    return listed.group_state not in ("", EMPTY, DEAD)  # brokers before 2.6 list no states


async def _topics_read(cluster: Cluster, group: Any) -> frozenset[str] | None:
    """Return the topics that a described group reads, None if the broker does not tell."""
    try:
        read = [Subscription.read(member.member_metadata) for member in group.members]
    except Malformed:  # as of a group that is rebalancing
        return await _topics_if_committed(cluster, group.group_id)
    return frozenset(topic for each in read for topic in each.topics)


async def _topics_of_newer(
    cluster: Cluster, connection: Connection, group: str
) -> frozenset[str] | None:
    """Return the topics that a group of a newer protocol reads, None if the broker does not tell.

    DescribeGroups says `Dead` of such a group, whatever it does.
    """
    body = {"group_ids": [group], "include_authorized_operations": False}
    try:
        reply = await connection.ask(Api.CONSUMER_GROUP_DESCRIBE, body, cluster.timeout_s)
    except UsageError:  # a broker without this request
        return await _topics_if_committed(cluster, group)
    members = [member for each in reply.groups for member in each.members]
    subscribed = {topic for member in members for topic in member.subscribed_topic_names or ()}
    assigned = {  # by a regular expression
        part.topic_name
        for member in members
        for assignment in (member.assignment, member.target_assignment)
        for part in assignment.topic_partitions
    }
    return frozenset(subscribed | assigned) or await _topics_if_committed(cluster, group)


async def _topics_if_committed(cluster: Cluster, group: str) -> frozenset[str] | None:
    """Return the topics with committed offsets of a group, None if there are none."""
    try:
        return frozenset(await committed_topics(cluster, group)) or None
    except WorldError:
        raise
    except StreamsxError:  # as of a share group, which commits no offsets
        return None


@_persistent
async def find_transactions(cluster: Cluster, name: str) -> None:
    """Check that this user can have a transaction coordinator for the transactional id `name`.

    Raises:
        StreamsxError: the brokers have no transactions, or deny this user the transactional id.
        WorldError: every attempt failed.
    """
    await cluster.coordinator(name, TRANSACTION)


@_persistent
async def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]
) -> None:
    """Commit the next offset and the metadata of each partition, for a group without members.

    Raises:
        StreamsxError: the group has members; Fenced is one such error.
        WorldError: every attempt failed.
    """
    topics = by_topic(
        (tp, {"partition_index": tp.partition, "committed_offset": at, "committed_metadata": text})
        for tp, (at, text) in sorted(offsets.items())
    )
    connection = await cluster.open(await cluster.coordinator(group), OFFSETS_LANE)
    reply = await connection.ask(Api.OFFSET_COMMIT, {"group_id": group, "topics": topics} | NOBODY)
    _check((p.error_code, f"{group}: {tp}", "") for tp, p in _each(reply))


async def committed_topics(cluster: Cluster, group: str) -> set[str]:
    """Return the topics for which the group has committed offsets.

    Raises:
        SettingError: the broker refuses the group.
        WorldError: every attempt failed.
    """
    return {tp.topic for tp in await committed(cluster, group)}


@_persistent
async def committed(cluster: Cluster, group: str) -> dict[TopicPartition, tuple[int, str]]:
    """Return all offsets that the group has committed, with their metadata.

    Raises:
        SettingError: the broker refuses the group.
        WorldError: every attempt failed.
    """
    connection = await cluster.open(await cluster.coordinator(group), LANE)
    reply = await connection.ask(Api.OFFSET_FETCH, {"group_id": group, "topics": None})
    _check([(reply.error_code, f"offsets of group {group}", "")])
    return {tp: (each.committed_offset, each.metadata or "") for tp, each in _each(reply)}


async def committed_now(
    cluster: Cluster, group: str, tps: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, tuple[int, str]], WorldError | None]:
    """Return the group's committed offset and metadata of each partition, in one attempt.

    The offset is -1 if none is committed. An offset that an open transaction still holds cannot be
    read.

    Returns:
        Offsets of the partitions that could be read, and the error that kept the others out,
        or None.
    """
    topics = by_topic(((tp, tp.partition) for tp in sorted(tps)), partitions="partition_indexes")
    body = {"group_id": group, "topics": topics, "require_stable": True}
    try:
        connection = await cluster.open(await cluster.coordinator(group), OFFSETS_LANE)
        reply = await connection.ask(Api.OFFSET_FETCH, body, cluster.timeout_s)
    except WorldError as error:
        return {}, error
    code = reply.error_code or next((p.error_code for _, p in _each(reply) if p.error_code), 0)
    found = {
        tp: (partition.committed_offset, partition.metadata or "")
        for tp, partition in _each(reply)
        if not (reply.error_code or partition.error_code)
    }
    return found, WorldError(f"offsets refused: {name_of(code)}") if code else None


async def _change(connection: Connection, api: Api, **body: Any) -> Any:
    return await connection.ask(api, {**body, "timeout": CHANGE_TIMEOUT_MS}, CHANGE_TIMEOUT_S)


def _check_topics(topics: list[Any], good: ErrorCode) -> list[Any]:
    """Return the answers; raise for any error code other than `good`."""
    bad = (topic for topic in topics if topic.error_code != good)
    _check((t.error_code, f"topic {t.name}", getattr(t, "error_message", "")) for t in bad)
    return topics


def _check(answers: Iterable[tuple[int, str, str | None]]) -> None:
    """Raise the first error among answers (code, place, broker's message).

    Errors that another attempt cannot change come before retriable ones.
    """
    bad = [answer for answer in answers if answer[0] != ErrorCode.NONE]
    for code, where, message in sorted(bad, key=lambda answer: answer[0] in RETRIABLE):
        raise failure(code, where, message or RIGHTS.get(code, ""))


async def _together(*attempts: Awaitable[None]) -> None:
    """Await all attempts at once, then raise one of their errors.

    A WorldError is raised only if there is no other error.
    """
    ended = await asyncio.gather(*attempts, return_exceptions=True)
    errors = (each for each in ended if each is not None)
    for error in sorted(errors, key=lambda error: isinstance(error, WorldError)):
        raise error


async def _at_leaders(
    cluster: Cluster,
    lane: str,
    tps: Collection[TopicPartition],
    ask: Callable[[Connection, list[TopicPartition]], Awaitable[None]],
) -> None:
    """Ask the leader of each partition, all leaders at once, about the partitions it leads."""

    async def at(node: int, some: list[TopicPartition]) -> None:
        await ask(await cluster.open(node, lane), some)

    await cluster.follow({tp.topic for tp in tps})
    leaders: defaultdict[int | None, list[TopicPartition]] = defaultdict(list)
    for tp in sorted(tps):
        leaders[cluster.leader(tp)].append(tp)
    lost = leaders.pop(None, [])
    await _together(*(at(node, some) for node, some in leaders.items() if node is not None))
    for tp in lost:
        raise failure(cluster.error(tp.topic) or ErrorCode.LEADER_NOT_AVAILABLE, str(tp))


async def _list_offsets(
    connection: Connection,
    tps: Iterable[TopicPartition],
    timestamp: int,
    found: dict[TopicPartition, int],
    timeout_s: float,
    isolation: int = READ_UNCOMMITTED,
    what: str = "offset",
) -> None:
    topics = by_topic((tp, {"partition_index": tp.partition, "timestamp": timestamp}) for tp in tps)
    body = {"replica_id": NO_REPLICA, "isolation_level": isolation, "topics": topics}
    _note(await connection.ask(Api.LIST_OFFSETS, body, timeout_s), what, found)


def _note(reply: Any, what: str, found: dict[TopicPartition, int]) -> None:
    """Add each partition's answer to `found`; raise for the partitions that are refused."""
    found.update({tp: getattr(p, what) for tp, p in _each(reply) if p.error_code == ErrorCode.NONE})
    _check((p.error_code, str(tp), "") for tp, p in _each(reply))


def _each(reply: Any) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield every partition of a reply with its answer."""
    for topic in reply.topics:
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.partition_index), partition


async def _until_known(cluster: Cluster, topics: list[str]) -> None:
    for _ in range(KNOWN_TRIES):
        found = (await cluster.metadata(topics)).topics
        leaders = [partition.leader_id for topic in found for partition in topic.partitions]
        if not any(topic.error_code for topic in found) and NO_LEADER not in leaders:
            break
        await asyncio.sleep(RETRY_BACKOFF_S)
    await cluster.refresh()


def _new_topic(topic: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
    }
