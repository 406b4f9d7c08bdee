"""Records that fail a few times and then succeed: they have one effect, wherever input is cut."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamsx
from streamsx import App
from streamsx.testing import TestDriver

pytestmark = pytest.mark.timeout(120)
ATTEMPTS = 3
KEYS = "abc"
Story = list[tuple[str, int, int]]
"""Records: key, and how many tries fail in the agent, and in the flow."""


def stories() -> st.SearchStrategy[Story]:
    fails = st.sampled_from([0, 0, 0, 1, 2, 3, 9])
    return st.lists(st.tuples(st.sampled_from(KEYS), fails, fails), min_size=1, max_size=12)


def app_of(agent: Counter[int], flow: Counter[int]) -> App:
    app = App(
        "tries",
        topic_partitions=1,
        store="memory://",
        consecutive_failures_max=None,
        on_error=streamsx.retry(ATTEMPTS, then="log"),
    )
    source = app.topic("in")
    sent = app.topic("sent", partitions=1)
    sums: Any = app.Table("sums", default=list)

    @app.agent(source, name="first", tables=[sums])
    async def first(stream: AsyncIterator[Any]) -> None:
        async for raw, value in stream.items():  # type: ignore[attr-defined]
            number = value.pop("number")
            seen = sums[raw.decode()]
            seen.append(number)
            sums[raw.decode()] = seen
            await sent.send(value=number)
            fail(agent, number)

    def change(value: dict[str, int]) -> int:
        number = value.pop("number")
        fail(flow, number)
        return number

    app.flow(source).map_values(change).to(app.topic("mapped", partitions=1))
    return app


def fail(left: Counter[int], number: int) -> None:
    if left[number] > 0:
        left[number] -= 1
        raise ConnectionError(number)


def values(driver: TestDriver, topic: str) -> list[Any]:
    return [record.value for record in driver.read(topic)]


@given(
    stories(),
    st.lists(st.integers(1, 5), max_size=12),
    st.lists(st.sampled_from(["", "commit", "kill"]), max_size=12),
)
def test_record_that_fails_for_a_while_leaves_one_effect(
    story: Story, cuts: list[int], between: list[str]
) -> None:
    agent = Counter({n: fails for n, (_, fails, _) in enumerate(story)})
    flow = Counter({n: fails for n, (_, _, fails) in enumerate(story)})
    left = [(key, {"number": n}) for n, (key, _, _) in enumerate(story)]
    kept = {n for n, (_, fails, _) in enumerate(story) if fails < ATTEMPTS}
    mapped = {n for n, (_, _, fails) in enumerate(story) if fails < ATTEMPTS}
    with TestDriver(app_of(agent, flow), commit=False, raises=False) as driver:
        for cut, then in zip([*cuts, len(left)], [*between, *[""] * len(cuts)], strict=False):
            driver.pipe("in", left[:cut])
            left = left[cut:]
            if then == "commit":
                driver.commit()
            elif then == "kill":
                driver.restart()
        driver.pipe("in", left)
        driver.commit()
        sums = {n for row in driver.table("sums").values() for n in row}
        rows = Counter(n for row in driver.table("sums").values() for n in row)
        assert rows == Counter(sums), "no effect twice"
        assert kept <= sums
        assert mapped <= set(values(driver, "mapped"))
        if "kill" not in between:  # a record begins with its first try behind a kill
            assert sums == kept
            assert sorted(values(driver, "mapped")) == sorted(mapped)
            first = Counter(values(driver, "sent")) - Counter(kept)
            assert first.total() <= 1, "the output of the first try alone may have left"
            told = {(failure.offset, failure.attempt) for failure in driver.failures}
            assert {attempt for _, attempt in told} <= {ATTEMPTS}
