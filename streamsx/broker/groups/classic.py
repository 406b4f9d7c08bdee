"""One group of the JoinGroup and SyncGroup protocol, as its coordinator sees it. Pure.

Theory of operation. Members agree in rounds. In the first half everybody sends JoinGroup and is
*parked*: the reply is held back until all have come, because only then the coordinator can tell
the leader who is there. In the second half the leader computes who does what and sends it with
its SyncGroup; the others are parked in theirs until it has come. Each round has a number, the
generation: whoever speaks of another one is late and is refused. Two rules carry the rest:

- What was answered survives. A generation is persisted before the first JoinGroup of its round is
  answered, the assignment before the first SyncGroup: a coordinator that crashes and comes back
  never contradicts itself (seed 001, "Handling Coordinator Failures").
- Nobody waits for ever. A member is removed at the end of its session unless it is parked: then it
  waits for us. A round has a deadline in either half.

The states:

EMPTY        Nobody is there; it may hold offsets. A JoinGroup starts a round after some delay.
PREPARING    A round has begun and members are joining. It completes when all known members have
             joined and no promised member id is outstanding, or at the deadline, without the rest.
COMPLETING   All were told the new generation, and the leader has not yet said who does what. A
             group that was loaded in this state is *recovered*: nobody knows who heard of the
             generation, so the first JoinGroup starts a new round, where it would otherwise be
             answered with this one.
STABLE       Everybody may fetch its assignment. Those who have not at the sync deadline are
             removed.

Who rejoins with other metadata starts a round; who rejoins with the same is told the current one,
because its answer was lost, unless it is the leader, who asks for a round in this way. A static
member (KIP-345) that returns under its instance id takes over the place of its former self: in
STABLE without a round, even if its metadata changed, so that the leader does not hear of it.
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

SKIP_SINCE = 9  # the version from which a returning leader is told not to assign again
STORY_LINES = 200
NOTHING: ReplyBody = {}


class GroupState(Enum):
    """Named as DescribeGroups names them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Cause(Enum):
    """What may happen to a group, after the request was found to be in order."""

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
    """The state of a group and what the entries of the table do; here is all that is persisted."""

    def __init__(self, turn: GroupTurn, initial_delay_ms: int) -> None:
        self.turn = turn
        self.initial_delay_ms = initial_delay_ms
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: Members = {}
        self.pending: dict[str, float] = {}  # promised member ids, until when
        self.deadline = inf  # of this half of the round
        self.initial = False  # it began in EMPTY: the delay counts, not who has come
        self.recovered = False
        self.saved_ms = 0  # unix time; in EMPTY, since when nobody is there
        self.story: deque[tuple[float, Cause, GroupState, int]] = deque(maxlen=STORY_LINES)

    def fire(self, cause: Cause, *of: RoundMember | e.ClientRequest) -> None:
        """Raises InvalidTransition, with the story, for what the table does not know."""
        self.story.append((self.turn.now, cause, self.state, self.generation))
        action = TABLE[cause][COLUMN[self.state]]
        if not action:
            raise InvalidTransition(f"group {self.turn.group_id}: {tell(self.story)}")
        getattr(self, action)(*of)

    def load(self, value: GroupValue) -> None:
        """Takes over what was persisted; everybody has a full session to come back."""
        self.protocol_type, self.generation = value.protocol_type, value.generation
        self.protocol, self.leader = value.protocol, value.leader
        self.saved_ms = value.state_timestamp
        for about in value.members:
            self.members[about.member_id] = member = RoundMember(about, synced=value.synced)
            self.touch(member)
        if self.members and value.synced:
            self.state = GroupState.STABLE
        elif self.members:  # without a leader it was of the consumer protocol: all are to join
            self.recovered = value.leader is not None
            self.state = GroupState.COMPLETING if self.recovered else GroupState.PREPARING
            self.set_deadline(rebalance_ms(self.members))

    # The entries of the table.

    def prepare(self, *_: object) -> None:
        for m in by_id(self.members):
            if m.sync is not None:  # its session may be over, because it waited for us
                self.dismiss(m, ErrorCode.REBALANCE_IN_PROGRESS)
                self.touch(m)
        self.initial = self.state is GroupState.EMPTY
        self.state, self.recovered = GroupState.PREPARING, False
        self.set_deadline(self.initial_delay_ms if self.initial else rebalance_ms(self.members))
        self.tell("group_rebalancing")
        self.gather()

    def gather(self, *_: object) -> None:
        everybody = not self.pending and all(m.joined for m in self.members.values())
        if self.deadline <= self.turn.now or (everybody and not self.initial):
            self.complete()

    def complete(self) -> None:
        away = (m for m in self.members.values() if not m.joined)
        self.remove_all((m for m in away if m.about.group_instance_id is None), "did not rejoin")
        joined = [m.id for m in self.members.values() if m.joined]
        if self.members and not joined:  # static members that are away: their sessions decide
            self.set_deadline(rebalance_ms(self.members))
            return
        self.generation += 1
        if not joined:
            self.state, self.deadline = GroupState.EMPTY, inf
            self.protocol = self.leader = None
            self.save("group_empty")
            return
        self.state, self.protocol = GroupState.COMPLETING, vote(self.members)
        if self.leader not in joined:
            self.leader = joined[0]
        for m in self.members.values():
            chosen = metadata(m.about.protocols, self.protocol)
            m.about, m.synced = replace(m.about, subscription=chosen), False
        self.save("group_generation")
        self.set_deadline(rebalance_ms(self.members))
        for m in by_id(self.members):
            self.answer_join(m)
            self.touch(m)

    def tell_again(self, member: RoundMember, _: e.ClientRequest) -> None:
        """Seed 001: nobody knows who heard of a generation that was loaded, so all join again."""
        leads = self.state is GroupState.STABLE and member.id == self.leader
        if leads or self.recovered:
            self.prepare()
        else:
            self.answer_join(member)

    def return_quietly(self, member: RoundMember, request: e.ClientRequest) -> None:
        """KIP-345: no round, unless the protocol would be another one.

        Before KIP-814 a returning leader could not be told to leave the assignment alone: the
        answer names its former id as the leader, so that it takes itself for a follower.
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
        self.touch(member)
        self.turn.reply(request.waiter, {"error_code": ErrorCode.NONE})

    def hurry(self, member: RoundMember, request: e.ClientRequest) -> None:
        self.touch(member)
        self.refuse(member, request)

    def refuse(self, _: RoundMember, request: e.ClientRequest) -> None:
        self.turn.reply(request.waiter, {"error_code": ErrorCode.REBALANCE_IN_PROGRESS})

    def park(self, member: RoundMember, request: e.ClientRequest) -> None:
        self.dismiss(member, ErrorCode.REBALANCE_IN_PROGRESS)  # if it asked before, elsewhere
        member.sync, member.synced = request.waiter, True

    def assign(self, leader: RoundMember, request: e.ClientRequest) -> None:
        self.park(leader, request)
        given = {each.member_id: bytes(each.assignment) for each in request.body.assignments}
        for m in self.members.values():
            m.about = replace(m.about, assignment=given.get(m.id, b""))
        self.state, self.recovered = GroupState.STABLE, False
        self.save("group_stable")
        for m in by_id(self.members):
            if m.sync is not None:
                self.give(m, m.sync)
                m.sync = None
                self.touch(m)

    def hand_out(self, member: RoundMember, request: e.ClientRequest) -> None:
        member.synced = True
        self.give(member, request.waiter)

    def remove_unsynced(self) -> None:
        self.deadline = inf
        if self.remove_all((m for m in self.members.values() if not m.synced), "did not sync"):
            self.fire(Cause.GONE)

    # What they have in common.

    def answer_join(self, member: RoundMember, but: ReplyBody = NOTHING) -> None:
        if member.join is not None:
            leads = member.id == self.leader
            told = subscriptions(self.members) if leads else []
            who = {"leader": self.leader, "member_id": member.id, "members": told}
            body = {"generation_id": self.generation, **self.kind, **who, **but}
            self.turn.reply(member.join, body)
        member.join, member.joined = None, False

    def give(self, member: RoundMember, waiter: int) -> None:
        self.turn.reply(waiter, {**self.kind, "assignment": member.about.assignment})

    @property
    def kind(self) -> ReplyBody:
        return {"protocol_type": self.protocol_type, "protocol_name": self.protocol}

    def dismiss(self, member: RoundMember, code: ErrorCode) -> None:
        """Answers its parked requests with an error. Who is no member has no member id."""
        name = "" if code is ErrorCode.UNKNOWN_MEMBER_ID else member.id
        for waiter in (member.join, member.sync):
            if waiter is not None:
                self.turn.reply(waiter, {"error_code": code, "member_id": name})
        member.join = member.sync = None

    def touch(self, member: RoundMember) -> None:
        """It lives: its session begins anew."""
        member.session_at = self.turn.now + member.about.session_timeout / 1000
        self.turn.arm(member.session_at)

    def remove(self, member: RoundMember, why: str) -> None:
        del self.members[member.id]
        self.dismiss(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.turn.tell("member_removed", f"member={member.id} why={why!r}")

    def remove_all(self, members: Iterable[RoundMember], why: str) -> bool:
        """Whether there were any."""
        gone = sorted(members, key=lambda m: m.id)
        for m in gone:
            self.remove(m, why)
        return bool(gone)

    def tell(self, event: str) -> None:
        about = f"generation={self.generation} members={len(self.members)} leader={self.leader}"
        self.turn.tell(event, about)

    def save(self, event: str) -> None:
        self.tell(event)
        self.saved_ms = self.turn.wall_ms
        self.turn.effects.append(e.Persist(((GroupKey(self.turn.group_id), self.value()),)))

    def value(self) -> GroupValue:
        return GroupValue(
            self.protocol_type, self.generation, self.protocol, self.leader, self.saved_ms,
            tuple(m.about for m in self.members.values()), self.state is GroupState.STABLE,
        )  # fmt: skip

    def set_deadline(self, delay_ms: int) -> None:
        self.deadline = self.turn.now + delay_ms / 1000
        self.turn.arm(self.deadline)


class ClassicGroup:
    """The machine of one group: `step` takes requests 11 to 14, Tick, and Gone.

    It finds out what a request is and whether it is in order; the rest is the round's.
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
        """Raises InvalidTransition if a request came through that its state does not know."""
        turn = self.turn
        turn.begin(now)
        if isinstance(event, e.ClientRequest):
            turn.wall_ms = event.wall_ms
            try:
                self._requests.get(event.api, self._speak)(event)
            except Refused as why:
                turn.reply(event.waiter, {"member_id": event.body.member_id, **why.answer})
        elif isinstance(event, e.BrokerTick):
            turn.wall_ms, turn.armed = event.wall_ms, inf
            self._tick()
        else:
            self._forget_waiter(event.waiter)
        return turn.over()

    def load(self, now: float, _: GroupRowKey, value: GroupRowValue) -> list[e.Effect]:
        """Becomes the group that was persisted."""
        assert isinstance(value, GroupValue)
        self.turn.begin(now)
        self.round.load(value)
        return self.turn.over()

    def begin_anew(self, now: float, epochs: Mapping[str, int]) -> list[e.Effect]:
        """It was one of the consumer protocol, with these epochs: everybody is to join."""
        self.turn.begin(now)
        for member in self.round.members.values():
            member.former_epoch = epochs[member.id]
        self.round.prepare()
        return self.turn.over()

    def abandon(self, now: float) -> list[e.Effect]:
        """It is to be another kind of group: who waits is told to come again."""
        self.turn.begin(now)
        for member in by_id(self.round.members):
            self.round.dismiss(member, ErrorCode.REBALANCE_IN_PROGRESS)
        return self.turn.effects

    def keys(self) -> list[GroupRowKey]:
        """None before its first generation."""
        return [GroupKey(self.id)] if self.round.generation else []

    def members(self) -> Collection[RoundMember]:
        """Who has joined."""
        return self.round.members.values()

    def awaited(self) -> bool:
        """KIP-394: they were given an id and may come back."""
        return bool(self.round.pending)

    def may_commit(self, now: float, who: CommitIdentity) -> list[e.Effect]:
        """A member that may commit is alive; within a transaction Kafka takes that for no sign of
        life, and the generation is enough. Raises Refused if it may not.
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
        """Everybody may."""

    def reads(self) -> Callable[[str], bool]:
        """Whether a member is subscribed to a topic. Of members that cannot be understood, to all;
        raises Refused where nobody could say what they read, because they are no consumers.
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
        """Unix ms since which nobody needs an offset; never (inf) while somebody may (KIP-211)."""
        if not self.round.generation:  # nobody ever joined
            return lambda _, value: value.commit_timestamp
        if self.round.state is GroupState.EMPTY:
            return lambda _, __: self.round.saved_ms
        if self.round.state is not GroupState.STABLE or self.round.protocol_type != PROTOCOL_TYPE:
            return lambda _, __: inf
        reads = self.reads()
        return lambda topic, value: inf if reads(topic) else value.commit_timestamp

    def listed(self) -> ReplyBody:
        """State and protocol type."""
        return {
            "protocol_type": self.round.protocol_type,
            "group_state": self.round.state.value,
        }

    def described(self) -> ReplyBody:
        """Metadata only while they are valid."""
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
        body, peer, members = request.body, request.peer, self.round.members
        self._check_join(body)
        member_id, instance_id = body.member_id, body.group_instance_id
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
        config, members, pending = self.config, self.round.members, self.round.pending
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
        """KIP-394: a client whose first answer is lost leaves no member behind."""
        self.round.pending[member_id] = until = self.turn.now + body.session_timeout / 1000
        self.turn.arm(until)
        raise Refused(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)

    def _seat(self, member: RoundMember, old: RoundMember | None, protocol_type: str) -> Cause:
        group = self.round
        group.pending.pop(member.id, None)
        if not group.members:
            group.protocol_type = protocol_type
        if old is None:
            group.members[member.id] = member
            return Cause.NEW
        member.synced, member.former_id = old.synced, old.id
        seats = group.members.values()
        group.members = {m.id: m for m in (member if seat is old else seat for seat in seats)}
        if old.id != member.id:
            group.leader = member.id if group.leader == old.id else group.leader
            group.dismiss(old, ErrorCode.FENCED_INSTANCE_ID)
            return Cause.RETURN
        group.dismiss(old, ErrorCode.REBALANCE_IN_PROGRESS)  # it asked again elsewhere
        same = member.about.protocols == old.about.protocols
        return Cause.UNCHANGED if same else Cause.CHANGED

    def _speak(self, request: e.ClientRequest) -> None:
        """A member of this generation syncs, or says that it lives."""
        body, group, cause = request.body, self.round, Cause.HEARTBEAT
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
            group.fire(Cause.GONE)  # who is told that it has left is not found there later
        self.turn.reply(request.waiter, answer)

    def _check_generation(self, member: RoundMember, generation: int) -> None:
        """Until it has joined, it has not heard of another one than its last epoch."""
        known = {self.round.generation}
        if self.round.state is GroupState.PREPARING and member.former_epoch is not None:
            known.add(member.former_epoch)
        if generation not in known:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)

    def _tick(self) -> None:
        group, now = self.round, self.turn.now
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
    """What happened, oldest first, in one line."""
    return " | ".join(
        f"{now:.3f} {cause.value} ({state.value}, generation {generation})"
        for now, cause, state, generation in story
    )
