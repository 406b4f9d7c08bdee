"""app/flow.py: flows that are refused, and records that fail."""

from collections.abc import Callable
from typing import Any

import pytest

from streamsx import App
from streamsx.app.flow import Flow
from streamsx.app.window import hopping, session, sliding, tumbling
from streamsx.errors import NameClash, NotSupported, PartitionMismatch, TopologyError
from streamsx.testing import TestDriver

HERE = "test_flow.py:"


@pytest.fixture
def app() -> App:
    return App("shop", store="memory://", topic_partitions=2)


async def slow(_value: Any) -> bool:
    return True


STEPS: dict[str, Callable[[Flow], object]] = {
    "branches without names": lambda flow: flow.branch(3),  # type: ignore[arg-type]
    "merge of what is no flow": lambda flow: flow.merge("orders"),  # type: ignore[arg-type]
    "async": lambda flow: flow.filter(slow),
    "no function": lambda flow: flow.map_values(3),  # type: ignore[arg-type]
    "too many arguments": lambda flow: flow.map(lambda value: value),  # type: ignore[misc,arg-type]
    "metadata": lambda flow: flow.filter(lambda value: value, metadata=True),
    "aggregate": lambda flow: flow.group_by_key().aggregate(int, lambda a, b: a + b, "n"),  # type: ignore[misc,arg-type]
    "no window": lambda flow: flow.group_by_key().window("10s"),  # type: ignore[arg-type]
    "no table": lambda flow: flow.join("users", lambda a, b: a),  # type: ignore[arg-type]
}
GRAPHS: dict[str, Callable[[Flow], object]] = {
    "final results without a grace": lambda flow: (
        flow.group_by_key().window(tumbling("10s")).count("n", emit="final")
    ),
    "bad emit": lambda flow: flow.group_by_key().count("n", emit="final"),
    "sessions without merge=": lambda flow: (
        flow.group_by_key().window(session("10s")).aggregate(int, lambda k, v, n: n, "n")
    ),
    "state without a name": lambda flow: flow.group_by_key().count(),
    "repartition topic without a name": lambda flow: flow.rekey(str).join(
        flow.place.app.table("users"), lambda a, b: a
    ),
    "gaps between windows": lambda _flow: hopping("10s", "20s"),
    "bad size of a window": lambda _flow: tumbling(0),
    "bad grace of a window": lambda _flow: tumbling("1s", grace="soon"),
    "left join without a grace": lambda flow: flow.join(
        flow, lambda a, b: a, within="1s", kind="left", name="j"
    ),
    "join of flows without within=": lambda flow: flow.join(flow, lambda a, b: a, name="j"),
    "bad kind of join": lambda flow: flow.join(
        flow, lambda a, b: a, within=1, kind="full", name="j"
    ),
    "within=, grace=, idle= or on_late= with a table": lambda flow: flow.join(
        flow.place.app.table("users"), lambda a, b: a, within=1
    ),
    "join with a table of windows": lambda flow: flow.join(
        flow.group_by_key().window(tumbling(1)).count("n"), lambda a, b: a
    ),
    "state by keys of windows": lambda flow: (
        flow.group_by_key().window(tumbling(1)).count("n").to_flow().group_by_key().count("m")
    ),
    "bad branches": lambda flow: flow.branch(rest=bool),
    "two repartition topics with one name": lambda flow: (
        flow.group_by(str, "user").count("n"),
        flow.group_by(str, "user").count("m"),
    ),
    "one topic, read in two ways": lambda flow: flow.place.app.flow("orders", value_type=int),
    "a topic that skips deletions": lambda flow: flow.place.app.table(
        flow.place.app.topic("users", value_type=int)
    ),
    "filter after suppress or sliding windows": lambda flow: (
        flow.group_by_key().window(sliding(1)).count("n").filter(bool)
    ),
    "merge of flows with keys of windows and with plain keys": lambda flow: flow.merge(
        flow.group_by_key().window(tumbling(1)).count("n").to_flow()
    ),
    "key types differ": lambda flow: flow.merge(flow.rekey(int, key_type=float)),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_wrong_function_is_refused_with_file_and_line(
    app: App, step: Callable[[Flow], object]
) -> None:
    with pytest.raises(TypeError, match=HERE):
        step(app.flow("orders"))


@pytest.mark.parametrize(("what", "step"), GRAPHS.items(), ids=GRAPHS)
def test_wrong_graph_is_refused_with_file_and_line(
    app: App, what: str, step: Callable[[Flow], object]
) -> None:
    with pytest.raises(TopologyError, match=what) as refused:
        step(app.flow("orders"))
    assert HERE in str(refused.value)


def test_two_stores_of_one_name_are_refused(app: App) -> None:
    groups = app.flow("orders").group_by_key()
    groups.count("n")
    with pytest.raises(NameClash, match=HERE):
        groups.count("n")


def test_join_of_different_partition_counts_is_refused(app: App) -> None:
    app.flow("a").join(app.flow("b"), lambda a, b: a, within=1, name="j")
    with pytest.raises(PartitionMismatch, match=r"a \(2\), b \(3\)"):
        TestDriver(app, partitions={"a": 2, "b": 3})


def test_key_of_another_type_fails_its_record_with_the_line(app: App) -> None:
    app.flow("orders").group_by(lambda order: order["n"]).count("n")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("orders", [{"n": 1}, {"n": "x"}])
        assert driver.table("n") == {"x": 1}
        (failure,) = driver.failures
        assert "key is a int, not a str" in str(failure.error)
        assert HERE in str(failure.error)


def test_aggregate_that_raises_fails_its_record_alone(app: App) -> None:
    flow = app.flow("orders", timestamp=lambda order: order["at"])
    groups = flow.group_by_key().window(tumbling("10s", grace=0))
    groups.sum(lambda order: 6 // order["n"], "n", emit="final").to("sums")
    with TestDriver(app, raises=False) as driver:
        values = [{"n": 1, "at": 1}, {"n": 0, "at": 2}, {"n": 2, "at": 3}, {"n": 1, "at": 20}]
        driver.pipe("orders", [("k", value) for value in values])
        assert [record.value for record in driver.read("sums")] == [9]
        assert [failure.offset for failure in driver.failures] == [1]


def test_result_that_fails_at_a_close_takes_no_other_result_with_it(app: App) -> None:
    counts = app.flow("orders").group_by_key().window(tumbling(10, grace=0))
    finals = counts.count("n", emit="final").to_flow()
    finals.map_values(lambda n: 6 // (n - 1)).to("out")
    with TestDriver(app, raises=False, partitions={"orders": 1}) as driver:
        records = [("a", 1, 1.0), ("b", 1, 1.0), ("b", 1, 2.0), ("c", 1, 1.0), ("c", 1, 3.0)]
        driver.pipe("orders", [*records, ("d", 1, 20.0)])
        assert sorted(record.value for record in driver.read("out")) == [6, 6]
        (failure,) = driver.failures
        assert failure.offset == 5


@pytest.mark.parametrize("emit", ["commit", "final"])
def test_windows_of_a_key_go_to_the_partition_of_the_plain_key(app: App, emit: str) -> None:
    windows = app.flow("orders").group_by_key().window(tumbling(10, grace=0))
    windows.count("n", emit=emit).to("out")
    app.flow("plain").to("plain-out")
    with TestDriver(app) as driver:
        keys = [f"k{n}" for n in range(20)]
        driver.pipe("plain", [(key, 1) for key in keys])
        driver.pipe("orders", [(key, 1, at) for at in (1.0, 11.0, 21.0, 99.0) for key in keys])
        driver.pipe("orders", [(key, 1, 200.0) for key in keys])
        placed = {record.key.decode(): record.partition for record in driver.read("plain-out")}
        results = driver.read("out")
        assert len(results) >= 60
        assert all(
            placed[record.key.decode().split('"')[1]] == record.partition for record in results
        )


def test_newest_value_of_each_key_leaves_at_a_commit(app: App) -> None:
    app.flow("orders").group_by_key().count("n").to("out")
    with TestDriver(app, commit=False, partitions={"orders": 1}) as driver:
        driver.pipe("orders", [("a", 1), ("b", 1), ("a", 1)])
        assert driver.read("out") == []
        driver.commit()
        assert [(r.key, r.value) for r in driver.read("out")] == [(b"a", 2), (b"b", 1)]
        driver.commit()
        assert len(driver.read("out")) == 2
        driver.pipe("orders", [("a", 1)])
        driver.restart()
        driver.commit()
        assert [(r.key, r.value) for r in driver.read("out")][2:] == [(b"a", 3)]


def test_flow_and_agent_share_a_topic_and_its_task(app: App) -> None:
    seen: list[Any] = []
    orders = app.topic("orders")
    app.flow(orders).group_by_key().count("n")

    @app.agent(orders)
    async def body(stream: Any) -> None:
        async for order in stream:
            seen.append(order)

    assert len(app.topology().subtopologies) == 1
    with TestDriver(app) as driver:
        driver.pipe("orders", [("a", 1), ("b", 2)])
        assert sorted(seen) == [1, 2]
        assert driver.table("n") == {"a": 1, "b": 1}


def test_records_without_key_or_value_are_counted_as_skipped(app: App) -> None:
    app.flow("orders").group_by_key().count("n")
    with TestDriver(app, partitions={"orders": 1}) as driver:
        driver.pipe("orders", [(None, 1), ("a", None), ("a", 1)])
        assert driver.table("n") == {"a": 1}
        (task,) = driver._tasks.values()
        assert (task.counts["n"].skipped, task.counts["n"].late) == (2, 0)


def test_record_without_a_time_is_skipped_by_steps_by_time(app: App) -> None:
    flow = app.flow("orders")
    groups = flow.group_by_key()
    groups.window(tumbling(10)).count("n")
    groups.window(session(10)).count("s")
    flow.join(flow, lambda a, b: [a, b], within=1, name="j").to("pairs")
    with TestDriver(app, partitions={"orders": 1}) as driver:
        driver.pipe("orders", [("a", 1, -0.001), ("a", 2, 5.0)])
        assert driver.table("n") == {("a", 0): 1}
        assert driver.table("s") == {("a", 5000, 5000): 1}
        assert [record.value for record in driver.read("pairs")] == [[2, 2]]
        (task,) = driver._tasks.values()
        assert [task.counts[name].skipped for name in ("n", "s", "j-left")] == [1, 1, 2]


ABSENT: dict[str, Callable[[Flow], object]] = {
    "Flow: async_map": lambda flow: flow.async_map,  # type: ignore[attr-defined]
    "Flow: count": lambda flow: flow.count,  # type: ignore[attr-defined]
    "Grouped: cogroup": lambda flow: flow.group_by_key().cogroup,  # type: ignore[attr-defined]
    "TableFlow: to_stream": lambda flow: flow.to_table("t").to_stream,  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("step", ABSENT)
def test_step_that_is_not_here_is_refused_by_name(app: App, step: str) -> None:
    kind, name = step.split(": ")
    says = rf"a {kind} has no step {name} \(.*{HERE}\d+\): \w+ "
    with pytest.raises(NotSupported, match=says):
        ABSENT[step](app.flow("orders"))


def test_unknown_step_is_an_attribute_error(app: App) -> None:
    flow = app.flow("orders")
    for each in (flow, flow.group_by_key(), flow.to_table("t")):
        assert not hasattr(each, "no_such_step")


def test_no_step_that_exists_is_called_absent(app: App) -> None:
    flow = app.flow("orders")
    for each in (flow, flow.group_by_key(), flow.to_table("t")):
        assert not [name for name in type(each)._absent if name in vars(type(each))]


@pytest.mark.parametrize(
    ("window", "bounds"),
    [
        (tumbling("10s", grace=0), (0, 10_000)),
        (hopping("10s", "10s", grace=0), (0, 10_000)),
        (session("10s", grace=0), (5000, 5000)),
        (sliding("10s", grace=0), (0, 10_000)),
    ],
    ids=["tumbling", "hopping", "session", "sliding"],
)
@pytest.mark.parametrize("emit", ["commit", "update", "final"])
def test_late_record_is_given_to_a_function(
    app: App, window: Any, bounds: tuple[int, int], emit: str
) -> None:
    late: list[Any] = []
    groups = app.flow("orders").group_by_key().window(window)
    groups.count("n", emit=emit, on_late=late.append).to("out")
    with TestDriver(app, partitions={"orders": 1}) as driver:
        driver.pipe("orders", [("a", 1, 100.0), ("b", {"n": 2}, 5.0)])
        (task,) = driver._tasks.values()
        assert task.counts["n"].late == 1
    assert late == [({"n": 2}, "b", 5000, 95_000, *bounds)]


@pytest.mark.parametrize("on_late", ["log", 3])
def test_other_uses_of_late_records_are_refused(app: App, on_late: Any) -> None:
    flow = app.flow("orders")
    groups = flow.group_by_key()
    with pytest.raises((TopologyError, TypeError), match=HERE):
        groups.window(tumbling(1)).count("n", on_late=on_late)
    with pytest.raises((TopologyError, TypeError), match=HERE):
        flow.join(app.flow("b"), lambda a, b: a, within=1, name="j", on_late=on_late)
    with pytest.raises((TopologyError, TypeError), match=HERE):
        flow.deduplicate(key=str, within=1, name="d", on_late=on_late)


@pytest.mark.parametrize("on_late", ["dlq", print])
def test_late_records_without_a_window_are_refused(app: App, on_late: Any) -> None:
    flow = app.flow("orders")
    with pytest.raises(TopologyError, match="no window"):
        flow.group_by_key().count("m", on_late=on_late)
    with pytest.raises(TopologyError, match="on_late= with a table"):
        flow.join(app.table("users"), lambda a, b: a, on_late=on_late)


def test_flow_and_table_of_one_name_are_refused_in_either_order(app: App) -> None:
    app.flow("orders").group_by_key().count("n")
    with pytest.raises(NameClash, match="table n: a flow has it too"):
        app.Table("n")


def test_suppress_behind_a_topic_in_between_gives_the_newest_change(app: App) -> None:
    counts = app.flow("orders").group_by(lambda order: order["user"]).count("n", emit="update")
    counts.suppress("5s").to("out")
    with TestDriver(app, partitions={"orders": 1}) as driver:
        users = [("ann", 1.0), ("ann", 2.0), ("bob", 60.0)]
        driver.pipe("orders", [("k", {"user": user}, at) for user, at in users])
        assert [(each.key, each.value) for each in driver.read("out")] == [(b"ann", 2)]
        assert driver.failures == []


@pytest.mark.parametrize("at", [1_700_000_000_000, 1.7e18, -5])
def test_time_in_another_unit_fails_its_record_and_closes_nothing(app: App, at: float) -> None:
    flow = app.flow("orders", timestamp=lambda order: order["at"])
    flow.group_by_key().window(tumbling(10, grace=0)).count("n", emit="final").to("out")
    with TestDriver(app, raises=False, partitions={"orders": 1}) as driver:
        driver.pipe("orders", [("k", {"at": each}) for each in (1, at, 2, 30)])
        assert [record.value for record in driver.read("out")] == [2]
        (failure,) = driver.failures
        assert "not a time in seconds since 1970" in str(failure.error)


UNNAMED: list[Callable[[Flow], object]] = [
    lambda flow: flow.to_table(),
    lambda flow: flow.deduplicate(key=str, within=1),
    lambda flow: flow.group_by_key().sum(len),
    lambda flow: flow.group_by_key().collect(limit=3),
    lambda flow: flow.group_by_key().reduce(lambda a, _b: a),
    lambda flow: flow.place.app.table("users").group_by(str).count(),
]


@pytest.mark.parametrize("made", UNNAMED)
def test_state_without_a_name_is_refused_with_its_line(made: Callable[[Flow], object]) -> None:
    flow = App("x", store="memory://").flow("orders")
    with pytest.raises(TopologyError, match=r"without a name.* .*test_flow\.py:\d+"):
        made(flow)
