"""Event time of tasks, and which task holds the others back."""

from collections.abc import Mapping

import pytest

from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.tools.cli.app_input import AppInput, CommittedOffset, TaskInput
from streamsx.tools.cli.event_times import EventTime, event_times, holds, moment
from streamsx.topology.time_links import stage_of_topics

T = TaskId
TOPICS = {0: ("orders",), 1: ("middle",), 2: ("last",)}
NOON = 1_700_000_000_000
HOUR = 3_600_000


LATER_S = 1_000_000
"""Unix time that is some days after the commits of these tasks."""


def held_back(times: Mapping[TaskId, EventTime], tasks: Mapping[TaskId, TaskInput]) -> list[str]:
    found = list(holds(times, AppInput(tasks, None, None), TOPICS, LATER_S))
    assert all(hold.matters for hold in found)
    return [hold.text for hold in found]


def stage(subtopology: int) -> str:
    return f"{stage_of_topics(TOPICS[subtopology]):08x}"


def at(
    task: TaskId,
    time: int,
    lag: int | None = 0,
    closed: Mapping[str, int] | None = None,
    committed_s: int = 100_000,
    **told: list[int | None],
) -> tuple[TaskId, TaskInput]:
    """Return a task and its input; `told` by the number of the writers' sub-topology: `by_0`."""
    beside = OffsetMetadata(
        time,
        closed=closed or {},
        committed_s=committed_s,
        told={stage(int(name.removeprefix("by_"))): times for name, times in told.items()},
    )
    place = CommittedOffset(1, beside)
    topic = TOPICS[task.subtopology][0]
    return task, TaskInput(lag, {TopicPartition(topic, task.partition): place})


def test_slowest_writer_holds_event_time_back() -> None:
    tasks = dict(
        [
            at(T(0, 0), NOON),
            at(T(0, 1), NOON - HOUR),
            at(T(1, 0), NOON - HOUR, by_0=[NOON, NOON - HOUR], closed={"s": 7, "r": 5}),
        ]
    )
    times = event_times(TOPICS, tasks)
    assert times == {
        T(0, 0): EventTime(NOON),
        T(0, 1): EventTime(NOON - HOUR),
        T(1, 0): EventTime(NOON - HOUR, 5, T(0, 1), NOON),
    }
    assert list(held_back(times, tasks)) == [
        (
            "1_0: event time stands at 2023-11-14T21:13:20Z while others are at "
            "2023-11-14T22:13:20Z, because task 0_1 (topic orders, partition 1) has had no record "
            "for 10 d; `idle=` of the window lets the others continue"
        )
    ]


def test_writers_that_are_close_together_or_idle_hold_nothing_back() -> None:
    tasks = dict(
        [
            at(T(0, 0), NOON),
            at(T(0, 1), NOON - 59_999),
            at(T(0, 2), 5),
            at(T(1, 0), NOON, by_0=[NOON, NOON - 59_999, None]),
            at(T(1, 1), -1, by_0=[None, None, None]),
        ]
    )
    times = event_times(TOPICS, tasks)
    assert {each.holder for each in times.values()} == {None}
    assert list(held_back(times, tasks)) == []


def test_writer_that_never_told_a_time_holds_event_time_back() -> None:
    tasks = dict(
        [at(T(0, 0), NOON), (T(0, 1), TaskInput(12, {})), at(T(1, 0), -1, by_0=[NOON])],
    )
    times = event_times(TOPICS, tasks)
    assert times[T(1, 0)] == EventTime(-1, None, T(0, 1), NOON)
    (told,) = held_back(times, tasks)
    assert told == (
        "1_0: event time stands still while others are at 2023-11-14T22:13:20Z, because task 0_1 "
        "(topic orders, partition 1) has 12 records waiting"
    )


def test_note_on_a_task_without_a_record_says_so() -> None:
    quiet = TaskInput(0, {})
    tasks = dict([at(T(0, 0), NOON), (T(0, 1), quiet), at(T(1, 0), -1, by_0=[NOON])])
    (told,) = held_back(event_times(TOPICS, tasks), tasks)
    assert told == (
        "1_0: event time stands still while others are at 2023-11-14T22:13:20Z, because task 0_1 "
        "(topic orders, partition 1) has had no record yet; `idle=` of the window lets the others "
        "continue"
    )


