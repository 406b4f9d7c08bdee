"""Reactions of single agents and flows to their failures, and tasks that a failure stops."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from streamsx import App, retry, tumbling
from streamsx.errors import (
    AppStopped,
    NameClash,
    NotSupported,
    SettingError,
    TaskFailed,
    TaskStopped,
    TopologyError,
    UsageError,
)
from streamsx.testing import TestDriver
from streamsx.topology.internal_topics import TopicKind

Given = Any


def double(value: int) -> int:
    if value == 13:
        raise ValueError("thirteen")
    return value * 2


def with_flow(given: Given, **settings: Any) -> App:
    app = App("x", topic_partitions=1, store="memory://", **settings)
    app.flow("numbers", on_error=given).map_values(double).repartition("r").to("out")
    return app


def with_agent(given: Given, **settings: Any) -> App:
    app = App("x", topic_partitions=1, store="memory://", **settings)
    out = app.topic("out")

    @app.agent(app.topic("numbers"), name="doubler", on_error=given)
    async def doubler(numbers: AsyncIterator[int]) -> None:
        async for number in numbers:
            await out.send(value=double(number))

    return app


@pytest.fixture(params=[with_flow, with_agent])
def made_app(request: pytest.FixtureRequest) -> Callable[..., App]:
    made: Callable[..., App] = request.param
    return made


@pytest.fixture
def app() -> App:
    return App("x", topic_partitions=1, store="memory://")


def results(driver: TestDriver) -> list[int]:
    return [record.value for record in driver.read("out")]


def test_word_of_an_agent_or_a_flow_takes_the_place_of_the_setting(
    made_app: Callable[..., App],
) -> None:
    with TestDriver(made_app("dlq", on_error="stop"), raises=False) as driver:
        driver.pipe("numbers", [1, 13, 2])

        assert [record.value for record in driver.read("x-dlq")] == [13]
        assert results(driver) == [2, 4]


def test_function_chooses_by_the_failure(made_app: Callable[..., App]) -> None:
    seen = []

    def choose(failure: Any) -> str | None:
        seen.append((failure.offset, str(failure.error), failure.record.value))
        return "dlq" if failure.offset == 1 else None

    with TestDriver(made_app(choose), raises=False) as driver:
        driver.pipe("numbers", [1, 13, 2, 13])

        assert seen == [(1, "thirteen", b"13"), (3, "thirteen", b"13")]
        assert len(driver.read("x-dlq")) == 1


def test_task_stops_at_its_record_and_goes_on_there(made_app: Callable[..., App]) -> None:
    mended: list[bool] = []

    def choose(_failure: Any) -> str:
        return "log" if mended else "stop_task"

    with TestDriver(made_app(choose), raises=False) as driver:
        where = "offset 1: its policy is stop_task, offset 1 failed, .*: records from 1 on are not"
        with pytest.raises(TaskStopped, match=where):
            driver.pipe("numbers", [1, 13, 2])
        mended.append(True)
        driver.restart()
        driver.pipe("numbers", [3])

        assert results(driver) == [2, 2, 4, 6], "the first comes again: nothing was committed"
        assert [failure.offset for failure in driver.failures] == [1, 1]


def test_stopped_task_names_the_record_behind_a_row_of_failures() -> None:
    app = with_flow(lambda failure: "stop_task" if failure.offset == 2 else "log")
    where = "offset 1: its policy is stop_task, offset 2 failed"
    with TestDriver(app, raises=False) as driver, pytest.raises(TaskStopped, match=where):
        driver.pipe("numbers", [1, 13, 13])


def test_setting_stops_the_task_too(made_app: Callable[..., App]) -> None:
    app = made_app(None, on_error="stop_task", consecutive_failures_max=None)
    with TestDriver(app, raises=False) as driver, pytest.raises(TaskStopped):
        driver.pipe("numbers", [13])


@pytest.mark.parametrize("answer", [3, "skip", ZeroDivisionError("oops")])
def test_function_that_fails_stops_the_task(made_app: Callable[..., App], answer: Any) -> None:
    def choose(_failure: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with (
        TestDriver(made_app(choose), raises=False) as driver,
        pytest.raises(TaskStopped, match=r"thirteen \(its on_error failed: \w+Error: "),
    ):
        driver.pipe("numbers", [13])


async def of_failure(failure: Any) -> str:
    """Choose by a failure, wrongly with an await."""
    return "dlq"


def by_offset(failure: Any) -> Any:
    """Choose by the place of the record."""
    return ["log", "dlq", retry(2, then="dlq"), None][failure.offset]


def test_function_of_the_app_chooses_by_the_failure(made_app: Callable[..., App]) -> None:
    with TestDriver(made_app(None, on_error=by_offset), raises=False) as driver:
        driver.pipe("numbers", [13, 13, 13, 13, 1])

        offsets = [each.headers["__streams.errors.offset"] for each in driver.read("x-dlq")]
        assert offsets == [b"1", b"2"]
        actions = [each.action.value for each in driver.failures if each.action]
        assert actions == ["log", "dlq", "dlq", "log"]
        assert [each.attempt for each in driver.failures] == [1, 1, 2, 1]
        assert results(driver) == [2]


def test_function_of_the_app_follows_none_of_an_own_one(made_app: Callable[..., App]) -> None:
    def own(failure: Any) -> str | None:
        return "log" if failure.offset == 1 else None

    with TestDriver(made_app(own, on_error=lambda _failure: "dlq"), raises=False) as driver:
        driver.pipe("numbers", [13, 13])

        assert len(driver.read("x-dlq")) == 1


def test_own_word_precedes_the_function_of_the_app(made_app: Callable[..., App]) -> None:
    with TestDriver(made_app("dlq", on_error=lambda _failure: "stop"), raises=False) as driver:
        driver.pipe("numbers", [13])

        assert len(driver.read("x-dlq")) == 1


@pytest.mark.parametrize("answer", [3, "skip", ZeroDivisionError("oops")])
def test_function_of_the_app_that_fails_stops_the_task(
    made_app: Callable[..., App], answer: Any
) -> None:
    def choose(_failure: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with (
        TestDriver(made_app(None, on_error=choose), raises=False) as driver,
        pytest.raises(TaskStopped, match=r"thirteen \(its on_error failed: \w+Error: "),
    ):
        driver.pipe("numbers", [13])


def test_function_of_the_app_chooses_for_undecodable_records() -> None:
    app = App("x", topic_partitions=1, store="memory://", on_decode_error=by_offset)
    app.flow("numbers").map_values(double).to("out")
    with TestDriver(app, raises=False) as driver:
        for at in range(2):
            driver.to("numbers")(None, b"{", at, None)
        driver.pipe("numbers", [])
        assert [each.kept for each in driver.failures] == ["", "kept in x-dlq"]

        driver.to("numbers")(None, b"{", 2, None)
        with pytest.raises(TaskStopped, match=r"its on_decode_error failed: .*do not get better"):
            driver.pipe("numbers", [])


def test_function_of_the_app_is_asked_about_a_value_that_cannot_be_stored() -> None:
    app = App("x", topic_partitions=1, store="memory://", on_error=lambda _failure: "dlq")
    flow = app.flow("numbers")
    flow.group_by_key().aggregate(dict, lambda _k, v, _d: {v: v} if v == 7 else {}, name="t")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("numbers", [("k", 7), ("l", 1)])

        assert driver.table("t") == {"l": {}}
        assert len(driver.read("x-dlq")) == 1


@pytest.mark.parametrize("name", ["on_error", "on_decode_error", "on_produce_error"])
@pytest.mark.parametrize("given", [of_failure, lambda agent, error: None])
def test_function_of_the_app_that_waits_or_takes_more_is_refused_with_the_line(
    name: str, given: Any
) -> None:
    app = App("x", **{name: given})
    says = "give a plain function of the failure, which has"
    with pytest.raises(SettingError, match=rf"{name} \(app x\): .*{says}.*test_reactions.py:\d+\)"):
        app.finalize()


@pytest.mark.parametrize(("word", "error"), [("stop", TaskFailed), ("stop_app", AppStopped)])
def test_stop_ends_the_worker(
    made_app: Callable[..., App], word: str, error: type[TaskFailed]
) -> None:
    with (
        TestDriver(made_app(word), raises=False) as driver,
        pytest.raises(TaskFailed, match=f"its policy is {word}: ") as told,
    ):
        driver.pipe("numbers", [13])
    assert type(told.value) is error


def test_undecodable_record_may_stop_the_app() -> None:
    app = App("x", topic_partitions=1, store="memory://", on_decode_error="stop_app")
    app.flow("numbers").map_values(double).to("out")
    with TestDriver(app, raises=False) as driver:
        driver.to("numbers")(None, b"{", 0, None)
        with pytest.raises(AppStopped):
            driver.pipe("numbers", [])


def test_undecodable_record_has_a_reaction_of_its_own() -> None:
    app = App("x", topic_partitions=1, store="memory://")
    app.flow("numbers", on_decode_error="dlq").map_values(double).to("out")
    app.flow("numbers").map_values(double).to("more")
    with TestDriver(app, raises=False) as driver:
        driver.to("numbers")(None, b"{", 0, None)
        driver.pipe("numbers", [13])

        assert len(driver.failures) == 4
        assert [str(each).endswith("kept in x-dlq") for each in driver.failures].count(True) == 1


def test_reaction_behind_a_topic_in_between_is_that_of_its_flow() -> None:
    app = App("x", topic_partitions=1, store="memory://")
    app.flow("numbers", on_error="dlq").repartition("r").map_values(double).to("out")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("numbers", [13, 1])

        (letter,) = driver.read("x-dlq")
        assert letter.headers["__streams.errors.topic"] == b"x-r-repartition"


@pytest.mark.parametrize("given", ["retries", "skip", 3])
def test_unknown_word_is_refused_with_the_line(made_app: Callable[..., App], given: Any) -> None:
    words = "log, dlq, stop_task, stop, stop_app, retry"
    where = rf"on_error={given!r} .*test_reactions.py:\d+\): write one of {words}"
    with pytest.raises(UsageError, match=where):
        made_app(given)


async def of_faust(agent: Any, error: Any) -> None:
    """Handle an error as Faust's agents do."""


