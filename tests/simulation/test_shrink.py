"""Shrinking of a failing seed: only the faults that it needs are left."""

import pytest

from streamsx.simulation.shrink import Without, needed
from streamsx.simulation.world import play
from streamsx.worker import wiring
from tests.simulation.test_planted import NothingIsWithheld


@pytest.mark.parametrize("wanted", [set(), {0}, {19}, {3, 4}, {0, 7, 19}])
def test_shrinking_leaves_exactly_the_needed_faults(wanted: set[int]) -> None:
    tries = []

    def fails(without: Without) -> bool:
        tries.append(without)
        return not wanted & without

    assert set(needed(20, fails, 100)) == wanted
    assert len(tries) < 60


def test_shrinking_stops_after_the_given_number_of_tries() -> None:
    assert needed(8, lambda without: not {5} & without, 1) == [4, 5, 6, 7]
    assert needed(8, lambda _: False, 100) == list(range(8))
    assert needed(0, lambda _: True, 100) == []


@pytest.mark.slow
def test_story_of_a_planted_bug_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "StreamsPartitionAssignor", NothingIsWithheld)
    found = next(r for r in (play(seed, story=0) for seed in range(500)) if r.violation)
    assert found.violation is not None
    rule = found.violation.rule

    def fails(without: Without) -> bool:
        wrong = play(found.seed, story=0, without=without).violation
        return wrong is not None and wrong.rule == rule

    kept = needed(found.struck, fails, tries=12)

    assert len(kept) < found.struck
    assert fails(Without(range(found.struck)).difference(kept))
