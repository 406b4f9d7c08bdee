"""Classic members in a consumer-protocol group, and groups that change their protocol. Pure.

Theory of operation (KIP-848, migration). A group migrates member by member. The first member that
speaks the consumer protocol turns the classic group into a consumer-protocol group; the other
members stay classic. Each round of a classic member is that member's own step towards the target.
JoinGroup is a heartbeat that reports owned partitions, SyncGroup returns the assigned partitions,
and a Heartbeat is answered with 27 REBALANCE_IN_PROGRESS when the member must rejoin. There is no
leader, and no member waits for another. When the last member that speaks the consumer protocol has
gone, the group is classic again, and all members join a round.

Epochs of one protocol continue as generations of the other.
"""

from contextlib import suppress
from math import inf
from typing import Any

from streamsx.broker.groups.assignments import (
    FIRST_EPOCH,
    Assignments,
    ConsumerMember,
    Reconciliation,
)
from streamsx.broker.groups.coordinator_events import ClientRequest, ReplyBody
from streamsx.broker.groups.members import (
    NAMES_SINCE,
    PROMISE_SINCE,
    check,
    check_limits,
    fresh_member_id,
    holder,
    told_of_leaving,
)
from streamsx.broker.groups.offsets import NO_ID, Catalog
from streamsx.broker.metadata_rows import (
    ClassicMemberValue,
    ConsumerMemberValue,
    GroupValue,
    MemberValue,
    ProtocolValue,
)
from streamsx.broker.refusal import Refused
from streamsx.model import TopicPartition
from streamsx.protocol.compiler import Malformed
from streamsx.protocol.consumer_protocol import PROTOCOL_TYPE, Assignment, Subscription
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api


