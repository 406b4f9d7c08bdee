"""Records that fail and are tried again by the reaction `retry`, in virtual time."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import streamsx
from streamsx import App
from streamsx.errors import TaskFailed, TaskStopped, UsageError
from streamsx.model import TopicPartition
from streamsx.testing import TestDriver

THREE = streamsx.retry(attempts=3, backoff="1s", then="dlq")
Failing = dict[int, int]
"""How many tries of a value fail still."""


def app_with(**settings: Any) -> App:
    return App("x", topic_partitions=1, store="memory://", **settings)


def tried(failing: Failing, value: int) -> None:
    if failing.get(value, 0) > 0:
        failing[value] -= 1
        raise ConnectionError(f"not now: {value}")


def flow_without_table(failing: Failing, given: Any, **settings: Any) -> App:
    app = app_with(**settings)

    def double(value: int) -> int:
        tried(failing, value)
        return value * 2

    flow = app.flow("numbers", on_error=given)
    flow.to("early")
    flow.map_values(double).to("out")
    return app


def flow_with_table(failing: Failing, given: Any, **settings: Any) -> App:
    app = app_with(**settings)

    def double(value: int) -> int:
        tried(failing, value)
        return value * 2

    flow = app.flow("numbers", on_error=given)
    flow.to("early")
    counts = flow.group_by_key().aggregate(int, lambda _key, value, old: old + value, name="sums")
    counts.to_flow().peek(lambda _value: None).to("sums")
    flow.map_values(double).to("out")
    return app


def agent_without_table(failing: Failing, given: Any, **settings: Any) -> App:
    app = app_with(**settings)
    early, out = app.topic("early"), app.topic("out")

    @app.agent(app.topic("numbers"), name="doubler", on_error=given)
    async def doubler(numbers: AsyncIterator[int]) -> None:
        async for number in numbers:
            await early.send(value=number)
            tried(failing, number)
            await out.send(value=number * 2)

    return app


def agent_with_table(failing: Failing, given: Any, **settings: Any) -> App:
    app = app_with(**settings)
    early, out = app.topic("early"), app.topic("out")
    sums = app.Table("sums", default=int)

    @app.agent(app.topic("numbers"), name="doubler", on_error=given)
    async def doubler(numbers: Any) -> None:
        async for key, number in numbers.items():
            sums[key.decode()] += number
            await early.send(value=number)
            tried(failing, number)
            await out.send(value=number * 2)

    return app


def agent_that_connects(failing: Failing, given: Any, **settings: Any) -> App:
    """Return an app whose agent connects before its loop, and fails there once record 0 has
    failed.
    """
    app = app_with(**settings)
    out = app.topic("out")

    @app.agent(app.topic("numbers"), name="doubler", on_error=given)
    async def doubler(numbers: AsyncIterator[int]) -> None:
        tried(failing, 0)
        async for number in numbers:
            tried(failing, number)
            await out.send(value=number * 2)

    return app


KINDS = [flow_without_table, flow_with_table, agent_without_table, agent_with_table]


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest) -> Callable[..., App]:
    found: Callable[..., App] = request.param
    return found


def values(driver: TestDriver, topic: str) -> list[Any]:
    return [record.value for record in driver.read(topic)]


def piped(driver: TestDriver, numbers: list[int]) -> None:
    driver.pipe("numbers", [("k", number) for number in numbers])


@pytest.mark.parametrize("careful", [False, True])
def test_record_that_succeeds_at_its_last_try_leaves_one_effect(
    made: Callable[..., App], *, careful: bool
) -> None:
    failing = {5: 1, 13: 2}
    with TestDriver(made(failing, THREE), raises=False) as driver:
        if careful:
            piped(driver, [5])
        piped(driver, [1, 13, 2])

        assert values(driver, "out") == [10] * careful + [2, 26, 4]
        assert driver.failures == []
        assert values(driver, "x-dlq") == []
        assert failing[13] == 0


@pytest.mark.parametrize("careful", [False, True])
def test_record_that_fails_at_all_tries_is_left_to_the_last_reaction(
    made: Callable[..., App], *, careful: bool
) -> None:
    failing = {5: 1, 13: 99}
    with TestDriver(made(failing, THREE), raises=False) as driver:
        if careful:
            piped(driver, [5])
        piped(driver, [1, 13, 2])

        assert failing[13] == 96, "three tries in all"
        assert values(driver, "out") == [10] * careful + [2, 4]
        (letter,) = driver.read("x-dlq")
        assert letter.value == 13
        assert letter.headers["__streamsx.attempt"] == b"3"
        assert [failure.attempt for failure in driver.failures] == [3]


@pytest.mark.parametrize("tries", [2, 99])
def test_output_of_a_failed_try_does_not_leave(made: Callable[..., App], tries: int) -> None:
    with TestDriver(made({5: 1, 13: tries}, THREE), raises=False) as driver:
        piped(driver, [5])
        early = values(driver, "early")
        piped(driver, [1, 13, 2])

        done = [1, 13, 2] if tries == 2 or made.__name__.startswith("flow") else [1, 2]
        assert values(driver, "early") == early + done


def test_table_has_nothing_of_failed_tries() -> None:
    with TestDriver(agent_with_table({13: 2, 14: 99}, THREE), raises=False) as driver:
        piped(driver, [1, 13, 14, 2])

        assert driver.table("sums") == {"k": 16}


def test_value_changed_in_place_is_decoded_anew() -> None:
    app = app_with()
    seen = []

    def change(value: dict[str, int]) -> dict[str, int]:
        value["n"] += 1
        seen.append(value["n"])
        if len(seen) < 4:
            raise ConnectionError("not now")
        return value

    app.flow("numbers", on_error=streamsx.retry(4)).map_values(change).to("out")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("numbers", [{"n": 1}])

        assert seen == [2, 2, 2, 2]
        assert values(driver, "out") == [{"n": 2}]


def test_record_at_hand_of_other_flows_is_done_once() -> None:
    app = app_with()
    failing = {13: 2}

    def double(value: int) -> int:
        tried(failing, value)
        return value * 2

    app.flow("numbers").to("ahead")
    app.flow("numbers", on_error=THREE).map_values(double).to("out")
    app.flow("numbers").to("behind")
    with TestDriver(app, raises=False) as driver:
        piped(driver, [1, 13, 2])

        assert values(driver, "ahead") == values(driver, "behind") == [1, 13, 2]
        assert values(driver, "out") == [2, 26, 4]


def test_row_of_failures_counts_a_record_once(made: Callable[..., App]) -> None:
    failing = {11: 99, 12: 99, 13: 99}
    app = made(failing, streamsx.retry(5, then="log"), consecutive_failures_max=3)
    with TestDriver(app, raises=False) as driver:
        piped(driver, [1, 11, 12, 2])
        with pytest.raises(TaskStopped, match="3 records in a row failed"):
            piped(driver, [11, 12, 13])


def test_reaction_of_the_app_may_be_a_retry(made: Callable[..., App]) -> None:
    failing = {13: 2}
    with TestDriver(made(failing, None, on_error="retry"), raises=False) as driver:
        piped(driver, [13])

        assert values(driver, "out") == [26]


def test_function_of_the_failure_sees_the_try(made: Callable[..., App]) -> None:
    seen = []

    def choose(failure: Any) -> Any:
        seen.append(failure.attempt)
        return THREE if failure.attempt == 1 else "dlq"

    with TestDriver(made({13: 99}, choose), raises=False) as driver:
        piped(driver, [13])

        assert seen == [1, 2]
        assert driver.read("x-dlq")[0].headers["__streamsx.attempt"] == b"2"


def test_last_reaction_may_stop_the_task(made: Callable[..., App]) -> None:
    failing = {13: 99}
    with TestDriver(made(failing, streamsx.retry(2, then="stop_task")), raises=False) as driver:
        with pytest.raises(TaskStopped, match="its policy is stop_task, offset 1 failed"):
            piped(driver, [1, 13, 2])
        failing.clear()
        driver.restart()

        assert values(driver, "out")[-3:] == [2, 26, 4]


def test_letter_of_a_record_that_was_not_tried_again_says_one() -> None:
    with TestDriver(flow_without_table({13: 99}, "dlq"), raises=False) as driver:
        piped(driver, [13])

        assert driver.read("x-dlq")[0].headers["__streamsx.attempt"] == b"1"


def test_commit_and_restart_between_tries_leave_one_effect(made: Callable[..., App]) -> None:
    failing = {13: 2, 14: 2}
    with TestDriver(made(failing, THREE), raises=False, commit=False) as driver:
        piped(driver, [1, 13])
        driver.commit()
        piped(driver, [14, 2])
        driver.commit()
        driver.restart()

        assert values(driver, "out") == [2, 26, 28, 4]


@pytest.mark.parametrize("given", ["retry", THREE])
def test_bytes_are_not_tried_again(given: Any) -> None:
    with pytest.raises(UsageError, match="bytes do not get better"):
        app_with().flow("numbers", on_decode_error=given)


def test_function_may_not_try_bytes_again() -> None:
    app = app_with()
    app.flow("numbers", on_decode_error=lambda _failure: THREE).map_values(str).to("out")
    says = r"its on_decode_error failed: .*bytes do not get better"
    with TestDriver(app, raises=False) as driver:
        driver.to("numbers")(None, b"{", 0, None)
        with pytest.raises(TaskStopped, match=says):
            driver.pipe("numbers", [1])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"attempts": 0}, "whole number from 1"),
        ({"backoff": "0s"}, "1ms to 1m"),
        ({"then": "retry"}, "not one of log, dlq"),
    ],
)
def test_wrong_retry_is_refused_with_the_line(wrong: Any, says: str) -> None:
    with pytest.raises(UsageError, match=rf"{says}.*test_retries.py:\d+"):
        streamsx.retry(**wrong)


def test_output_that_its_topic_refuses_is_not_tried_again() -> None:
    app = app_with()
    calls = []

    def large(value: int) -> str:
        calls.append(value)
        return "x" * (2 << 20)

    app.flow("numbers", on_error=THREE).map_values(large).to("out")
    with TestDriver(app, raises=False) as driver:
        piped(driver, [1])

        assert len(driver.read("x-dlq")) == 1
        assert len(calls) == 2, "once as it failed, once by itself"


@pytest.mark.parametrize("made", KINDS)
def test_reset_of_the_topic_ends_the_wait(made: Callable[..., App]) -> None:
    with TestDriver(made({5: 1, 13: 99}, THREE), raises=False) as driver:
        piped(driver, [5])
        (task,) = driver._tasks.values()
        tp = TopicPartition("numbers", 0)
        piped_only = driver.to("numbers", 0)
        for number in (13, 2):
            piped_only(b'"k"', b"%d" % number, driver.now_ms(), None)
        batch = driver._logs.batch(tp, 1)
        assert batch is not None
        task.offer(batch)
        driver._offered[tp] = batch.next_offset
        driver._loop.call(lambda: task.run(10, ["numbers"]))
        assert (task.wait_s > 0, task.positions) == (True, {"numbers": 1})
        assert driver._loop.call(lambda: task.run(10, ["numbers"])) == 0

        driver._loop.call(lambda: task.reset("numbers", 3))
        assert (task.wait_s, task.positions) == (0, {"numbers": 3})
        piped(driver, [7])
        assert values(driver, "out") == [10, 14]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("ahead", [0, 1, 2, 99])
def test_body_that_fails_ahead_of_its_loop_fails_with_its_record(
    ahead: int, guarantee: str
) -> None:
    failing = {13: 0}
    app = agent_that_connects(failing, THREE, processing_guarantee=guarantee)
    with TestDriver(app, raises=False) as driver:
        piped(driver, [1])
        failing |= {13: 1, 0: ahead}
        piped(driver, [13, 2])
        failing[0] = 0
        piped(driver, [3])

        lost = ahead == 99
        assert values(driver, "out") == ([2, 6] if lost else [2, *[26] * (ahead < 2), 4, 6])
        letters = values(driver, "x-dlq")
        assert letters == ([13, 2] if lost else [13] * (ahead == 2))


def test_body_under_retry_begins_with_its_first_record() -> None:
    failing = {0: 0}
    with TestDriver(agent_that_connects(failing, THREE), raises=False) as driver:
        failing[0] = 2
        piped(driver, [1])
        assert values(driver, "out") == [2]
        assert failing == {0: 0}


def test_body_without_retry_that_fails_ahead_of_its_loop_ends_the_worker() -> None:
    failing = {13: 0}
    app = agent_that_connects(failing, "dlq")
    with TestDriver(app, raises=False) as driver:
        failing |= {13: 1, 0: 1}
        with pytest.raises(TaskFailed, match="outside of a record"):
            piped(driver, [13])


def test_function_of_the_failure_may_try_a_body_that_fails_ahead_of_its_loop() -> None:
    failing = {0: 0, 13: 1}
    app = agent_that_connects(failing, lambda _failure: THREE)
    with TestDriver(app, raises=False) as driver:
        piped(driver, [1])
        failing[0] = 1
        piped(driver, [13, 2])
        assert values(driver, "out") == [2, 26, 4]
