"""Classic group (JoinGroup and SyncGroup), as its coordinator sees the group. Pure.

Theory of operation. Members agree in rounds of two halves. In the first half each member sends
JoinGroup and is *parked*: the reply is held back until all members have joined, because only then
can the coordinator send the list of members to the leader. In the second half the leader computes
the assignment and sends it with its SyncGroup; the other members are parked in their SyncGroup
until then. Each round has a number, the generation. A request with another generation is late and
is refused. Two rules carry the rest:

- Replies survive a crash. A generation is persisted before the first JoinGroup of its round is
  answered, and the assignment before the first SyncGroup is. A coordinator that crashes and comes
  back never contradicts itself (seed 001, "Handling Coordinator Failures").
- No member waits for ever. A member is removed at the end of its session unless it is parked: then
  the member waits for the coordinator. Each half of a round has a deadline.

The states:

EMPTY        There are no members; offsets may remain. A JoinGroup starts a round after some delay.
PREPARING    A round has begun and members are joining. This half completes when all known members
             have joined and no promised member id is outstanding, or at the deadline, without the
             rest.
COMPLETING   All members got the new generation, and the leader has not sent the assignment yet. A
             group that was loaded in this state is *recovered*: the members that got the generation
             are unknown, so the first JoinGroup starts a new round. Otherwise a JoinGroup is
             answered with the current generation.
STABLE       Every member may fetch its assignment. Members that have not done so at the sync
             deadline are removed.

A member that rejoins with other metadata starts a round. A member that rejoins with the same
metadata gets the current generation, because the earlier reply was lost. The leader is the
exception: rejoining is how a leader asks for a round. A static member (KIP-345) that returns under
its instance id takes over the place of its former member id: in STABLE without a round, even if the
metadata changed, so that the leader does not notice.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from math import inf
from typing import Any, ClassVar, NoReturn

from streamsx.broker.groups import coordinator_events as e
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.groups.group import CommitIdentity, GroupConfig, GroupTurn
from streamsx.broker.groups.member_names import removed, settled
from streamsx.broker.groups.members import (
    NAMES_SINCE,
    PROMISE_SINCE,
    Members,
    RoundMember,
    by_id,
    check,
    check_limits,
    fresh_member_id,
    holder,
    metadata,
    rebalance_ms,
    subscriptions,
    supported,
    told_of_leaving,
    vote,
)
from streamsx.broker.groups.offsets import Catalog
from streamsx.broker.metadata_rows import (
    CommittedOffsets,
    GroupKey,
    GroupRowKey,
    GroupRowValue,
    GroupValue,
    MemberValue,
    OffsetValue,
    ProtocolValue,
)
from streamsx.broker.refusal import Refused
from streamsx.errors import InvalidTransition
from streamsx.protocol.compiler import Malformed
from streamsx.protocol.consumer_protocol import PROTOCOL_TYPE, Subscription
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api

SKIP_SINCE = 9  # JoinGroup version that can ask a returning leader not to assign
STORY_LINES = 200
NOTHING: ReplyBody = {}


class GroupState(Enum):
    """States of a group, named as by DescribeGroups."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Cause(Enum):
    """Causes of transitions, after the request was checked."""

    NEW = "somebody joins"
    CHANGED = "a member joins again, with other protocols or metadata"
    UNCHANGED = "a member joins again, as before"
    RETURN = "a static member joins under a new member id"
    GONE = "members left, or their sessions ended"
    SYNC = "a follower syncs"
    LEAD = "the leader syncs"
    HEARTBEAT = "a member lives"
    DEADLINE = "the time for this half of the round is over"


# fmt: off
TABLE: dict[Cause, tuple[str, str, str, str]] = {
    #                 EMPTY       PREPARING    COMPLETING         STABLE
    Cause.NEW:       ("prepare",  "gather",    "prepare",         "prepare"),
    Cause.CHANGED:   ("",         "gather",    "prepare",         "prepare"),
    Cause.UNCHANGED: ("",         "gather",    "tell_again",      "tell_again"),
    Cause.RETURN:    ("",         "gather",    "prepare",         "return_quietly"),
    Cause.GONE:      ("",         "gather",    "prepare",         "prepare"),
    Cause.SYNC:      ("",         "refuse",    "park",            "hand_out"),
    Cause.LEAD:      ("",         "refuse",    "assign",          "hand_out"),
    Cause.HEARTBEAT: ("",         "hurry",     "live",            "live"),
    Cause.DEADLINE:  ("",         "complete",  "remove_unsynced", "remove_unsynced"),
}
# fmt: on
COLUMN = {state: i for i, state in enumerate(GroupState)}


