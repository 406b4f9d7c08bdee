"""processing/waiting.py: what waits for a commit, or for the end of a record."""

from streamsx.processing.waiting import WaitingChanges, WaitingResults


def test_results_of_a_record_are_undone() -> None:
    results = WaitingResults()
    results["a"] = 1
    results["b"] = 2
    results.keep()
    results["a"] = 3
    results["a"] = 4
    results["c"] = 5
    results.undo()
    assert results == {"a": 1, "b": 2}
    results.undo()
    assert results == {"a": 1, "b": 2}


def test_results_that_have_left_do_not_come_back() -> None:
    results = WaitingResults()
    results["a"] = 1
    results.clear()
    results.undo()
    assert results == {}


def test_changes_leave_in_order_or_not_at_all() -> None:
    sent: list[tuple[str, int]] = []
    waiting = WaitingChanges()
    one = waiting.holding(lambda n: sent.append(("one", n)))
    two = waiting.holding(lambda n: sent.append(("two", n)))
    one(1)
    waiting.drop()
    two(2)
    one(3)
    assert sent == []
    waiting.leave()
    waiting.leave()
    assert sent == [("two", 2), ("one", 3)]
