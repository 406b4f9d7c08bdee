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

    def keep(self, claims: Claims) -> None:
        """What is owned without interruption since it was asked for."""
        self.drop({tp for tp in self.offsets if claims.since.get(tp, self.born + 1) > self.born})


class Commits:
    """Of one member, over its whole life."""

    def __init__(self) -> None:
        self._flying: CommitAsked | None = None
        self._waiting: deque[CommitAsked] = deque()

    @property
    def flying(self) -> bool:
        return self._flying is not None

    @property
    def refused(self) -> bool:
        """Nothing is committed before there is another generation."""
        return bool(self._waiting) and self._waiting[0].refused

    def ask(self, commit: e.Commit, claims: Claims) -> list[e.Effect]:
        offsets = dict(sorted(commit.offsets.items()))
        asked = CommitAsked(commit.id, offsets, commit.generation)
        asked.keep(claims)
        if not asked.offsets:
            return [asked.failed(e.Refusal.NOT_OWNED)]
        if len(self._waiting) == WAITING_MAX:
            raise InvariantBroken(f"{WAITING_MAX} commits wait: wait for each before the next one")
        self._waiting.append(asked)
        return []

    def next(self, claims: Claims, *, stable: bool) -> tuple[e.Offsets, list[e.Effect]]:
        """What must be sent now, if anything."""
        failed: list[e.Effect] = []
        while self._waiting and self._flying is None and (stable or not self.refused):
            asked = self._waiting.popleft()
            asked.keep(claims)
            if asked.offsets:
                self._flying = asked
                return dict(asked.offsets), failed
            failed.append(asked.failed(e.Refusal.NOT_OWNED))
        return {}, failed

    def answered(
        self, verdict: Verdict, code: int, denied: Mapping[TopicPartition, int]
    ) -> list[e.Effect]:
        """`denied`: what is refused for good; `verdict` and `code` are for all else."""
        asked, self._flying = self._flying, None
        assert asked is not None
        asked.deny(denied)
        if verdict is Verdict.REFUSE:
            asked.deny(dict.fromkeys(asked.offsets, code))
        if verdict is Verdict.GOOD or not asked.offsets:
            return [asked.done()]
        self._waiting.appendleft(asked)
        asked.refused = verdict is Verdict.MOVED
        return [e.Count("commit-resent-total")] if asked.refused else []

    def break_off(self) -> None:
        """Whether the one in flight was taken nobody knows: the same offsets again."""
        if self._flying is not None:
            self._waiting.appendleft(self._flying)
            self._flying = None

    def fail(self, why: e.Refusal) -> list[e.Effect]:
        self.break_off()
        failed = [asked.failed(why) for asked in self._waiting]
        self._waiting.clear()
        return failed