class ClassicMembers:
    """Handler of requests 11 to 14 from classic members of one group; all are answered at once."""

    def __init__(self, held: Assignments) -> None:
        self.held = held
        self.turn = held.turn
        self.requests = {
            Api.JOIN_GROUP: self._join,
            Api.SYNC_GROUP: self._sync,
            Api.HEARTBEAT: self._heartbeat,
            Api.LEAVE_GROUP: self._leave,
        }

    def _join(self, request: ClientRequest) -> None:
        held = self.held
        body = request.body
        check_limits(body, held.config)
        said = self._subscription(body)
        member = self._joining(request)
        patience = body.rebalance_timeout if request.version else body.session_timeout
        offered = tuple(ProtocolValue(p.name, bytes(p.metadata)) for p in body.protocols)
        about = ConsumerMemberValue(
            body.group_instance_id, said.rack, request.peer.client_id, request.peer.host,
            tuple(sorted(set(said.topics))), None,
            max(patience, held.config.rebalance_timeout_min_ms), None,
            ClassicMemberValue(body.session_timeout, offered),
        )  # fmt: skip
        held.hear(member, about)
        held.aim()
        # Whatever the generation: the last reply may be lost, and owned partitions are not free.
        owned = {(held.catalog.identity(tp.topic)[0], tp.partition) for tp in said.owned}
        held.reconcile(member, owned)
        held.touch(member)
        held.expect(member)  # to send SyncGroup
        answer = {**kind(member), "generation_id": member.epoch, "member_id": member.id}
        self.turn.reply(request.waiter, {**answer, "leader": "", "members": []})

    def _subscription(self, body: Any) -> Subscription:
        """Return the subscription in the first protocol that a member offers.

        Raises:
            Refused: No protocol is common to all classic members, counting the sender's earlier
                protocols too, or the subscription cannot be decoded.
        """
        common = {p.name for p in body.protocols}
        for m in self.held.members.values():
            if m.about.classic is not None:
                common &= {p.name for p in m.about.classic.protocols}
        with suppress(Malformed):
            if body.protocol_type == PROTOCOL_TYPE and common:
                return Subscription.read(bytes(body.protocols[0].metadata))
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _joining(self, request: ClientRequest) -> ConsumerMember:
        body = request.body
        held = self.held
        member_id = body.member_id
        instance_id = body.group_instance_id
        if member_id and instance_id is not None:
            return check(held.members, member_id, instance_id)
        static = holder(held.members, instance_id)
        if not member_id:
            member_id = fresh_member_id(request)
            if instance_id is None and request.version >= PROMISE_SINCE:
                raise Refused(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        if static is not None:
            return held.take_over(static, member_id)
        return held.seat(member_id)

    def _sync(self, request: ClientRequest) -> None:
        body = request.body
        member = self._member(request)
        meant = {"protocol_type": body.protocol_type, "protocol_name": body.protocol_name}
        if request.version >= NAMES_SINCE and meant != kind(member):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if member.epoch < self.held.epoch and member.state is not Reconciliation.UNREVOKED:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        member.expected_by = inf
        told = {**kind(member), "assignment": as_bytes(member, self.held.catalog)}
        self.turn.reply(request.waiter, told)

    def _heartbeat(self, request: ClientRequest) -> None:
        member = self._member(request)
        held = self.held
        code = ErrorCode.NONE
        held.touch(member)
        if (
            member.epoch < held.epoch
            or member.state is Reconciliation.UNREVOKED
            or (member.state is Reconciliation.UNRELEASED and held.free(member))
        ):
            code = ErrorCode.REBALANCE_IN_PROGRESS
            if member.expected_by == inf:
                held.expect(member)
        self.turn.reply(request.waiter, {"error_code": code})

    def _leave(self, request: ClientRequest) -> None:
        held = self.held
        told = told_of_leaving(request, held.members, held.remove, {})  # members of both protocols
        self.turn.reply(request.waiter, told)

    def _member(self, request: ClientRequest) -> ConsumerMember:
        body = request.body
        member = check(self.held.members, body.member_id, body.group_instance_id)
        if member.about.classic is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        if body.generation_id != member.epoch:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
        return member


def kind(member: ConsumerMember) -> ReplyBody:
    """Return the member's first protocol, as in the fields of a reply."""
    assert member.about.classic
    name = member.about.classic.protocols[0].name
    return {"protocol_type": PROTOCOL_TYPE, "protocol_name": name}


def as_bytes(member: ConsumerMember, catalog: Catalog) -> bytes:
    """Return the member's assignment in the bytes of SyncGroup."""
    names = catalog.names
    has = (TopicPartition(names[t], p) for t, p in member.assigned if t in names)
    return Assignment(tuple(has)).write()


def upgrade(value: GroupValue, held: Assignments) -> None:
    """Fill a new group with the members of a classic one; the generation becomes their epoch.

    Raises:
        Refused: The classic group is no group of consumers, or cannot be decoded.
    """
    if value.protocol_type != PROTOCOL_TYPE:
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
    epoch = value.generation
    held.set_epochs(max(epoch, FIRST_EPOCH), max(epoch, FIRST_EPOCH))
    for of in value.members:
        try:
            said = Subscription.read(of.subscription or of.protocols[0].metadata)
            has = Assignment.read(of.assignment).partitions
        except Malformed as error:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND) from error
        member = held.members[of.member_id] = ConsumerMember(of.member_id)
        about = ConsumerMemberValue(
            of.group_instance_id, said.rack, of.client_id, of.client_host,
            tuple(sorted(set(said.topics))), None, of.rebalance_timeout, None,
            ClassicMemberValue(of.session_timeout, of.protocols),
        )  # fmt: skip
        held.describe(member, about)
        places = [(held.catalog.identity(tp.topic)[0], tp.partition) for tp in has]
        known = (p for p in places if p[0] != NO_ID and p not in held.holders)
        held.hold(member, epoch, Reconciliation.STABLE, dict.fromkeys(known, epoch), {})
        held.aim_at(member.id, frozenset(member.assigned))
        held.touch(member)


def downgrade(held: Assignments) -> GroupValue:
    """Return the group as a classic group that all of its members must join.

    All members speak the classic protocol. Nothing counts as synced, so that a broker that is
    killed right after the write still makes all members join.
    """
    members = []
    for m in held.members.values():
        about = m.about
        classic = m.about.classic
        assert classic
        members.append(
            MemberValue(
                m.id, about.group_instance_id, about.client_id, about.client_host,
                about.rebalance_timeout, classic.session_timeout, classic.protocols[0].metadata,
                as_bytes(m, held.catalog), classic.protocols,
            )
        )  # fmt: skip
    name = members[0].protocols[0].name
    now = held.turn.wall_ms
    return GroupValue(PROTOCOL_TYPE, held.epoch, name, None, now, tuple(members), False)
