"""A group of real workers counts words: it starts, grows and shrinks, and every count is right."""

import pytest

from streamsx.tools.demonstration.group import SeenEvent
from tests.process.conftest import ON_KAFKA
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

LINES_PER_S = 800
STATEFUL = "1_"


def share(workers: Workers, wordcount: WordCount, *names: str, apart: int = 100) -> None:
    """Wait until these workers run all tasks, and each some with a store and some without.

    Args:
        apart: How many tasks one of them may have more than another. Learners may still be on their
            way when all tasks have an owner.
    """

    def shared() -> bool:
        active = workers.active()
        tasks = [task for name in names for task in active.get(name, ())]
        counts = [len(active.get(name, ())) for name in names]
        kinds = [{task[:2] for task in active.get(name, ())} for name in names]
        whole = len(set(tasks)) == len(tasks) == 2 * wordcount.partitions
        even = max(counts) - min(counts) <= apart
        return whole and even and all(len(kind) == 2 for kind in kinds)

    workers.until(shared, f"all tasks shared by {names}")


def moves(workers: Workers, since: float) -> list[SeenEvent]:
    """Return the tasks that their owners stopped."""
    events = workers.events("task", to="suspended")
    return [event for event in events if event["mono"] > since]


def before(event: SeenEvent, events: list[SeenEvent]) -> SeenEvent | None:
    """Return the newest of these events before another one."""
    return next((e for e in reversed(events) if e["mono"] < event["mono"]), None)


@pytest.mark.parametrize(
    "broker",
    [
        pytest.param("embedded", marks=pytest.mark.slow),
        pytest.param("kafka", marks=ON_KAFKA),
    ],
    indirect=True,
)
def test_group_grows_and_shrinks_with_every_count_right(
    workers: Workers, wordcount: WordCount
) -> None:
    wordcount.feed(LINES_PER_S)
    settings = {"commit_interval": "300ms", "acceptable_recovery_lag": 100}
    workers.start("a", **settings)
    workers.until_event("commit", of="a", count=4)
    share(workers, wordcount, "a")
    for grown, fewest in ((("a", "b"), 4), (("a", "b", "c"), 2)):
        began = workers.now()
        workers.start(grown[-1], **settings)
        share(workers, wordcount, *grown, apart=1)
        moved = [move["task"] for move in moves(workers, began)]
        assert len(moved) == len(set(moved)), "a task was moved twice"
        assert fewest <= len(moved) <= fewest + 1, "a task that stays was stopped"
    # Who has just handed a task over would take it back without learning: it still has it.
    workers.until_event("commit", of="c", count=4, since=workers.now())
    assert workers.stop("c") == [0]
    share(workers, wordcount, "a", "b")
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")

    assert wordcount.counts() == wordcount.words
    assert not workers.events("lost", "error")
    for move in moves(workers, 0.0):
        if move["task"].startswith(STATEFUL):
            check_that_its_learner_was_ready(workers, move)
    assert workers.stop("a", "b") == [0, 0]


def check_that_its_learner_was_ready(workers: Workers, move: SeenEvent) -> None:
    """Check that the owner ran the task until a learner was near the end, and that this learner
    read on to the end.
    """
    task = move["task"]
    ready = before(move, workers.events("learner_ready", task=task))
    assert ready, f"{task} was taken from {move['instance']} with no learner ready"
    assert ready["instance"] != move["instance"]
    heir = workers.events("task", of=ready["instance"], task=task, role="active", to="running")
    run = next(event for event in heir if event["mono"] > move["mono"])
    told = workers.events("restore_progress", of=ready["instance"], task=task, role="active")
    read = before(run, told)
    assert read
    assert read["mono"] > move["mono"], "its end was read before the owner had let go"
    assert read["restored"] >= read["end"]
    released = workers.events("task", of=move["instance"], task=task, to="closing")
    assert any(move["mono"] <= e["mono"] < read["mono"] for e in released)
