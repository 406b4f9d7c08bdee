"""Three workers that change from eager to cooperative rebalances and back, one at a time, while
records flow.

An upgrade takes two restarts of each worker. The first one only makes all of them eager.
"""

import pytest

from tests.process.conftest import SLOW_ON_KAFKA
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

LINES_PER_S = 300
BOUNCES: tuple[dict[str, str], ...] = (
    {"upgrade_from": "2.3"},
    {},
    {"rebalancing_mode": "upgrading"},
)


def overlaps(workers: Workers) -> list[str]:
    """Return the tasks that began to run on one worker before another one had stopped them."""
    runs: dict[str, str] = {}
    found = []
    for event in sorted(workers.events("task"), key=lambda event: event["mono"]):
        task, who = event["task"], event["instance"]
        if event["to"] == "running":
            found += [f"{task}: {runs[task]}, {who}"] if runs.get(task, who) != who else []
            runs[task] = who
        elif event["from"] in ("running", "suspended", "stopped") and event["to"] != "suspended":
            runs.pop(task, None)
    return found


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_group_switches_to_cooperative_one_worker_at_a_time_and_back(
    workers: Workers, wordcount: WordCount
) -> None:
    settings = {"commit_interval": "400ms"}

    def settled() -> bool:
        tasks = [task for some in workers.active().values() for task in some]
        return len(tasks) == len(set(tasks)) == 2 * wordcount.partitions

    workers.start("a", "b", "c", **settings, **BOUNCES[0])
    wordcount.feed(LINES_PER_S)
    workers.until(settled, "all tasks run")
    for bounce in BOUNCES[1:]:
        for name in ("a", "b", "c"):
            workers.until_event("commit", of=name, since=workers.now(), count=2)
            assert workers.stop(name) == [0], workers.log(name)
            began = workers.now()
            workers.start(name, **settings, **bounce)
            workers.until_event("assigned", of=name, since=began)
            workers.until(settled, "all tasks run")
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")

    assert wordcount.counts() == wordcount.words
    assert overlaps(workers) == []
    assert not workers.events("lost", "error")
    assert workers.stop("a", "b", "c") == [0, 0, 0]
    moved = [e for e in workers.events("revoked") if len(e["tasks"]) > 1]
    assert moved, "an eager worker lets go of all"
