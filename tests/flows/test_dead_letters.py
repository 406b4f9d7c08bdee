"""Records that fail under `dlq`: which parts of them are kept byte for byte, and which are not
kept.
"""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamsx import App, tumbling
from streamsx.errors import TaskStopped
from streamsx.testing import TestDriver

ERRORS = "__streams.errors."


def made_app(**settings: Any) -> App:
    return App("x", topic_partitions=1, store="memory://", **settings)


def double(value: int) -> int:
    if value == 13:
        raise KeyError("thirteen")
    return value * 2


def with_flow(app: App) -> App:
    app.flow("numbers").map_values(double).to("out")
    return app


def with_agent(app: App) -> App:
    out = app.topic("out")

    @app.agent(app.topic("numbers"), name="doubler")
    async def doubler(numbers: AsyncIterator[int]) -> None:
        async for number in numbers:
            await out.send(value=double(number))

    return app


def send(driver: TestDriver, *rows: Any) -> None:
    """Send rows of key, value, timestamp in ms and headers, as they are."""
    write = driver.to("numbers")
    for row in rows:
        write(*row)
    driver.pipe("numbers", [])


def letters(driver: TestDriver, topic: str = "x-dlq") -> list[Any]:
    raw = App("reader").topic(topic, key_serializer="raw", value_serializer="raw", allow_empty=True)
    return driver.read(raw)


@pytest.mark.parametrize(
    ("of", "operator"), [(with_flow, "flow of numbers to out"), (with_agent, "doubler")]
)
def test_record_that_fails_is_kept_with_where_and_why(of: Any, operator: str) -> None:
    with TestDriver(of(made_app(on_error="dlq")), raises=False) as driver:
        send(
            driver,
            (b"a", b"1", 10_500, None),
            (b'"b"', b" 13", 20_250, [("trace", b"\x00\xff"), ("trace", None)]),
            (b"c", b"2", 30_000, None),
        )
        (letter,) = letters(driver)
        assert [record.value for record in driver.read("out")] == [2, 4]
        assert str(driver.failures[0]).endswith("KeyError: 'thirteen': kept in x-dlq")

    assert (letter.key, letter.value, letter.timestamp) == (b'"b"', b" 13", 20.25)
    trace = letter.headers.pop(f"{ERRORS}stacktrace").decode()
    assert re.search(r"test_dead_letters\.py.*\n.*thirteen", trace)
    assert letter.headers == {
        "trace": None,
        f"{ERRORS}exception": b"KeyError",
        f"{ERRORS}message": b"'thirteen'",
        f"{ERRORS}topic": b"numbers",
        f"{ERRORS}partition": b"0",
        f"{ERRORS}offset": b"1",
        "__streamsx.task": b"0_0",
        "__streamsx.operator": operator.encode(),
        "__streamsx.attempt": b"1",
    }


@pytest.mark.parametrize("of", [with_flow, with_agent])
def test_record_that_cannot_be_decoded_is_kept_by_its_own_setting(of: Any) -> None:
    app = of(made_app(on_decode_error="dlq", dlq_topic="sick"))
    with TestDriver(app, raises=False) as driver:
        send(driver, (None, b"{", 0, None), (None, b"13", 0, None), (None, b"1", 0, None))
        (letter,) = letters(driver, "sick")

    assert (letter.key, letter.value) == (None, b"{")
    assert b"Error" in letter.headers[f"{ERRORS}exception"]


def deep(value: int) -> int:
    if value:
        return deep(value - 1)
    raise ValueError("é" * 10_000)


@pytest.mark.parametrize(("text", "traced"), [(b"90", True), (b"90".rjust(994_000), False)])
def test_long_message_and_stack_trace_are_cut(text: bytes, *, traced: bool) -> None:
    """A record that leaves no room for the stack trace is kept without it."""
    app = made_app(on_error="dlq")
    app.flow("numbers").map_values(deep).to("out")
    with TestDriver(app, raises=False) as driver:
        send(driver, (None, text, 0, None))
        (letter,) = letters(driver)

    assert len(letter.headers[f"{ERRORS}message"]) == 4096
    assert len(letter.headers.get(f"{ERRORS}stacktrace", b"")) == 4096 * traced


def test_result_of_a_window_has_no_dead_letter() -> None:
    app = made_app(on_error="dlq")
    windows = app.flow("numbers").group_by_key().window(tumbling("10s", grace=0))
    windows.count("n", emit="final").map_values(lambda _n: double(13)).to("out")
    with TestDriver(app, raises=False) as driver:
        send(driver, (b"a", b"1", 0, None), (b"b", b"1", 90_000, None))

        assert letters(driver) == []
        assert "not in x-dlq: it is a result, not a record" in str(driver.failures[0])


def test_failed_dead_letter_is_not_sent_again() -> None:
    app = made_app(on_error="dlq")
    app.flow("x-dlq").map_values(double).to("out")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("x-dlq", [13])

        assert len(driver.read("x-dlq")) == 1
        assert "not sent to x-dlq again" in str(driver.failures[0])


def test_record_too_large_for_the_topic_is_told() -> None:
    app = with_flow(made_app(on_error="dlq"))
    with TestDriver(app, raises=False) as driver:
        send(driver, (None, b"13".rjust(999_900), 0, None))

        assert letters(driver) == []
        assert "not in x-dlq: record too large" in str(driver.failures[0])


def test_row_of_failures_stops_its_task_all_the_same() -> None:
    app = with_flow(made_app(on_error="dlq"))
    with TestDriver(app, raises=False) as driver, pytest.raises(TaskStopped):
        send(driver, *[(None, b"13", 0, None)] * 12)


def test_dead_letter_topic_is_of_the_topology_and_of_no_signature() -> None:
    plain = with_flow(made_app()).topology()
    kept = with_flow(made_app(on_error="dlq")).topology()

    (spec,) = (each for each in kept.topics if each not in plain.topics)
    assert (spec.name, spec.config["retention.ms"]) == ("x-dlq", "-1")
    assert kept.signatures == plain.signatures
