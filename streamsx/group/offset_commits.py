"""Commits of offsets: one in flight, the others behind it, and what a rebalance does to them.

A classic coordinator knows one generation. "m1 commits at 21; the group moves to 22; the commit
arrives": it is refused, although m1 holds the partition in 22 as it did in 21. A member that takes
this for a fence drops everything, joins again, and does so for ever. So what the group's own move
explains is no refusal: the commit waits until there is an assignment again, leaves out what was
lost since it was asked for, and is sent in the new generation. That is KIP-1251's rule, kept by
the client: what we hold without interruption cannot have been given away.

WAITING  to be sent, for the first time or because a connection broke.
REFUSED  the group moved; first of all, and sent when the member is STABLE again, or a heartbeat
         shows that its generation still counts: commits are taken then. "An eager member lets go
         for a round; its last commit is refused": it joins when that is taken, and not before.
FLYING   one request at a time, so that a partition's offsets arrive in the order of asking.

| state    | event                               | next    | effect                    |
|----------|-------------------------------------|---------|---------------------------|
| -        | asked, some of it is owned          | WAITING |                           |
| -        | asked, nothing of it is owned       | -       | CommitDone(.. NOT_OWNED)  |
| WAITING  | next                                | FLYING  |                           |
| REFUSED  | next, stable                        | FLYING  |                           |
| REFUSED  | a heartbeat is good                 | WAITING |                           |
| W, R     | next, nothing of it is owned        | -       | CommitDone(.. NOT_OWNED)  |
| FLYING   | GOOD                                | -       | CommitDone                |
| FLYING   | MOVED                               | REFUSED | Count                     |
| FLYING   | all of it is denied                 | -       | CommitDone                |
| FLYING   | anything else; the connection broke | WAITING |                           |
| any      | fail                                | -       | CommitDone(.. FENCED or GONE) |

A partition that is denied (refused for good: may not be read, is not there) is told so; the others
of its request are committed all the same, or tried again. Once some of a commit is denied, it ends
as done, whatever becomes of the rest.

Not here: when the member may send at all, and what a refusal says of the member.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamsx.errors import InvariantBroken
from streamsx.group import member_events as e
from streamsx.group.error_table import Verdict
from streamsx.group.step_effects import Effects
from streamsx.model import TopicPartition

WAITING_MAX = 100
"""Commits. Who asks waits for the answer before asking again; so many means that it does not."""


@dataclass(slots=True)
class CommitAsked:
    """`born`: the generation that it was asked under; `missing`: what it does not commit, as its
    end will tell."""

    id: int
    offsets: dict[TopicPartition, tuple[int, str]]
    born: int
    missing: dict[TopicPartition, int] = field(default_factory=dict)
    refused: bool = False

    def leave_out(self, why: Mapping[TopicPartition, int]) -> None:
        for tp in sorted(self.offsets.keys() & why.keys()):
            del self.offsets[tp]
            self.missing[tp] = why[tp]


class OffsetCommits:
    """Of one member, over its whole life. `since`: per owned partition, from which generation on.

    The one in flight is the first of those that wait, until it is answered: whether a connection
    that broke has brought it nobody knows, and the same offsets follow.
    """

    def __init__(self, box: Effects, since: Mapping[TopicPartition, int]) -> None:
        self._box, self._since = box, since
        self._waiting: deque[CommitAsked] = deque()

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
        """What must be sent now, if anything; nothing is in flight."""
        while self._waiting and (stable or not self.refused):
            asked = self._waiting[0]
            if self._keeps(asked):
                asked.refused = False
                return dict(asked.offsets)
            self._waiting.popleft()
        return {}

    def taken_again(self) -> None:
        """Its generation still counts."""
        if self._waiting:
            self._waiting[0].refused = False

    def answered(self, verdict: Verdict, reply: e.Reply) -> None:
        """The verdict, and the error, are of what is not denied for good."""
        asked = self._waiting[0]
        if isinstance(reply.body, Mapping):
            asked.leave_out(reply.body)
        if verdict is Verdict.REFUSE:
            asked.leave_out(dict.fromkeys(asked.offsets, reply.error))
        if verdict is Verdict.GOOD or not asked.offsets:
            self._waiting.popleft()
            self._box.emit(e.CommitDone(asked.id, asked.missing))
        elif verdict is Verdict.MOVED:
            asked.refused = True
            self._box.emit(e.Count("commit-resent-total"))

    def fail(self, why: e.Refusal) -> None:
        for asked in self._waiting:
            self._fail(asked, why)
        self._waiting.clear()

    def _fail(self, asked: CommitAsked, why: e.Refusal) -> None:
        """Where some of it was denied, that is its end."""
        asked.leave_out(dict.fromkeys(asked.offsets, e.NOT_OURS))
        denied = any(asked.missing.values())
        self._box.emit(e.CommitDone(asked.id, asked.missing, None if denied else why))

    def _keeps(self, asked: CommitAsked) -> bool:
        """What is owned without interruption since it was asked for; nothing: it has failed."""
        born, since = asked.born, self._since
        lost = [tp for tp in asked.offsets if since.get(tp, born + 1) > born]
        asked.leave_out(dict.fromkeys(lost, e.NOT_OURS))
        if not asked.offsets:
            self._fail(asked, e.Refusal.NOT_OWNED)
        return bool(asked.offsets)
