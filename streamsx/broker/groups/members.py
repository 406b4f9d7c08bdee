"""Who is in a group: who holds which id, what all of them support, what they vote for. Pure.

A group's members are a dict by id, in the order in which they joined, because the first one
leads. What leaves the group is sorted by id.
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

PROMISE_SINCE = 4  # the version from which a JoinGroup without a member id is first given one
NAMES_SINCE = 5  # the version from which SyncGroup names the protocol (KIP-559)
LEAVE_MANY_SINCE = 3  # the version from which LeaveGroup names several members
NAMED_CHARS_MAX = 249
"""That an id begins with, of a name that may be a string's full length: others are told the id."""
LEAVING_MAX = 1000
"""Members that one LeaveGroup names."""


@dataclass(slots=True)
class RoundMember:
    """One member; `join` and `sync` are the waiters of its parked requests.

    It counts as joined, or synced, from its request on, even if the connection is gone since.
    """

    about: MemberValue
    session_at: float = 0.0
    joined: bool = False
    synced: bool = True
    join: int | None = None
    sync: int | None = None
    former_id: str = ""  # whose place it took
    former_epoch: int | None = None  # when the group was one of the consumer protocol

    @property
    def id(self) -> str:
        """Unique in its group."""
        return self.about.member_id

    @property
    def parked(self) -> bool:
        """It waits for us, so its session does not run."""
        return self.join is not None or self.sync is not None


Members = dict[str, RoundMember]


def by_id(members: Mapping[str, RoundMember]) -> list[RoundMember]:
    """The order of everything that leaves the group."""
    return [members[member_id] for member_id in sorted(members)]


class _Seated(Protocol):
    @property
    def about(self) -> MemberValue | ConsumerMemberValue: ...


Seated = TypeVar("Seated", bound=_Seated)
"""A member of any kind of group."""


def holder(members: Mapping[str, Seated], instance_id: str | None) -> Seated | None:
    """The static member of this instance id."""
    if instance_id is None:
        return None
    return next((m for m in members.values() if m.about.group_instance_id == instance_id), None)


def check(members: Mapping[str, Seated], member_id: str, instance_id: str | None) -> Seated:
    """The member of this id, which holds the instance id if one is given. Raises Refused.

    A static member that was replaced is fenced if it says who it is, and unknown if it does not.
    """
    member = members.get(member_id)
    if member is None or instance_id not in (None, member.about.group_instance_id):
        fenced = holder(members, instance_id) is not None
        raise Refused(ErrorCode.FENCED_INSTANCE_ID if fenced else ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def fresh_member_id(request: ClientRequest) -> str:
    """An id that nobody had, named after who asks for it."""
    name = request.body.group_instance_id or request.peer.client_id
    return f"{name[:NAMED_CHARS_MAX]}-{request.fresh_id}"


def check_limits(body: Any, config: GroupConfig) -> None:
    """Of a JoinGroup, whatever the group is. Raises Refused."""
    shortest, longest = config.session_timeout_min_ms, config.session_timeout_max_ms
    if not shortest <= body.session_timeout <= longest:
        raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT)
    names = sum(len(p.name) for p in body.protocols)
    if max(names, sum(len(p.metadata) for p in body.protocols)) > config.metadata_bytes_max:
        raise Refused(ErrorCode.INVALID_REQUEST)


def told_of_leaving(
    request: ClientRequest, members: Mapping[str, Seated], remove: Callable[[Seated, str], None],
    promised: dict[str, float],
) -> ReplyBody:  # fmt: skip
    """The answer to a LeaveGroup, of one member or of several: by id, also by one that was only
    promised, or static ones by their instance id alone.
    """

    def let_go(who: Any) -> ReplyBody:
        instance_id = getattr(who, "group_instance_id", None)
        if promised.pop(who.member_id, None) is None:
            static = None if who.member_id else holder(members, instance_id)
            remove(static or check(members, who.member_id, instance_id), "left")
        return {"error_code": ErrorCode.NONE}

    many = request.version >= LEAVE_MANY_SINCE
    who = request.body.members if many else (request.body,)
    if len(who) > LEAVING_MAX:  # each is looked for among all members
        return {"error_code": ErrorCode.INVALID_REQUEST, "members": []}
    answers = each(who, let_go, "member_id", "group_instance_id")
    return {"error_code": ErrorCode.NONE if many else answers[0]["error_code"], "members": answers}


def metadata(offered: tuple[ProtocolValue, ...], protocol: str | None) -> bytes:
    """What was sent for this protocol."""
    return next((p.metadata for p in offered if p.name == protocol), b"")


def supported(members: Mapping[str, RoundMember], names: set[str]) -> set[str]:
    """Those of these protocols that every member supports."""
    return names.intersection(*({p.name for p in m.about.protocols} for m in members.values()))


def vote(members: Mapping[str, RoundMember]) -> str:
    """The protocol that most members like best, of those that all support."""
    common = supported(members, {p.name for m in members.values() for p in m.about.protocols})
    liked = (next(p.name for p in m.about.protocols if p.name in common) for m in members.values())
    return Counter(liked).most_common(1)[0][0]


def rebalance_ms(members: Mapping[str, RoundMember]) -> int:
    """The longest time that any of them wants to be waited for."""
    return max((m.about.rebalance_timeout for m in members.values()), default=0)


def subscriptions(members: Mapping[str, RoundMember]) -> list[ReplyBody]:
    """What the leader is told of everybody."""
    return [
        {
            "member_id": m.id,
            "group_instance_id": m.about.group_instance_id,
            "metadata": m.about.subscription,
        }
        for m in by_id(members)
    ]
