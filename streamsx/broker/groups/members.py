"""Members of a group: their ids, the protocols that all support, and the vote for one. Pure.

A group's members are a dict by id in the order of joining, because the first member leads. Lists in
replies are sorted by id.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from streamsx.broker.groups.coordinator_events import ClientRequest, ReplyBody
from streamsx.broker.groups.group import GroupConfig
from streamsx.broker.metadata_rows import ConsumerMemberValue, MemberValue, ProtocolValue
from streamsx.broker.refusal import Refused, each
from streamsx.protocol.error_codes import ErrorCode

PROMISE_SINCE = 4  # JoinGroup version from which a member first gets an id, then joins
NAMES_SINCE = 5  # SyncGroup version from which requests name the protocol (KIP-559)
LEAVE_MANY_SINCE = 3  # LeaveGroup version from which requests name several members
NAMED_CHARS_MAX = 249
"""Characters of a client's name at the start of a member id. A name may be as long as any string,
and the id is sent to other members.
"""
LEAVING_MAX = 1000
"""Members that one LeaveGroup may name."""


@dataclass(slots=True)
class RoundMember:
    """Member of a classic group; `join` and `sync` are the waiters of its parked requests.

    A member counts as joined, or synced, from the request on, even if the connection has closed
    since.
    """

    about: MemberValue
    session_at: float = 0.0
    joined: bool = False
    synced: bool = True
    join: int | None = None
    sync: int | None = None
    former_id: str = ""  # the id of the static member that was replaced
    former_epoch: int | None = None  # member epoch, if the group was of the consumer protocol

    @property
    def id(self) -> str:
        """Return the member id, unique in the group."""
        return self.about.member_id

    @property
    def parked(self) -> bool:
        """Return whether the member waits for the coordinator, so that its session does not run."""
        return self.join is not None or self.sync is not None


Members = dict[str, RoundMember]


def by_id(members: Mapping[str, RoundMember]) -> list[RoundMember]:
    """Return the members by id, the order of everything that leaves the group."""
    return [members[member_id] for member_id in sorted(members)]


class _Seated(Protocol):
    @property
    def about(self) -> MemberValue | ConsumerMemberValue: ...


Seated = TypeVar("Seated", bound=_Seated)
"""Member of any kind of group."""


def holder(members: Mapping[str, Seated], instance_id: str | None) -> Seated | None:
    """Return the static member with this instance id."""
    if instance_id is None:
        return None
    return next((m for m in members.values() if m.about.group_instance_id == instance_id), None)


def check(members: Mapping[str, Seated], member_id: str, instance_id: str | None) -> Seated:
    """Return the member with this id; with an instance id the member must hold both.

    Raises:
        Refused: There is no such member. A replaced static member is fenced if the request names
            the instance id, and unknown if not.
    """
    member = members.get(member_id)
    if member is None or instance_id not in (None, member.about.group_instance_id):
        fenced = holder(members, instance_id) is not None
        raise Refused(ErrorCode.FENCED_INSTANCE_ID if fenced else ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def fresh_member_id(request: ClientRequest) -> str:
    """Return an unused member id, named after the instance or the client that asks."""
    name = request.body.group_instance_id or request.peer.client_id
    return f"{name[:NAMED_CHARS_MAX]}-{request.fresh_id}"


def check_limits(body: Any, config: GroupConfig) -> None:
    """Check the parts of a JoinGroup that do not depend on the group.

    Raises:
        Refused: The session timeout is out of range, or the protocols are too large.
    """
    shortest = config.session_timeout_min_ms
    longest = config.session_timeout_max_ms
    if not shortest <= body.session_timeout <= longest:
        raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT)
    names = sum(len(p.name) for p in body.protocols)
    if max(names, sum(len(p.metadata) for p in body.protocols)) > config.metadata_bytes_max:
        raise Refused(ErrorCode.INVALID_REQUEST)


def told_of_leaving(
    request: ClientRequest, members: Mapping[str, Seated], remove: Callable[[Seated, str], None],
    promised: dict[str, float],
) -> ReplyBody:  # fmt: skip
    """Remove the members that a LeaveGroup names, and return the reply.

    A request names one member or several: by member id, also one that was only promised, or static
    members by instance id alone.
    """

    def let_go(who: Any) -> ReplyBody:
        instance_id = getattr(who, "group_instance_id", None)
        if promised.pop(who.member_id, None) is None:
            static = None if who.member_id else holder(members, instance_id)
            remove(static or check(members, who.member_id, instance_id), "left")
        return {"error_code": ErrorCode.NONE}

    many = request.version >= LEAVE_MANY_SINCE
    who = request.body.members if many else (request.body,)
    if len(who) > LEAVING_MAX:  # each of them costs a search through all members
        return {"error_code": ErrorCode.INVALID_REQUEST, "members": []}
    answers = each(who, let_go, "member_id", "group_instance_id")
    return {"error_code": ErrorCode.NONE if many else answers[0]["error_code"], "members": answers}


def metadata(offered: tuple[ProtocolValue, ...], protocol: str | None) -> bytes:
    """Return the metadata sent for this protocol."""
    return next((p.metadata for p in offered if p.name == protocol), b"")


def supported(members: Mapping[str, RoundMember], names: set[str]) -> set[str]:
    """Return those of these protocols that every member supports."""
    return names.intersection(*({p.name for p in m.about.protocols} for m in members.values()))


def vote(members: Mapping[str, RoundMember]) -> str:
    """Return the protocol that most members prefer among those that all support."""
    common = supported(members, {p.name for m in members.values() for p in m.about.protocols})
    liked = (next(p.name for p in m.about.protocols if p.name in common) for m in members.values())
    return Counter(liked).most_common(1)[0][0]


def rebalance_ms(members: Mapping[str, RoundMember]) -> int:
    """Return the longest rebalance timeout of any member."""
    return max((m.about.rebalance_timeout for m in members.values()), default=0)


def subscriptions(members: Mapping[str, RoundMember]) -> list[ReplyBody]:
    """Return all members with their metadata, for the leader."""
    return [
        {
            "member_id": m.id,
            "group_instance_id": m.about.group_instance_id,
            "metadata": m.about.subscription,
        }
        for m in by_id(members)
    ]
