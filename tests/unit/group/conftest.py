"""A coordinator and a worker played by hand, around one member."""

from collections.abc import Callable
from typing import Any

import pytest

from streamsx.assignor.wire import AssignmentView
from streamsx.group import member_events as e
from streamsx.group.member import Member, MemberConfig
from streamsx.model import TopicPartition


class Play:
    """Member with its unanswered requests in `sent` and its timers in `armed`."""

    def __init__(self, **config: Any) -> None:
        self.member = Member(MemberConfig(**config))
        self.now = 0.0
        self.sent: list[e.SendRequest] = []
        self.armed: dict[e.Timer, float] = {}
        self.effects: list[e.Effect] = []

    def feed(self, *events: e.Event) -> list[e.Effect]:
        """Feed an event; return its effects without timers."""
        for event in events:
            self.effects = self.member.step(self.now, event)
            for effect in self.effects:
                self.note(effect)
            self.check()
        return [effect for effect in self.effects if not isinstance(effect, e.Arm)]

    def note(self, effect: e.Effect) -> None:
        match effect:
            case e.SendRequest():
                assert not self.flying(effect.lane, type(effect.body)), f"two at once: {effect}"
                self.sent.append(effect)
            case e.Close(lane):
                self.sent = [send for send in self.sent if send.lane is not lane]
            case e.Arm(timer, at) if at is not None:
                self.armed[timer] = at
            case e.Arm(timer):
                del self.armed[timer]

    def flying(self, lane: e.ConnectionName, kind: type[e.Request]) -> list[e.SendRequest]:
        """Return the requests that must be answered before more may be sent."""
        same_lane = [send for send in self.sent if send.lane is lane]
        return [s for s in same_lane if lane is e.ConnectionName.JOIN or isinstance(s.body, kind)]

    def check(self) -> None:
        mine = self.member.holding
        assert mine.to_be_revoked <= mine.revoking.keys() <= mine.owned

    def tick(self, timer: e.Timer) -> list[e.Effect]:
        """Fire a timer when it is due."""
        self.now = max(self.now, self.armed.pop(timer))
        return self.feed(e.Tick(timer))

    def last(self, kind: type[e.Request]) -> e.SendRequest:
        return next(send for send in reversed(self.sent) if isinstance(send.body, kind))

    def answer(self, kind: type[e.Request], error: int = 0, body: Any = None) -> list[e.Effect]:
        send = self.last(kind)
        self.sent.remove(send)
        return self.feed(e.Reply(send.request, error, body))

    def cut(self, lane: e.ConnectionName) -> list[e.Effect]:
        self.sent = [send for send in self.sent if send.lane is not lane]
        return self.feed(e.Disconnected(lane))

    def begin(self, predecessor: str | None = None) -> None:
        """Go from OUT to JOINING."""
        self.feed(e.Start(predecessor), e.Found(1))

    def joined(self, generation: int, *, leader: bool = False) -> list[e.Effect]:
        """Go from JOINING to SYNCING."""
        body = e.Joined(generation, "m1", "m1" if leader else "m0", ())
        return self.answer(e.JoinGroup, 0, body)

    def synced(
        self, *tps: TopicPartition, deadline: float | None = None, **view: Any
    ) -> list[e.Effect]:
        """Go from SYNCING to STABLE."""
        said = e.Synced(frozenset(tps), AssignmentView(**view), deadline)
        return self.answer(e.SyncGroup, 0, said)

    def stable(self, *tps: TopicPartition, generation: int = 1) -> list[e.Effect]:
        """Go to STABLE, owning these partitions, without a heartbeat in flight."""
        if self.member.nonce == 0:
            self.begin()
        else:
            self.feed(e.Want("a new round"))
        self.joined(generation)
        effects = self.synced(*tps)
        self.answer(e.Heartbeat)
        return effects


@pytest.fixture
def play() -> Callable[..., Play]:
    return Play