@pytest.mark.parametrize("given", [of_faust, lambda agent, error: None])
def test_function_of_faust_is_refused_for_a_flow(given: Any) -> None:
    where = r"on_error=.*test_reactions.py:\d+\): give a plain function of the failure"
    with pytest.raises(NotSupported, match=where):
        with_flow(given)


@pytest.mark.parametrize("given", [of_failure, lambda one, two, three: None])
def test_function_that_waits_or_takes_more_is_refused(
    made_app: Callable[..., App], given: Any
) -> None:
    with pytest.raises(NotSupported, match=re.escape("give a plain function of the failure")):
        made_app(given)


@pytest.mark.parametrize("waits", [False, True])
def test_function_of_faust_is_called_and_the_setting_follows(*, waits: bool) -> None:
    told = []

    async def later(agent: Any, error: Exception) -> None:
        await asyncio.sleep(0)
        told.append((agent.name, str(error)))

    def at_once(agent: Any, error: Exception) -> None:
        told.append((agent.name, str(error)))

    app = with_agent(later if waits else at_once, on_error="dlq")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("numbers", [1, 13, 2])

        assert told == [("doubler", "thirteen")]
        assert [record.value for record in driver.read("x-dlq")] == [13]
        assert results(driver) == [2, 4]


def test_function_of_faust_that_fails_leaves_a_note() -> None:
    def fail(_agent: Any, _error: Exception) -> None:
        raise ZeroDivisionError("oops")

    with TestDriver(with_agent(fail), raises=False) as driver:
        driver.pipe("numbers", [1, 13, 2])

        (failure,) = driver.failures
        assert "thirteen (its on_error failed: ZeroDivisionError: oops)" in str(failure)
        assert results(driver) == [2, 4]


