"""What a group committed, and the answers to OffsetCommit and OffsetFetch. Pure.

Who may commit is the group's to say, and since when nobody has used an offset.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from typing import Any

from streamsx.broker.events import ClientRequest, ReplyBody
from streamsx.broker.group import Committer
from streamsx.broker.records import CommittedOffsets, OffsetKey, OffsetValue
from streamsx.kafka.errors import ErrorCode
from streamsx.kafka.wire import Api

NO_ID = bytes(16)
NOTHING = OffsetValue(-1, -1, "", -1)
TOPIC_IDS_SINCE = 10  # the version from which both requests name topics by id


class Catalog:
    """The topics there are, by name and by id."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[bytes, int]] = {}
        self.names: dict[bytes, str] = {}
        self.version = 0
        """Another one after each change."""

    def replace(self, topics: Mapping[str, tuple[bytes, int]]) -> None:
        """These are all."""
        self._topics = dict(topics)
        self.names = {topic_id: name for name, (topic_id, _) in topics.items()}
        self.version += 1

    def put(self, name: str, identity: tuple[bytes, int] | None) -> None:
        """What there is of this name now."""
        self.names.pop(self.identity(name)[0], None)
        self._topics.pop(name, None)
        self.version += 1
        if identity is not None:
            self._topics[name], self.names[identity[0]] = identity, name

    def name(self, topic: Any, version: int) -> str | None:
        """Of a topic in a request; None for an id that is no topic's."""
        by_id = version >= TOPIC_IDS_SINCE
        return self.names.get(bytes(topic.topic_id)) if by_id else str(topic.name)

    def identity(self, name: str) -> tuple[bytes, int]:
        """Id and number of partitions; zeros if there is no such topic."""
        return self._topics.get(name, (NO_ID, 0))

    def unknown(self, name: str | None, partition: int) -> ErrorCode:
        """What is wrong with a partition in a request, if anything is."""
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        known = 0 <= partition < self.identity(name)[1]
        return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def committer(request: ClientRequest, catalog: Catalog) -> Committer:
    """Who sends an OffsetCommit or a TxnOffsetCommit, and for what of that which there is."""
    body, version = request.body, request.version
    staged = request.api is Api.TXN_OFFSET_COMMIT
    asked = (
        (catalog.name(t, version), p.partition_index) for t in body.topics for p in t.partitions
    )
    return Committer(
        body.member_id, body.group_instance_id,
        body.generation_id if staged else body.generation_id_or_member_epoch,
        [(name, p) for name, p in asked if name is not None and not catalog.unknown(name, p)],
        sys.maxsize if staged else version,  # all of TxnOffsetCommit may have epochs
    )  # fmt: skip


def judge_commit(
    request: ClientRequest, refused: ErrorCode, catalog: Catalog, metadata_bytes_max: int
) -> tuple[dict[OffsetKey, OffsetValue], ReplyBody]:
    """What an OffsetCommit changes, or a TxnOffsetCommit stages, and its answer; nothing if it is
    refused.
    """
    body = request.body
    puts: dict[OffsetKey, OffsetValue] = {}
    topics = []
    for t in body.topics:
        name, partitions = catalog.name(t, request.version), []
        for p in t.partitions:
            note = p.committed_metadata or ""
            too_long = len(note.encode()) > metadata_bytes_max
            code = catalog.unknown(name, p.partition_index) or refused
            if not code and too_long:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if name is not None and not code:
                puts[OffsetKey(body.group_id, name, p.partition_index)] = OffsetValue(
                    p.committed_offset, p.committed_leader_epoch, note, request.wall_ms
                )
            partitions.append({"partition_index": p.partition_index, "error_code": code})
        topic_id = getattr(t, "topic_id", NO_ID)
        topics.append({"name": name, "topic_id": topic_id, "partitions": partitions})
    return puts, {"topics": topics}


def refused_commit(topic: Any, code: ErrorCode) -> ReplyBody:
    """The answer for one topic of an OffsetCommit of which nothing is looked at."""
    partitions = [
        {"partition_index": p.partition_index, "error_code": code} for p in topic.partitions
    ]
    name, topic_id = getattr(topic, "name", None), getattr(topic, "topic_id", NO_ID)
    return {"name": name, "topic_id": topic_id, "partitions": partitions}


def fetched(
    group_id: str, committed: CommittedOffsets, topics: Any, version: int, catalog: Catalog,
    unstable: Collection[tuple[str, int]] = (),
) -> ReplyBody:  # fmt: skip
    """The answer to an OffsetFetch for one group: of these topics, or of all if None. What is
    `unstable` is not told (KIP-447).
    """
    asked: list[tuple[str | None, bytes, Collection[int]]]
    if topics is None:
        asked = [
            (name, catalog.identity(name)[0], [partition for _, partition in held])
            for name, held in groupby(sorted(committed), key=lambda place: place[0])
        ]
    else:
        by_id = version >= TOPIC_IDS_SINCE
        asked = [
            (catalog.name(t, version), t.topic_id if by_id else NO_ID, t.partition_indexes)
            for t in topics
        ]

    def answer(name: str | None, partition: int) -> ReplyBody:
        value, code = committed.get((name or "", partition), NOTHING), ErrorCode.NONE
        if (name, partition) in unstable:
            value, code = NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT
        return {
            "partition_index": partition,
            "committed_offset": value.offset,
            "committed_leader_epoch": value.leader_epoch,
            "metadata": value.metadata,
            "error_code": ErrorCode.UNKNOWN_TOPIC_ID if name is None else code,
        }

    answers = [
        {"name": name, "topic_id": topic_id, "partitions": [answer(name, p) for p in ps]}
        for name, topic_id, ps in asked
    ]
    return {"group_id": group_id, "topics": answers}


def deleted(
    request: ClientRequest, committed: Collection[tuple[str, int]], in_use: Callable[[str], bool],
    catalog: Catalog,
) -> tuple[dict[OffsetKey, None], ReplyBody]:  # fmt: skip
    """What an OffsetDelete deletes of a group, and its answer (KIP-496)."""
    keys: dict[OffsetKey, None] = {}
    topics = []
    for t in request.body.topics:
        partitions = []
        for p in t.partitions:
            code = catalog.unknown(t.name, p.partition_index)
            if not code and in_use(t.name):
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif not code and (t.name, p.partition_index) in committed:
                keys[OffsetKey(request.body.group_id, t.name, p.partition_index)] = None
            partitions.append({"partition_index": p.partition_index, "error_code": code})
        topics.append({"name": t.name, "partitions": partitions})
    return keys, {"error_code": ErrorCode.NONE, "topics": topics}


def rows(group_id: str, committed: Iterable[tuple[str, int]]) -> list[OffsetKey]:
    """The keys of all rows of a group, in order."""
    return [OffsetKey(group_id, topic, partition) for topic, partition in sorted(committed)]
