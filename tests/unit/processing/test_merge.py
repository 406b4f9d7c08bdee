"""processing/merge.py: the order over several sources does not depend on the cuts of batches."""

import random
from collections import deque
from itertools import pairwise

import pytest

from streamsx.processing.batch import Batch, Chunk
from streamsx.processing.merge import Merge, turns_behind


def chunk(topic: str, times: list[int], first: int = 0) -> Chunk:
    n = len(times)
    offsets = range(first, first + n)
    batch = Batch(topic, 0, [None] * n, [None] * n, times, offsets, None, first + n)
    return Chunk(batch, 0, n)


def drained(merge: Merge, caught_up: set[str], limit: int = 100) -> list[tuple[str, int]]:
    order = []
    while (taken := merge.next(limit, caught_up)) is not None:
        order += [
            (taken.batch.topic, taken.batch.offsets[i]) for i in range(taken.start, taken.stop)
        ]
    return order


def test_smallest_timestamp_is_next_and_ties_go_by_topic_name() -> None:
    queues = {"a": deque([chunk("a", [1, 5])]), "b": deque([chunk("b", [1, 3])])}
    order = drained(Merge(queues, {}), {"a", "b"})
    assert order == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]


def test_empty_topic_not_caught_up_holds_the_others() -> None:
    queues = {"a": deque([chunk("a", [1])]), "b": deque[Chunk]()}
    merge = Merge(queues, {})
    assert merge.next(10, {"a"}) is None
    assert drained(merge, {"a", "b"}) == [("a", 0)]


def test_single_source_is_merged_without_waiting() -> None:
    assert drained(Merge({"a": deque([chunk("a", [9, 1])])}, {}), set()) == [("a", 0), ("a", 1)]


@pytest.mark.parametrize("seed", range(50))
def test_merge_order_does_not_depend_on_batch_cuts(seed: int) -> None:
    draw = random.Random(seed)
    topics = {t: [draw.randrange(50) for _ in range(draw.randrange(1, 40))] for t in "abc"}

    def heads() -> list[tuple[str, int]]:
        """Merge by the rule, one record at a time."""
        at, top, order = dict.fromkeys(topics, 0), dict.fromkeys(topics, -1), []
        while left := [t for t in topics if at[t] < len(topics[t])]:
            best = min(left, key=lambda t: (max(top[t], topics[t][at[t]]), t))
            top[best] = max(top[best], topics[best][at[best]])
            order.append((best, at[best]))
            at[best] += 1
        return order

    queues: dict[str, deque[Chunk]] = {t: deque() for t in topics}
    for topic, times in topics.items():
        at = 0
        while at < len(times):
            size = draw.randrange(1, 10)
            queues[topic].append(chunk(topic, times[at : at + size], at))
            at += size
    assert drained(Merge(queues, {}), set(topics), draw.randrange(1, 8)) == heads()


@pytest.mark.parametrize("seed", range(20))
def test_merge_order_continues_in_a_new_merge_from_taken_counts(seed: int) -> None:
    """Each batch of the input has a task of its own, which does not know the batches before it."""
    draw = random.Random(seed)
    records = {t: [draw.randrange(50) for _ in range(40)] for t in "ab"}
    whole = {t: deque([chunk(t, times)]) for t, times in records.items()}
    order = drained(Merge(whole, {}), set(records))
    high: dict[str, int] = {}
    again: list[tuple[str, int]] = []
    cuts = [0, *sorted(draw.sample(range(1, len(order)), 5)), len(order)]
    for start, stop in pairwise(cuts):
        queues: dict[str, deque[Chunk]] = {t: deque() for t in records}
        for topic, offset in order[start:stop]:
            queues[topic].append(chunk(topic, [records[topic][offset]], offset))
        merge = Merge(queues, high)
        again += drained(merge, set(records))
        high = merge.high
    assert again == order
    assert high == {t: max(times) for t, times in records.items()}


def test_time_of_the_far_future_holds_its_topic_back_for_a_day() -> None:
    hour = 3_600_000
    a = [hour * n for n in range(1, 101)]
    far = [*a[:10], 10**15, *a[10:]]
    queues = {"a": deque([chunk("a", far)]), "b": deque([chunk("b", a)])}
    order = drained(Merge(queues, {}), {"a", "b"})
    place = order.index(("a", 10))
    assert order[place - 1] == ("b", 32)  # at 33 h: b stood at 10 h when the far time came
    behind = [offset for topic, offset in order if topic == "a"]
    assert behind == sorted(behind)
    assert order[-1][1] >= 99


