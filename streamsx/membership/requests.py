"""The member's requests and answers as the codec has them: values in, plain dicts out, and back.

Not here: sending them, user data (the assignor's).
"""

from typing import Any

from streamsx.errors import WorldError
from streamsx.kafka.consumer_protocol import PROTOCOL_TYPE
from streamsx.kafka.errors import name_of
from streamsx.kafka.wire import Api
from streamsx.membership import events as e
from streamsx.membership.answers import denies
from streamsx.membership.member import MemberConfig
from streamsx.model import TopicPartition

NO_EPOCH = -1


def identity(group: str, member_id: str) -> dict[str, Any]:
    """Of a dynamic member, in every request."""
    return {"group_id": group, "member_id": member_id, "group_instance_id": None}


def join(
    group: str, config: MemberConfig, protocol: str, body: e.JoinGroup, metadata: bytes
) -> dict[str, Any]:
    return identity(group, body.member_id) | {
        "session_timeout": int(config.session_timeout_s * 1000),
        "rebalance_timeout": int(config.rebalance_timeout_s * 1000),
        "protocol_type": PROTOCOL_TYPE,
        "protocols": [{"name": protocol, "metadata": metadata}],
        "reason": body.reason,
    }


def sync(
    group: str, protocol: str, member_id: str, generation: int, given: dict[str, bytes]
) -> dict[str, Any]:
    """`given`: assignments by member id; of the leader alone."""
    return identity(group, member_id) | {
        "generation_id": generation,
        "protocol_type": PROTOCOL_TYPE,
        "protocol_name": protocol,
        "assignments": [{"member_id": m, "assignment": data} for m, data in given.items()],
    }


def leave(group: str, member_id: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "members": [{"member_id": member_id, "group_instance_id": None}],
    }


def request(group: str, protocol: str, body: e.Request) -> tuple[Api, dict[str, Any]]:
    """Of all requests but JoinGroup, which needs its metadata (`join`)."""
    match body:
        case e.SyncGroup():
            given = dict(body.assignments)
            return Api.SYNC_GROUP, sync(group, protocol, body.member_id, body.generation, given)
        case e.Heartbeat():
            beat = {"generation_id": body.generation}
            return Api.HEARTBEAT, identity(group, body.member_id) | beat
        case e.OffsetCommit():
            commit = {
                "generation_id_or_member_epoch": body.generation,
                "topics": by_topic(body.offsets),
            }
            return Api.OFFSET_COMMIT, identity(group, body.member_id) | commit
        case e.LeaveGroup():
            return Api.LEAVE_GROUP, leave(group, body.member_id)
        case e.JoinGroup():
            raise AssertionError("a join carries metadata")


def by_topic(offsets: e.Offsets) -> list[dict[str, Any]]:
    """As OffsetCommit has it."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, (offset, metadata) in sorted(offsets.items()):
        topics.setdefault(tp.topic, []).append(
            {
                "partition_index": tp.partition,
                "committed_offset": offset,
                "committed_leader_epoch": NO_EPOCH,
                "committed_metadata": metadata,
            }
        )
    return [{"name": topic, "partitions": parts} for topic, parts in topics.items()]


def offsets_wanted(group: str, tps: tuple[TopicPartition, ...]) -> dict[str, Any]:
    """Stable ones: what a transaction of the owner before still holds is waited for."""
    topics: dict[str, list[int]] = {}
    for tp in tps:
        topics.setdefault(tp.topic, []).append(tp.partition)
    wanted = [{"name": topic, "partition_indexes": some} for topic, some in topics.items()]
    return {"group_id": group, "topics": wanted, "require_stable": True}


def offsets_known(
    reply: Any,
) -> tuple[dict[TopicPartition, tuple[int, str]], WorldError | None]:
    """Of those that are told, and why not of the others."""
    parts = [(topic.name, part) for topic in reply.topics for part in topic.partitions]
    codes = [reply.error_code, *(part.error_code for _, part in parts)]
    bad = next((code for code in codes if code), 0)
    found = {
        TopicPartition(name, part.partition_index): (part.committed_offset, part.metadata or "")
        for name, part in parts
        if not (reply.error_code or part.error_code)
    }
    return found, WorldError(f"offsets refused: {name_of(bad)}") if bad else None


def joined(number: int, reply: Any) -> e.Reply:
    """With MEMBER_ID_REQUIRED there is a member id beside the error."""
    members = tuple(e.JoinedMember(m.member_id, bytes(m.metadata)) for m in reply.members)
    body = e.Joined(reply.generation_id, reply.member_id, reply.leader, members)
    return e.Reply(number, reply.error_code, body)


def committed(number: int, reply: Any) -> e.Reply:
    """What is denied apart; the others are told one thing."""
    codes = {
        TopicPartition(topic.name, part.partition_index): part.error_code
        for topic in reply.topics
        for part in topic.partitions
    }
    denied = {tp: code for tp, code in codes.items() if denies(code)}
    error = next((code for tp, code in codes.items() if code and tp not in denied), 0)
    return e.Reply(number, error, e.Committed(denied))
