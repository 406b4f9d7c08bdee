"""Committed offsets of a group, and the replies to OffsetCommit and OffsetFetch. Pure.

The group decides which members may commit, and since when an offset is unused.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from typing import Any

from streamsx.broker.groups.coordinator_events import ClientRequest, ReplyBody
from streamsx.broker.groups.group import CommitIdentity, GroupConfig
from streamsx.broker.metadata_rows import CommittedOffsets, OffsetValue
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api

NO_ID = bytes(16)
NOTHING = OffsetValue(-1, -1, "", -1)
TOPIC_IDS_SINCE = 10  # version from which both requests name topics by id
COMMIT_BYTES_MAX = 16 << 20
"""Limit for the bytes of the group's name in all rows of one commit. Each row repeats the name,
while the request has it only once.
"""


class Catalog:
    """Existing topics, by name and by id."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[bytes, int]] = {}
        self.names: dict[bytes, str] = {}
        self.version = 0
        """Changes with each change of the topics."""

    def replace(self, topics: Mapping[str, tuple[bytes, int]]) -> None:
        """Replace all topics."""
        self._topics = dict(topics)
        self.names = {topic_id: name for name, (topic_id, _) in topics.items()}
        self.version += 1

    def put(self, name: str, identity: tuple[bytes, int] | None) -> None:
        """Add, change or remove (None) the topic of this name."""
        self.names.pop(self.identity(name)[0], None)
        self._topics.pop(name, None)
        self.version += 1
        if identity is not None:
            self._topics[name] = identity
            self.names[identity[0]] = name

    def name(self, topic: Any, version: int) -> str | None:
        """Return the name of a topic in a request; None for an unknown id."""
        by_id = version >= TOPIC_IDS_SINCE
        return self.names.get(bytes(topic.topic_id)) if by_id else str(topic.name)

    def identity(self, name: str) -> tuple[bytes, int]:
        """Return id and number of partitions; zeros if there is no such topic."""
        return self._topics.get(name, (NO_ID, 0))

    def unknown(self, name: str | None, partition: int) -> ErrorCode:
        """Return the error code for a partition in a request; NONE if the partition exists."""
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        known = 0 <= partition < self.identity(name)[1]
        return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def committer(request: ClientRequest, catalog: Catalog) -> CommitIdentity:
    """Return the sender of an OffsetCommit or TxnOffsetCommit, with existing partitions."""
    body = request.body
    version = request.version
    staged = request.api is Api.TXN_OFFSET_COMMIT
    asked = (
        (catalog.name(t, version), p.partition_index) for t in body.topics for p in t.partitions
    )
    return CommitIdentity(
        body.member_id, body.group_instance_id,
        body.generation_id if staged else body.generation_id_or_member_epoch,
        [(name, p) for name, p in asked if name is not None and not catalog.unknown(name, p)],
        sys.maxsize if staged else version,  # every version of TxnOffsetCommit may carry epochs
        staged,
    )  # fmt: skip


def judged(topics: Iterable[Any], judge: Callable[[Any, Any], ErrorCode]) -> list[ReplyBody]:
    """Return a reply's topics and partitions, with the error code that `judge` gives for each."""
    return [
        {
            "name": getattr(topic, "name", None),
            "topic_id": getattr(topic, "topic_id", NO_ID),
            "partitions": [
                {"partition_index": p.partition_index, "error_code": judge(topic, p)}
                for p in topic.partitions
            ],
        }
        for topic in topics
    ]


def judge_commit(
    request: ClientRequest, refused: ErrorCode, catalog: Catalog, config: GroupConfig
) -> tuple[CommittedOffsets, ReplyBody]:
    """Return the offsets that an OffsetCommit changes, or a TxnOffsetCommit stages, and the reply.

    The offsets are empty if `refused` is an error.
    """
    body = request.body
    offsets = CommittedOffsets()
    rows = sum(len(topic.partitions) for topic in body.topics)
    if rows * len(body.group_id) > COMMIT_BYTES_MAX:
        refused = ErrorCode.INVALID_COMMIT_OFFSET_SIZE

    def judge(topic: Any, p: Any) -> ErrorCode:
        name = catalog.name(topic, request.version)
        note = p.committed_metadata or ""
        code = catalog.unknown(name, p.partition_index) or refused
        if not code and len(note.encode()) > config.offset_metadata_bytes_max:
            code = ErrorCode.OFFSET_METADATA_TOO_LARGE
        if name is not None and not code:
            offsets[name, p.partition_index] = OffsetValue(
                p.committed_offset, p.committed_leader_epoch, note, request.wall_ms
            )
        return code

    return offsets, {"topics": judged(body.topics, judge)}


def fetched(
    committed: CommittedOffsets, topics: Any, version: int, catalog: Catalog,
    unstable: Collection[tuple[str, int]],
) -> ReplyBody:  # fmt: skip
    """Return the reply to an OffsetFetch for one group.

    Without topics (None) the reply covers all committed offsets. Offsets in `unstable` are withheld
    (KIP-447).
    """
    asked: list[tuple[str | None, bytes, Collection[int]]]
    if topics is None:
        asked = [
            (name, catalog.identity(name)[0], [partition for _, partition in held])
            for name, held in groupby(sorted(committed), key=lambda place: place[0])
        ]
    else:
        asked = [
            (catalog.name(t, version), getattr(t, "topic_id", NO_ID), t.partition_indexes)
            for t in topics
        ]

    def answer(name: str | None, partition: int) -> ReplyBody:
        value = committed.get((name or "", partition), NOTHING)
        code = ErrorCode.NONE
        if (name, partition) in unstable:
            value = NOTHING
            code = ErrorCode.UNSTABLE_OFFSET_COMMIT
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
    return {"topics": answers}


def deleted(
    request: ClientRequest, committed: Collection[tuple[str, int]], in_use: Callable[[str], bool],
    catalog: Catalog,
) -> tuple[set[tuple[str, int]], ReplyBody]:  # fmt: skip
    """Return the partitions whose offsets an OffsetDelete deletes, and the reply (KIP-496)."""
    gone: set[tuple[str, int]] = set()

    def judge(topic: Any, p: Any) -> ErrorCode:
        place = topic.name, p.partition_index
        code = catalog.unknown(*place)
        if not code and in_use(topic.name):
            return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        if not code and place in committed:
            gone.add(place)
        return code

    return gone, {"error_code": ErrorCode.NONE, "topics": judged(request.body.topics, judge)}
