"""State machine of one member of a consumer group (KIP-429, KIP-345).

Three rules hold. First, a partition is owned until *this member* releases the partition: processing
never waits for a rebalance. Second, silence of the coordinator suspends tasks, and only an answer
of the coordinator takes tasks away. The data loop compares the time with `lease` and pauses after
its end, but partitions stay owned until an answer shows that the group went on without this member.
Third, the machine never waits: work that takes time is an effect, and the end of that work is an
event.

OUT      Before the start, and in the pause after a fence or a failed join. Partitions may be owned
         only after a failed join; their tasks run on, and heartbeats keep the session.
JOINING  A JoinGroup is in flight, or waits for a coordinator or for the end of a predecessor. The
         JoinGroup claims all owned partitions, whose tasks run and commit meanwhile.
SYNCING  The group has a generation; the leader plans, all other members wait in SyncGroup. Nothing
         is committed, because a coordinator between JoinGroup and SyncGroup refuses every commit.
STABLE   The assignment is known. New partitions run; partitions missing in the assignment are
         being released. A rejoin request is followed at once.
GONE     Left, or ended by a fatal error. At most the answer to LeaveGroup is awaited.

Claims. The race: m1 claims p in a JoinGroup; before the answer m1 releases p, as the round before
demanded; the leader still sees the claim and withholds p from every member. So a release asks for a
rejoin, and a rejoin request during a round starts the next round.

Eager members release all partitions before they join. So eager members claim nothing, and report
the partitions that they ran until then. Eager mode serves groups with members that know no other
mode, in both rolling restarts of an upgrade.

Fences. A member learns from an answer that the group went on without this member, and has lost all
partitions. The member drops them without a commit and joins with no claims and generation -1, so
that an old claim is never taken for a valid one (KIP-792). The SyncGroup of a removed member may
never be answered, so the join connection is closed. For the meaning of a refusal between two
generations see `error_table` and `offset_commits`.

Precedence. An answer counts only for the request that is in flight; any other answer is old. A
leaving member that owns nothing goes at once, in any state of the group. A halting member joins no
more, because commits count in PreparingRebalance too, unless one of its commits needs the next
generation.

Static members (KIP-345) are known to the coordinator by an instance id that outlives the process. A
static member that comes back receives its old assignment, and the leader sees nothing of its new
subscription, as `heard` in the assignment shows. So the member joins once more, with the member id
from the answer. The coordinator does not remove a static member that missed a round; the leader
sees the subscription of an earlier round instead. The race: p is assigned to m in generation 5; m's
JoinGroup comes too late for 6; in 6 the leader sees no claim of p and assigns p to another member;
m's JoinGroup is answered in 7. m has lost all partitions, as a fence would show a dynamic member.

Not here: owned partitions and messages about them (`owned_partitions`), requests in flight
(`pending_requests`), the lease (`lease`), departures (`leaving`), error codes (`error_table`),
bytes, sockets, the plan.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter

from streamsx.errors import InvalidTransition
from streamsx.group import member_events as e
from streamsx.group.error_table import Verdict, verdict
from streamsx.group.lease import Lease
from streamsx.group.leaving import Evictions, Leaving
from streamsx.group.owned_partitions import COLLECT_S, OwnedPartitions
from streamsx.group.pending_requests import PendingRequests
from streamsx.group.step_effects import Effects
from streamsx.protocol.consumer_protocol import PROTOCOL_TYPE
from streamsx.protocol.error_codes import ErrorCode, name_of


class MemberState(Enum):
    """State of a member, in the order of TABLE's columns."""

    OUT = "out"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"
    GONE = "gone"


class Cue(Enum):
    """Event that the machine raises itself after another event."""

    CUT = "the join lane's request is over, and nobody has said what became of it"
    REJOIN = "there is something that the leader must hear"


class Unmoved(Enum):
    """Entry of the table for an event that changes no state."""

    IMPOSSIBLE = "InvalidTransition"
    IGNORED = "on purpose"


After = MemberState | Unmoved
What = type[e.Event] | e.Timer | Cue | Verdict | tuple[type[e.Request], Verdict]

