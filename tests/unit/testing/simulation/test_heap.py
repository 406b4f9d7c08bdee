"""testing/heap.py: who is told what, in which order, in virtual time."""

from functools import partial

import pytest

from streamsx.membership import events as e
from streamsx.model import TaskId, TopicPartition
from streamsx.testing.simulation.heap import Alarm, Heap, Life, Thread, brief


def run(heap: Heap, until: float) -> None:
    while heap.step(until):
        pass


def test_events_of_one_time_come_in_the_order_in_which_they_were_put() -> None:
    heap, life, told = Heap(), Life("a"), list[int]()
    for number in range(3):
        heap.at(1.0, life, "", None, partial(told.append, number))
    run(heap, 2.0)
    assert told == [0, 1, 2]
    assert heap.now == 2.0


def test_a_frozen_process_gets_everything_later_and_a_dead_one_nothing() -> None:
    heap, told = Heap(), list[str]()
    frozen, dead = Life("frozen", frozen_until=5.0), Life("dead", over=True)
    heap.at(1.0, frozen, "", None, lambda: told.append(f"first {heap.now:g}"))
    heap.at(2.0, dead, "", None, lambda: told.append("never"))
    heap.at(3.0, frozen, "", None, lambda: told.append(f"second {heap.now:g}"))
    run(heap, 10.0)
    assert told == ["first 5", "second 5"]


def test_an_alarm_rings_once_at_its_last_time() -> None:
    heap, rings = Heap(), list[float]()
    alarm = Alarm(heap, Life("a"), "", None, lambda: rings.append(heap.now))
    alarm.set(3.0)
    alarm.set(7.0)
    alarm.set(5.0)
    run(heap, 20.0)
    assert rings == [5.0]
    alarm.set(25.0)
    alarm.clear()
    run(heap, 30.0)
    assert rings == [5.0]


def test_a_thread_hears_what_it_was_told_before_it_does_anything() -> None:
    heap, told = Heap(), list[str]()
    thread = Thread(heap, Life("a"), hop_s=1.0)
    thread.later(0.5, "", None, lambda: told.append("acts"))
    thread.tell("", None, lambda: told.append("hears"))
    assert not thread.listens
    run(heap, 0.6)
    assert told == ["hears", "acts"]
    assert thread.listens


def test_a_loop_without_a_pause_is_an_error() -> None:
    heap, life = Heap(), Life("a")

    def again() -> None:
        heap.after(0.0, life, "spins", None, again)

    again()
    with pytest.raises(AssertionError, match="a spins"):
        run(heap, 1.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (TaskId(1, 0), "1_0"),
        (frozenset({TopicPartition("b", 1), TopicPartition("a", 0)}), "{a-0, b-1}"),
        (e.Revoke((TopicPartition("a", 0),), 7), "Revoke(tps=[a-0], number=7)"),
        ({"key": b"value"}, "{key: 5 bytes}"),
        ([1] * 20, "[1, and 19 more]"),
    ],
)
def test_a_story_is_brief(value: object, text: str) -> None:
    assert brief(value) == text
