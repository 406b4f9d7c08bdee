"""Commits of offsets: one in flight, the others behind it, and what a rebalance does to them.

A classic coordinator knows one generation. "m1 commits at 21; the group moves to 22; the commit
arrives": it is refused, although m1 holds the partition in 22 as it did in 21. A member that takes
this for a fence drops everything, joins again, and does so for ever. So what the group's own move
explains is no refusal: the commit waits until there is an assignment again, leaves out what was
lost since it was asked for, and is sent in the new generation. That is KIP-1251's rule, kept by
the client: what we hold without interruption cannot have been given away.

WAITING  to be sent, for the first time or because a connection broke.
REFUSED  the group moved; first of all, and sent when the member is STABLE again.
FLYING   one request at a time, so that a partition's offsets arrive in the order of asking.

| state    | event                               | next    | effect                    |
|----------|-------------------------------------|---------|---------------------------|
| -        | asked, some of it is owned          | WAITING |                           |
| -        | asked, nothing of it is owned       | -       | CommitFailed(NOT_OWNED)   |
| WAITING  | next                                | FLYING  |                           |
| REFUSED  | next, stable                        | FLYING  |                           |
| W, R     | next, nothing of it is owned        | -       | CommitFailed(NOT_OWNED)   |
| FLYING   | GOOD                                | -       | CommitDone                |
| FLYING   | MOVED                               | REFUSED | Count                     |
| FLYING   | all of it is denied                 | -       | CommitDone                |
| FLYING   | anything else; the connection broke | WAITING |                           |
| any      | fail                                | -       | CommitFailed              |

A partition that is denied (refused for good: may not be read, is not there) is told so; the others
of its request are committed all the same, or tried again. Once some of a commit is denied, it ends
as done, whatever becomes of the rest.

Not here: when the member may send at all, and what a refusal says of the member.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamsx.errors import InvariantBroken
from streamsx.membership import events as e
from streamsx.membership.answers import Verdict
from streamsx.membership.claims import Claims
from streamsx.membership.effects import Effects
from streamsx.model import TopicPartition

WAITING_MAX = 100
"""Commits. Who asks waits for the answer before asking again; so many means that it does not."""


@dataclass(slots=True)
class CommitAsked:
    """`born`: the generation that it was asked under."""

    id: int
    offsets: dict[TopicPartition, e.OffsetAndMetadata]
    born: int
    dropped: set[TopicPartition] = field(default_factory=set)
    denied: dict[TopicPartition, int] = field(default_factory=dict)
    refused: bool = False

    def deny(self, codes: Mapping[TopicPartition, int]) -> None:
        for tp in sorted(self.offsets.keys() & codes.keys()):
            del self.offsets[tp]
            self.denied[tp] = codes[tp]

    def done(self) -> e.CommitDone:
        return e.CommitDone(self.id, tuple(sorted(self.dropped)), self.denied)

    def failed(self, why: e.Refusal) -> e.Effect:
        self.drop(set(self.offsets))
        return self.done() if self.denied else e.CommitFailed(self.id, why)

    def drop(self, tps: e.AnyPartitions) -> None:
        for tp in sorted(self.offsets.keys() & tps):
            del self.offsets[tp]
            self.dropped.add(tp)


class Commits:
    """Of one member, over its whole life."""

    def __init__(self, box: Effects, claims: Claims) -> None:
        self._box, self._claims = box, claims
        self._flying: CommitAsked | None = None
        self._waiting: deque[CommitAsked] = deque()

    @property
    def flying(self) -> bool:
        return self._flying is not None

    @property
    def refused(self) -> bool:
        """Nothing is committed before there is another generation."""
        return bool(self._waiting) and self._waiting[0].refused

    def ask(self, commit: e.Commit) -> None:
        asked = CommitAsked(commit.id, dict(sorted(commit.offsets.items())), commit.generation)
        if not self._keeps(asked):
            return
        if len(self._waiting) == WAITING_MAX:
            raise InvariantBroken(f"{WAITING_MAX} commits wait: wait for each before the next one")
        self._waiting.append(asked)

    def next(self, *, stable: bool) -> e.Offsets:
        """What must be sent now, if anything."""
        while self._waiting and self._flying is None and (stable or not self.refused):
            asked = self._waiting.popleft()
            if self._keeps(asked):
                self._flying = asked
                return dict(asked.offsets)
        return {}

    def answered(self, verdict: Verdict, reply: e.Reply) -> None:
        """The verdict, and the error, are of what is not denied for good."""
        asked, self._flying = self._flying, None
        assert asked is not None
        if isinstance(reply.body, e.Committed):
            asked.deny(reply.body.denied)
        if verdict is Verdict.REFUSE:
            asked.deny(dict.fromkeys(asked.offsets, reply.error))
        if verdict is Verdict.GOOD or not asked.offsets:
            self._box.emit(asked.done())
            return
        self._waiting.appendleft(asked)
        asked.refused = verdict is Verdict.MOVED
        if asked.refused:
            self._box.emit(e.Count("commit-resent-total"))

    def break_off(self) -> None:
        """Whether the one in flight was taken nobody knows: the same offsets again."""
        if self._flying is not None:
            self._waiting.appendleft(self._flying)
            self._flying = None

    def fail(self, why: e.Refusal) -> None:
        self.break_off()
        self._box.emit(*(asked.failed(why) for asked in self._waiting))
        self._waiting.clear()

    def _keeps(self, asked: CommitAsked) -> bool:
        """What is owned without interruption since it was asked for; nothing: it has failed."""
        since = self._claims.since
        asked.drop({tp for tp in asked.offsets if since.get(tp, asked.born + 1) > asked.born})
        if not asked.offsets:
            self._box.emit(asked.failed(e.Refusal.NOT_OWNED))
        return bool(asked.offsets)
