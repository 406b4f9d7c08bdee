"""Consumer-protocol group (KIP-848), as its coordinator sees the group. Pure.

Theory of operation. No request is parked: members send heartbeats, and each reply names the
partitions that the member may have. The group epoch numbers the inputs of an assignment: members,
subscriptions, and existing partitions. For each epoch an assignor computes the target: the
partitions that each member shall have. Each member moves to the target on its own. First the member
revokes the partitions outside of its target, then takes the target's epoch, and then gets the
partitions that other members have released. So a partition belongs to at most one member at any
time.

The states of a member:

STABLE       The member has its target as of its epoch, and goes on when there is a new target.
UNREVOKED    The member was asked to revoke partitions and has not confirmed yet. Meanwhile it stays
             in its epoch. It is removed if this takes longer than its rebalance timeout.
UNRELEASED   The member has the target's epoch, but other members still hold some of its partitions.

Two rules carry the rest. Replies survive a crash: all changes of a step are one write, before the
reply. And a late commit never overwrites the offsets of another member (KIP-1251): each partition
carries the epoch at which it was assigned to the member. A commit with an epoch older than that one
dates from a time at which the partition may have belonged to another member. A commit with an epoch
between that one and the member's newest is from a member that has not seen the newest epoch yet,
and has held the partition all along.

A static member that leaves with -2 is AWAY: the assignment waits for a client with the same
instance id, until the session ends.
"""

from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Any, ClassVar

from streamsx.broker.groups import coordinator_events as e
from streamsx.broker.groups.assignments import Assignments, ConsumerMember, Reconciliation, by_topic
from streamsx.broker.groups.assignors import ASSIGNORS, TopicIdPartition
from streamsx.broker.groups.classic_members import ClassicMembers, upgrade
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.groups.group import CommitIdentity, GroupConfig, GroupTurn
from streamsx.broker.groups.members import check, holder
from streamsx.broker.groups.offsets import Catalog
from streamsx.broker.metadata_rows import (
    OF_A_MEMBER,
    CommittedOffsets,
    ConsumerGroupKey,
    ConsumerMemberValue,
    GroupRowKey,
    GroupRowValue,
    GroupValue,
    OffsetValue,
)
from streamsx.broker.refusal import Refused
from streamsx.protocol.consumer_protocol import PROTOCOL_TYPE
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api

JOINS = 0
AWAY = -2
"""Special epochs in a heartbeat; AWAY is also the stored epoch of a member that is away."""
IDS_OF_CLIENTS_SINCE = 1  # heartbeat version from which members choose their own ids
NO_EXPRESSIONS = (
    "this broker does not support regular expressions: subscribe to topics by their names"
)
EPOCHS_SINCE = 9  # OffsetCommit version from which a request may carry a member epoch


