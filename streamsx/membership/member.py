"""One member of a consumer group (KIP-429, cooperative and dynamic), as it faces the group.

Three rules carry it. A partition is ours until *we* release it: processing never waits for a
rebalance. Silence suspends, only the coordinator's word loses: whoever runs tasks compares the time
with `lease` and stands still after it, but what is owned stays owned until an answer says that the
group went on without us. And nothing waits in here: what takes time is an effect, and its end an
event.

OUT      Before the start, after a fence, and in the pause after a failed join. Only in that pause
         something may be owned; it runs on, and heartbeats keep the session.
JOINING  A JoinGroup is in flight, or waits for a coordinator. It claims all that is owned, which
         runs on and is committed meanwhile.
SYNCING  The group has a generation; the leader plans, all others wait in SyncGroup. Nothing is
         committed, because a coordinator between JoinGroup and SyncGroup refuses every commit.
STABLE   The assignment is known; what is new runs, what is not in it any more is being released.
         A wish, that is a reason to join again, is taken up at once.
GONE     Left, or dead by a fatal error. At most the answer to our LeaveGroup is awaited.

Claims. "m1 claims p in a JoinGroup; before the answer m1 releases p, as the round before wanted;
the leader still sees the claim and withholds p from everybody": a release is a wish, and a wish
that comes during a round makes the next one.

Fences. A member that is told that the group went on has lost everything: it lets go without a
commit and joins claiming nothing, with generation -1, so that an old claim is never a zombie's
(KIP-792). A SyncGroup of a member that was removed may never be answered: the join connection is
closed. What a refusal means to a member that is between two generations: answers.py, commits.py.

Who wins. An answer counts for the request that is in flight; any other is old. A leaver that has
nothing left goes at once, whatever the group is doing. A halting member joins no more, since
commits count in PreparingRebalance too, unless one of its commits needs the next generation.

Not here: what the worker is told (holding.py), heartbeats and the lease (lease.py), ways out
(leaving.py), error codes (answers.py), bytes, sockets, the plan, static and eager members.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING

from streamsx.errors import InvalidTransition
from streamsx.kafka.errors import ErrorCode, name_of
from streamsx.membership import events as e
from streamsx.membership.answers import Verdict, verdict
from streamsx.membership.claims import NONE
from streamsx.membership.holding import Holding
from streamsx.membership.lease import Lease
from streamsx.membership.leaving import Leaving
from streamsx.membership.outbox import Flight, PendingRequests
from streamsx.membership.plans import Plans

if TYPE_CHECKING:
    from collections.abc import Callable


class MemberState(Enum):
    """In the order of TABLE's columns."""

    OUT = "out"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"
    GONE = "gone"


# Per event and state who takes it; "-": nobody, on purpose; "": InvalidTransition. A text that is
# returned is a wish: what the leader must hear. After each event a leaver that holds nothing goes,
# a STABLE member with a wish joins, and the next commit flies.
TABLE: dict[type[e.Event], tuple[str, str, str, str, str]] = {
    # event               OUT          JOINING      SYNCING      STABLE       GONE
    e.Start:             ("_start",    "",          "",          "",          ""),
    e.Found:             ("_found",    "_found",    "_found",    "_found",    "-"),
    e.Reply:             ("_replied",  "_replied",  "_replied",  "_replied",  "_gone"),
    e.Disconnected:      ("_cut",      "_cut",      "_cut",      "_cut",      "_gone"),
    e.Planned:           ("-",         "-",         "_planned",  "-",         "-"),
    e.Want:              ("_wanted",   "_wanted",   "_wanted",   "_wanted",   "-"),
    # A plan that is being replaced asks for no readiness; the next one does, anew.
    e.Ready:             ("-",         "-",         "-",         "_ready",    "-"),
    e.PartitionsChanged: ("-",         "-",         "_regrown",  "_regrown",  "-"),
    e.Released:          ("_mine.released",) * 4 + ("-",),
    e.Commit:            ("_mine.commit",) * 4 + ("_mine.refuse",),
    e.Leave:             ("leaving.drain",) * 4 + ("-",),
    e.Stop:              ("_stop",     "_stop",     "_stop",     "_stop",     "-"),
    e.Silent:            ("_silent",   "_silent",   "_silent",   "_silent",   "-"),
    e.Tick:              ("_tick",     "_tick",     "_tick",     "_tick",     "-"),
}  # fmt: skip
COLUMN = {state: i for i, state in enumerate(MemberState)}
TICKS: dict[e.Timer, str] = {
    e.Timer.HEARTBEAT: "_beat",
    e.Timer.FENCE: "lease.ended",
    e.Timer.FIND: "_box.look",
    e.Timer.BACKOFF: "_retry",
    e.Timer.REVOKE: "_mine.expired",
    e.Timer.COLLECT: "_box.collected",
    e.Timer.DRAIN: "_drained",
    e.Timer.STOP: "_go",
    e.Timer.EVICT: "_plans.evict",
}