class Round:
    """State of a group, and the actions of the table; everything persisted is here."""

    def __init__(self, turn: GroupTurn, initial_delay_ms: int) -> None:
        self.turn = turn
        self.initial_delay_ms = initial_delay_ms
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: Members = {}
        self.pending: dict[str, float] = {}  # promised member ids, and when each promise ends
        self.deadline = inf  # end of this half of the round
        self.initial = False  # the round began in EMPTY: it waits for the delay, not for members
        self.settled: frozenset[str] = frozenset()  # members of the newest line about all
        self.said = ""  # that line
        self.recovered = False
        self.saved_ms = 0  # unix time; in EMPTY, when the last member was gone
        self.story: deque[tuple[float, Cause, GroupState, int]] = deque(maxlen=STORY_LINES)

    def fire(self, cause: Cause, *of: RoundMember | e.ClientRequest) -> None:
        """Run the table's action for a cause.

        Raises:
            InvalidTransition: The table has no action; the message contains the story.
        """
        self.story.append((self.turn.now, cause, self.state, self.generation))
        action = TABLE[cause][COLUMN[self.state]]
        if not action:
            raise InvalidTransition(f"group {self.turn.group_id}: {tell(self.story)}")
        getattr(self, action)(*of)

    def load(self, value: GroupValue) -> None:
        """Restore the persisted group; every member gets a full session to return."""
        self.protocol_type = value.protocol_type
        self.generation = value.generation
        self.protocol = value.protocol
        self.leader = value.leader
        self.saved_ms = value.state_timestamp
        for about in value.members:
            self.members[about.member_id] = member = RoundMember(about, synced=value.synced)
            self.touch(member)
        if self.members and value.synced:
            self.state = GroupState.STABLE
        elif self.members:  # no leader: formerly of the consumer protocol, all must join
            self.recovered = value.leader is not None
            self.state = GroupState.COMPLETING if self.recovered else GroupState.PREPARING
            self.set_deadline(rebalance_ms(self.members))

    # The entries of the table.

    def prepare(self, *_: object) -> None:
        """Begin a round."""
        for m in by_id(self.members):
            if m.sync is not None:  # the session may have ended while parked
                self.dismiss(m, ErrorCode.REBALANCE_IN_PROGRESS)
                self.touch(m)
        self.initial = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING
        self.recovered = False
        self.set_deadline(self.initial_delay_ms if self.initial else rebalance_ms(self.members))
        self.tell("group_rebalancing")
        self.gather()

    def gather(self, *_: object) -> None:
        """Complete the first half if all members have joined, or at the deadline."""
        everybody = not self.pending and all(m.joined for m in self.members.values())
        if self.deadline <= self.turn.now or (everybody and not self.initial):
            self.complete()

    def complete(self) -> None:
        """End the first half: drop absent members, raise the generation, answer all JoinGroups."""
        away = (m for m in self.members.values() if not m.joined)
        self.remove_all((m for m in away if m.about.group_instance_id is None), "did not rejoin")
        joined = [m.id for m in self.members.values() if m.joined]
        if self.members and not joined:  # absent static members stay until sessions end
            self.set_deadline(rebalance_ms(self.members))
            return
        self.generation += 1
        if not joined:
            self.state = GroupState.EMPTY
            self.deadline = inf
            self.protocol = self.leader = None
            self.save("group_empty")
            return
        self.state = GroupState.COMPLETING
        self.protocol = vote(self.members)
        if self.leader not in joined:
            self.leader = joined[0]
        for m in self.members.values():
            chosen = metadata(m.about.protocols, self.protocol)
            m.about = replace(m.about, subscription=chosen)
            m.synced = False
        self.save("group_generation")
        self.set_deadline(rebalance_ms(self.members))
        for m in by_id(self.members):
            self.answer_join(m)
            self.touch(m)

    def tell_again(self, member: RoundMember, _: e.ClientRequest) -> None:
        """Answer a repeated JoinGroup with the current generation.

        A leader that rejoins in STABLE begins a round instead. So does any member of a recovered
        group: the members that got the loaded generation are unknown, so all join again (seed 001).
        """
        leads = self.state is GroupState.STABLE and member.id == self.leader
        if leads or self.recovered:
            self.prepare()
        else:
            self.answer_join(member)

    def return_quietly(self, member: RoundMember, request: e.ClientRequest) -> None:
        """Answer a returning static member without a round, unless the vote would change (KIP-345).

        Before KIP-814 a reply could not ask a returning leader to leave the assignment alone. Such
        a leader gets its former id as the id of the leader, and so acts as a follower.
        """
        if vote(self.members) != self.protocol:
            self.prepare()
            return
        self.save("static_member_returned")
        but: ReplyBody = {"skip_assignment": True}
        if request.version < SKIP_SINCE:
            but = {"leader": member.former_id, "members": []}
        self.answer_join(member, but if self.leader == member.id else {})

    def live(self, member: RoundMember, request: e.ClientRequest) -> None:
        """Extend the session, and answer the Heartbeat."""
        self.touch(member)
        self.turn.reply(request.waiter, {"error_code": ErrorCode.NONE})

    def hurry(self, member: RoundMember, request: e.ClientRequest) -> None:
        """Extend the session, and answer that a rebalance is in progress."""
        self.touch(member)
        self.refuse(member, request)

    def refuse(self, _: RoundMember, request: e.ClientRequest) -> None:
        """Answer that a rebalance is in progress."""
        self.turn.reply(request.waiter, {"error_code": ErrorCode.REBALANCE_IN_PROGRESS})

    def park(self, member: RoundMember, request: e.ClientRequest) -> None:
        """Hold back the reply to a SyncGroup."""
        self.dismiss(member, ErrorCode.REBALANCE_IN_PROGRESS)  # an earlier SyncGroup, if any
        member.sync = request.waiter
        member.synced = True

    def assign(self, leader: RoundMember, request: e.ClientRequest) -> None:
        """Store the leader's assignment, enter STABLE, and answer all parked SyncGroups."""
        self.park(leader, request)
        given = {each.member_id: bytes(each.assignment) for each in request.body.assignments}
        for m in self.members.values():
            m.about = replace(m.about, assignment=given.get(m.id, b""))
        self.state = GroupState.STABLE
        self.recovered = False
        self.save("group_stable")
        self.settle()
        for m in by_id(self.members):
            if m.sync is not None:
                self.give(m, m.sync)
                m.sync = None
                self.touch(m)

    def hand_out(self, member: RoundMember, request: e.ClientRequest) -> None:
        """Answer a SyncGroup with the member's assignment."""
        member.synced = True
        self.give(member, request.waiter)

    def remove_unsynced(self) -> None:
        """Remove the members that have not synced by the deadline."""
        self.deadline = inf
        if self.remove_all((m for m in self.members.values() if not m.synced), "did not sync"):
            self.fire(Cause.GONE)

    # Parts shared by the entries.

    def answer_join(self, member: RoundMember, but: ReplyBody = NOTHING) -> None:
        """Answer a parked JoinGroup, if there is one; the leader also gets all members."""
        if member.join is not None:
            leads = member.id == self.leader
            told = subscriptions(self.members) if leads else []
            who = {"leader": self.leader, "member_id": member.id, "members": told}
            body = {"generation_id": self.generation, **self.kind, **who, **but}
            self.turn.reply(member.join, body)
        member.join = None
        member.joined = False

    def give(self, member: RoundMember, waiter: int) -> None:
        """Answer a SyncGroup with the member's assignment."""
        self.turn.reply(waiter, {**self.kind, "assignment": member.about.assignment})

    @property
    def kind(self) -> ReplyBody:
        return {"protocol_type": self.protocol_type, "protocol_name": self.protocol}

    def dismiss(self, member: RoundMember, code: ErrorCode) -> None:
        """Answer the member's parked requests with an error.

        The reply has no member id if the error is that there is no such member.
        """
        name = "" if code is ErrorCode.UNKNOWN_MEMBER_ID else member.id
        for waiter in (member.join, member.sync):
            if waiter is not None:
                self.turn.reply(waiter, {"error_code": code, "member_id": name})
        member.join = member.sync = None

    def touch(self, member: RoundMember) -> None:
        """Extend the member's session from now on."""
        member.session_at = self.turn.now + member.about.session_timeout / 1000
        self.turn.arm(member.session_at)

    def remove(self, member: RoundMember, why: str) -> None:
        """Remove a member, and log the reason."""
        del self.members[member.id]
        self.dismiss(member, ErrorCode.UNKNOWN_MEMBER_ID)
        said = removed(self.turn.group_id, member.about, why)
        self.turn.tell("member_removed", f"member={member.id} why={why!r}", said)

    def remove_all(self, members: Iterable[RoundMember], why: str) -> bool:
        """Remove these members, and return whether there were any."""
        gone = sorted(members, key=lambda m: m.id)
        for m in gone:
            self.remove(m, why)
        return bool(gone)

    def settle(self) -> None:
        """Log the members of a group that has settled, if they are others than before."""
        members = frozenset(self.members)
        if members != self.settled:
            self.settled = members
            said = settled(self.turn.group_id, (m.about for m in by_id(self.members)))
            news = said if said != self.said else ""  # a tool came or went
            self.said = said
            self.turn.tell("group_settled", f"members={len(members)}", news)

    def tell(self, event: str) -> None:
        """Log an event with the group's generation, size and leader."""
        about = f"generation={self.generation} members={len(self.members)} leader={self.leader}"
        self.turn.tell(event, about)

    def save(self, event: str) -> None:
        """Log an event, and persist the group."""
        self.tell(event)
        self.saved_ms = self.turn.wall_ms
        self.turn.effects.append(e.Persist(((GroupKey(self.turn.group_id), self.value()),)))

    def value(self) -> GroupValue:
        """Return the group as persisted."""
        return GroupValue(
            self.protocol_type, self.generation, self.protocol, self.leader, self.saved_ms,
            tuple(m.about for m in self.members.values()), self.state is GroupState.STABLE,
        )  # fmt: skip

    def set_deadline(self, delay_ms: int) -> None:
        """Set the deadline of this half of the round."""
        self.deadline = self.turn.now + delay_ms / 1000
        self.turn.arm(self.deadline)


