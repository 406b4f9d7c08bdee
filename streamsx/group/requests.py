"""The member's requests and answers as the codec has them: values in, plain dicts out, and back.

Not here: sending them, user data (the assignor's).
"""

from typing import Any

from streamsx.group import member_events as e
from streamsx.group.error_table import denies
from streamsx.group.member import MemberConfig
from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api, by_topic

NO_EPOCH = -1


def identity(group: str, member_id: str, instance_id: str | None) -> dict[str, Any]:
    """In every request of a member. `instance_id`: of a static one."""
    return {"group_id": group, "member_id": member_id, "group_instance_id": instance_id}


def leave(group: str, *member_ids: str) -> dict[str, Any]:
    """A coordinator knows static members by their member ids too."""
    members = [{"member_id": member_id, "group_instance_id": None} for member_id in member_ids]
    return {"group_id": group, "members": members}


def request(
    group: str, config: MemberConfig, protocol: str, send: e.SendRequest, word: bytes = b""
) -> tuple[Api, dict[str, Any]]:
    """`word`: the Subscription of a JoinGroup."""
    who = identity(group, send.member_id, config.group_instance_id)
    generation = send.generation
    match send.body:
        case e.LeaveGroup(member_ids):
            return Api.LEAVE_GROUP, leave(group, *member_ids)
        case e.JoinGroup(reason=reason):
            return Api.JOIN_GROUP, who | {
                "session_timeout": int(config.session_timeout_s * 1000),
                "rebalance_timeout": int(config.rebalance_timeout_s * 1000),
                "protocol_type": config.protocol_type,
                "protocols": [{"name": protocol, "metadata": word}],
                "reason": reason,
            }
        case e.SyncGroup(assignments):
            given = [{"member_id": m, "assignment": a} for m, a in assignments.items()]
            return Api.SYNC_GROUP, who | {"generation_id": generation, "assignments": given}
        case e.Heartbeat():
            return Api.HEARTBEAT, who | {"generation_id": generation}
        case e.OffsetCommit(offsets):
            topics = by_topic((tp, _committed(tp, *offsets[tp])) for tp in sorted(offsets))
            return Api.OFFSET_COMMIT, who | {
                "generation_id_or_member_epoch": generation,
                "topics": topics,
            }


def _committed(tp: TopicPartition, offset: int, metadata: str) -> dict[str, Any]:
    return {
        "partition_index": tp.partition,
        "committed_offset": offset,
        "committed_leader_epoch": NO_EPOCH,
        "committed_metadata": metadata,
    }


def joined(number: int, reply: Any) -> e.Reply:
    """With MEMBER_ID_REQUIRED there is a member id beside the error."""
    members = tuple((m.member_id, bytes(m.metadata)) for m in reply.members)
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
    return e.Reply(number, error, denied)


def left(number: int, reply: Any) -> e.Reply:
    """What is said of the group, else of a member; who is not known has left."""
    codes = (told.error_code for told in (reply, *reply.members))
    good = (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    return e.Reply(number, next((code for code in codes if code not in good), 0))
