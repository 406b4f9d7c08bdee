"""Committed offsets of groups, as a register with several writers, and results of transactions.
Pure.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from streamsx.model import TopicPartition
from tests.support.history.anomalies import Anomaly, Kind
from tests.support.history.events import Committed, Level, Send, Source
from tests.support.history.facts import NEVER, Facts, Fate, Operation, committers, of


@dataclass(slots=True)
class Write:
    """Write that takes effect once between two events; `sure`: it does take effect."""

    offset: int
    began: int
    ended: int
    sure: bool


def commits(facts: Facts) -> Iterator[Anomaly]:
    """Yield anomalies of commits: an answer must hold a commit that may be the last one.

    A commit that one answer has shown was done by then.
    """
    writes: dict[tuple[str, TopicPartition], list[Write]] = defaultdict(list)
    for action, began, ended, sure in committers(facts):
        for tp, offset in action.offsets.items():
            writes[action.group, tp].append(Write(offset, began, ended, sure))
    for question in sorted(facts.questions, key=lambda op: op.ended):
        asked = of(question, Committed)
        for tp in asked.partitions:
            found = writes[asked.group, tp]
            told = asked.offsets.get(tp)
            last = [write for write in found if write.sure and write.ended < question.began]
            if may_be(told, found, last, question):
                continue
            highest = max(last, key=lambda write: write.offset, default=None)
            back = highest is not None and (told is None or told < highest.offset)
            kind = Kind.COMMIT_WENT_BACK if back else Kind.COMMIT_OF_NOBODY
            shown = () if highest is None else (highest.began, highest.ended)
            about = f"{asked.group} of {tp} is told {told}"
            yield Anomaly(kind, about, (*shown, question.began, question.ended))


def may_be(told: int | None, found: list[Write], last: list[Write], question: Operation) -> bool:
    """Return whether no sure commit lies between this commit and the question."""
    if told is None:
        return not last
    latest = max((write.began for write in last), default=-1)
    candidates = [
        write
        for write in found
        if write.offset == told and write.began < question.ended and write.ended >= latest
    ]
    if len(candidates) == 1:
        candidates[0].sure, candidates[0].ended = True, min(candidates[0].ended, question.ended)
    return bool(candidates)


def effects(facts: Facts) -> Iterator[Anomaly]:
    """Yield anomalies of copies: transactions that commit what they read continue from each record
    once.
    """
    made: dict[Source, list[Operation]] = defaultdict(list)
    for send in facts.sends:
        source = of(send, Send).source
        if source is not None:
            made[source].append(send)
    yield from lost_effects(facts, made)
    for source, found in made.items():
        sends = [send for send in found if facts.fate(send) is Fate.THERE]
        if len({of(send, Send).txn for send in sends}) > 1:
            about = f"{source.group} of {source.tp} at {source.offset}"
            shown = tuple(at for send in sends for at in (send.began, send.ended) if at != NEVER)
            yield Anomaly(Kind.REPEATED_EFFECT, about, shown)


def lost_effects(facts: Facts, made: dict[Source, list[Operation]]) -> Iterator[Anomaly]:
    """Yield lost copies, by the last answer to each group."""
    told: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
    for question in sorted(facts.questions, key=lambda op: op.ended):
        asked = of(question, Committed)
        for tp, offset in asked.offsets.items():
            told[asked.group, tp] = offset, question.ended
    committing = {source.group for source in made}
    for (group, tp), (end, at) in told.items():
        if group not in committing:
            continue
        for row, seen in read_as_committed(facts, tp).items():
            sends = made.get(Source(group, tp, row), [])
            if row < end and all(is_gone(facts, send, at) for send in sends):
                about = f"{group} has committed {tp} to {end}, and made nothing of {row}"
                yield Anomaly(Kind.LOST_EFFECT, about, (seen, *(s.began for s in sends), at))


def read_as_committed(facts: Facts, tp: TopicPartition) -> dict[int, int]:
    """Return offsets of records that were read as committed, and their places in the history."""
    return {
        each.row.offset: each.poll.ended
        for stretch in facts.stretches_of[tp]
        for each in stretch.deliveries
        if each.level is Level.COMMITTED
    }


def is_gone(facts: Facts, send: Operation, at: int) -> bool:
    """Return whether a record of unknown outcome is gone: a reader has come to the end without
    it.
    """
    fate, action = facts.fate(send), of(send, Send)
    passed = any(
        stretch.level is Level.COMMITTED and stretch.end[1] > at
        for stretch in facts.stretches_of[action.tp]
    )
    return fate is Fate.GONE or (fate is Fate.UNKNOWN and passed)
