"""The judge of histories: each anomaly is planted alone and found, and what is right is not one."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from streamsx.clock import SystemClock
from streamsx.model import TopicPartition
from tests.support.history.anomalies import Kind, told
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
    Source,
)
from tests.support.history.journal import Journal, merged
from tests.support.history.judge import forbidden, judge

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
OK, FAIL, INFO = Phase.OK, Phase.FAIL, Phase.INFO
DIRTY = Level.UNCOMMITTED


class Script:
    """Writes a history by hand, one line an operation. Without `over` it is so at once."""

    def __init__(self) -> None:
        self.history: History = []
        self._operations = 0

    def begin(self, client: str, action: Action) -> Callable[[Phase, Action], None]:
        self._operations += 1
        number = self._operations
        self.history.append(Event(client, number, Phase.INVOKE, action))
        return lambda phase, outcome: self.history.append(Event(client, number, phase, outcome))

    def done(
        self, client: str, action: Action, phase: Phase, outcome: Action | None = None
    ) -> None:
        self.begin(client, action)(phase, outcome or action)

    def send(
        self, value: str, tp: TopicPartition, offset: int | None, phase: Phase = OK,
        txn: str | None = None, client: str = "w", source: Source | None = None,
    ) -> None:  # fmt: skip
        asked = Send(tp, value, txn, source=source)
        self.done(client, asked, phase, Send(tp, value, txn, offset, source))

    def end(self, txn: str, *, commits: bool, phase: Phase = OK) -> None:
        self.done("w", End(txn, commits), phase)

    def read(
        self, reader: str, *rows: tuple[TopicPartition, int, str],
        level: Level = Level.COMMITTED, txn: str | None = None,
    ) -> None:  # fmt: skip
        found = tuple(Row(*row) for row in rows)
        self.done(reader, Poll(level, txn=txn), OK, Poll(level, found, txn))

    def assign(self, reader: str, **positions: int) -> None:
        where = {tp: positions[name] for name, tp in (("p", P), ("q", Q)) if name in positions}
        self.at_once(reader, Assign(where))

    def drain(self, reader: str, end: int, level: Level = Level.COMMITTED) -> None:
        self.at_once(reader, Drain(level, {P: end}))

    def commit(self, offset: int, phase: Phase = OK, txn: str | None = None) -> None:
        self.done("m", Commit("g", {P: offset}, txn), phase)

    def committed(self, offset: int | None) -> None:
        offsets = {} if offset is None else {P: offset}
        self.done("m", Committed("g", (P,), {}), OK, Committed("g", (P,), offsets))

    def at_once(self, client: str, action: Action) -> None:
        self._operations += 1
        self.history.append(Event(client, self._operations, OK, action))


def lost_before_others(s: Script) -> None:
    s.send("a", P, 0)
    s.send("b", P, 1)
    s.assign("r", p=0)
    s.read("r", (P, 1, "b"))


def lost_at_the_end(s: Script) -> None:
    s.send("a", P, 0)
    s.assign("r", p=0)
    s.drain("r", 0)


def lost_after_it_was_read(s: Script) -> None:
    s.send("a", P, 0)
    s.read("r", (P, 0, "a"))
    s.assign("r2", p=0)
    s.drain("r2", 0)


def lost_without_an_offset(s: Script) -> None:
    s.send("a", P, None)
    s.assign("r", p=0)
    s.drain("r", 7)


def lost_although_it_is_committed(s: Script) -> None:
    s.send("a", P, 0, txn="x")
    s.end("x", commits=True)
    s.assign("r", p=0)
    s.drain("r", 2)


def lost_to_who_reads_uncommitted(s: Script) -> None:
    s.send("a", P, 0)
    s.assign("r", p=0)
    s.drain("r", 1, level=DIRTY)


def torn(s: Script) -> None:
    """Plant a torn transaction; that it was committed shows only in a read of it."""
    s.send("a", P, 0, txn="x")
    s.send("b", Q, 0, txn="x")
    s.end("x", commits=True, phase=INFO)
    s.assign("r", p=0, q=0)
    s.read("r", (P, 0, "a"))
    s.send("c", Q, 2, client="w2")
    s.read("r", (Q, 2, "c"))


def aborted(s: Script) -> None:
    s.send("a", P, 0, txn="x")
    s.end("x", commits=False)
    s.read("r", (P, 0, "a"))


def left_alone(s: Script) -> None:
    """Plant a transaction whose client was killed before it asked for an end."""
    s.send("a", P, 0, txn="x")
    s.read("r", (P, 0, "a"))


def refused(s: Script) -> None:
    s.send("a", P, None, phase=FAIL)
    s.read("r", (P, 0, "a"), level=DIRTY)


def dirty(s: Script) -> None:
    s.send("a", P, 0, txn="x")
    s.read("r", (P, 0, "a"))
    s.end("x", commits=True)


def own_writes(s: Script) -> None:
    s.send("a", P, 0, txn="x")
    s.read("w", (P, 0, "a"), txn="x")
    s.end("x", commits=True)


def of_nobody(s: Script) -> None:
    s.read("r", (P, 0, "?"))


def of_another_partition(s: Script) -> None:
    s.send("a", P, None)
    s.read("r", (Q, 0, "a"))


def from_the_future(s: Script) -> None:
    s.read("r", (P, 0, "a"))
    s.send("a", P, 0)


def other_orders(s: Script) -> None:
    """Plant another order: records that were read before the kill are overwritten after it."""
    s.send("a", P, None, phase=INFO)
    s.send("b", P, None, phase=INFO, client="w2")
    s.read("r", (P, 0, "a"))
    s.read("r2", (P, 0, "b"))


def acknowledged_elsewhere(s: Script) -> None:
    s.send("a", P, 0)
    s.send("b", P, None, phase=INFO, client="w2")
    s.read("r", (P, 0, "b"))
    s.read("r", (P, 1, "a"))


def twice(s: Script) -> None:
    s.send("a", P, None)
    s.read("r", (P, 0, "a"), (P, 1, "a"))


def skipped(s: Script) -> None:
    s.send("a", P, 0)
    s.send("b", P, 1)
    s.read("r", (P, 0, "a"), (P, 1, "b"))
    s.assign("r2", p=0)
    s.read("r2", (P, 1, "b"))


def skipped_amid(s: Script) -> None:
    for offset, value in enumerate("abc"):
        s.send(value, P, offset)
    s.read("r", (P, 0, "a"), (P, 1, "b"), (P, 2, "c"))
    s.read("r2", (P, 0, "a"))
    s.read("r2", (P, 2, "c"))


def skipped_by_the_dirty(s: Script) -> None:
    """Plant a skip by a read_uncommitted reader, who must also see aborted records."""
    s.send("a", P, 0, txn="x")
    s.end("x", commits=False)
    s.read("r", (P, 0, "a"), level=DIRTY)
    s.assign("r2", p=0)
    s.drain("r2", 2, level=DIRTY)


def seen_uncommitted_alone(s: Script) -> None:
    s.send("a", P, 0, txn="x")
    s.end("x", commits=True)
    s.read("r", (P, 0, "a"), level=DIRTY)
    s.assign("r2", p=0)
    s.drain("r2", 2)


def skipped_although_nobody_knew(s: Script) -> None:
    """Plant a skipped record without a transaction: it must be read once any reader has read it."""
    s.send("a", P, None, phase=INFO)
    s.read("r", (P, 0, "a"), level=DIRTY)
    s.assign("r2", p=0)
    s.drain("r2", 1)


def back_by_itself(s: Script) -> None:
    s.send("a", P, 0)
    s.send("b", P, 1)
    s.read("r", (P, 0, "a"), (P, 1, "b"))
    s.read("r", (P, 0, "a"))


def out_of_order_within_a_poll(s: Script) -> None:
    s.send("a", P, 0)
    s.send("b", P, 1)
    s.read("r", (P, 1, "b"), (P, 0, "a"))


def before_where_it_began(s: Script) -> None:
    s.send("a", P, 0)
    s.assign("r", p=1)
    s.read("r", (P, 0, "a"))


def sent_later_stands_earlier(s: Script) -> None:
    s.send("a", P, 1)
    s.send("b", P, 0)


def sent_after_it_was_acknowledged(s: Script) -> None:
    s.send("a", P, 1, client="w1")
    s.send("b", P, 0, client="w2")


def commit_lost(s: Script) -> None:
    s.commit(5)
    s.commit(9)
    s.committed(5)


def commit_forgotten(s: Script) -> None:
    s.commit(5)
    s.committed(None)


def commit_seen_and_gone(s: Script) -> None:
    """Plant a commit that one answer shows, and that a later one has lost."""
    s.commit(5)
    s.commit(9, phase=INFO)
    s.committed(9)
    s.committed(5)


def commit_in_a_transaction_lost(s: Script) -> None:
    s.commit(5, txn="x")
    s.end("x", commits=True)
    s.committed(None)


def commit_refused(s: Script) -> None:
    s.commit(5)
    s.commit(9, phase=FAIL)
    s.committed(9)


def commit_aborted(s: Script) -> None:
    s.commit(5)
    s.commit(9, txn="x")
    s.end("x", commits=False)
    s.committed(9)


def commit_ahead_of_its_transaction(s: Script) -> None:
    s.commit(9, txn="x")
    s.committed(9)
    s.end("x", commits=True)


def repeated(s: Script) -> None:
    source = Source("g", Q, 0)
    for number in range(2):
        s.send(f"a{number}", P, 2 * number, txn=f"x{number}", source=source)
        s.end(f"x{number}", commits=True)


def nothing_made(s: Script) -> None:
    """The offsets are committed, and the record that was made is aborted."""
    s.send("a", P, 0)
    s.read("m", (P, 0, "a"))
    s.send("b", Q, 0, txn="x", source=Source("g", P, 0))
    s.end("x", commits=False)
    s.commit(1)
    s.committed(1)


def half_committed(s: Script) -> None:
    """Plant a half committed transaction: its offsets are committed, and its record is missing."""
    s.send("a", P, 0)
    s.read("m", (P, 0, "a"))
    s.send("b", Q, 0, txn="x", source=Source("g", P, 0))
    s.commit(1, txn="x")
    s.end("x", commits=True, phase=INFO)
    s.committed(1)
    s.at_once("r", Drain(Level.COMMITTED, {Q: 2}))


def written_in_a_circle(s: Script) -> None:
    s.send("a1", P, 0, txn="x", client="w1")
    s.send("b1", P, 1, txn="y", client="w2")
    s.send("b2", Q, 0, txn="y", client="w2")
    s.send("a2", Q, 1, txn="x", client="w1")
    s.end("x", commits=True)
    s.end("y", commits=True)


def read_dirty_in_a_circle(s: Script) -> None:
    s.send("a", P, 0, txn="x")
    s.send("b", Q, 0, txn="y")
    s.read("rx", (Q, 0, "b"), level=DIRTY, txn="x")
    s.read("ry", (P, 0, "a"), level=DIRTY, txn="y")
    s.end("x", commits=True)
    s.end("y", commits=True)


def read_what_wrote_after_it(s: Script) -> None:
    """x wrote before y in P, and read what y wrote in Q."""
    s.send("a", P, 0, txn="x", client="w1")
    s.send("b1", P, 1, txn="y", client="w2")
    s.send("b2", Q, 0, txn="y", client="w2")
    s.end("y", commits=True)
    s.read("rx", (Q, 0, "b2"), txn="x")
    s.end("x", commits=True)


PLANTED: list[tuple[Callable[[Script], None], Kind]] = [
    (lost_before_others, Kind.LOST_WRITE),
    (lost_at_the_end, Kind.LOST_WRITE),
    (lost_after_it_was_read, Kind.LOST_WRITE),
    (lost_without_an_offset, Kind.LOST_WRITE),
    (lost_although_it_is_committed, Kind.LOST_WRITE),
    (lost_to_who_reads_uncommitted, Kind.LOST_WRITE),
    (torn, Kind.TORN_TRANSACTION),
    (aborted, Kind.ABORTED_READ),
    (left_alone, Kind.ABORTED_READ),
    (refused, Kind.ABORTED_READ),
    (dirty, Kind.DIRTY_READ),
    (own_writes, Kind.DIRTY_READ),
    (of_nobody, Kind.UNSENT_READ),
    (of_another_partition, Kind.UNSENT_READ),
    (from_the_future, Kind.UNSENT_READ),
    (other_orders, Kind.INCONSISTENT_OFFSET),
    (twice, Kind.DUPLICATE),
    (skipped, Kind.POLL_SKIP),
    (skipped_amid, Kind.POLL_SKIP),
    (skipped_by_the_dirty, Kind.POLL_SKIP),
    (seen_uncommitted_alone, Kind.POLL_SKIP),
    (skipped_although_nobody_knew, Kind.POLL_SKIP),
    (back_by_itself, Kind.NONMONOTONIC_POLL),
    (out_of_order_within_a_poll, Kind.NONMONOTONIC_POLL),
    (before_where_it_began, Kind.NONMONOTONIC_POLL),
    (sent_later_stands_earlier, Kind.NONMONOTONIC_SEND),
    (sent_after_it_was_acknowledged, Kind.NONMONOTONIC_SEND),
    (commit_lost, Kind.COMMIT_WENT_BACK),
    (commit_forgotten, Kind.COMMIT_WENT_BACK),
    (commit_seen_and_gone, Kind.COMMIT_WENT_BACK),
    (commit_in_a_transaction_lost, Kind.COMMIT_WENT_BACK),
    (commit_refused, Kind.COMMIT_OF_NOBODY),
    (commit_aborted, Kind.COMMIT_OF_NOBODY),
    (commit_ahead_of_its_transaction, Kind.COMMIT_OF_NOBODY),
    (repeated, Kind.REPEATED_EFFECT),
    (nothing_made, Kind.LOST_EFFECT),
    (half_committed, Kind.LOST_EFFECT),
    (written_in_a_circle, Kind.WRITE_CYCLE),
    (read_dirty_in_a_circle, Kind.MIXED_CYCLE),
    (read_what_wrote_after_it, Kind.MIXED_CYCLE),
]


@pytest.mark.parametrize(("plant", "kind"), PLANTED)
def test_planted_anomaly_is_the_only_anomaly_found(
    plant: Callable[[Script], None], kind: Kind
) -> None:
    script = Script()
    plant(script)
    found = judge(script.history)
    assert [anomaly.kind for anomaly in found] == [kind], told(found, script.history)
    assert all(0 <= at < len(script.history) for at in found[0].witnesses)
    assert bool(forbidden(found)) == (kind not in {Kind.WRITE_CYCLE, Kind.MIXED_CYCLE})


def test_acknowledgment_of_another_record_is_inconsistent_and_duplicate() -> None:
    script = Script()
    acknowledged_elsewhere(script)
    found = {anomaly.kind for anomaly in judge(script.history)}
    assert found == {Kind.INCONSISTENT_OFFSET, Kind.DUPLICATE}


def test_cycle_of_committed_reads_is_also_a_dirty_read() -> None:
    """One of the two must have read before the other one asked for its commit."""
    s = Script()
    s.send("a", P, 0, txn="x")
    s.send("b", Q, 0, txn="y")
    s.read("rx", (Q, 0, "b"), txn="x")
    s.end("x", commits=True)
    s.read("ry", (P, 0, "a"), txn="y")
    s.end("y", commits=True)
    assert [anomaly.kind for anomaly in judge(s.history)] == [Kind.DIRTY_READ, Kind.READ_CYCLE]


def test_every_kind_of_anomaly_is_planted() -> None:
    assert {kind for _, kind in PLANTED} | {Kind.READ_CYCLE} == set(Kind)


def test_operation_of_unknown_outcome_may_be_present_or_absent() -> None:
    s = Script()
    s.send("a", P, None, phase=INFO)
    s.send("b", P, None, phase=INFO)
    s.begin("w", Send(P, "c"))
    s.send("d", Q, 0, txn="x")
    s.end("x", commits=True, phase=INFO)
    s.commit(5)
    s.commit(7, phase=INFO)
    s.committed(5)
    s.committed(7)
    s.committed(7)
    s.assign("r", p=0, q=0)
    s.read("r", (P, 0, "b"))
    s.drain("r", 1)
    assert judge(s.history) == []


def test_reassigned_reader_may_seek_back_and_skip_records() -> None:
    s = Script()
    for offset, value in enumerate("abc"):
        s.send(value, P, offset)
    s.read("r", (P, 0, "a"), (P, 1, "b"))
    s.assign("r", p=0)
    s.read("r", (P, 0, "a"))
    s.assign("r", p=2)
    s.read("r", (P, 2, "c"))
    assert judge(s.history) == []


def test_a_group_may_commit_less_than_before() -> None:
    s = Script()
    s.commit(9)
    s.commit(5)
    s.committed(5)
    assert judge(s.history) == []


def test_either_concurrent_commit_may_be_the_last() -> None:
    for told_last in (5, 9):
        s = Script()
        five = s.begin("m1", Commit("g", {P: 5}))
        nine = s.begin("m2", Commit("g", {P: 9}))
        five(OK, Commit("g", {P: 5}))
        nine(OK, Commit("g", {P: 9}))
        s.committed(told_last)
        assert judge(s.history) == []


def test_drained_partition_may_receive_records_later() -> None:
    s = Script()
    s.assign("r", p=0)
    s.drain("r", 0)
    s.send("a", P, 0)
    assert judge(s.history) == []


def test_output_of_a_committed_source_record_may_be_read_later() -> None:
    s = Script()
    s.send("a", P, 0)
    s.read("m", (P, 0, "a"))
    s.send("b", Q, 0, txn="x", source=Source("g", P, 0))
    s.commit(1, txn="x")
    s.end("x", commits=True, phase=INFO)
    s.committed(1)
    assert judge(s.history) == []


def test_inconsistent_events_are_refused_as_history() -> None:
    s = Script()
    s.send("a", P, 0)
    s.send("a", P, 1)
    with pytest.raises(ValueError, match="sent twice"):
        judge(s.history)
    with pytest.raises(ValueError, match="fits to no operation"):
        judge([Event("w", 1, OK, Send(P, "a"))])
    over = s.history[:2]
    with pytest.raises(ValueError, match="over already"):
        judge([*over, over[1]])


def test_history_merges_all_journals_in_order_of_time(tmp_path: Path) -> None:
    """The unfinished line of a killed client is left out."""
    time = iter(range(1, 9))

    class Ticks(SystemClock):
        def now(self) -> float:
            return next(time)

    paths = [tmp_path / name for name in "ab"]
    with (
        closing(Journal(paths[0], "a", Ticks())) as a,
        closing(Journal(paths[1], "b", Ticks())) as b,
    ):
        over = a.begin(Send(P, "x"))
        b.note(Assign({P: 0}))
        over(OK, Send(P, "x", offset=0))
        b.begin(Send(P, "y"))
    paths[1].write_bytes(paths[1].read_bytes()[:-3])
    told_by = [(event.client, event.operation, event.phase) for event in merged(paths)]
    assert told_by == [("a", 1, Phase.INVOKE), ("b", 1, OK), ("a", 1, OK)]
