"""Tables of the membership: every cell, and random orders of events."""

import random
from collections.abc import Callable
from operator import attrgetter
from typing import Any, get_args

import pytest

from streamsx.assignor.model import Mark, MarkState
from streamsx.assignor.wire import AssignmentView
from streamsx.errors import InvalidTransition
from streamsx.group import member_events as e
from streamsx.group.error_table import Verdict
from streamsx.group.member import (
    COLUMN,
    TABLE,
    Cue,
    Member,
    MemberConfig,
    MemberState,
    Unmoved,
)
from streamsx.model import OffsetAndMetadata, TopicPartition

Plays = Callable[..., Any]
P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)
OFFSETS = {P: OffsetAndMetadata(5, "")}

EVENTS: list[e.Event] = [
    e.Start(),
    e.Want("a reason"),
    e.Ready(),
    e.Found(1),
    e.Found(None),
    e.Reply(99, 0),
    e.Disconnected(e.ConnectionName.JOIN),
    e.Disconnected(e.ConnectionName.BEAT),
    e.Planned(99, {}),
    e.Released(frozenset({P}), 1),
    e.PartitionsChanged({}),
    e.Commit(1, OFFSETS, 1),
    e.Leave(30.0),
    e.Stop(30.0),
    e.Silent("quiet"),
    *map(e.Tick, e.Timer),
]


CUT = (e.Disconnected(e.ConnectionName.JOIN), e.Found(1))
"""Events that end what is parked on the join lane: the row that counts then is that of the cue."""
GOOD = (Verdict.GOOD, Verdict.IDENTIFY)
SHARED = {
    Verdict.REJOIN, Verdict.PAUSE, Verdict.FENCE, Verdict.FORGET, Verdict.FATAL,
}  # fmt: skip
"""What is the same whoever has asked."""


def reach(play: Plays, state: MemberState) -> Any:
    group = play()
    group.begin()
    if state is MemberState.OUT:
        group.answer(e.JoinGroup, 22)
        return group
    if state is MemberState.JOINING:
        return group
    group.joined(1)
    if state is MemberState.SYNCING:
        return group
    group.synced(P)
    if state is MemberState.GONE:
        group.feed(e.Stop(5.0))
        group.tick(e.Timer.STOP)
    return group


def cell(state: MemberState, event: e.Event) -> MemberState | Unmoved:
    what = event.timer if isinstance(event, e.Tick) else type(event)
    after = TABLE[what][COLUMN[state]]
    assert not isinstance(after, str)
    return after


def test_member_table_covers_every_event_timer_and_verdict() -> None:
    events = set(get_args(e.Event)) - {e.Tick}
    assert {type(event) for event in EVENTS} == events | {e.Tick}
    answers = {(api, v) for api in (e.JoinGroup, e.SyncGroup) for v in GOOD}
    named = {what for what in TABLE if isinstance(what, tuple)}
    assert named == answers - {(e.SyncGroup, Verdict.IDENTIFY)}
    assert TABLE.keys() - named == events | set(e.Timer) | set(Cue) | SHARED


def test_every_row_names_a_method() -> None:
    member = Member(MemberConfig())
    assert all(callable(attrgetter(row[-1])(member)) for row in TABLE.values())