OUT, JOINING, SYNCING, STABLE, GONE = MemberState
X, _ = Unmoved

# Each row: an event, the next state for each state before the event, and the method that acts. An
# answer is looked up by its request and verdict, else by its verdict alone. After each event
# `_follow` runs. A leaving member that owns nothing goes. A rejoin request is followed. JOINING
# sends its JoinGroup (only in `_enter`). The next commit is sent. Members past their deadline go.
TABLE: dict[What, tuple[After, After, After, After, After, str]] = {
    # event                           OUT      JOINING  SYNCING  STABLE   GONE  method
    e.Start:                         (JOINING, X,       X,       X,       X,    "_start"),
    e.Found:                         (OUT,     JOINING, SYNCING, STABLE,  _,    "_found"),
    e.Reply:                         (OUT,     JOINING, SYNCING, STABLE,  GONE, "_replied"),
    e.Disconnected:                  (OUT,     JOINING, SYNCING, STABLE,  GONE, "_cut"),
    Cue.CUT:                         (_,       JOINING, JOINING, _,       _,    "_calls.find"),
    Cue.REJOIN:                      (_,       _,       _,       JOINING, _,    "_anew"),
    # The round.
    (e.JoinGroup, Verdict.IDENTIFY): (_,       JOINING, _,       _,       _,    "_named"),
    (e.JoinGroup, Verdict.GOOD):     (_,       SYNCING, _,       _,       _,    "_joined"),
    e.Planned:                       (_,       _,       SYNCING, _,       _,    "_planned"),
    (e.SyncGroup, Verdict.GOOD):     (_,       _,       STABLE,  _,       _,    "_synced"),
    Verdict.REJOIN:                  (_,       _,       JOINING, _,       _,    "_anew"),
    Verdict.PAUSE:                   (_,       OUT,     OUT,     _,       _,    "_pause"),
    e.Timer.BACKOFF:                 (JOINING, _,       _,       _,       _,    "_anew"),
    # The coordinator refuses this member.
    Verdict.FENCE:                   (OUT,     OUT,     OUT,     OUT,     _,    "_fence"),
    Verdict.FORGET:                  (OUT,     OUT,     OUT,     OUT,     _,    "_forget"),
    Verdict.FATAL:                   (GONE,    GONE,    GONE,    GONE,    _,    "_expelled"),
    # News for the leader. `Ready` counts in STABLE only: a plan that is being replaced needs no
    # readiness, and the next plan asks again.
    e.Want:                          (OUT,     JOINING, SYNCING, STABLE,  _,    "_box.wanted"),
    e.Ready:                         (_,       _,       _,       STABLE,  _,    "_ready"),
    e.PartitionsChanged:             (OUT,     JOINING, SYNCING, STABLE,  _,    "_regrown"),
    e.Timer.COLLECT:                 (OUT,     JOINING, SYNCING, STABLE,  _,    "_box.collected"),
    e.Timer.EVICT:                   (OUT,     JOINING, SYNCING, STABLE,  _,    "_evict"),
    # Owned partitions and the lease.
    e.Released:                      (OUT,     JOINING, SYNCING, STABLE,  _,    "holding.released"),
    e.Commit:                        (OUT,     JOINING, SYNCING, STABLE,  GONE, "_commits.ask"),
    e.Timer.STAGE:                   (OUT,     JOINING, SYNCING, STABLE,  _,    "_commits.go_on"),
    e.Timer.REVOKE:                  (OUT,     JOINING, SYNCING, STABLE,  _,    "holding.expired"),
    e.Timer.HEARTBEAT:               (OUT,     JOINING, SYNCING, STABLE,  _,    "_beat"),
    e.Timer.FENCE:                   (OUT,     JOINING, SYNCING, STABLE,  _,    "lease.ended"),
    e.Timer.FIND:                    (OUT,     JOINING, SYNCING, STABLE,  _,    "_calls.look"),
    # Departures.
    e.Leave:                         (OUT,     JOINING, SYNCING, STABLE,  _,    "leaving.drain"),
    e.Timer.DRAIN:                   (OUT,     JOINING, SYNCING, STABLE,  _,    "_stop"),
    e.Stop:                          (OUT,     JOINING, SYNCING, STABLE,  _,    "_stop"),
    e.Timer.STOP:                    (GONE,    GONE,    GONE,    GONE,    _,    "_go"),
    e.Silent:                        (GONE,    GONE,    GONE,    GONE,    _,    "_silent"),
}  # fmt: skip
COLUMN = {state: i for i, state in enumerate(MemberState)}

