"""tasks/store_restore.py: the state machine of one store, and each row of its faults."""

import pytest

from streamsx.errors import InvalidTransition
from streamsx.tasks.store_restore import (
    Empty,
    EndMoved,
    Event,
    Fetched,
    Opened,
    OutOfRange,
    Promoted,
    Read,
    RestoreState,
    StoreRestore,
    Written,
    newest,
)


def active(position: int | None = 0, end: int = 10, start: int = 0) -> StoreRestore:
    machine = StoreRestore(follows=False, limit=0)
    machine.step(0.0, Opened(position, position is not None, start, end))
    return machine


def learner(end: int, limit: int = 5) -> StoreRestore:
    machine = StoreRestore(follows=True, limit=limit)
    machine.step(0.0, Opened(0, True, 0, end))
    return machine


def fetched(*, to: int) -> Fetched:
    return Fetched(1, to)


def after(machine: StoreRestore, event: Event) -> RestoreState:
    machine.step(2.0, event)
    return machine.state


def test_newest_row_of_each_key_is_kept_in_key_order() -> None:
    keys = [b"b", b"a", b"b", None]
    assert list(newest(keys, [b"0", b"1", None, b"3"]).items()) == [(b"a", b"1"), (b"b", None)]


def test_restore_is_done_only_when_fetched_end_is_written() -> None:
    machine = active(end=1)
    machine.step(1.0, fetched(to=1))
    assert (machine.state, machine.position) == (RestoreState.READING, 0)
    machine.step(2.0, Written())
    assert machine.state is RestoreState.DONE


def test_batch_without_rows_moves_restore_position_past_holes() -> None:
    machine = active(position=3, end=9)
    machine.step(1.0, Fetched(0, 9))
    machine.step(2.0, Written())
    assert (machine.state, machine.position) == (RestoreState.DONE, 9)


def test_store_at_changelog_end_needs_no_restore() -> None:
    machine = StoreRestore(follows=False, limit=0)
    assert machine.step(0.0, Opened(10, True, 0, 10)) == [Read(10)]
    assert machine.state is RestoreState.DONE


def test_empty_store_restores_from_changelog_start() -> None:
    machine = StoreRestore(follows=False, limit=0)
    assert machine.step(0.0, Opened(None, False, 7, 10)) == [Read(7)]


@pytest.mark.parametrize(
    ("position", "why"),
    [
        (640, "the changelog begins at 812, the store is at 640"),
        (950, "the changelog ends at 900, the store is at 950"),
    ],
)
def test_store_outside_changelog_is_kept_aside_and_restored_anew(position: int, why: str) -> None:
    """It was deleted: the brokers have lost those records, and it may be the last copy."""
    machine = StoreRestore(follows=False, limit=0)
    assert machine.step(0.0, Opened(position, True, 812, 900)) == [Empty(why, keep=True), Read(812)]


def test_store_with_rows_but_no_position_is_wiped_and_restored() -> None:
    machine = StoreRestore(follows=False, limit=0)
    wipe = Empty("the store has rows but no position", keep=False)
    assert machine.step(0.0, Opened(None, True, 812, 900)) == [wipe, Read(812)]


def test_changelog_cut_during_restore_restarts_store() -> None:
    machine = active(end=10)
    machine.step(1.0, fetched(to=2))
    effects = machine.step(2.0, OutOfRange(5, 10))
    assert effects == [Empty("the changelog begins at 5, the store is at 0", keep=True), Read(5)]
    machine.step(3.0, fetched(to=10))
    machine.step(4.0, Written())
    assert machine.state is RestoreState.DONE


def test_changelog_cut_outgrown_by_log_reports_lost_offset() -> None:
    """The reason was empty: the log had grown beyond the position before its end was read."""
    machine = learner(end=100, limit=200)
    machine.step(1.0, fetched(to=100))
    machine.step(2.0, Written())
    assert machine.step(3.0, OutOfRange(0, 110)) == [
        Empty("the changelog has lost 100", keep=True), Read(0),
    ]  # fmt: skip


def test_store_at_end_is_done_when_changelog_is_cut() -> None:
    """Of two tables the other one was still being restored, and the worker ended with a bug."""
    assert after(active(10, end=10), OutOfRange(0, 5)) is RestoreState.DONE


def test_learner_is_ready_near_end_and_unready_beyond_twice_the_limit() -> None:
    machine = learner(end=8, limit=5)
    machine.step(1.0, fetched(to=3))
    machine.step(2.0, Written())
    assert (machine.state, machine.lag) == (RestoreState.TAILING, 5)
    machine.step(3.0, EndMoved(13))
    assert (machine.state, machine.lag) == (RestoreState.TAILING, 10)
    machine.step(4.0, EndMoved(14))
    assert (machine.state, machine.lag) == (RestoreState.READING, 11)


def test_promoted_learner_reads_to_end_read_after_release() -> None:
    machine = learner(end=2, limit=5)
    assert machine.state is RestoreState.TAILING
    assert after(machine, Promoted(4)) is RestoreState.READING
    machine.step(2.0, fetched(to=4))
    assert after(machine, Written()) is RestoreState.DONE


def test_promotion_to_end_before_restore_start_has_nothing_to_restore() -> None:
    """A replica that lacks the last records leads the learner's changelog when it is promoted."""
    machine = StoreRestore(follows=True, limit=5)
    machine.step(0.0, Opened(10, True, 0, 12))
    assert machine.total == 2
    machine.step(1.0, Promoted(4))
    assert machine.total == 0


def test_promotion_waits_for_write_in_progress() -> None:
    machine = learner(end=4)
    machine.step(1.0, fetched(to=4))
    assert after(machine, Promoted(4)) is RestoreState.READING
    machine.step(3.0, Written())
    assert machine.state is RestoreState.DONE


def test_fetch_during_unfinished_write_raises_invalid_transition() -> None:
    machine = active()
    machine.step(1.0, fetched(to=1))
    with pytest.raises(InvalidTransition, match="Fetched while reading"):
        machine.step(2.0, fetched(to=2))
