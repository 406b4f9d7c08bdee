"""spark/plan.py: stages in their order, and every reason why an app is none for Spark."""

import functools
import importlib
from pathlib import Path

import pytest

from streamsx import App, Stream
from streamsx.app.lookup import app_named
from streamsx.errors import NotOnSpark
from streamsx.examples import wordcount
from streamsx.spark.plan import INNER, LOG, OUT, STORES_MAX, Stage, check, place, refuse, stages

WORKER_ONLY = '''\
"""An app with all that only a worker can do."""
import asyncio

from streamsx import App

app = App("shop", topic_partitions=3)
orders = app.topic("orders", key_type=str, value_type=str)
prices = app.topic("prices", partitions=3)
alerts = app.topic("alerts")
totals = app.Table("totals", default=int)


@app.agent(orders, name="buy")
async def buy(stream):
    async for order in stream:
        totals[order] += 1
        await alerts.send(key=order, value=order)


@app.agent(alerts, name="notify")
async def notify(stream):
    await asyncio.sleep(1)
    async for alert in stream:
        await orders.send(key=alert, value=alert)


@app.agent(prices, name="cut")
async def cut(stream):
    async for price in stream:
        await prices.send(value=price / 2)


@app.timer(60, name="tick")
async def tick():
    await prices.send(value=1)


@app.timer(60, name="look")
async def look():
    print(dict(totals))
'''
REASONS = """\
agent 'notify' (worker_only.py:20): waits for something outside its stream: run it in a worker
agent 'buy' (worker_only.py:13): feeds itself through 'alerts': break the cycle or run it in a worker
agent 'notify' (worker_only.py:20): feeds itself through 'orders': break the cycle or run it in a worker
agent 'cut' (worker_only.py:27): feeds itself through 'prices': break the cycle or run it in a worker
timer 'tick' (worker_only.py:33): needs a worker's event loop: run it in a worker
"""  # noqa: E501  # as it is shown
DIFFERS = """\
timer 'look' (worker_only.py:38): needs a worker's event loop: run it in a worker
agent 'buy' (worker_only.py:13): reads 'orders', and so only what this app sends there, not what others do
"""  # noqa: E501


