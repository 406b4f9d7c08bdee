"""Swaps: the named successor takes the leaving member's tasks, and no other member gets any."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamsx.assignor.model import LeaveRequest, Rules
from streamsx.model import TaskId

if TYPE_CHECKING:
    from tests.properties.assignor.conftest import Play

ROUNDS_MAX = 60


def settle(group: "Play") -> None:
    """Play until nothing changes; learners reach the end between two rounds."""
    before: object = None
    for _ in range(ROUNDS_MAX):
        for name, seat in group.seats.items():
            for task in seat.unready:
                group.seats[name].reach(task, 0)
        group.round()
        for name in [
            name for name, seat in group.seats.items() if seat.leaving and not seat.claims
        ]:
            del group.seats[name]
        now = {name: (seat.claims, dict(seat.copies)) for name, seat in group.seats.items()}
        if now == before:
            return
        before = now
    raise AssertionError(f"not settled in {ROUNDS_MAX} rounds")


def kept(group: "Play") -> dict[str, set[TaskId]]:
    """Return the tasks with state of each member; tasks without state go where there is room."""
    return {n: {t for t in seat.claims if not t.subtopology} for n, seat in group.seats.items()}


@pytest.fixture(scope="module")
def kind() -> "type[Play]":
    from tests.properties.assignor.conftest import Play

    return Play


@settings(max_examples=150)
@given(
    st.integers(1, 24), st.integers(0, 8), st.integers(1, 6), st.integers(0, 5), st.booleans(),
    st.sampled_from([None, 1, 3]),
)  # fmt: skip
def test_successor_takes_the_seat_and_no_other_member_moves(
    kind: "type[Play]", stateful: int, stateless: int, members: int, leaver: int, new: bool,
    limit: int | None,
) -> None:  # fmt: skip
    group = kind(
        [TaskId(0, n) for n in range(stateful)], [TaskId(1, n) for n in range(stateless)],
        Rules(acceptable_recovery_lag=0, max_learners_per_member=limit),
    )  # fmt: skip
    for n in range(members + (not new)):
        group.start(f"m{n}")
    settle(group)
    old = f"m{leaver % members}"
    successor = "z" if new else f"m{members}"
    if new:
        group.start(successor)
    before = kept(group)
    group.seats[old].leaving = LeaveRequest(swap_to=successor)
    settle(group)
    expected = {name: tasks for name, tasks in before.items() if name not in (old, successor)}
    expected[successor] = before[old] | before[successor]
    assert set().union(*(seat.claims for seat in group.seats.values())) == set(group.tasks)
    if new:  # else, when the old one is gone, they are evened out
        assert kept(group) == expected


def test_swap_to_an_absent_successor_is_an_ordinary_leave(kind: "type[Play]") -> None:
    group = kind([TaskId(0, n) for n in range(6)])
    for name in "abc":
        group.start(name)
    settle(group)
    group.seats["a"].leaving = LeaveRequest(swap_to="nobody")
    settle(group)
    assert {name: len(seat.claims) for name, seat in group.seats.items()} == {"b": 3, "c": 3}
