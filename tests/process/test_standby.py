"""Standbys after a kill: the worker with the standby continues the task, and restores nothing."""

from tests.process.conftest import SLOW_ON_KAFKA
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

LINES_PER_S = 400
SESSION_S, HEARTBEAT_S, NOISE_S = 3.0, 0.5, 12.0
"""Half a second is what it takes; the rest is what a machine with two cores may be busy for."""


def follows(workers: Workers, name: str) -> set[str]:
    """Return the tasks with state of which the worker has a standby with a small lag."""
    state = {e["task"]: (e["role"], e["to"]) for e in workers.events("task", of=name)}
    return {task for task, at in state.items() if at == ("standby", "tailing")}


@SLOW_ON_KAFKA
def test_standbys_take_over_from_a_killed_worker(workers: Workers, wordcount: WordCount) -> None:
    settings = {
        "session_timeout": f"{SESSION_S:g}s",
        "commit_interval": "400ms",
        "num_standby_replicas": 1,
    }
    for name, zone in (("a", "x"), ("b", "y"), ("c", "y")):
        workers.start(name, tags=f"zone={zone}", **settings)
    wordcount.feed(LINES_PER_S)

    def apart() -> set[str]:
        """Return the tasks that b runs and a follows in the other zone, once each worker runs
        some.
        """
        runs = workers.active()
        with_state = {task for task in runs["b"] if task.startswith("1_")}
        everything = sum(map(len, runs.values())) == 2 * wordcount.partitions
        return (
            with_state
            if everything and all(runs.values()) and with_state <= follows(workers, "a")
            else set()
        )

    followed = workers.until(apart, "what b runs with state has a standby in the other zone")
    workers.until_event("commit", of="b", count=3)
    committed = wordcount.committed()
    workers.kill("b")
    killed = workers.now()
    taken = workers.held("b")
    allowed = wordcount.uncommitted(committed, taken)

    for task in taken:
        began = workers.until_event("task", task=task, to="running", since=killed)
        assert began["mono"] - killed < SESSION_S + HEARTBEAT_S + NOISE_S
    opened = workers.events("task", to="opening", role="active")
    assert not [e for e in opened if e["mono"] > killed and e["task"] in followed]
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.surplus() <= allowed
    assert workers.stop("a", "c") == [0, 0]


@SLOW_ON_KAFKA
def test_worker_giving_up_a_task_becomes_the_standby(
    workers: Workers, wordcount: WordCount
) -> None:
    """The old owner has the best copy of all, and reports it while it still closes the task; any
    other worker would read the whole changelog.
    """
    settings = {"commit_interval": "400ms", "num_standby_replicas": 1}
    workers.start("a", **settings)
    wordcount.feed(LINES_PER_S)
    workers.until_event("commit", of="a", count=3)
    workers.start("b", **settings)

    def moved() -> set[str]:
        tasks = {task for task in workers.held("b") if task.startswith("1_")}
        return tasks if tasks and tasks <= follows(workers, "a") else set()

    gone = workers.until(moved, "what b runs is followed by a")
    told = [d for plan in workers.events("plan") for d in plan["decisions"]]
    last = {d["task"]: d for d in told if d["decision"] == "standby-new" and d["task"] in gone}
    assert {(d["to"], d["lag"]) for d in last.values()} == {("a", 0)}, told
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.counts() == wordcount.words
    assert workers.stop("a", "b") == [0, 0]