class ConsumerGroup:
    """Machine of one group: `step` takes requests 11 to 14 and 68, and BrokerTick."""

    kind: ClassVar[str] = "consumer"
    described_by: ClassVar[Api] = Api.CONSUMER_GROUP_DESCRIBE

    def __init__(self, group_id: str, config: GroupConfig, catalog: Catalog) -> None:
        self.id = group_id
        self.config = config
        self.catalog = catalog
        self.committed: CommittedOffsets = {}
        self.turn = GroupTurn(group_id)
        self.held = Assignments(self.turn, config, catalog)
        classic = ClassicMembers(self.held)
        self._requests = {Api.CONSUMER_GROUP_HEARTBEAT: self._heartbeat, **classic.requests}

    def step(self, now: float, event: e.GroupEvent) -> list[e.Effect]:
        """Apply one event, and return the effects: one write of all changes, then the replies."""
        turn = self.turn
        turn.begin(now)
        if isinstance(event, e.ClientRequest):
            turn.wall_ms = event.wall_ms
            try:
                self._requests[event.api](event)
            except Refused as why:
                turn.reply(event.waiter, why.answer)
        elif isinstance(event, e.BrokerTick):
            turn.wall_ms = event.wall_ms
            turn.armed = inf
            self._tick()
        return [*self.held.changes(), *turn.over()]

    def load(self, now: float, key: GroupRowKey, value: GroupRowValue) -> list[e.Effect]:
        """Load a persisted row: the group's own first, then those of the members."""
        self.turn.begin(now)
        self.held.load(key, value)
        return self.turn.over()

    def upgraded(self, now: float, key: GroupRowKey, value: GroupValue) -> list[e.Effect]:
        """Take over the members of a classic group, in one write.

        Raises:
            Refused: The classic group cannot be converted.
        """
        self.turn.begin(now)
        upgrade(value, self.held)
        self.held.delete(key)
        return [*self.held.changes(), *self.turn.over()]

    def outlived(self) -> bool:
        """Return whether there are members, but none that speaks the consumer protocol."""
        members = self.held.members.values()
        return bool(members) and all(m.about.classic for m in members)

    # Interface to the coordinator.

    def keys(self) -> list[GroupRowKey]:
        """Return the keys of all rows; none before the first member."""
        if not self.held.target_epoch:
            return []
        of_members = (row(self.id, m) for m in self.held.members for row in OF_A_MEMBER)
        return [ConsumerGroupKey(self.id), *of_members]

    def members(self) -> Collection[ConsumerMember]:
        """Return all members, including static members that are away."""
        return self.held.members.values()

    def awaited(self) -> bool:
        """Return False: this protocol promises no member ids."""
        return False

    def may_commit(self, now: float, who: CommitIdentity) -> list[e.Effect]:
        """Accept a commit for all of its partitions, or for none (KIP-1251).

        Raises:
            Refused: The member is unknown, its epoch is too old or too new, or the request's
                version cannot carry epochs.
        """
        if who.epoch < 0 and not self.held.members:
            return []
        member = check(self.held.members, who.member_id, None)
        classic = member.about.classic is not None
        if who.version < EPOCHS_SINCE and not classic:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION)
        if who.epoch == member.epoch:
            return []
        places = ((self.catalog.identity(topic)[0], p) for topic, p in who.places)
        if who.epoch > member.epoch or any(who.epoch < member.since(place) for place in places):
            code = ErrorCode.ILLEGAL_GENERATION if classic else ErrorCode.STALE_MEMBER_EPOCH
            raise Refused(code)
        return []

    def may_fetch(self, member_id: str | None, epoch: int) -> None:
        """Check the member id and epoch of an offset fetch.

        Raises:
            Refused: There is no such member, or the member has another epoch.
        """
        if member_id is None and epoch < 0:
            return
        if check(self.held.members, member_id or "", None).epoch != epoch:
            raise Refused(ErrorCode.STALE_MEMBER_EPOCH)

    def reads(self) -> Callable[[str], bool]:
        """Return a function that tests whether any member is subscribed to a topic."""
        topics = {topic for m in self.held.members.values() for topic in m.about.topics}
        return topics.__contains__

    def unused_since(self) -> Callable[[str, OffsetValue], float]:
        """Return a function from topic and offset to the time since which the offset is unused.

        The time is that of the commit in unix ms; inf while a member is subscribed to the topic.
        """
        reads = self.reads()
        return lambda topic, value: inf if reads(topic) else value.commit_timestamp

    def listed(self) -> ReplyBody:
        """Return the state and the protocol type."""
        return {"protocol_type": PROTOCOL_TYPE, "group_state": self._state()}

    def described(self) -> ReplyBody:
        """Return the description for ConsumerGroupDescribe."""
        return {
            "group_state": self._state(),
            "group_epoch": self.held.epoch,
            "assignment_epoch": self.held.target_epoch,
            "assignor_name": self.held.assignor(),
            "members": [
                {
                    "member_id": m.id,
                    "instance_id": m.about.group_instance_id,
                    "rack_id": m.about.rack_id,
                    "member_epoch": m.epoch,
                    "client_id": m.about.client_id,
                    "client_host": m.about.client_host,
                    "subscribed_topic_names": m.about.topics,
                    "subscribed_topic_regex": m.about.regex or "",
                    "assignment": self._told((*m.assigned, *m.revoking)),
                    "target_assignment": self._told(self.held.target.get(m.id, ())),
                    "member_type": 0 if m.about.classic else 1,
                }
                for _, m in sorted(self.held.members.items())
            ],
        }

    def _state(self) -> str:
        if not self.held.members:
            return "Empty"
        if self.held.epoch > self.held.target_epoch:
            return "Assigning"
        at = Reconciliation.STABLE, self.held.target_epoch
        there = all((m.state, m.epoch) == at for m in self.held.members.values())
        return "Stable" if there else "Reconciling"

    def _told(self, places: Iterable[TopicIdPartition]) -> ReplyBody:
        """Return partitions with topic names, for a reply; deleted topics are left out."""
        names = self.catalog.names
        topics = [
            {"topic_id": t.topic_id, "topic_name": names[t.topic_id], "partitions": t.partitions}
            for t in by_topic(places)
            if t.topic_id in names
        ]
        return {"topic_partitions": topics}

    # Requests of members.

    def _heartbeat(self, request: e.ClientRequest) -> None:
        body = request.body
        if body.member_epoch < JOINS:
            self._leave(request)
            return
        owned: set[TopicIdPartition] | None = None
        if body.topic_partitions is not None:
            owned = {(bytes(t.topic_id), p) for t in body.topic_partitions for p in t.partitions}
        member = self._speaker(request, owned)
        self._hear(member, request)
        self.held.aim()
        before = member.assigned.keys()
        self.held.reconcile(member, owned)
        self.held.touch(member)
        subscribes = (body.subscribed_topic_names, body.subscribed_topic_regex) != (None, None)
        whole = subscribes and body.rebalance_timeout != -1 and owned is not None
        whole |= body.member_epoch == JOINS or before != member.assigned.keys()
        self.turn.reply(
            request.waiter,
            {
                "member_id": member.id,
                "member_epoch": member.epoch,
                "heartbeat_interval": self.config.consumer_heartbeat_interval_ms,
                "assignment": self._told(member.assigned) if whole else None,
            },
        )

    def _speaker(
        self, request: e.ClientRequest, owned: set[TopicIdPartition] | None
    ) -> ConsumerMember:
        """Return the member that sent this heartbeat; a new member if the heartbeat joins."""
        body = request.body
        if body.member_epoch != JOINS:
            member = check(self.held.members, body.member_id, body.instance_id)
            check_epoch(member, body.member_epoch, owned)
            return member
        member_id = body.member_id or request.fresh_id
        members = self.held.members
        static = holder(members, body.instance_id)
        if static is None:
            return self.held.seat(member_id)
        if static.epoch != AWAY or members.get(member_id, static) is not static:
            raise Refused(ErrorCode.UNRELEASED_INSTANCE_ID)
        return self.held.take_over(static, member_id)

    def _hear(self, member: ConsumerMember, request: e.ClientRequest) -> None:
        """Store the description that a heartbeat brings; absent fields stay as before."""
        body = request.body
        old = member.about
        names = request.body.subscribed_topic_names
        patience = body.rebalance_timeout
        regex = body.subscribed_topic_regex
        about = ConsumerMemberValue(
            old.group_instance_id if body.instance_id is None else body.instance_id,
            old.rack_id if body.rack_id is None else body.rack_id,
            request.peer.client_id, request.peer.host,
            old.topics if names is None else tuple(sorted(set(names))),
            old.regex if regex is None else regex,
            old.rebalance_timeout if patience == -1 else patience,
            old.assignor if body.server_assignor is None else body.server_assignor,
        )  # fmt: skip
        self.held.hear(member, about)

    def _leave(self, request: e.ClientRequest) -> None:
        body = request.body
        member = check(self.held.members, body.member_id, body.instance_id)
        if body.member_epoch == AWAY:
            held = dict.fromkeys(member.assigned, 0)
            self.held.hold(member, AWAY, Reconciliation.STABLE, held, {})
        else:
            self.held.remove(member, "left")
        told = {"member_id": body.member_id, "member_epoch": body.member_epoch}
        self.turn.reply(request.waiter, told)

    def _tick(self) -> None:
        now = self.turn.now
        for _, m in sorted(self.held.members.items()):
            if m.session_at <= now:
                self.held.remove(m, "session ended")
            elif m.expected_by <= now:
                self.held.remove(m, "did not revoke, or join, in time")
        due = (at for m in self.held.members.values() for at in (m.session_at, m.expected_by))
        self.turn.wake_at = min(due, default=inf)


