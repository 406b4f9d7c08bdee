"""Judge of histories: a correct broker has no anomaly, however its clients interleave.

Anomalies are planted one by one in `unit/support/test_history.py`.
"""

import random
from collections.abc import Callable
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from streamsx.model import TopicPartition
from tests.support.history.anomalies import told
from tests.support.history.events import (
    Action,
    Assign,
    Commit,
    Committed,
    Drain,
    End,
    Event,
    History,
    Level,
    Phase,
    Poll,
    Row,
    Send,
)
from tests.support.history.facts import at_once
from tests.support.history.judge import forbidden, judge

TPS = (TopicPartition("t", 0), TopicPartition("t", 1))
CLIENTS, STEPS_MAX = 3, 80
T = TypeVar("T")
Draw = Callable[[int], int]
"""A number below the given one."""


class Sequential:
    """Correct broker, and clients that do one thing after the other.

    An operation takes effect at once, at some time between its invocation and its end. The client
    may never learn of the end.
    """

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.history: History = []
        self.logs: dict[TopicPartition, list[tuple[str, str | None] | None]] = {
            tp: [] for tp in TPS
        }
        """Of values with their transactions; a marker has none."""
        self.open: dict[str, set[TopicPartition]] = {}
        self.aborted: set[str] = set()
        self.positions: dict[str, dict[TopicPartition, int]] = {}
        self.offset: int | None = None
        self._numbers = self._values = 0

    def run(self, times: int) -> History:
        """Play this many steps of all clients, then let a reader of each isolation level read
        everything.
        """
        steps = (self.send, self.transact, self.poll, self.commit, self.ask)
        for _ in range(times):
            steps[self.draw(len(steps))](self.draw(CLIENTS))
        for txn in tuple(self.open):
            self._end(txn, commits=False)
        for level in Level:
            reader = f"last-{level}"
            self._seek(reader, dict.fromkeys(TPS, 0))
            for _ in TPS:
                self._poll(reader, level, 1000)
            self._now(reader, Drain(level, {tp: len(log) for tp, log in self.logs.items()}))
        return self.history

    def send(self, client: int) -> None:
        tp, value = TPS[self.draw(len(TPS))], self._value()
        over = self._begin(f"plain-{client}", Send(tp, value))
        fate = self.draw(6)
        if fate == 0:
            over(Phase.FAIL, Send(tp, value))
            return
        offset = self._append(tp, value, None) if fate > 1 else None
        if fate > 2:
            over(Phase.OK, Send(tp, value, offset=offset if fate > 3 else None))
        elif fate == 2:
            over(Phase.INFO, Send(tp, value))

    def transact(self, client: int) -> None:
        """Play one step of a transaction: one more record, or its end."""
        txn = next((txn for txn in self.open if txn.startswith(f"{client}:")), None)
        if txn is None:
            txn = f"{client}:{self._value()}"
            self.open[txn] = set()
        if self.draw(3):
            tp, value = TPS[self.draw(len(TPS))], self._value()
            over = self._begin(f"txn-{client}", Send(tp, value, txn))
            self.open[txn].add(tp)
            over(Phase.OK, Send(tp, value, txn, self._append(tp, value, txn)))
        else:
            self._end(txn, commits=bool(self.draw(2)))

    def poll(self, client: int) -> None:
        level = (Level.COMMITTED, Level.UNCOMMITTED)[client % 2]
        reader = f"reader-{client}"
        if not self.draw(4) or reader not in self.positions:
            self._seek(reader, {tp: self.draw(len(self.logs[tp]) + 1) for tp in TPS})
        self._poll(reader, level, 1 + self.draw(5))

    def commit(self, client: int) -> None:
        tp, offset = TPS[0], self.draw(100)
        over = self._begin(f"member-{client}", Commit("g", {tp: offset}))
        fate = self.draw(5)
        if fate == 0:
            over(Phase.FAIL, Commit("g", {tp: offset}))
            return
        self.offset = offset if fate > 1 else self.offset
        if fate > 2:
            over(Phase.OK, Commit("g", {tp: offset}))

    def ask(self, client: int) -> None:
        over = self._begin(f"member-{client}", Committed("g", TPS, {}))
        offsets = {} if self.offset is None else {TPS[0]: self.offset}
        over(Phase.OK, Committed("g", TPS, offsets))

    def _end(self, txn: str, *, commits: bool) -> None:
        """End a transaction whose client may not learn of it; or the client is gone, and the broker
        aborts it.
        """
        left = not commits and not self.draw(3)
        if not left:
            over = self._begin(f"txn-{txn[0]}", End(txn, commits))
            if self.draw(4):
                over(Phase.OK, End(txn, commits))
        for tp in self.open.pop(txn):
            self.logs[tp].append(None)
        if not commits:
            self.aborted.add(txn)

    def _poll(self, reader: str, level: Level, most: int) -> None:
        over = self._begin(reader, Poll(level))
        rows: list[Row] = []
        for tp, log in self.logs.items():
            position = self.positions[reader][tp]
            while position < len(log) and len(rows) < most:
                value, txn = log[position] or (None, None)
                if level is Level.COMMITTED and txn in self.open:
                    break
                if value and (level is Level.UNCOMMITTED or txn not in self.aborted):
                    rows.append(Row(tp, position, value))
                position += 1
            self.positions[reader][tp] = position
        over(Phase.OK, Poll(level, tuple(rows)))

    def _append(self, tp: TopicPartition, value: str, txn: str | None) -> int:
        self.logs[tp].append((value, txn))
        return len(self.logs[tp]) - 1

    def _value(self) -> str:
        self._values += 1
        return f"v{self._values}"

    def _seek(self, reader: str, positions: dict[TopicPartition, int]) -> None:
        self.positions[reader] = positions
        self._now(reader, Assign(dict(positions)))

    def _now(self, client: str, action: Action) -> None:
        self._numbers += 1
        self.history.append(Event(client, self._numbers, Phase.OK, action))

    def _begin(self, client: str, action: Action) -> Callable[[Phase, Action], None]:
        self._numbers += 1
        number = self._numbers
        self.history.append(Event(client, number, Phase.INVOKE, action))
        return lambda phase, outcome: self.history.append(Event(client, number, phase, outcome))


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Draw a seed and a length: with each step drawn by itself a test takes minutes."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    history = Sequential(rng.randrange).run(draw(st.integers(0, STEPS_MAX)))
    for _ in range(draw(st.sampled_from([0, 3 * len(history)]))):
        stretch(history, rng.randrange(len(history) - 1))
    return history


def stretch(history: History, at: int) -> None:
    """Let an operation begin earlier, or end later, than an operation of another client beside
    it.
    """
    first, second = history[at : at + 2]
    earlier = second.phase is Phase.INVOKE
    later = first.phase is not Phase.INVOKE and not at_once(first.action)
    if first.client != second.client and (earlier or later):
        history[at : at + 2] = [second, first]


@given(histories())
def test_history_of_a_correct_broker_has_no_forbidden_anomaly(history: History) -> None:
    found = judge(history)
    assert not forbidden(found), told(found, history)
