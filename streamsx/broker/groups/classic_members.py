"""Members that speak JoinGroup in a group of the consumer protocol, and groups that change. Pure.

Theory of operation (KIP-848, migration). A group goes over member by member. The first one of the
consumer protocol makes a group of that protocol of it, whose other members are classic: each round
of theirs is a step of their own to the target. JoinGroup is a heartbeat that says what they own,
SyncGroup tells what they have, and a Heartbeat is answered with 27 when they are to come again.
Nobody leads, and nobody waits. When the last member of the consumer protocol has gone, it is a
classic group again, and all of its members join a round.

What the epochs are to one protocol, generations are to the other: they go on counting.
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
    """Requests 11 to 14, of members of one group; each is answered at once."""

    def __init__(self, held: Assignments) -> None:
        self.held, self.turn = held, held.turn
        self.requests = {
            Api.JOIN_GROUP: self._join,
            Api.SYNC_GROUP: self._sync,
            Api.HEARTBEAT: self._heartbeat,
            Api.LEAVE_GROUP: self._leave,
        }

    def _join(self, request: ClientRequest) -> None:
        held, body = self.held, request.body
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
        # Of whatever generation: its last answer may be lost, and what it has is not free.
        owned = {(held.catalog.identity(tp.topic)[0], tp.partition) for tp in said.owned}
        held.reconcile(member, owned)
        held.touch(member)
        held.expect(member)  # its SyncGroup
        answer = {**kind(member), "generation_id": member.epoch, "member_id": member.id}
        self.turn.reply(request.waiter, {**answer, "leader": "", "members": []})

    def _subscription(self, body: Any) -> Subscription:
        """Of what a member offers first. Raises Refused if not all, itself before, know one."""
        common = {p.name for p in body.protocols}
        for m in self.held.members.values():
            if m.about.classic is not None:
                common &= {p.name for p in m.about.classic.protocols}
        with suppress(Malformed):
            if body.protocol_type == PROTOCOL_TYPE and common:
                return Subscription.read(bytes(body.protocols[0].metadata))
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _joining(self, request: ClientRequest) -> ConsumerMember:
        body, held = request.body, self.held
        member_id, instance_id = body.member_id, body.group_instance_id
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
        body, member = request.body, self._member(request)
        meant = {"protocol_type": body.protocol_type, "protocol_name": body.protocol_name}
        if request.version >= NAMES_SINCE and meant != kind(member):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if member.epoch < self.held.epoch and member.state is not Reconciliation.UNREVOKED:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        member.expected_by = inf
        told = {**kind(member), "assignment": as_bytes(member, self.held.catalog)}
        self.turn.reply(request.waiter, told)

    def _heartbeat(self, request: ClientRequest) -> None:
        member, held, code = self._member(request), self.held, ErrorCode.NONE
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
        told = told_of_leaving(request, held.members, held.remove, {})  # of either protocol
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
    """What it offered first, as an answer says it."""
    assert member.about.classic
    name = member.about.classic.protocols[0].name
    return {"protocol_type": PROTOCOL_TYPE, "protocol_name": name}


def as_bytes(member: ConsumerMember, catalog: Catalog) -> bytes:
    """What it has, as SyncGroup tells it."""
    names = catalog.names
    has = (TopicPartition(names[t], p) for t, p in member.assigned if t in names)
    return Assignment(tuple(has)).write()


def upgrade(value: GroupValue, held: Assignments) -> None:
    """Fills a new group with the members of a classic one; each assignment is of its generation.

    Raises Refused if it is no group of consumers, or one that cannot be understood.
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
    """What it is as a classic group; all of its members are classic, and are to join: a broker that
    is killed right behind this has to know it, so nothing counts as synced.
    """
    members = []
    for m in held.members.values():
        about, classic = m.about, m.about.classic
        assert classic
        members.append(
            MemberValue(
                m.id, about.group_instance_id, about.client_id, about.client_host,
                about.rebalance_timeout, classic.session_timeout, classic.protocols[0].metadata,
                as_bytes(m, held.catalog), classic.protocols,
            )
        )  # fmt: skip
    name, now = members[0].protocols[0].name, held.turn.wall_ms
    return GroupValue(PROTOCOL_TYPE, held.epoch, name, None, now, tuple(members), False)
