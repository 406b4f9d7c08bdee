"""History sorted for the judge: records and their outcomes, reads and commits. Pure."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from sys import maxsize
from typing import TypeVar

from streamsx.model import TopicPartition
from tests.support.history.events import (
    Action,
    Assign,
    Commit,
    Committed,
    Drain,
    End,
    History,
    Level,
    Phase,
    Poll,
    Row,
    Send,
)

T = TypeVar("T", bound=Action)

NEVER = maxsize
"""The place of an event that is not there, behind all others."""


class Fate(Enum):
    """Outcome of a record, or of a transaction."""

    THERE, GONE, UNKNOWN = auto(), auto(), auto()


@dataclass(slots=True)
class Operation:
    """Operation with its action at the end. `began`, `ended`: places in the history."""

    client: str
    action: Action
    began: int
    ended: int = NEVER
    phase: Phase = Phase.INFO


@dataclass(slots=True)
class Transaction:
    """Transaction. `committing`: where its commit was first asked for."""

    fate: Fate
    ends: list[Operation]
    sends: list[Operation] = field(default_factory=list)

    @property
    def committing(self) -> int:
        return min((op.began for op in self.ends if of(op, End).commits), default=NEVER)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Record that was read, and the operation that read it."""

    row: Row
    poll: Operation

    @property
    def level(self) -> Level:
        return of(self.poll, Poll).level


@dataclass(slots=True)
class Stretch:
    """Stretch of one partition that one reader read without a seek.

    `level`: known once it has read something. `reached`: the reader has seen, or skipped, all
    records before that offset; `by`: the event that shows it.
    """

    client: str
    tp: TopicPartition
    level: Level
    start: int
    deliveries: list[Delivery] = field(default_factory=list)
    reached: int = 0
    by: int = 0
    end: tuple[int, int] = (maxsize, -1)


def of(operation: Operation, kind: type[T]) -> T:
    """Return the action of an operation, as one of a kind."""
    assert isinstance(operation.action, kind)
    return operation.action


def operations(history: History) -> list[Operation]:
    """Return the operations in the order of their beginnings. Raises ValueError for an impossible
    history.
    """
    begun: dict[tuple[str, int], Operation] = {}
    for at, event in enumerate(history):
        key = event.client, event.operation
        if event.phase is Phase.INVOKE or key not in begun:
            if key in begun or not (event.phase is Phase.INVOKE or at_once(event.action)):
                raise ValueError(f"event {at} fits to no operation: {event}")
            begun[key] = Operation(event.client, event.action, at)
        if event.phase is not Phase.INVOKE:
            operation = begun[key]
            if operation.ended != NEVER:
                raise ValueError(f"event {at}: the operation is over already: {event}")
            operation.action, operation.ended, operation.phase = event.action, at, event.phase
    return list(begun.values())


def at_once(action: Action) -> bool:
    """Return whether it does not matter when an operation began."""
    return isinstance(action, Assign | Drain | Poll)


class Facts:
    """Facts that the checks ask for."""

    def __init__(self, history: History) -> None:
        found = operations(history)
        self.sends = [op for op in found if isinstance(op.action, Send)]
        self.commits = [op for op in found if isinstance(op.action, Commit)]
        self.questions = [
            op for op in found if isinstance(op.action, Committed) and op.phase is Phase.OK
        ]
        self.sender = {of(op, Send).value: op for op in self.sends}
        if len(self.sender) < len(self.sends):
            raise ValueError("a value was sent twice")
        self.transactions = transactions(found)
        self.stretches = stretches(found)
        self.deliveries = [each for stretch in self.stretches for each in stretch.deliveries]
        self.readings: dict[str, list[Delivery]] = defaultdict(list)
        """By value."""
        for each in self.deliveries:
            self.readings[each.row.value].append(each)
        self._believe_readers()
        self.stretches_of: dict[TopicPartition, list[Stretch]] = defaultdict(list)
        for stretch in self.stretches:
            self.stretches_of[stretch.tp].append(stretch)

    def fate(self, send: Operation) -> Fate:
        """Return the outcome of a record, by the answers of clients and by what readers got."""
        action = of(send, Send)
        if send.phase is Phase.FAIL:
            return Fate.GONE
        if action.txn is None and action.value in self.readings:
            return Fate.THERE
        if action.txn is not None and self.transactions[action.txn].fate is not Fate.THERE:
            return self.transactions[action.txn].fate
        return Fate.THERE if send.phase is Phase.OK else Fate.UNKNOWN

    def read_by(self, value: str, level: Level) -> bool:
        return any(each.level is level for each in self.readings.get(value, ()))

    def visible(self, value: str, level: Level) -> bool:
        """Return whether a reader of this level must get the record when it passes it.

        A read_uncommitted reader gets every record.
        """
        if level is Level.UNCOMMITTED or self.read_by(value, Level.COMMITTED):
            return True
        return value in self.sender and self.fate(self.sender[value]) is Fate.THERE

    def known_since(self, send: Operation) -> int:
        """Return the place from which the record must exist: it was acknowledged, or read as
        committed.
        """
        action = of(send, Send)
        acknowledged = [send] if send.phase is Phase.OK else []
        if action.txn is not None:
            ends = self.transactions[action.txn].ends if acknowledged else []
            acknowledged = [op for op in ends if op.phase is Phase.OK and of(op, End).commits]
        polls = [
            each.poll
            for each in self.readings.get(action.value, ())
            if each.level is Level.COMMITTED or action.txn is None
        ]
        return min((op.ended for op in (*acknowledged, *polls)), default=NEVER)

    def places(self, value: str) -> set[tuple[TopicPartition, int]]:
        """Return the offsets of a record: one if all is well, none if no client knows it."""
        found = {(each.row.tp, each.row.offset) for each in self.readings.get(value, ())}
        if (send := self.sender.get(value)) and send.phase is Phase.OK:
            action = of(send, Send)
            if action.offset is not None:
                found.add((action.tp, action.offset))
        return found

    def _believe_readers(self) -> None:
        """Take a transaction as committed if a read_committed reader got a part of it, unless it is
        known to be aborted.
        """
        for txn in self.transactions.values():
            if txn.fate is Fate.UNKNOWN and any(
                self.read_by(of(send, Send).value, Level.COMMITTED) for send in txn.sends
            ):
                txn.fate = Fate.THERE