ROUND_SLACK_S = 5.0
"""Extra wait of JoinGroup and SyncGroup beyond the time that the slowest member may take. A member
that gives up sooner makes every member join again, without end."""
PREDECESSOR_S = 2.0
LEAVE_S = 5.0
LAST_COMMIT_S = 5.0
TRIES_PER_SESSION = 3
"""Tries within one session: an unanswered heartbeat or commit leaves time for another one."""
DEAF_S = 2.0
"""A coordinator that has not answered for this long receives no LeaveGroup. The successor in the
state directory ends the membership instead."""
FULL_PAUSE_S = 10.0
REPLAN_S = 1.0
STORY_LENGTH = 200


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """Settings of a member, in seconds except for `jitter` and `nonce`.

    `jitter`: 0 to 1, different for each process, so that pauses differ. `nonce`: the start number
    of the joins, different for each process of one `group_instance_id`.
    """

    session_timeout_s: float = 45.0
    rebalance_timeout_s: float = 60.0
    heartbeat_interval_s: float = 1.0
    revoke_timeout_s: float = 60.0
    eager: bool = False
    protocol_type: str = PROTOCOL_TYPE
    group_instance_id: str | None = None
    jitter: float = 0.0
    nonce: int = 0

    @property
    def lease_s(self) -> tuple[float, float, float]:
        return self.session_timeout_s, self.rebalance_timeout_s, self.heartbeat_interval_s

    @property
    def round_s(self) -> float:
        return self.rebalance_timeout_s + ROUND_SLACK_S

    @property
    def try_s(self) -> float:
        return self.session_timeout_s / TRIES_PER_SESSION