def test_function_of_faust_makes_no_dead_letter_topic() -> None:
    topics = with_agent(of_faust).topology().topics
    assert "x-dlq" not in {spec.name for spec in topics}


def test_reaction_changes_no_signature(made_app: Callable[..., App]) -> None:
    assert made_app("dlq").topology().signatures == made_app(None).topology().signatures


def test_merged_flows_keep_their_reaction(app: App) -> None:
    left, right = (app.flow(name, on_error="dlq") for name in ("l", "r"))
    left.merge(right).map_values(double).to("out")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("l", [13])
        driver.pipe("r", [13])

        assert len(driver.read("x-dlq")) == 2


def test_merge_of_flows_with_other_reactions_is_refused(app: App) -> None:
    with pytest.raises(
        TopologyError, match=r"different reactions to failures \(.*test_reactions.py:\d+\): "
    ):
        app.flow("l", on_error="dlq").merge(app.flow("r"))


@pytest.mark.parametrize("given", ["log", "dlq", "stop_task"])
def test_result_of_idle_windows_fails_before_the_first_record(app: App, given: str) -> None:
    windows = (
        app.flow("numbers", on_error=given).group_by_key().window(tumbling("1s", grace=0, idle=3))
    )
    windows.count("n", emit="final").map_values(lambda _n: double(13)).to("out")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("numbers", [("k", 1, 10)])
        driver.restart()
        if given == "stop_task":
            with pytest.raises(TaskStopped):
                driver.advance(60)
        else:
            driver.advance(60)
        assert "thirteen" in str(driver.failures[0])


