"""Encoding of a member's requests into the codec's dicts, and decoding of the answers.

Not here: the connection, and the user data (`assignor`).
"""

from typing import Any

from streamsx.group import member_events as e
from streamsx.group.error_table import denies
from streamsx.group.member import MemberConfig
from streamsx.model import OffsetAndMetadata, TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api, by_topic

NO_EPOCH = -1


def identity(group: str, member_id: str, instance_id: str | None) -> dict[str, Any]:
    """Return the identity fields of every request; `instance_id` is that of a static member."""
    return {"group_id": group, "member_id": member_id, "group_instance_id": instance_id}


def leave(group: str, *member_ids: str) -> dict[str, Any]:
    """Return the fields of LeaveGroup for these members; static members have member ids too."""
    members = [{"member_id": member_id, "group_instance_id": None} for member_id in member_ids]
    return {"group_id": group, "members": members}


def request(
    group: str, config: MemberConfig, protocol: str, send: e.SendRequest, subscription: bytes = b""
) -> tuple[Api, dict[str, Any]]:
    """Return the API and fields of a request; `subscription` is for a JoinGroup."""
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
                "protocols": [{"name": protocol, "metadata": subscription}],
                "reason": reason,
            }
        case e.SyncGroup(assignments):
            given = [{"member_id": m, "assignment": a} for m, a in assignments.items()]
            return Api.SYNC_GROUP, who | {"generation_id": generation, "assignments": given}
        case e.Heartbeat():
            return Api.HEARTBEAT, who | {"generation_id": generation}
        case e.TxnOffsetCommit(offsets, transaction):
            topics = by_topic((tp, _committed(tp, offsets[tp])) for tp in sorted(offsets))
            return Api.TXN_OFFSET_COMMIT, who | {
                "transactional_id": transaction.transactional_id,
                "producer_id": transaction.producer_id,
                "producer_epoch": transaction.epoch,
                "generation_id": generation,
                "topics": topics,
            }
        case e.OffsetCommit(offsets):
            topics = by_topic((tp, _committed(tp, offsets[tp])) for tp in sorted(offsets))
            return Api.OFFSET_COMMIT, who | {
                "generation_id_or_member_epoch": generation,
                "topics": topics,
            }


def _committed(tp: TopicPartition, given: OffsetAndMetadata) -> dict[str, Any]:
    return {
        "partition_index": tp.partition,
        "committed_offset": given.offset,
        "committed_leader_epoch": NO_EPOCH,
        "committed_metadata": given.metadata,
    }


def joined(number: int, reply: Any) -> e.Reply:
    """Return the answer to JoinGroup; MEMBER_ID_REQUIRED comes with a member id."""
    members = tuple((m.member_id, bytes(m.metadata)) for m in reply.members)
    body = e.Joined(reply.generation_id, reply.member_id, reply.leader, members)
    return e.Reply(number, reply.error_code, body)


def committed(number: int, reply: Any) -> e.Reply:
    """Return the answer to a commit: denied partitions, and one error for all others."""
    codes = {
        TopicPartition(topic.name, part.partition_index): part.error_code
        for topic in reply.topics
        for part in topic.partitions
    }
    denied = {tp: code for tp, code in codes.items() if denies(code)}
    error = next((code for tp, code in codes.items() if code and tp not in denied), 0)
    return e.Reply(number, error, denied)


def left(number: int, reply: Any) -> e.Reply:
    """Return the answer to LeaveGroup: the group's error, else the first of a member.

    An unknown member counts as gone.
    """
    codes = (part.error_code for part in (reply, *reply.members))
    good = (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    return e.Reply(number, next((code for code in codes if code not in good), 0))