def test_order_with_far_times_does_not_depend_on_batch_cuts() -> None:
    draw = random.Random(7)
    day = 86_400_000
    times = {t: [draw.randrange(20 * day) for _ in range(60)] for t in "abc"}

    def order(size: int, limit: int) -> list[tuple[str, int]]:
        queues = {
            t: deque(chunk(t, at[n : n + size], n) for n in range(0, 60, size))
            for t, at in times.items()
        }
        return drained(Merge(queues, {}), set("abc"), limit)

    assert order(60, 1) == order(7, 100) == order(1, 3) == order(60, 100)


def test_turns_are_taken_again_ahead_of_what_has_arrived_since() -> None:
    queues = {"a": deque([chunk("a", [10])]), "b": deque[Chunk]()}
    merge = Merge(queues, {})
    first = drained(merge, {"a", "b"})
    queues["b"].append(chunk("b", [20]))
    first += drained(merge, {"a", "b"})
    assert first == [("a", 0), ("b", 0)]
    now = {"a": deque([chunk("a", [10, 30])]), "b": deque([chunk("b", [20, 5])])}
    again = drained(Merge(now, {}, merge.turns), {"a", "b"})
    assert again == [*first, ("b", 1), ("a", 1)]


@pytest.mark.parametrize("seed", range(50))
def test_turns_are_taken_again_in_any_cut(seed: int) -> None:
    draw = random.Random(seed)
    times = {t: [draw.randrange(50) for _ in range(30)] for t in "abc"}

    def cut() -> dict[str, deque[Chunk]]:
        size = draw.randrange(1, 9)
        return {
            t: deque(chunk(t, at[n : n + size], n) for n in range(0, 30, size))
            for t, at in times.items()
        }

    first = list("abc" * 30)
    draw.shuffle(first)
    at = dict.fromkeys("abc", 0)
    turns = []
    for topic in first:
        at[topic] += 1
        turns.append((topic, at[topic]))
    order = drained(Merge(cut(), {}, turns), set(), draw.randrange(1, 9))
    assert [topic for topic, _ in order] == first


def test_turn_waits_for_its_topic() -> None:
    queues = {"a": deque[Chunk](), "b": deque([chunk("b", [1])])}
    merge = Merge(queues, {}, [("a", 1), ("b", 1)])
    assert merge.next(10, {"b"}) is None
    queues["a"].append(chunk("a", [9]))
    assert drained(merge, set()) == [("a", 0), ("b", 0)]


def test_turn_of_a_log_that_was_cut_holds_nothing_up() -> None:
    queues = {"a": deque[Chunk](), "b": deque([chunk("b", [1])])}
    assert drained(Merge(queues, {}, [("a", 1), ("b", 1)]), {"a"}) == [("b", 0)]


def test_turn_of_records_that_compaction_has_removed_holds_nothing_up() -> None:
    queues = {"a": deque([chunk("a", [2], first=7)]), "b": deque([chunk("b", [9])])}
    merge = Merge(queues, {}, [("a", 7), ("b", 1)])
    assert drained(merge, {"a", "b"}) == [("b", 0), ("a", 7)]


def test_commit_forgets_the_turns_below_it() -> None:
    merge = Merge({"a": deque([chunk("a", [1, 3])]), "b": deque([chunk("b", [2])])}, {})
    drained(merge, {"a", "b"})
    merge.committed({"a": 1, "b": 0})
    assert list(merge.turns) == [("b", 1), ("a", 2)]


def test_turns_of_a_topic_that_continues_elsewhere_are_forgotten() -> None:
    queues = {"a": deque[Chunk](), "b": deque([chunk("b", [1])])}
    merge = Merge(queues, {}, [("a", 1), ("b", 1)])
    merge.reset("a")
    assert drained(merge, set()) == [("b", 0)]
    merge.reset("b")
    assert not merge.turns


def test_turns_of_a_topic_without_a_position_are_none() -> None:
    assert turns_behind([("a", 1), ("b", 1), ("a", 2)], {"a": 1}) == [("a", 2)]