class Member:
    """State machine of one member.

    `state`, `holding`, `leaving`, `lease` and the ids are public to read.
    """

    def __init__(self, config: MemberConfig) -> None:
        self.state = OUT
        self.member_id = ""
        self.generation = -1
        self.owned_generation = -1
        self.leader = False
        self.nonce = config.nonce
        self._comes_back = False
        self._box = Effects()
        self._calls = PendingRequests(self._box, config.jitter)
        self._revoke_timeout_s = config.revoke_timeout_s
        self.holding = OwnedPartitions(self._box, config.revoke_timeout_s, eager=config.eager)
        self._commits = self.holding.commits
        self.lease = Lease(self._box, *config.lease_s)
        self.leaving = Leaving(self._box)
        self._evictions = Evictions(self._box)
        self._asked: int | None = None  # request number of the plan that is being made
        self.story: deque[tuple[float, e.Event, tuple[e.Effect, ...]]] = deque(maxlen=STORY_LENGTH)
        self._predecessor: str | None = None
        self._static = config.group_instance_id is not None
        self._last: e.Left | e.Fatal = e.Left()
        self._round: e.JoinGroup | None = None
        """JoinGroup of the round under way, to be sent again unchanged; None: the next one opens a
        new round."""
        self._round_s = config.round_s
        self._try_s = config.try_s

    def step(self, now: float, event: e.Event) -> list[e.Effect]:
        """Handle one event and return the effects to perform, in order.

        Raises:
            InvalidTransition: the state does not know the event; the message contains the story.
        """
        out = self._box.open(now)
        if isinstance(event, e.Tick):
            self._box.fired(event.timer)
            self._fire(event.timer)
        else:
            self._fire(type(event), event)
        self._follow()
        self.story.append((now, event, tuple(out)))
        return out

    def _fire(self, what: What, *given: object) -> None:
        *moves, who = TABLE[what]
        after = moves[COLUMN[self.state]]
        if after is X:
            why = f"member: {given} in {self.state.value}: the story: {list(self.story)}"
            raise InvalidTransition(why)
        if isinstance(after, MemberState):
            self.state = after
            attrgetter(who)(self)(*given)

    def _follow(self) -> None:
        """Do the work that the state asks for after any event."""
        if self.state is GONE:
            return
        commits = self._calls.commits
        if self.leaving and not (self.holding.owned or self.holding.ran or commits):
            self._part()
            return
        if self._box.rejoin_reason is not None and (
            not self.leaving.halting or self._commits.refused
        ):
            self._fire(Cue.REJOIN)
        self._enter()
        may = self._calls.known and self.generation >= 0 and self.state is not SYNCING
        if may and not commits and (commit := self._commits.next(stable=self.state is STABLE)):
            self._ask(e.ConnectionName.BEAT, self._try_s, commit)
        self._evict()
        self.holding.watch()

    # The coordinator and its connections.

    def _start(self, event: e.Start) -> None:
        self._predecessor = event.predecessor
        self._calls.look()
        self._box.want("first")

    def _found(self, event: e.Found) -> None:
        for lane in self._calls.doubtful(event.node):
            self._box.emit(e.Close(lane))
            self._cut(e.Disconnected(lane))
        self._calls.found(event.node)
        if self._calls.known:
            self._beat()

    def _cut(self, event: e.Disconnected) -> None:
        flights = self._calls.landed(event)
        if self.state is GONE:
            for _ in flights:
                self._farewell_over(ErrorCode.REQUEST_TIMED_OUT)
        elif event.lane is e.ConnectionName.JOIN:
            self._fire(Cue.CUT)
        else:
            self._calls.find()

    def _replied(self, event: e.Reply) -> None:
        for flight in self._calls.landed(event):
            if self.state is GONE:
                self._farewell_over(event.error)
            elif isinstance(flight.body, e.Heartbeat | e.OffsetCommit | e.TxnOffsetCommit):
                self._take_reply(flight, event)
            elif not isinstance(flight.body, e.LeaveGroup):  # removal of others needs no reaction
                self._answered(flight, event)

    # Join, sync.

    def _enter(self) -> None:
        """Send the JoinGroup of a new round, or repeat that of a broken-off round.

        The repeated JoinGroup carries the claims and metadata of its first try. A predecessor that
        died would hold up every round until its session ends, so one LeaveGroup for the predecessor
        goes first.
        """
        waits = not self._calls.known or self._calls.flying(e.ConnectionName.JOIN)
        if self.state is not JOINING or waits:
            return
        if self._predecessor is not None:
            gone = e.LeaveGroup((self._predecessor,), "its process has ended")
            self._predecessor = None
            self._ask(e.ConnectionName.JOIN, PREDECESSOR_S, gone)
            return
        if self.holding.may_join():
            self._round = self._round or self._opened()
            self._ask(e.ConnectionName.JOIN, self._round_s, self._round)

    def _opened(self) -> e.JoinGroup:
        reason = self._box.taken()
        self.nonce += 1
        self.lease.calm()
        self._box.emit(e.Joining(self.generation, reason))
        claims, ran = (tuple(sorted(tps)) for tps in (self.holding.owned, self.holding.ran))
        way_out = bool(self.leaving), self.leaving.deadline
        return e.JoinGroup(claims, self.owned_generation, self.nonce, *way_out, reason, ran)

    def _anew(self, code: int = 0) -> None:
        self._round = None
        self._box.want(f"the last round ended with {name_of(code)}" if code else "retry")

    def _answered(self, flight: e.SendRequest, event: e.Reply) -> None:
        """Handle the answer to JoinGroup or SyncGroup; only a fence takes owned partitions."""
        what = verdict(flight.body, event.error)
        answer = (type(flight.body), what)
        if answer in TABLE:
            self._fire(answer, flight, event.body)
            return
        self._box.emit(e.Count("failed-rebalance-total", name_of(event.error)))
        if what is Verdict.FIND:
            self._fire(Cue.CUT)
        else:
            self._fire(what, event.error)

    def _named(self, _: e.SendRequest, joined: e.Joined) -> None:
        if joined.member_id != self.member_id:
            self.member_id = joined.member_id
            self._box.emit(e.Remember(joined.member_id))

    def _joined(self, flight: e.SendRequest, joined: e.Joined) -> None:
        self._named(flight, joined)
        if self._static and -1 < self.generation < joined.generation - 1:
            self._fire(Verdict.FENCE)  # a round was closed without this member
            return
        self.generation = joined.generation
        self.leader = joined.leader == joined.member_id
        self._calls.well()
        self.lease.contact(flight.at, steady=True)
        self._asked = None
        self._evictions.ends = {}
        self._beat()
        if self.leader:
            self._asked = self._box.number()
            self._box.emit(e.Assign(self._asked, self.member_id, self.generation, joined.members))
        else:
            self._ask(e.ConnectionName.JOIN, self._round_s, e.SyncGroup({}))

    def _planned(self, event: e.Planned) -> None:
        """Send SyncGroup with the finished plan, and ask for a new round if the plan failed.

        A plan of a round that is over is ignored.
        """
        if event.request == self._asked:
            self._asked = None
            self._evictions.ends = dict(event.evictions)
            if event.failed:
                self._box.emit(e.Count("failed-rebalance-total"))
                self._box.want("the assignment failed", REPLAN_S)
            self._ask(e.ConnectionName.JOIN, self._round_s, e.SyncGroup(event.assignments))

    def _pause(self, code: int) -> None:
        full = code == ErrorCode.GROUP_MAX_SIZE_REACHED
        self._box.after(e.Timer.BACKOFF, FULL_PAUSE_S if full else self._calls.pause())

    def _synced(self, _: e.SendRequest, synced: e.Synced) -> None:
        returns = self._static and self.owned_generation < 0
        self.owned_generation = self.generation
        halting = self.leaving.halting
        self.holding.apply(self.generation, synced, leader=self.leader, halting=halting)
        if returns and synced.view.heard != self.nonce:
            self._box.want("static return")
        if synced.view.more:
            self.lease.hurry()
        self.leaving.heed(synced.view.mark, synced.deadline)
        if synced.view.no_takers and self.leaving.draining:
            self._stop()

    # Heartbeats, commits, news for the leader.

    def _beat(self) -> None:
        """Send a heartbeat now, and schedule the next one after the interval.

        No heartbeat is sent while another is in flight or while the coordinator is unknown.
        """
        if self.generation >= 0:
            self.lease.beat()
            if self._calls.known and not self._calls.flying(e.Heartbeat):
                self._ask(e.ConnectionName.BEAT, self._try_s, e.Heartbeat())

    def _ask(self, lane: e.ConnectionName, timeout_s: float, body: e.Request) -> None:
        who = self.member_id, self.generation, self.state is STABLE
        self._calls.send(who, lane, timeout_s, body)

    def _take_reply(self, flight: e.SendRequest, event: e.Reply) -> None:
        current = flight.generation == self.generation
        stable = current and self.state is STABLE
        what = verdict(flight.body, event.error, stayed=stable and flight.stable)
        beats = current and isinstance(flight.body, e.Heartbeat)
        code = event.error
        staged = isinstance(flight.body, e.TxnOffsetCommit)
        if what is Verdict.GOOD and not staged:  # a TxnOffsetCommit extends no session
            knows = self.owned_generation == self.generation  # has this generation's assignment
            self.lease.contact(flight.at, steady=beats and not code and knows)
            if not self._calls.commits:  # a commit may be refused all the while
                self._calls.well()
            if beats:
                self._commits.taken_again()
        if stable and code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._box.want(e.FOLLOWS)
        if isinstance(flight.body, e.OffsetCommit | e.TxnOffsetCommit):
            self._commits.answered(what, event)
        if what is Verdict.FIND:
            self._calls.find()
        elif what in TABLE:
            self._fire(what, event.error)
        if not current:
            self._beat()  # the answered one was sent before this generation: perhaps no contact

    def _ready(self, _: e.Ready) -> None:
        self._box.want("learner ready", COLLECT_S)

    def _regrown(self, event: e.PartitionsChanged) -> None:
        """Report changed partition counts, and ask for a new round as the leader.

        A plan that is being made, or is still to come, contains the new counts already.
        """
        self._box.emit(event)
        if self.leader and self._asked is None and self.state in (SYNCING, STABLE):
            self._box.want("topics changed")

    def _evict(self) -> None:
        """Remove members past their deadline with one LeaveGroup while the lease holds.

        The timeout leaves time for a heartbeat on the same connection.
        """
        may = self._calls.known and self._box.now < self.lease.until
        if may and not self._calls.flying(e.LeaveGroup) and (late := self._evictions.late()):
            gone = e.LeaveGroup(late, e.EVICTED)
            self._ask(e.ConnectionName.BEAT, min(LEAVE_S, self._try_s), gone)
        self._evictions.watch()

    # Departure.

    def _stop(self, event: e.Stop | None = None) -> None:
        """Release all partitions and leave.

        Without an event the deadline is the rest of the time to leave, because bodies may be at
        work (a partition not released within `revoke_timeout` is lost), and at least enough time
        for a last commit.
        """
        self._comes_back = self._comes_back or (event is not None and event.comes_back)
        now = self._box.now
        until = self.leaving.deadline
        if until is None:
            until = now + self._revoke_timeout_s
        deadline = event.deadline if event else max(now + LAST_COMMIT_S, until)
        self.leaving.halt(deadline, stays=self._comes_back)
        self.holding.release_all()

    def _part(self) -> None:
        """Leave, because nothing is owned and no commit is in flight.

        A member without an id whose JoinGroup is in flight waits a moment for the answer: the group
        would wait for a member that was given an id and is gone.
        """
        if self.member_id or not self._calls.flying(e.JoinGroup):
            self._fire(e.Timer.STOP)
        else:
            self.leaving.wait(self._box.now - self._calls.waited_s(e.ConnectionName.JOIN) + DEAF_S)

    def _go(self) -> None:
        self._end(e.Refusal.GONE, e.Left("it does not answer" if self.member_id else ""))

    def _silent(self, event: e.Silent) -> None:
        self._end(e.Refusal.FENCED, e.Fatal(event.reason))

    def _expelled(self, code: int) -> None:
        why = f"the coordinator refuses this member: {name_of(code)}"
        self._end(e.Refusal.FENCED, e.Fatal(why, code))

    def _end(self, why: e.Refusal, last: e.Left | e.Fatal) -> None:
        """Drop all partitions, send one LeaveGroup if the coordinator answers, then emit `last`."""
        listens = self._calls.waited_s(e.ConnectionName.BEAT) < DEAF_S and not self._comes_back
        self._lose(why)
        self._last = last
        if listens and self.member_id and self._calls.known:
            self._ask(e.ConnectionName.BEAT, LEAVE_S, e.LeaveGroup((self.member_id,), "done"))
        else:
            self._box.emit(last)

    def _farewell_over(self, code: int) -> None:
        if not code:
            self._box.emit(e.Remember(None))
        fatal = isinstance(self._last, e.Fatal)
        self._box.emit(self._last if fatal else e.Left(name_of(code) if code else ""))

    def _fence(self, code: int = 0) -> None:
        self._lose(e.Refusal.FENCED)
        self._pause(code)

    def _forget(self, code: int) -> None:
        self._fence(code)
        self.member_id = ""

    def _lose(self, why: e.Refusal) -> None:
        """Drop all partitions, close connections with requests in flight, and reset the ids."""
        self.holding.lose_all(why)
        self._box.emit(*(e.Close(lane) for lane in e.ConnectionName if self._calls.flying(lane)))
        self._calls.forget()
        self._box.disarm(*(timer for timer in e.Timer if timer is not e.Timer.FIND))
        self._asked = None
        self._evictions.ends = {}
        self._box.rejoin_reason = None
        self.generation = -1
        self.owned_generation = -1
        self.leader = False
        self.lease.lost()