def check_heartbeat(body: Any, version: int, config: GroupConfig) -> None:
    """Check the parts of a heartbeat that do not depend on the group.

    Raises:
        Refused: The heartbeat is invalid, or asks for an unknown assignor or a regular expression.
    """
    names = sum(map(len, body.subscribed_topic_names or ()))
    joins = body.member_epoch == JOINS
    subscribes = (body.subscribed_topic_names, body.subscribed_topic_regex) != (None, None)
    wrong = (
        not body.group_id,
        not body.member_id and (version >= IDS_OF_CLIENTS_SINCE or not joins),
        "" in (body.instance_id, body.rack_id),
        joins and (body.rebalance_timeout == -1 or not subscribes),
        joins and (body.topic_partitions is None or len(body.topic_partitions) > 0),
        body.member_epoch == AWAY and body.instance_id is None,
        body.member_epoch < AWAY,
        names > config.metadata_bytes_max,  # each join reads all names of all members
    )
    if any(wrong):
        raise Refused(ErrorCode.INVALID_REQUEST)
    if body.server_assignor is not None and body.server_assignor not in ASSIGNORS:
        raise Refused(ErrorCode.UNSUPPORTED_ASSIGNOR)
    if body.subscribed_topic_regex:
        raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, error_message=NO_EXPRESSIONS)


def check_epoch(member: ConsumerMember, epoch: int, owned: set[TopicIdPartition] | None) -> None:
    """Check the epoch that a member sent.

    The previous epoch is valid too if the member may have missed the reply with the new one, and
    owns nothing beyond its assignment.

    Raises:
        Refused: The epoch is another one.
    """
    missed = epoch == member.previous_epoch < member.epoch
    has_no_more = owned is not None and owned <= member.assigned.keys()
    if epoch != member.epoch and not (missed and has_no_more):
        raise Refused(ErrorCode.FENCED_MEMBER_EPOCH)