def transactions(found: list[Operation]) -> dict[str, Transaction]:
    """Return all transactions that any event names."""
    ends: dict[str, list[Operation]] = defaultdict(list)
    sends: dict[str, list[Operation]] = defaultdict(list)
    named: dict[str, None] = {}
    for op in found:
        if (txn := getattr(op.action, "txn", None)) is None:
            continue
        named[txn] = None
        if isinstance(op.action, End):
            ends[txn].append(op)
        elif isinstance(op.action, Send):
            sends[txn].append(op)
    return {name: Transaction(fate_of(ends[name]), ends[name], sends[name]) for name in named}


def fate_of(ends: list[Operation]) -> Fate:
    """Return the outcome of a transaction. A client that left without a commit has not
    committed.
    """
    said = {(of(op, End).commits, op.phase) for op in ends}
    if (True, Phase.OK) in said:
        return Fate.THERE
    if (True, Phase.INFO) in said and (False, Phase.OK) not in said:
        return Fate.UNKNOWN
    return Fate.GONE


def stretches(found: list[Operation]) -> list[Stretch]:
    """Return the stretches of all readers. A client does one thing after the other."""
    current: dict[tuple[str, TopicPartition], Stretch] = {}
    all_of_them: list[Stretch] = []

    def stretch(client: str, tp: TopicPartition, start: int) -> Stretch:
        made = current[client, tp] = Stretch(client, tp, Level.UNCOMMITTED, start, reached=start)
        all_of_them.append(made)
        return made

    for op in sorted((op for op in found if op.phase is Phase.OK), key=lambda op: op.ended):
        match op.action:
            case Assign(positions):
                for key in [key for key in current if key[0] == op.client]:
                    del current[key]
                for tp, start in positions.items():
                    stretch(op.client, tp, start)
            case Poll(level, rows):
                for row in rows:
                    at = current.get((op.client, row.tp)) or stretch(op.client, row.tp, row.offset)
                    at.level = level
                    at.deliveries.append(Delivery(row, op))
                    reach(at, row.offset + 1, op.ended)
            case Drain(level, ends):
                for tp, end in ends.items():
                    at = current.get((op.client, tp)) or stretch(op.client, tp, end)
                    at.level, at.end = level, (end, op.ended)
                    reach(at, end, op.ended)
            case _:
                pass
    return all_of_them


def reach(stretch: Stretch, offset: int, by: int) -> None:
    if offset > stretch.reached:
        stretch.reached, stretch.by = offset, by


def committers(facts: Facts) -> Iterator[tuple[Commit, int, int, bool]]:
    """Return commits that were done, or may be: between which events, and whether for sure."""
    for op in facts.commits:
        action = of(op, Commit)
        if op.phase is Phase.FAIL:
            continue
        if action.txn is None:
            sure = op.phase is Phase.OK
            yield action, op.began, op.ended if sure else NEVER, sure
            continue
        txn = facts.transactions[action.txn]
        if txn.fate is not Fate.GONE:
            done = [end.ended for end in txn.ends if end.phase is Phase.OK]
            yield action, txn.committing, min(done, default=NEVER), bool(done)