def app_of(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    """Return an app of a file, so that reasons can name its lines."""
    (folder / "worker_only.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    return app_named("worker_only")


@pytest.mark.parametrize("named", ["via", "'via'"])
def test_topic_derived_in_agent_is_inner_and_no_cycle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    text = f"""
from streamsx import App

app = App("by-way", topic_partitions=1)
via = app.topic("via", value_type=str)
table = app.Table("t", default=int)


@app.agent(app.topic("in", value_type=str))
async def count(stream):
    async for value in stream.through({named}):
        table[value] += 1
"""
    app = app_of(text, tmp_path, monkeypatch)
    assert not any(each.fatal for each in check(app))
    assert [each.inner for each in made(app)] == [(), ("via",)]


def made(app: App, **found: int) -> list[Stage]:
    return stages(app.topology(), found, app.conf.topic_partitions)


def test_all_refusal_reasons_are_listed_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = check(app_of(WORKER_ONLY, tmp_path, monkeypatch))
    told = {
        fatal: [str(each) for each in reasons if each.fatal is fatal] for fatal in (True, False)
    }
    assert told == {True: REASONS.splitlines(), False: DIFFERS.splitlines()}
    with pytest.raises(NotOnSpark) as refused:
        refuse("shop", reasons)
    first, *lines = str(refused.value).splitlines()
    assert first == "app 'shop' cannot run on Spark (5 reasons):"
    assert lines == [f"  {line}" for line in REASONS.splitlines()]


def test_differing_partition_counts_are_a_refusal_reason() -> None:
    app = App("split")
    both = app.topic("one", "two")
    table = app.Table("table", default=int)

    @app.agent(both)
    async def count(stream: Stream[str]) -> None:
        async for key in stream:
            table[key] += 1

    (reason,) = check(app, {"one": 2, "two": 3})
    assert str(reason).startswith("app 'split' (its topics): partition counts differ: ")
    assert not check(app, {"one": 2, "two": 2})


def test_app_with_a_global_table_is_refused() -> None:
    app = App("global")
    app.flow("orders").join(app.global_table("towns"), lambda order, town: [order, town]).to("out")
    (reason,) = check(app)
    assert str(reason).startswith("global table 'towns' (its topic): Spark does not read it")


@pytest.mark.parametrize("of_flow", [False, True])
def test_retry_is_refused(*, of_flow: bool) -> None:
    app = App("again") if of_flow else App("again", on_error="retry")
    app.flow("orders", on_error="retry" if of_flow else None).map_values(str).to("out")
    (reason,) = check(app)
    assert str(reason).startswith("app 'again' (its on_error): retry would hold up a whole batch")


def test_join_by_a_foreign_key_is_refused() -> None:
    app = App("foreign")
    towns = app.table("towns")
    app.table("orders").join(towns, max, key=lambda order: order, name="both").to("out")
    told = [str(reason) for reason in check(app)]
    assert any("send records to each other" in line for line in told)


@pytest.mark.parametrize("more", [0, 1])
def test_task_with_too_many_stores_is_refused(more: int) -> None:
    app = App("wide")
    tables = {n: app.Table(f"table{n}", default=int) for n in range(STORES_MAX + more)}

    @app.agent(app.topic("many"))
    async def count(stream: Stream[int]) -> None:
        async for key in stream:
            tables[key][key] += 1

    told = "stage 0 (its tables): 65 tables in one task, at most 64: divide its agents"
    assert [str(reason) for reason in check(app)] == [told] * more


def test_app_in_main_module_is_refused_once() -> None:
    app = App("here")

    async def run(stream: Stream[str]) -> None:
        async for _ in stream:
            pass

    run.__module__ = "__main__"
    app.agent("a", name="first")(run)
    app.agent("b", name="second")(run)
    app.timer(60, name="bound")(functools.partial(run))  # has no code of its own
    told = check(app)
    assert [each.place for each in told] == [place(run)] * 2
    assert str(told[0]) == (
        f"agent 'first' ({place(run)}): the app lives in __main__: executors cannot import it: "
        "give it a module"
    )


def test_topic_sent_and_read_by_app_is_both_inner_and_output() -> None:
    first, second = made(wordcount.app, **{"wordcount-lines": 4, "wordcount-words": 3})
    assert (first.number, first.tasks, first.external, first.inner) == (
        (0, 4, ("wordcount-lines",), ())
    )
    assert (second.number, second.tasks, second.external, second.inner) == (
        (1, 3, (), ("wordcount-words",))
    )
    assert first.outputs == second.outputs == {"wordcount-words"}
    kinds = [each.kind(topic) for each in (first, second) for topic in ("elsewhere",)]
    assert kinds == [OUT, OUT]
    assert first.kind("wordcount-words") == INNER
    assert second.kind("wordcount-counts-changelog") == LOG
    (warning,) = check(wordcount.app)
    assert (warning.what, warning.fatal) == ("agent 'streamsx.examples.wordcount.count'", False)
    assert warning.message == (
        "reads 'wordcount-words', and so only what this app sends there, not what others do"
    )
    refuse("wordcount", [warning])


def test_repartition_topic_is_inner_only() -> None:
    app = App("group", topic_partitions=2)
    sums = app.Table("sums", default=int)

    @app.agent("orders", name="sum")
    async def add(stream: Stream[dict[str, str]]) -> None:
        async for order in stream.group_by(lambda order: order["user"], name="user", partitions=5):
            sums[order["user"]] += 1

    first, second = made(app)
    (between,) = second.inner
    assert (first.tasks, second.tasks, first.outputs) == (2, 5, frozenset())
    assert (first.kind(between), second.counts[between]) == (INNER, 5)
    assert not check(app)


def test_sending_to_topic_read_earlier_is_refused() -> None:
    first, second = made(wordcount.app)
    for stage, topic in ((second, "wordcount-lines"), (second, "wordcount-words")):
        with pytest.raises(NotOnSpark, match=f"sends to '{topic}', which was read before it"):
            stage.kind(topic)
    with pytest.raises(NotOnSpark, match="sends to 'wordcount-lines'"):
        first.kind("wordcount-lines")