@pytest.mark.parametrize("given", ["log", "dlq"])
def test_value_that_cannot_be_stored_fails_its_record_by_its_own_word(given: str) -> None:
    app = App("x", topic_partitions=1, store="memory://", on_error="stop")
    flow = app.flow("numbers", on_error=given)
    flow.group_by_key().aggregate(dict, lambda _k, v, _d: {v: v} if v == 7 else {}, name="t")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("numbers", [("k", 7), ("l", 1)])

        assert driver.table("t") == {"l": {}}
        assert len(driver.failures) == 1


def test_app_may_read_its_dead_letters(app: App) -> None:
    app.flow("numbers", on_error="dlq").map_values(double).to("out")
    app.flow("x-dlq").map_values(str).to("seen")
    spec = next(each for each in app.topology().topics if each.name == "x-dlq")

    assert (spec.kind, spec.config["retention.ms"]) == (TopicKind.SOURCE, "-1")


def test_dead_letter_topic_with_settings_of_its_own_is_refused() -> None:
    app = App("x", topic_partitions=1, store="memory://", on_error="dlq", dlq_topic="out")
    app.flow("numbers").map_values(double).to(app.topic("out", compacting=True))
    with pytest.raises(NameClash, match="dead-letter topic with settings of its own: out: "):
        app.topology()


def test_table_has_a_reaction_of_its_own(app: App) -> None:
    app.table("rows", on_decode_error="dlq", allow_empty=True)
    with TestDriver(app, raises=False) as driver:
        driver.to("rows")(b"k", b"{", 0, None)
        driver.pipe("rows", [("k", 1)])

        assert driver.table("rows") == {"k": 1}
        assert str(driver.failures[0]).endswith("kept in x-dlq")


GIVERS: list[Callable[[App, Any], object]] = [
    lambda app, given: app.agent(app.topic("numbers"), on_produce_error=given),
    lambda app, given: app.flow("numbers", on_produce_error=given),
    lambda app, given: app.table("numbers", on_produce_error=given),
]


@pytest.mark.parametrize("give", GIVERS)
@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ("skip", UsageError, "write one of stop_task, stop, stop_app, log, dlq, or a function"),
        ("retry", UsageError, "the producer has retried what can be retried: use one of stop_task"),
        (of_failure, NotSupported, "give a plain function of the failure"),
        (lambda agent, error: None, NotSupported, "give a plain function of the failure"),
    ],
)
def test_wrong_reaction_to_refused_outputs_is_refused_with_the_line(
    app: App, give: Callable[[App, Any], object], given: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=rf"on_produce_error=.*test_reactions.py:\d+\): .*{says}"):
        give(app, given)


@pytest.mark.parametrize("given", ["dlq", lambda failure: None])
def test_reaction_to_refused_outputs_makes_the_dead_letter_topic(app: App, given: Any) -> None:
    app.flow("numbers", on_produce_error=given).to("out")
    assert "x-dlq" in {spec.name for spec in app.topology().topics}


def test_merge_of_flows_with_other_reactions_to_refused_outputs_is_refused(app: App) -> None:
    with pytest.raises(TopologyError, match=r"on_decode_error= and on_produce_error="):
        app.flow("l", on_produce_error="dlq").merge(app.flow("r"))
