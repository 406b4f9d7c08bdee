"""Queue of a member's offset commits: one in flight, the others waiting.

A classic coordinator knows only one generation. The race: m1 commits at generation 21; the group
moves to 22; the commit arrives and is refused, although m1 owns the partition in 22 as in 21. A
member that takes this refusal for a fence drops all partitions, joins again, and repeats that
without end. So a refusal that the group's own move explains is no failure. The commit waits for the
next assignment, leaves out partitions that were lost since the commit was asked for, and is sent in
the new generation. This is the rule of KIP-1251, kept by the client: a partition owned without
interruption cannot have been given to another member.

WAITING  To be sent, for the first time or again after a broken connection.
REFUSED  The group moved. The commit stays first in the queue, and is sent when the member is STABLE
         again, or when a heartbeat shows that the generation still counts: commits are accepted
         then. The race: an eager member releases all partitions for a round; its last commit is
         refused. The member joins only after the commit is accepted.
PAUSED   The transaction before is still being ended: the commit is sent again in a moment.
FLYING   In flight: one request at a time, so that a partition's offsets arrive in order.

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
| FLYING   | SOON                                | PAUSED  | Arm(STAGE)                |
| PAUSED   | the timer STAGE                     | WAITING |                           |
| FLYING   | ABORT                               | -       | CommitDone(.. ABORTED)    |
| FLYING   | all of it is denied                 | -       | CommitDone                |
| FLYING   | anything else; the connection broke | WAITING |                           |
| any      | fail                                | -       | CommitDone(.. FENCED or GONE) |

A denied partition is refused for good (not authorised, or not there) and reported as such. The
other partitions of the request are committed all the same, or tried again. Once a partition of a
commit was denied, the commit ends as done, whatever happens to the rest.

Offsets that are staged in a transaction are sent as a whole or not at all, because the transaction
holds the outputs of all of them. A partition that was lost, or is denied, ends such a commit. The
race: m1 has sent outputs of p and q, and loses q; only p is staged; the outputs of q are committed,
and the next owner of q makes them again.

Not here: the moment when the member may send, and the meaning of a refusal for the member.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamsx.client.transactional_id import TransactionIdentity
from streamsx.errors import InvariantBroken
from streamsx.group import member_events as e
from streamsx.group.error_table import Verdict
from streamsx.group.step_effects import Effects
from streamsx.model import OffsetAndMetadata, TopicPartition

SOON_S = 0.003
"""Pause until the transaction before has ended, which takes a broker some milliseconds."""
WAITING_MAX = 100
"""Limit of queued commits. A caller awaits each commit before the next one, so more means a bug."""


@dataclass(slots=True)
class CommitAsked:
    """Commit that the worker has asked for.

    `born`: the generation at the time of asking. `missing`: partitions that the commit leaves out,
    reported in its `CommitDone`.
    """

    id: int
    offsets: dict[TopicPartition, OffsetAndMetadata]
    born: int
    missing: dict[TopicPartition, int] = field(default_factory=dict)
    refused: bool = False
    paused: bool = False
    transaction: TransactionIdentity | None = None

    @property
    def request(self) -> e.OffsetCommit | e.TxnOffsetCommit:
        offsets = dict(self.offsets)
        if self.transaction is None:
            return e.OffsetCommit(offsets)
        return e.TxnOffsetCommit(offsets, self.transaction)

    def leave_out(self, why: Mapping[TopicPartition, int]) -> None:
        for tp in sorted(self.offsets.keys() & why.keys()):
            del self.offsets[tp]
            self.missing[tp] = why[tp]


class OffsetCommits:
    """Queue of a member's commits, for its whole life.

    `since`: per owned partition, the generation since which the partition is owned. The commit in
    flight stays first in the queue until its answer arrives. If the connection breaks, the outcome
    is unknown, and the same offsets are sent again.
    """

    def __init__(self, box: Effects, since: Mapping[TopicPartition, int]) -> None:
        self._box = box
        self._since = since
        self._waiting: deque[CommitAsked] = deque()

    @property
    def refused(self) -> bool:
        """Return whether the first commit waits for another generation."""
        return bool(self._waiting) and self._waiting[0].refused

    def ask(self, commit: e.Commit) -> None:
        offsets = dict(sorted(commit.offsets.items()))
        asked = CommitAsked(commit.id, offsets, commit.generation, transaction=commit.transaction)
        if not self._keeps(asked):
            return
        if len(self._waiting) == WAITING_MAX:
            raise InvariantBroken(f"{WAITING_MAX} commits wait: wait for each before the next one")
        self._waiting.append(asked)

    def next(self, *, stable: bool) -> e.OffsetCommit | e.TxnOffsetCommit | None:
        """Return the request to send now, or None; called while no commit is in flight."""
        while self._waiting and (stable or not self.refused):
            asked = self._waiting[0]
            if self._keeps(asked):
                if asked.paused:
                    return None
                asked.refused = False
                return asked.request
            self._waiting.popleft()
        return None

    def taken_again(self) -> None:
        """Let a refused commit be sent again, because its generation still counts."""
        if self._waiting:
            self._waiting[0].refused = False

    def go_on(self) -> None:
        """End the pause of the first commit."""
        if self._waiting:
            self._waiting[0].paused = False

    def answered(self, verdict: Verdict, reply: e.Reply) -> None:
        """Handle the answer to the commit in flight.

        `verdict` and the error of `reply` concern the partitions that are not denied for good.
        """
        asked = self._waiting[0]
        if isinstance(reply.body, Mapping):
            asked.leave_out(reply.body)
        if verdict is Verdict.REFUSE:
            asked.leave_out(dict.fromkeys(asked.offsets, reply.error))
        broken = asked.transaction is not None and bool(asked.missing)
        if verdict is Verdict.ABORT:
            self._waiting.popleft()
            missing = dict.fromkeys(asked.offsets, e.NOT_OURS)
            self._box.emit(e.CommitDone(asked.id, missing, e.Refusal.ABORTED, reply.error))
        elif verdict is Verdict.GOOD or broken or not asked.offsets:
            self._waiting.popleft()
            self._box.emit(e.CommitDone(asked.id, asked.missing))
        elif verdict is Verdict.MOVED:
            asked.refused = True
            self._box.emit(e.Count("commit-resent-total"))
        elif verdict is Verdict.SOON:
            asked.paused = True
            self._box.after(e.Timer.STAGE, SOON_S)

    def fail(self, why: e.Refusal) -> None:
        for asked in self._waiting:
            self._fail(asked, why)
        self._waiting.clear()

    def _fail(self, asked: CommitAsked, why: e.Refusal) -> None:
        """End a commit with `why`; a commit with denied partitions ends as done instead."""
        asked.leave_out(dict.fromkeys(asked.offsets, e.NOT_OURS))
        denied = any(asked.missing.values())
        self._box.emit(e.CommitDone(asked.id, asked.missing, None if denied else why))

    def _keeps(self, asked: CommitAsked) -> bool:
        """Drop partitions not owned without interruption since the commit was asked for.

        Returns:
            Whether partitions are left; without any, the commit has failed.
        """
        born = asked.born
        since = self._since
        lost = [tp for tp in asked.offsets if since.get(tp, born + 1) > born]
        whole = asked.transaction is not None
        asked.leave_out(dict.fromkeys(asked.offsets if lost and whole else lost, e.NOT_OURS))
        if not asked.offsets:
            self._fail(asked, e.Refusal.NOT_OWNED)
        return bool(asked.offsets)