class ClassicGroup:
    """Machine of one classic group: `step` takes requests 11 to 14, BrokerTick, and ClientGone.

    This class interprets and checks requests; `Round` does the rest.
    """

    kind: ClassVar[str] = "classic"
    described_by: ClassVar[Api] = Api.DESCRIBE_GROUPS

    def __init__(self, group_id: str, config: GroupConfig, _: Catalog) -> None:
        self.id = group_id
        self.config = config
        self.committed: CommittedOffsets = {}
        self.turn = GroupTurn(group_id)
        self.round = Round(self.turn, config.initial_delay_ms)
        self._requests = {Api.JOIN_GROUP: self._join, Api.LEAVE_GROUP: self._leave}

    def step(self, now: float, event: e.GroupEvent) -> list[e.Effect]:
        """Apply one event, and return the effects.

        Raises:
            InvalidTransition: The request is impossible in the group's state.
        """
        turn = self.turn
        turn.begin(now)
        if isinstance(event, e.ClientRequest):
            turn.wall_ms = event.wall_ms
            try:
                self._requests.get(event.api, self._speak)(event)
            except Refused as why:
                turn.reply(event.waiter, {"member_id": event.body.member_id, **why.answer})
        elif isinstance(event, e.BrokerTick):
            turn.wall_ms = event.wall_ms
            turn.armed = inf
            self._tick()
        else:
            self._forget_waiter(event.waiter)
        return turn.over()

    def load(self, now: float, _: GroupRowKey, value: GroupRowValue) -> list[e.Effect]:
        """Restore the persisted group."""
        assert isinstance(value, GroupValue)
        self.turn.begin(now)
        self.round.load(value)
        return self.turn.over()

    def begin_anew(self, now: float, epochs: Mapping[str, int]) -> list[e.Effect]:
        """Begin a round that all members must join, after a change from the consumer protocol.

        `epochs` holds the members' last epochs in that protocol.
        """
        self.turn.begin(now)
        for member in self.round.members.values():
            member.former_epoch = epochs[member.id]
        self.round.prepare()
        return self.turn.over()

    def abandon(self, now: float) -> list[e.Effect]:
        """Refuse all parked requests, because the group changes its kind; clients then rejoin."""
        self.turn.begin(now)
        for member in by_id(self.round.members):
            self.round.dismiss(member, ErrorCode.REBALANCE_IN_PROGRESS)
        return self.turn.effects

    def keys(self) -> list[GroupRowKey]:
        """Return the key of the group's row; none before the first generation."""
        return [GroupKey(self.id)] if self.round.generation else []

    def members(self) -> Collection[RoundMember]:
        """Return the members."""
        return self.round.members.values()

    def awaited(self) -> bool:
        """Return whether a client may still join under a promised member id (KIP-394)."""
        return bool(self.round.pending)

    def may_commit(self, now: float, who: CommitIdentity) -> list[e.Effect]:
        """Accept a commit from a member of this generation, and extend the member's session.

        An empty group accepts a commit from no member too. Within a transaction Kafka checks only
        member and generation, and does not extend the session.

        Raises:
            Refused: The commit is not from such a member, or a round is in its second half.
        """
        self.turn.begin(now)
        if who.epoch >= 0 or self.round.state is not GroupState.EMPTY:
            member = check(self.round.members, who.member_id, who.instance_id)
            self._check_generation(member, who.epoch)
            if not who.staged:
                if self.round.state is GroupState.COMPLETING:
                    raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
                self.round.touch(member)
        return self.turn.over()

    def may_fetch(self, member_id: str | None, epoch: int) -> None:
        """Accept every fetch of offsets."""

    def reads(self) -> Callable[[str], bool]:
        """Return a function that tests whether any member is subscribed to a topic.

        If a subscription cannot be decoded, all topics count as subscribed.

        Raises:
            Refused: The members are no consumers, so that their subscriptions cannot be known.
        """
        if not self.round.members:
            return lambda _: False
        if self.round.protocol_type != PROTOCOL_TYPE:
            raise Refused(ErrorCode.NON_EMPTY_GROUP)
        try:
            said = [Subscription.read(m.about.subscription) for m in self.round.members.values()]
        except Malformed:
            return lambda _: True
        return {topic for each in said for topic in each.topics}.__contains__

    def unused_since(self) -> Callable[[str, OffsetValue], float]:
        """Return a function from topic and offset to the time since which the offset is unused.

        Times are unix ms; inf while a member may use the offset (KIP-211).
        """
        if not self.round.generation:  # no member ever joined
            return lambda _, value: value.commit_timestamp
        if self.round.state is GroupState.EMPTY:
            return lambda _, __: self.round.saved_ms
        if self.round.state is not GroupState.STABLE or self.round.protocol_type != PROTOCOL_TYPE:
            return lambda _, __: inf
        reads = self.reads()
        return lambda topic, value: inf if reads(topic) else value.commit_timestamp

    def listed(self) -> ReplyBody:
        """Return the state and the protocol type."""
        return {
            "protocol_type": self.round.protocol_type,
            "group_state": self.round.state.value,
        }

    def described(self) -> ReplyBody:
        """Return the group's description; metadata only in STABLE, when they are valid."""
        stable = self.round.state is GroupState.STABLE
        return {
            **self.listed(),
            "protocol_data": self.round.protocol if stable else "",
            "members": [
                {
                    "member_id": m.id,
                    "group_instance_id": m.about.group_instance_id,
                    "client_id": m.about.client_id,
                    "client_host": m.about.client_host,
                    "member_metadata": m.about.subscription if stable else b"",
                    "member_assignment": m.about.assignment,
                }
                for m in by_id(self.round.members)
            ],
        }

    def _join(self, request: e.ClientRequest) -> None:
        body = request.body
        peer = request.peer
        members = self.round.members
        self._check_join(body)
        member_id = body.member_id
        instance_id = body.group_instance_id
        if not member_id:
            member_id = fresh_member_id(request)
            if instance_id is None and request.version >= PROMISE_SINCE:
                self._promise(body, member_id)
        old = members.get(member_id) or holder(members, instance_id)
        patience = body.rebalance_timeout if request.version else body.session_timeout
        offered = tuple(ProtocolValue(p.name, bytes(p.metadata)) for p in body.protocols)
        about = MemberValue(
            member_id, old.about.group_instance_id if old else instance_id,
            peer.client_id, peer.host,
            max(patience, self.config.rebalance_timeout_min_ms), body.session_timeout,
            metadata(offered, self.round.protocol), old.about.assignment if old else b"", offered,
        )  # fmt: skip
        member = RoundMember(about, joined=True, join=request.waiter)
        cause = self._seat(member, old, body.protocol_type)
        self.round.touch(member)
        self.round.fire(cause, member, request)

    def _check_join(self, body: Any) -> None:
        config = self.config
        members = self.round.members
        pending = self.round.pending
        check_limits(body, config)
        foreign = bool(members) and body.protocol_type != self.round.protocol_type
        common = supported(members, {p.name for p in body.protocols})
        if foreign or not body.protocol_type or not common:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        held = holder(members, body.group_instance_id) is not None
        if body.member_id and (held or body.member_id not in pending):
            check(members, body.member_id, body.group_instance_id)
        full = len(members) + len(pending) >= config.members_max
        if full and not held and not body.member_id:
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _promise(self, body: Any, member_id: str) -> NoReturn:
        """Refuse a JoinGroup, and promise a member id for the next one (KIP-394).

        A client that never gets this reply leaves no member behind.
        """
        self.round.pending[member_id] = until = self.turn.now + body.session_timeout / 1000
        self.turn.arm(until)
        raise Refused(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)

    def _seat(self, member: RoundMember, old: RoundMember | None, protocol_type: str) -> Cause:
        """Add the member, or replace its former self, and return the cause to fire."""
        group = self.round
        group.pending.pop(member.id, None)
        if not group.members:
            group.protocol_type = protocol_type
        if old is None:
            group.members[member.id] = member
            return Cause.NEW
        member.synced = old.synced
        member.former_id = old.id
        seats = group.members.values()
        group.members = {m.id: m for m in (member if seat is old else seat for seat in seats)}
        if old.id != member.id:
            group.leader = member.id if group.leader == old.id else group.leader
            group.dismiss(old, ErrorCode.FENCED_INSTANCE_ID)
            return Cause.RETURN
        group.dismiss(old, ErrorCode.REBALANCE_IN_PROGRESS)  # an earlier JoinGroup, if any
        same = member.about.protocols == old.about.protocols
        return Cause.UNCHANGED if same else Cause.CHANGED

    def _speak(self, request: e.ClientRequest) -> None:
        """Handle a SyncGroup or Heartbeat from a member of this generation."""
        body = request.body
        group = self.round
        cause = Cause.HEARTBEAT
        member = check(group.members, body.member_id, body.group_instance_id)
        self._check_generation(member, body.generation_id)
        if request.api is Api.SYNC_GROUP:
            cause = Cause.LEAD if body.member_id == group.leader else Cause.SYNC
            meant = {"protocol_type": body.protocol_type, "protocol_name": body.protocol_name}
            if request.version >= NAMES_SINCE and meant != group.kind:
                raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        group.fire(cause, member, request)

    def _leave(self, request: e.ClientRequest) -> None:
        group = self.round
        answer = told_of_leaving(request, group.members, group.remove, group.pending)
        gone = any(told["error_code"] is ErrorCode.NONE for told in answer["members"])
        if gone and group.state is not GroupState.EMPTY:
            group.fire(Cause.GONE)  # before the reply: a member that left is not found later
        self.turn.reply(request.waiter, answer)

    def _check_generation(self, member: RoundMember, generation: int) -> None:
        """Check the generation that a member sent.

        After a change from the consumer protocol, a member that has not joined yet knows only its
        last epoch there.
        """
        known = {self.round.generation}
        if self.round.state is GroupState.PREPARING and member.former_epoch is not None:
            known.add(member.former_epoch)
        if generation not in known:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)

    def _tick(self) -> None:
        group = self.round
        now = self.turn.now
        lapsed = [member_id for member_id, until in group.pending.items() if until <= now]
        for member_id in lapsed:
            del group.pending[member_id]
        over = (m for m in group.members.values() if m.session_at <= now and not m.parked)
        if group.remove_all(over, "session ended"):
            group.fire(Cause.GONE)
        elif lapsed and group.state is GroupState.PREPARING:
            group.gather()
        if group.deadline <= now:
            group.fire(Cause.DEADLINE)
        sessions = (m.session_at for m in group.members.values() if not m.parked)
        self.turn.wake_at = min((group.deadline, *group.pending.values(), *sessions))

    def _forget_waiter(self, waiter: int) -> None:
        for m in self.round.members.values():
            if waiter in (m.join, m.sync):
                m.join = m.sync = None
                self.round.touch(m)


def tell(story: Iterable[tuple[float, Cause, GroupState, int]]) -> str:
    """Return the story in one line, oldest first."""
    return " | ".join(
        f"{now:.3f} {cause.value} ({state.value}, generation {generation})"
        for now, cause, state, generation in story
    )