ROUND_SLACK_S = 5.0
"""JoinGroup and SyncGroup wait this much longer than the slowest member may take: who gives up
sooner makes everybody join again, for ever."""
PREDECESSOR_S, LEAVE_S, LAST_COMMIT_S = 2.0, 5.0, 5.0
DEAF_S = 2.0
"""A coordinator that has answered nothing for so long is not told that we leave: our successor in
the state directory does it."""
FULL_PAUSE_S = 10.0
STORY_LENGTH = 200


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """Seconds, but for `jitter`: 0 to 1, other for each process, so that pauses differ."""

    session_timeout_s: float = 45.0
    rebalance_timeout_s: float = 60.0
    heartbeat_interval_s: float = 3.0
    revoke_timeout_s: float = 60.0
    jitter: float = 0.0


class Member:
    """`state`, `claims`, `leaving`, `lease` and the ids are there to be read."""

    def __init__(self, config: MemberConfig) -> None:
        self.config = config
        self.state = MemberState.OUT
        self.member_id, self.generation, self.owned_generation = "", -1, -1
        self.leader, self.nonce = False, 0
        self._box = PendingRequests(config.jitter)
        self._mine = Holding(self._box, config.revoke_timeout_s)
        self.claims = self._mine.claims
        self.lease = Lease(self._box, config.session_timeout_s, config.heartbeat_interval_s)
        self.leaving = Leaving(self._box)
        self._plans = Plans(self._box)
        self.story: deque[tuple[float, e.Event, tuple[e.Effect, ...]]] = deque(maxlen=STORY_LENGTH)
        self._predecessor: str | None = None
        self._want: str | None = None
        self._reason, self._claimed = "", NONE
        self._round_s = config.rebalance_timeout_s + ROUND_SLACK_S

    def step(self, now: float, event: e.Event) -> list[e.Effect]:
        """Raises InvalidTransition, with the story, for an event that the state does not know."""
        out = self._box.open(now)
        self._fire(TABLE[type(event)][COLUMN[self.state]], event)
        if self.state is not MemberState.GONE:
            self._follow()
        self.story.append((now, event, tuple(out)))
        return out

    def _fire(self, cell: str, event: e.Event) -> None:
        if not cell:
            story = list(self.story)
            raise InvalidTransition(f"member: {event} in {self.state.value}: the story: {story}")
        if cell != "-":
            take: Callable[[e.Event], str | None] = attrgetter(cell)(self)
            self._wish(take(event))

    def _tick(self, event: e.Tick) -> None:
        self._box.fired(event.timer)
        self._fire(TICKS[event.timer], event)

    def _wish(self, reason: str | None) -> None:
        self._want = self._want or reason

    def _follow(self) -> None:
        """What the state asks for, whatever the event was."""
        if self.leaving and self._mine.nothing:
            self._go()
            return
        joins = not self.leaving.halting or self._mine.commits.refused
        if self.state is MemberState.STABLE and self._want is not None and joins:
            self._join(self._want)
        if self._box.known and self.generation >= 0 and self.state is not MemberState.SYNCING:
            self._send_commit()
        self._mine.watch()

    # The coordinator and its connections.

    def _start(self, event: e.Start) -> None:
        self._predecessor = event.predecessor
        self._box.look()

    def _found(self, event: e.Found) -> None:
        for lane in self._box.doubtful(event.node):
            self._box.emit(e.Close(lane))
            self._cut(e.Disconnected(lane))
        if not self._box.found(event):
            return
        if self.nonce == 0:
            self._begin()
        elif self.state is MemberState.JOINING and not self._box.flying(e.LaneName.JOIN):
            self._send_join()
        self._beat()

    def _begin(self) -> None:
        """Every round would wait for a dead predecessor until its session ends: one try."""
        gone, self._predecessor = self._predecessor, None
        if gone is not None:
            self._box.send(e.LaneName.JOIN, PREDECESSOR_S, e.LeaveGroup(gone))
        elif not self._box.flying(e.LaneName.JOIN):
            self._join("first")

    def _cut(self, event: e.Disconnected) -> None:
        self._box.landed(event)
        joining = self.state in (MemberState.JOINING, MemberState.SYNCING)
        if event.lane is e.LaneName.BEAT:
            self._mine.commits.break_off()
        elif joining:
            self.state = MemberState.JOINING
            self._plans.drop()
        if event.lane is e.LaneName.BEAT or joining or self.nonce == 0:
            self._box.find()

    def _replied(self, event: e.Reply) -> None:
        for flight in self._box.landed(event):
            match flight.body:
                case e.JoinGroup():
                    self._joined(flight, event)
                case e.SyncGroup():
                    self._synced(flight, event)
                case e.LeaveGroup():
                    self._begin()
                case body:
                    self._heard(body, flight, event)

    # Join, sync.

    def _join(self, reason: str) -> None:
        """A new round: what we claim, and what we tell of ourselves, is as of now."""
        self._want, self._reason, self._claimed = None, reason, self.claims.owned
        self.nonce += 1
        self.lease.hurry(hurries=False)
        self._box.disarm(e.Timer.COLLECT, e.Timer.BACKOFF)
        self._send_join()

    def _send_join(self) -> None:
        """Of this round, for the first time or again: the same claims, the same nonce."""
        self.state = MemberState.JOINING
        if not self._box.known:
            self._box.find()
            return
        who = (self.member_id, tuple(sorted(self._claimed)), self.owned_generation, self.nonce)
        body = e.JoinGroup(*who, bool(self.leaving), self.leaving.deadline, self._reason)
        self._box.send(e.LaneName.JOIN, self._round_s, body)

    def _joined(self, flight: Flight, event: e.Reply) -> None:
        what, body = verdict(flight.body, event.error), event.body
        if what not in (Verdict.GOOD, Verdict.IDENTIFY):
            self._refused(what, event.error)
            return
        assert isinstance(body, e.Joined)
        if body.member_id != self.member_id:
            self.member_id = body.member_id
            self._box.emit(e.Remember(body.member_id))
        if what is Verdict.IDENTIFY:
            if not (self.leaving and self._mine.nothing):
                self._send_join()
            return
        self.state, self.generation = MemberState.SYNCING, body.generation
        self.leader = body.leader == body.member_id
        self.lease.contact(flight.at)
        self._plans.end()
        self._beat()
        if self.leader:
            self._plans.ask(self.member_id, self.generation, body.members)
        else:
            self._sync(())

    def _planned(self, event: e.Planned) -> None:
        if self._plans.take(event):
            self._sync(event.assignments)

    def _sync(self, assignments: tuple[tuple[str, bytes], ...]) -> None:
        body = e.SyncGroup(self.member_id, self.generation, assignments)
        self._box.send(e.LaneName.JOIN, self._round_s, body)

    def _refused(self, what: Verdict, code: int) -> None:
        """JoinGroup or SyncGroup. What is owned stays ours, unless we are out."""
        self._box.emit(e.Count("failed-rebalance-total", name_of(code)))
        match what:
            case Verdict.FIND:
                self.state = MemberState.JOINING
            case Verdict.REJOIN:
                self._join(f"the last round ended with {name_of(code)}")
            case Verdict.PAUSE | Verdict.FULL:
                self.state = MemberState.OUT
                full = what is Verdict.FULL
                self._box.after(e.Timer.BACKOFF, FULL_PAUSE_S if full else self._box.pause())
        self._fall(what, code)

    def _retry(self, _: e.Tick) -> str | None:
        if self.state is not MemberState.OUT:
            return "the assignment failed"
        self._join(self._want or "retry")
        return None

    def _synced(self, flight: Flight, event: e.Reply) -> None:
        what, body = verdict(flight.body, event.error), event.body
        if what is not Verdict.GOOD:
            self._refused(what, event.error)
            return
        assert isinstance(body, e.Synced)
        self.state, self.owned_generation = MemberState.STABLE, self.generation
        halting = self.leaving.halting
        self._mine.apply(self.generation, body, leader=self.leader, halting=halting)
        self.lease.hurry(hurries=body.view.more)
        self._wish(self.leaving.heed(body.mark))
        if body.view.no_takers and self.leaving.draining:
            self._drained()

    # Heartbeats, commits, and what the leader must hear.

    def _beat(self, _: e.Tick | None = None) -> None:
        if self.generation >= 0:
            stable = self.state is MemberState.STABLE
            self.lease.beat(self.member_id, self.generation, stable=stable)

    def _send_commit(self) -> None:
        stable = self.state is MemberState.STABLE
        if offsets := self._mine.next_commit(stable=stable):
            self.lease.ask(e.OffsetCommit(self.member_id, self.generation, offsets), stable=stable)

    def _heard(self, body: e.Heartbeat | e.OffsetCommit, flight: Flight, event: e.Reply) -> None:
        current = body.generation == self.generation
        stable = current and self.state is MemberState.STABLE
        what = verdict(body, event.error, stayed=stable and flight.stable)
        if what is Verdict.GOOD:
            self.lease.contact(flight.at)
        if stable and event.error == ErrorCode.REBALANCE_IN_PROGRESS:
            self._wish("the group is rebalancing")
        if isinstance(body, e.OffsetCommit):
            self._mine.committed(what, event)
        self._fall(what, event.error)
        if not current:
            self._beat()  # sent before the JoinGroup was answered, it may have been no contact

    def _wanted(self, event: e.Want) -> str:
        return event.reason

    def _ready(self, _: e.Ready) -> None:
        self._box.collect("learner ready")

    def _regrown(self, _: e.PartitionsChanged) -> str | None:
        return "topics changed" if self.leader else None

    # Out.

    def _stop(self, event: e.Stop) -> None:
        self.leaving.halt(event.deadline)
        self._mine.release_all()

    def _drained(self, _: e.Tick | None = None) -> None:
        self._stop(e.Stop(self._box.now + LAST_COMMIT_S))

    def _go(self, tick: e.Tick | None = None) -> None:
        """Let go of what is left, then tell the group; one try, if it is known to listen. Who has
        asked for a name waits a moment for it: the group waits for whomever it has named.
        """
        if tick is None and not self.member_id and self._box.flying(e.JoinGroup):
            self.leaving.wait(self._box.now - self._box.waited_s(e.LaneName.JOIN) + DEAF_S)
            return
        listens = self._box.waited_s(e.LaneName.BEAT) < DEAF_S
        self._lose(e.Refusal.GONE)
        self.state = MemberState.GONE
        if not (listens and self._farewell()):
            self._box.emit(e.Left("it does not answer" if self.member_id else ""))

    def _farewell(self) -> bool:
        speaks = bool(self.member_id) and self._box.known
        if speaks:
            self._box.send(e.LaneName.BEAT, LEAVE_S, e.LeaveGroup(self.member_id))
        return speaks

    def _gone(self, event: e.Reply | e.Disconnected) -> None:
        code = event.error if isinstance(event, e.Reply) else ErrorCode.REQUEST_TIMED_OUT
        self._box.emit(*(e.Left(name_of(code) if code else "") for _ in self._box.landed(event)))

    def _silent(self, event: e.Silent) -> None:
        self._lose(e.Refusal.FENCED)
        self._farewell()
        self._box.abandon()
        self._die(event.reason)

    def _fall(self, what: Verdict, code: int) -> None:
        """What bad answers have in common."""
        match what:
            case Verdict.FIND:
                self._box.find()
            case Verdict.FENCE | Verdict.FORGET:
                self._fence(what)
            case Verdict.FATAL:
                self._die(f"the coordinator refuses this member: {name_of(code)}", code)

    def _lose(self, why: e.Refusal) -> None:
        """All that is ours, and all that is under way."""
        self._mine.lose_all(why)
        self._box.emit(*(e.Close(lane) for lane in e.LaneName if self._box.flying(lane)))
        self._box.abandon()
        self._box.disarm(*(timer for timer in e.Timer if timer is not e.Timer.FIND))
        self._plans.end()
        self._claimed, self._want = NONE, None
        self.generation, self.owned_generation, self.leader = -1, -1, False
        self.lease.until = 0.0

    def _fence(self, what: Verdict) -> None:
        self._lose(e.Refusal.FENCED)
        self.state = MemberState.OUT
        if what is Verdict.FORGET:
            self.member_id = ""
        self._box.after(e.Timer.BACKOFF, self._box.pause())

    def _die(self, why: str, code: int = 0) -> None:
        self._lose(e.Refusal.FENCED)
        self.state = MemberState.GONE
        self._box.emit(e.Fatal(why, code))
