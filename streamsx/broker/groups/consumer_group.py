"""One group of the consumer protocol (KIP-848), as its coordinator sees it. Pure.

Theory of operation. Nobody waits: a member sends heartbeats and is told what it may have. What the
group is about (who is in it, what they read, which partitions there are) has a number, the group
epoch. For each epoch an assignor says who is to get what: the target. Each member goes there on its
own: it gives up what is not its own in the target, then takes the target's epoch, and then it is
given what the others have given up. So a partition is of one member at most, at any time.

The states of a member:

STABLE       It has what the target said at its epoch; it goes on when there is another target.
UNREVOKED    It was told to give something up and has not said that it has. It stays in its epoch
             meanwhile, and is removed if that takes longer than its rebalance time-out.
UNRELEASED   It has the target's epoch, but some of what it is to get is still another member's.

Two rules carry the rest. What was answered survives: all that a step changed is one write, before
the answer. And a commit that comes late overwrites nobody's offsets (KIP-1251): each partition
bears the epoch in which it was assigned to the member. Who commits with an older epoch than that
one speaks of a time in which the partition may have been somebody else's; with one in between it
has only not heard yet of the newest, and holds the partition all along.

A static member that leaves with -2 is AWAY: what it has waits for who comes under its instance id,
until its session ends.
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

JOINS, LEAVES, AWAY = 0, -1, -2
"""What a heartbeat may say instead of an epoch; AWAY is also the epoch of who said it."""
IDS_OF_CLIENTS_SINCE = 1  # the version from which members name themselves
NO_EXPRESSIONS = "this broker knows no regular expressions: subscribe to topics by their names"
EPOCHS_SINCE = 9  # the version of OffsetCommit from which it may bear a member's epoch


class ConsumerGroup:
    """The machine of one group: `step` takes requests 11 to 14 and 68, and Tick."""

    kind: ClassVar[str] = "consumer"
    described_by: ClassVar[Api] = Api.CONSUMER_GROUP_DESCRIBE

    def __init__(self, group_id: str, config: GroupConfig, catalog: Catalog) -> None:
        self.id, self.config, self.catalog = group_id, config, catalog
        self.committed: CommittedOffsets = {}
        self.turn = GroupTurn(group_id)
        self.held = Assignments(self.turn, config, catalog)
        classic = ClassicMembers(self.held)
        self._requests = {Api.CONSUMER_GROUP_HEARTBEAT: self._heartbeat, **classic.requests}

    def step(self, now: float, event: e.GroupEvent) -> list[e.Effect]:
        """All that it changes is one write, before any answer."""
        turn = self.turn
        turn.begin(now)
        if isinstance(event, e.ClientRequest):
            turn.wall_ms = event.wall_ms
            try:
                self._requests[event.api](event)
            except Refused as why:
                turn.reply(event.waiter, why.answer)
        elif isinstance(event, e.BrokerTick):
            turn.wall_ms, turn.armed = event.wall_ms, inf
            self._tick()
        return [*self.held.changes(), *turn.over()]

    def load(self, now: float, key: GroupRowKey, value: GroupRowValue) -> list[e.Effect]:
        """Its own row first, then those of its members."""
        self.turn.begin(now)
        self.held.load(key, value)
        return self.turn.over()

    def upgraded(self, now: float, key: GroupRowKey, value: GroupValue) -> list[e.Effect]:
        """Becomes what a classic group was, in one write. Raises Refused if that cannot be."""
        self.turn.begin(now)
        upgrade(value, self.held)
        self.held.delete(key)
        return [*self.held.changes(), *self.turn.over()]

    def outlived(self) -> bool:
        """Somebody is in it, but nobody who speaks the consumer protocol."""
        members = self.held.members.values()
        return bool(members) and all(m.about.classic for m in members)

    # What it is to the coordinator.

    def keys(self) -> list[GroupRowKey]:
        """None before its first member."""
        if not self.held.target_epoch:
            return []
        of_members = (row(self.id, m) for m in self.held.members for row in OF_A_MEMBER)
        return [ConsumerGroupKey(self.id), *of_members]

    def members(self) -> Collection[ConsumerMember]:
        """Those that are away, too."""
        return self.held.members.values()

    def awaited(self) -> bool:
        """Ids are not promised here."""
        return False

    def may_commit(self, now: float, who: CommitIdentity) -> list[e.Effect]:
        """KIP-1251, for all partitions or none. Raises Refused."""
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
        """Raises Refused."""
        if member_id is None and epoch < 0:
            return
        if check(self.held.members, member_id or "", None).epoch != epoch:
            raise Refused(ErrorCode.STALE_MEMBER_EPOCH)

    def reads(self) -> Callable[[str], bool]:
        """By what they are subscribed to."""
        topics = {topic for m in self.held.members.values() for topic in m.about.topics}
        return topics.__contains__

    def unused_since(self) -> Callable[[str, OffsetValue], float]:
        """Since it was committed, unless somebody reads the topic."""
        reads = self.reads()
        return lambda topic, value: inf if reads(topic) else value.commit_timestamp

    def listed(self) -> ReplyBody:
        """State and protocol type."""
        return {"protocol_type": PROTOCOL_TYPE, "group_state": self._state()}

    def described(self) -> ReplyBody:
        """As ConsumerGroupDescribe tells it."""
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
        """With names; of topics that are gone nobody hears any more."""
        names = self.catalog.names
        topics = [
            {"topic_id": t.topic_id, "topic_name": names[t.topic_id], "partitions": t.partitions}
            for t in by_topic(places)
            if t.topic_id in names
        ]
        return {"topic_partitions": topics}

    # What members say.

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
        """Who sent this heartbeat: somebody new, if it joins."""
        body = request.body
        if body.member_epoch != JOINS:
            member = check(self.held.members, body.member_id, body.instance_id)
            check_epoch(member, body.member_epoch, owned)
            return member
        member_id, members = body.member_id or request.fresh_id, self.held.members
        static = holder(members, body.instance_id)
        if static is None:
            return self.held.seat(member_id)
        if static.epoch != AWAY or members.get(member_id, static) is not static:
            raise Refused(ErrorCode.UNRELEASED_INSTANCE_ID)
        return self.held.take_over(static, member_id)

    def _hear(self, member: ConsumerMember, request: e.ClientRequest) -> None:
        """What it says of itself; nothing stands for as before."""
        body, old, names = request.body, member.about, request.body.subscribed_topic_names
        patience, regex = body.rebalance_timeout, body.subscribed_topic_regex
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
    """What is wrong with it whatever the group is. Raises Refused."""
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
        names > config.metadata_bytes_max,  # all names of all members are looked at with each join
    )
    if any(wrong):
        raise Refused(ErrorCode.INVALID_REQUEST)
    if body.server_assignor is not None and body.server_assignor not in ASSIGNORS:
        raise Refused(ErrorCode.UNSUPPORTED_ASSIGNOR)
    if body.subscribed_topic_regex:
        raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, error_message=NO_EXPRESSIONS)


def check_epoch(member: ConsumerMember, epoch: int, owned: set[TopicIdPartition] | None) -> None:
    """The one before is right too if the answer with the new one may be lost. Raises Refused."""
    missed = epoch == member.previous_epoch < member.epoch
    has_no_more = owned is not None and owned <= member.assigned.keys()
    if epoch != member.epoch and not (missed and has_no_more):
        raise Refused(ErrorCode.FENCED_MEMBER_EPOCH)