@pytest.mark.parametrize("event", EVENTS, ids=repr)
@pytest.mark.parametrize("state", MemberState, ids=lambda state: state.value)
def test_each_table_cell_gives_next_state_or_refusal(
    play: Plays, state: MemberState, event: e.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = reach(play, state)
    assert group.member.state is state
    monkeypatch.setattr(group.member, "_follow", lambda: None)
    match cell(state, event):
        case Unmoved.IMPOSSIBLE:
            with pytest.raises(InvalidTransition):
                group.feed(event)
        case Unmoved.IGNORED:
            assert group.feed(event) == []
            assert group.member.state is state
        case after:
            group.feed(event)
            cut = state is MemberState.SYNCING and event in CUT
            assert group.member.state is (MemberState.JOINING if cut else after)


# Error codes. X fatal, F fence, f fence and forget the id, C find the coordinator and repeat,
# W a pause and then a join, w a long one, R join at once, N next try with the id given, M the group
# moved, E the commit fails, . nothing. A heartbeat or commit is answered to a member that has been
# STABLE all the time.
CODES = """
0   ok ok ok ok
3   W  W  .  E
7   C  C  C  C
12  X  X  .  E
14  C  C  C  C
15  C  C  C  C
16  C  C  C  C
22  W  R  F  F
23  X  X  .  E
24  X  X  X  X
25  f  f  f  f
26  X  X  X  E
27  W  R  R  M
28  X  X  .  E
29  X  X  X  E
30  X  X  X  X
79  N  X  .  E
81  w  X  .  E
82  X  X  X  X
-1  X  X  .  E
56  W  W  .  C
"""
APIS = (e.JoinGroup, e.SyncGroup, e.Heartbeat, e.OffsetCommit)
CELLS = [
    (api, int(code), letter)
    for code, *letters in (line.split() for line in CODES.split("\n") if line)
    for api, letter in zip(APIS, letters, strict=True)
    if letter != "ok"
]


def asked(play: Plays, api: type[e.Request]) -> Any:
    """Return a member that owns P and has sent this request."""
    group = play()
    group.stable(P)
    if api in (e.JoinGroup, e.SyncGroup):
        group.feed(e.Want("a reason"))
    if api is e.SyncGroup:
        group.joined(2)
        group.answer(e.Heartbeat)
    if api is e.Heartbeat:
        group.tick(e.Timer.HEARTBEAT)
    if api is e.OffsetCommit:
        group.feed(e.Commit(1, OFFSETS, 1))
    return group


@pytest.mark.parametrize(("api", "code", "letter"), CELLS)
def test_each_error_code_has_expected_consequence(
    play: Plays, api: type[e.Request], code: int, letter: str
) -> None:
    group = asked(play, api)
    body = e.Joined(-1, "m2", "") if letter == "N" else None
    effects = group.answer(api, code, body)
    owned, state, armed = group.member.holding.owned, group.member.state, group.armed

    if letter in "XFf":
        assert e.Lost((P,)) in effects
        assert owned == frozenset()
    else:
        assert owned == {P}
    match letter:
        case "X":
            (_, told) = group.answer(e.LeaveGroup)  # else the group waits for its session to end
            assert isinstance(told, e.Fatal)
            assert told.code == code
        case "F" | "f":
            assert state is MemberState.OUT
            assert (group.member.member_id == "") is (letter == "f")
        case "C":
            assert armed[e.Timer.FIND] == pytest.approx(group.now + 0.1)
            repeats = e.JoinGroup if api is e.SyncGroup else api
            group.tick(e.Timer.FIND)
            group.feed(e.Found(2))
            assert group.last(repeats).node == 2
        case "W" | "w":
            assert state is MemberState.OUT
            assert armed[e.Timer.BACKOFF] == pytest.approx({"W": 0.1, "w": 10.0}[letter])
            group.tick(e.Timer.BACKOFF)
            assert group.last(e.JoinGroup).body.claims == (P,)
        case "R" | "M":
            assert group.last(e.JoinGroup).body.claims == (P,)
        case "N":
            assert group.last(e.JoinGroup).member_id == "m2"
        case "E":
            assert effects == [e.CommitDone(1, {P: code})]
        case ".":
            assert effects == []


class Chaos:
    """Coordinator with random answers and a slow worker; the invariants are checked."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.member = Member(MemberConfig(jitter=self.random.random()))
        self.now, self.generation, self.commits = 0.0, 0, 0
        self.sends: list[e.SendRequest] = []
        self.todo: list[e.Event] = [e.Start(self.random.choice([None, "dead"]))]
        self.armed: dict[e.Timer, float] = {}
        self.held: set[TopicPartition] = set()
        self.asked: set[int] = set()
        self.ended = 0
        self.abandoned: list[e.SendRequest] = []

    def step(self) -> None:
        due = sorted((at, timer.value) for timer, at in self.armed.items())
        draw = self.random.random()
        if self.todo and draw < 0.4:
            self.feed(self.todo.pop(self.random.randrange(len(self.todo))))
        elif self.sends and draw < 0.7:
            send = self.sends.pop(self.random.randrange(len(self.sends)))
            self.feed(self.answer(send))
        elif self.abandoned and draw < 0.72:
            self.feed(self.answer(self.abandoned.pop()))
        elif due and draw < 0.9:
            self.now = max(self.now, due[0][0])
            del self.armed[e.Timer(due[0][1])]
            self.feed(e.Tick(e.Timer(due[0][1])))
        elif self.member.nonce:
            self.feed(self.surprise())

    def answer(self, send: e.SendRequest) -> e.Event:
        if self.random.random() < 0.1:
            self.sends = [other for other in self.sends if other.lane is not send.lane]
            return e.Disconnected(send.lane)
        code = 0 if self.random.random() < 0.7 else self.random.choice([14, 16, 22, 25, 27])
        name = send.member_id
        match send.body:
            case e.JoinGroup() if not name:
                return e.Reply(send.request, 79, e.Joined(-1, f"m{self.now}", ""))
            case e.JoinGroup() if not code:
                self.generation += 1
                leader = self.random.choice([name, "other"])
                return e.Reply(send.request, 0, e.Joined(self.generation, name, leader))
            case e.SyncGroup() if not code:
                some = frozenset(tp for tp in (P, Q) if self.random.random() < 0.6)
                state = MarkState(self.random.random() >= 0.1)
                mark = self.random.choice([None, Mark(state, epoch_ms=1)])
                return e.Reply(
                    send.request, 0, e.Synced(some, AssignmentView(more=True, mark=mark))
                )
        return e.Reply(send.request, code)

    def surprise(self) -> e.Event:
        self.commits += 1
        offsets = dict.fromkeys(sorted(self.held | {P}), OffsetAndMetadata(self.commits, ""))
        commit = e.Commit(self.commits, offsets, self.member.owned_generation)
        rare: list[e.Event] = [e.Stop(self.now + 5), e.Leave(self.now + 9)]
        often: list[e.Event] = [e.Want("a reason"), e.Ready(), commit, e.PartitionsChanged({})]
        event = self.random.choice(rare if self.random.random() < 0.02 else often)
        if event is commit:
            self.asked.add(commit.id)
        return event

    def feed(self, event: e.Event) -> None:
        before = self.member.generation
        effects = self.member.step(self.now, event)
        if self.member.generation < before:
            self.abandoned, self.sends = self.sends, []
        for effect in effects:
            self.perform(effect)
        mine = self.member.holding
        assert mine.to_be_revoked <= mine.revoking.keys() <= mine.owned
        assert all(at > self.now - 61 for _, at in mine.revoking.values())
        if self.member.state is MemberState.GONE:
            assert not mine.owned
            assert not self.asked

    def perform(self, effect: e.Effect) -> None:
        match effect:
            case e.SendRequest():
                self.check(effect)
                self.sends.append(effect)
            case e.Close(lane):
                self.sends = [send for send in self.sends if send.lane is not lane]
            case e.Arm(timer, at) if at is not None:
                self.armed[timer] = at
            case e.Arm(timer):
                del self.armed[timer]
            case e.Find():
                self.todo.append(e.Found(self.random.choice([None, 1, 2])))
            case e.Assign(request):
                self.todo.append(e.Planned(request, {}, self.random.choice([False, True])))
            case e.Left() | e.Fatal():
                self.ended += 1
                assert self.ended == 1
            case _:
                self.work(effect)

    def check(self, send: e.SendRequest) -> None:
        body, member = send.body, self.member
        rivals = [other.body for other in self.sends if other.lane is send.lane]
        assert not rivals or send.lane is e.ConnectionName.BEAT
        assert not [rival for rival in rivals if type(rival) is type(body)]
        if isinstance(body, e.Heartbeat | e.OffsetCommit | e.SyncGroup):
            assert send.generation == member.generation >= 0
        if isinstance(body, e.OffsetCommit):
            assert body.offsets.keys() <= member.holding.owned
        if isinstance(body, e.JoinGroup):
            assert body.owned_generation >= 0 or not body.claims

    def work(self, effect: e.Effect) -> None:
        match effect:
            case e.Assigned(tps):
                assert not self.held & set(tps)
                self.held |= set(tps)
            case e.Revoke(tps, number):
                assert self.held >= set(tps)
                self.held -= set(tps)
                if self.random.random() < 0.8:
                    self.todo.append(e.Released(frozenset(tps), number))
            case e.Lost(tps):
                self.held -= set(tps)
            case e.CommitDone(number):
                self.asked.remove(number)


@pytest.mark.parametrize("seed", range(150))
def test_random_events_keep_ownership_consistent_and_answer_commits(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(400):
        chaos.step()
    if chaos.member.state is not MemberState.GONE:
        chaos.feed(e.Stop(chaos.now + 1))
        chaos.now += 1
        chaos.feed(e.Tick(e.Timer.STOP))
    assert chaos.member.state is MemberState.GONE
    assert not chaos.asked
