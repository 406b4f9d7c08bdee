"""Records that fail: they leave no trace in tables, whatever they did, and wherever
input is cut.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamsx import App
from streamsx.testing import TestDriver

pytestmark = pytest.mark.timeout(120)
KEYS = "abc"
Op = tuple[str, str]
Story = list[tuple[list[Op], bool]]
"""Records, each with what it does and whether it fails in the end."""

GOOD = st.sampled_from(["set", "late", "delete", "new", "send", "count", "wait"])
"""What a record may do that succeeds: it puts back what it has changed in place."""
BAD = GOOD | st.sampled_from(["touch", "alias", "walk", "pop"])
KEY = st.sampled_from(KEYS)


def records() -> st.SearchStrategy[Story]:
    good = st.tuples(st.lists(st.tuples(GOOD, KEY), max_size=4), st.just(value=False))
    bad = st.tuples(st.lists(st.tuples(BAD, KEY), max_size=4), st.just(value=True))
    return st.lists(good | good | bad, min_size=1, max_size=12)


def do(table: Any, word: str, key: str) -> None:
    """Change a table, or the dict that stands for it in the reference."""
    if word in {"set", "late", "touch"}:
        value = table.get(key) or {"a": {"n": 0}}
        if word == "late":
            table[key] = value
        value["a"]["n"] += 1
        if word == "set":
            table[key] = value
    elif word == "new":
        table[key] = {"a": {"n": 100}}
    elif word == "alias":
        value = table.get(key) or {"a": {"n": 7}}
        for other in KEYS:
            table[other] = value
        value["a"]["n"] += 1
    elif word == "walk":
        for _, value in list(table.items()):
            value["a"]["n"] += 1
    elif word in {"delete", "pop"}:
        table.pop(key, None)


def app_of() -> App:
    app = App("undone", topic_partitions=1, store="memory://", consecutive_failures_max=None)
    app.topic("out", partitions=1)
    nested: Any = app.Table("nested")
    counts: Any = app.Table("counts", default=int)
    windows: Any = app.Table("windows", default=int).tumbling("10s")

    @app.agent("in", name="first", tables=[nested, counts, windows])
    async def first(stream: AsyncIterator[Any]) -> None:
        async for number, ops, fails in stream:
            for word, key in ops:
                do(nested, word, key)
                if word == "count":
                    counts[key] += 1
                    windows[key] += 1
                elif word == "send":
                    await app.topics["out"].send(value=[number, key])
                elif word == "wait":
                    await asyncio.sleep(1)
            if fails:
                raise ValueError(number)

    return app


def plain(story: Story) -> tuple[dict[str, Any], dict[str, int], Counter[Any]]:
    """Return tables and outputs of a feed without the records that fail."""
    nested: dict[str, Any] = {}
    counts = Counter[str]()
    sent = Counter[Any]()
    for number, (ops, fails) in enumerate(story):
        for word, key in () if fails else ops:
            do(nested, word, key)
            counts[key] += word == "count"
            sent[number, key] += word == "send"
        nested = deepcopy(nested)
    return nested, dict(+counts), +sent


def replayed(driver: TestDriver, table: str) -> dict[Any, Any]:
    """Return a table as its changelog has it."""
    found: dict[Any, Any] = {}
    node = driver.store(table, 0)
    for _, rows in driver._logs.of(f"undone-{table}-changelog"):
        for key, value, _, _ in rows:
            assert key is not None
            name = node.decode_key(key)
            if value is None:
                found.pop(name, None)
            else:
                found[name] = node.decode(value)
    return found


@given(
    records(),
    st.lists(st.integers(1, 5), max_size=12),
    st.lists(st.sampled_from(["", "commit", "kill"]), max_size=12),
)
@example([([("set", "a")], False), ([("touch", "a")], True), ([("set", "a")], False)], [], [])
@example([([("set", "a"), ("set", "b")], True), ([("count", "a"), ("wait", "a")], True)], [], [])
@example([([("new", "a")], False), ([("wait", "a"), ("alias", "a")], True)], [1], ["commit"])
def test_tables_are_those_of_a_feed_without_the_records_that_fail(
    story: Story, cuts: list[int], between: list[str]
) -> None:
    left = [[number, ops, fails] for number, (ops, fails) in enumerate(story)]
    with TestDriver(app_of(), commit=False, raises=False) as driver:
        for cut, then in zip([*cuts, len(left)], [*between, *[""] * len(cuts)], strict=False):
            driver.pipe("in", left[:cut])
            left = left[cut:]
            if then == "commit":
                # Only a careful task leaves a record out whose body waits.
                careful = all(task.care is not None for task in driver._tasks.values())
                driver.advance("1s" if careful else "1h")
                driver.commit()
            elif then == "kill":
                driver.restart()
        driver.pipe("in", left)
        driver.advance("1h")
        driver.commit()
        nested, counts, sent = plain(story)
        assert driver.table("nested") == replayed(driver, "nested") == nested
        assert driver.table("counts") == replayed(driver, "counts") == counts
        by_key = Counter[str]()
        for (key, _), n in driver.table("windows").items():
            by_key[key] += n
        assert by_key == counts
        failed = {failure.offset for failure in driver.failures}
        assert failed == {n for n, (_, fails) in enumerate(story) if fails}
        if "kill" not in between:
            assert len(driver.failures) == len(failed), "each is told once"
            out = Counter(tuple(each.value) for each in driver.read("out"))
            good = {n for n, (_, fails) in enumerate(story) if not fails}
            assert Counter({at: n for at, n in out.items() if at[0] in good}) == sent