@pytest.mark.parametrize(
    ("committed_s", "since_s", "lag", "matters"),
    [(940, 0, 0, True), (941, 0, 0, False), (0, 941, 0, False), (0, 940, 0, True),
     (999, 999, 7, True), (999, 999, None, True)],
)  # fmt: skip
def test_task_that_is_quiet_for_a_moment_is_no_matter(
    committed_s: int, since_s: int, lag: int | None, matters: bool
) -> None:
    tasks = dict(
        [
            at(T(0, 0), NOON),
            at(T(0, 1), NOON - HOUR, lag, committed_s=committed_s),
            at(T(1, 0), NOON - HOUR, by_0=[NOON, NOON - HOUR]),
        ]
    )
    times = event_times(TOPICS, tasks)
    (hold,) = holds(times, AppInput(tasks, None, None), TOPICS, 1000, since_s)
    assert hold.matters is matters


def test_task_whose_windows_closed_by_idle_input_holds_nothing_back() -> None:
    windows = {"s": NOON - HOUR + 1}
    tasks = dict([at(T(0, 0), NOON, closed=windows), at(T(0, 1), NOON - HOUR, closed=windows)])
    assert {each.holder for each in event_times(TOPICS, tasks).values()} == {None}


def test_task_with_windows_and_no_more_input_stands() -> None:
    windows = {"s": 7}
    tasks = dict(
        [
            at(T(0, 0), NOON, closed=windows),
            at(T(0, 1), NOON - HOUR, closed=windows),
            at(T(0, 2), NOON - HOUR, lag=3, closed=windows),
            at(T(0, 3), NOON - HOUR),
        ]
    )
    times = event_times(TOPICS, tasks)
    holders = {task.partition: each.holder for task, each in times.items()}
    assert holders == {0: None, 1: T(0, 1), 2: None, 3: None}
    (told,) = held_back(times, tasks)
    assert told == (
        "0_1: event time stands at 2023-11-14T21:13:20Z while others are at 2023-11-14T22:13:20Z, "
        "because its input (topic orders, partition 1) has had no record for 10 d; `idle=` of the "
        "window closes what is open"
    )


def test_late_records_of_all_stores_are_summed_up() -> None:
    beside = OffsetMetadata(NOON, late={"s": 7, "r": 1})
    other = OffsetMetadata(NOON, late={"s": 5})
    places = {
        TopicPartition("a", 0): CommittedOffset(1, beside),
        TopicPartition("b", 0): CommittedOffset(1, other),
    }
    assert event_times({0: ("a", "b")}, {T(0, 0): TaskInput(0, places)}) == {
        T(0, 0): EventTime(NOON, late=8)
    }


def test_task_at_the_end_of_the_chain_is_named_for_all() -> None:
    slow = NOON - HOUR
    tasks = dict(
        [
            at(T(0, 0), NOON),
            at(T(0, 1), slow, lag=None),
            at(T(1, 0), slow, by_0=[NOON, slow]),
            at(T(1, 1), NOON, by_0=[NOON, NOON]),
            at(T(2, 0), slow, by_1=[slow, NOON]),
            at(T(2, 1), slow, by_1=[slow, NOON]),
        ]
    )
    times = event_times(TOPICS, tasks)
    assert {times[T(n, 0)].holder for n in (1, 2)} == {T(0, 1)}
    (told,) = held_back(times, tasks)
    assert told.startswith("1_0 2_0-1: event time stands at 2023-11-14T21:13:20Z while others ")
    assert told.endswith(
        "because the progress of task 0_1 (topic orders, partition 1) is not known now"
    )


def test_tasks_that_hold_each_other_back_end_the_search() -> None:
    tasks = dict([at(T(1, 0), 5, by_2=[5, NOON]), at(T(2, 0), 5, by_1=[5, NOON])])
    times = event_times(TOPICS, tasks)
    assert {each.holder for each in times.values()} <= {T(1, 0), T(2, 0)}


def test_writers_of_an_unknown_stage_are_passed_over() -> None:
    beside = OffsetMetadata(NOON, told={"0badc0de": [NOON, 5]})
    place = CommittedOffset(1, beside)
    tasks = {T(1, 0): TaskInput(0, {TopicPartition("middle", 0): place})}
    assert event_times(TOPICS, tasks) == {T(1, 0): EventTime(NOON)}


def test_time_of_no_year_is_shown_in_ms() -> None:
    assert moment(10**17) == "100000000000000000 ms"
    assert moment(-1) == "no time yet"
