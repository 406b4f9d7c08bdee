"""Foreign-key joins: rows of a table with the rows of another one that their values name."""

from random import Random
from typing import Any

import pytest

from streamsx import App
from streamsx.errors import TopologyError
from streamsx.serde.codec import table_codec
from streamsx.state.cache import GONE
from streamsx.state.factory import make_store
from streamsx.state.layout import SUBSCRIPTIONS, StoreNode
from streamsx.state.memory import MemoryRows
from streamsx.state.subscription_store import SubscriptionStore, prefix_of
from streamsx.testing import TestDriver, driver

pytestmark = pytest.mark.usefixtures("rows")


@pytest.fixture
def app() -> App:
    return App("tables", topic_partitions=3, store="memory://")


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def town(order: Any) -> Any:
    return order["town"]


def results(driver: TestDriver) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for record in driver.read("out"):
        found.setdefault(record.key.decode(), []).append(record.value)
    return found


def test_each_change_of_either_table_changes_the_rows_that_name_it(app: App) -> None:
    orders, towns = app.table("orders"), app.table("towns")
    orders.join(towns, lambda _, n: n, key=town, name="both").to("out")
    with TestDriver(app, partitions={"towns": 2}) as driver:
        steps: list[tuple[str, Any]] = [
            ("orders", [(f"o{n}", {"town": f"t{n % 3}"}) for n in range(9)]),
            ("towns", [(f"t{n}", n) for n in range(4)]),
            ("orders", [("o0", {"town": "t3"}), ("o1", {"town": None}), ("o2", None)]),
            ("towns", [("t0", 10), ("t1", 11), ("t2", None)]),
            ("orders", [("o9", None), (None, {"town": "t0"})]),
        ]
        for topic, records in steps:
            driver.pipe(topic, records)
            driver.restart()
        assert results(driver) == {
            "o0": [0, 3], "o3": [0, 10], "o6": [0, 10], "o1": [1, None], "o4": [1, 11],
            "o7": [1, 11], "o2": [2, None], "o5": [2, None], "o8": [2, None],
        }  # fmt: skip
        assert driver.table("both") == {"o0": 3, "o3": 10, "o6": 10, "o4": 11, "o7": 11}


def test_left_join_has_rows_without_a_town(app: App) -> None:
    app.table("orders").join(app.table("towns"), pair, key=town, kind="left", name="x").to("out")
    with TestDriver(app) as driver:
        for topic, value in (
            ("orders", {"town": None}), ("orders", {"town": "a"}), ("towns", 1), ("towns", None),
            ("orders", {"town": None}), ("orders", None),
        ):  # fmt: skip
            driver.pipe(topic, [("a", value)])
            driver.restart()
        nowhere, here = {"town": None}, {"town": "a"}
        assert results(driver) == {
            "a": [[nowhere, None], [here, None], [here, 1], [here, None], [nowhere, None], None]
        }


def test_row_without_a_foreign_key_has_its_own_time_and_a_deletion_that_of_both(app: App) -> None:
    """The result that is deleted has the newer time of the change and of the row that it had."""
    orders, towns = app.table("orders"), app.table("towns")
    orders.join(towns, pair, key=town, kind="left", name="left").to("out")
    orders.join(towns, pair, key=town, name="inner").to("inner-out")
    with TestDriver(app) as driver:
        driver.pipe("towns", [("x", 1, 9.0)])
        for n, order in enumerate([{"town": "x"}, {"town": None}, {"town": "x"}, None]):
            driver.pipe("orders", [("a", order, 1.0 + n)])
        assert [each.timestamp for each in driver.read("out")] == [9, 2, 9, 9]
        assert [each.timestamp for each in driver.read("inner-out")] == [9, 9, 9, 9]


def test_result_is_a_table_that_groups_and_flows_join(app: App) -> None:
    joined = app.table("orders").join(app.table("towns"), lambda _, n: n, key=town, name="both")
    joined.group_by(str).count("counts")
    app.flow("asked").join(joined, lambda _, n: n).to("out")
    with TestDriver(app) as driver:
        driver.pipe("towns", [("a", 1), ("b", 2)])
        driver.pipe("orders", [("o1", {"town": "a"}), ("o2", {"town": "a"})])
        driver.pipe("asked", [("o1", None), ("o1", 0), ("o3", 0)])
        driver.pipe("towns", [("a", 5)])
        assert driver.table("counts") == {"1": 0, "5": 2}
        assert results(driver) == {"o1": [1]}


def test_table_joins_itself(app: App) -> None:
    people = app.table("people")
    bosses = people.join(people, lambda one, boss: boss["name"], key=lambda p: p["boss"], name="x")
    with TestDriver(app) as driver:
        rows = [("1", {"name": "ann", "boss": None}), ("2", {"name": "bob", "boss": "1"})]
        driver.pipe("people", [*rows, ("3", {"name": "cid", "boss": "2"})])
        driver.pipe("people", [("2", {"name": "bea", "boss": "1"})])
        assert driver.table("x") == {"2": "ann", "3": "bea"}
        assert repr(bosses).startswith("TableFlow")


def test_aggregate_with_commits_is_the_right_table(app: App) -> None:
    counts = app.flow("visits").group_by_key().count("visits")
    app.table("orders").join(counts, lambda _, n: n, key=town, name="both")
    with TestDriver(app) as driver:
        driver.pipe("orders", [(f"o{n}", {"town": "a"}) for n in range(1200)])
        driver.pipe("visits", [("a", 1), ("a", 1)])
        assert driver.table("both") == {f"o{n}": 2 for n in range(1200)}


class ShuffledDriver(TestDriver):
    """Test driver whose tasks get their turns by chance, one record a turn."""

    rng = Random(0)

    def _step(self, id_: Any) -> bool:
        return self.rng.random() < 0.6 or super()._step(id_)

    def write(self, topic: str, key: str, value: Any) -> None:
        """Write a record that no task sees before `settle`."""
        known = self._app.topics[topic]
        self._logs.to(topic)(key.encode(), known.value_codec.encode(value), self.now_ms(), None)

    def settle(self) -> None:
        self._settle()


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(n, marks=pytest.mark.slow) for n in range(5, 12))]
)
@pytest.mark.parametrize("kind", ["inner", "left"])
def test_rows_that_change_go_and_come_again_end_with_their_newest_values(
    app: App, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers to the earlier rows are still under way, or arrive in another order than their
    requests.
    """
    rng = Random(seed)
    ShuffledDriver.rng = rng
    monkeypatch.setattr(driver, "SLICE_ROWS", 1)
    app.table("orders").join(app.table("towns"), pair, key=town, kind=kind, name="both").to("out")
    orders: dict[str, Any] = {}
    towns: dict[str, int] = {}
    with ShuffledDriver(app, commit=False, partitions={"towns": 2}) as shuffled:
        for n in range(4):
            for _ in range(6):
                key, name = rng.choice("abc"), rng.choice("xyz")
                place = rng.choice(["x", "y", "z", None])
                order = rng.choice([None, {"town": place}, {"town": place}])
                shuffled.write("orders", key, order)
                orders[key] = order
                if rng.random() < 0.5:
                    towns[name] = rng.choice([None, n])  # type: ignore[assignment]
                    shuffled.write("towns", name, towns[name])
            shuffled.settle()
            rng.choice([shuffled.commit, shuffled.restart])()
        expected = {
            key: [order, towns.get(town(order))]
            for key, order in orders.items()
            if order is not None and (kind == "left" or towns.get(town(order)) is not None)
        }
        assert shuffled.table("both") == expected
        newest = {key: values[-1] for key, values in results(shuffled).items()}
        assert {key: value for key, value in newest.items() if value is not None} == expected


def test_outer_join_by_a_foreign_key_is_refused_with_the_line(app: App) -> None:
    with pytest.raises(TopologyError, match=r"bad kind of join.*test_foreign_joins\.py:\d+"):
        app.table("orders").join(app.table("towns"), pair, key=town, kind="outer", name="x")


def test_subscribers_are_found_in_each_layer_of_the_store() -> None:
    raw = table_codec(bytes)
    node = StoreNode("s", "s-changelog", raw, raw, bytes, kind=SUBSCRIPTIONS, by_bytes=True)
    rows = MemoryRows()
    store = make_store(node, rows, 1000)
    assert isinstance(store, SubscriptionStore)
    one, other = prefix_of(b"\xff"), prefix_of(b"\xff\xff")

    def found(of: SubscriptionStore) -> list[tuple[bytes, int, bytes]]:
        return list(of.subscribers(one))

    store.put_row(other, other + b"k", (9, b"t"))
    for n in range(4):
        store.put_row(one, one + b"k%d" % n, (n, b"t"))
        assert len(found(store)) == n + 1
    while store.seal(2).keys:
        assert len(found(store)) == 4
    store.put_row(one, one + b"k0", GONE)
    store.put_row(one, one + b"k1", (10, b"t"))
    expected = [(b"k1", 10, b"t"), (b"k2", 2, b"t"), (b"k3", 3, b"t")]
    assert found(store) == expected
    store.adopt(5)
    assert found(store) == expected
    store.aborted()
    assert len(found(store)) == 4
    while not store.write_some(1):
        assert len(found(store)) == 4
    assert len(found(store)) == 4
    again = make_store(node, rows, 1000)
    assert isinstance(again, SubscriptionStore)
    assert len(found(again)) == 4


def test_row_that_arrives_late_reaches_a_result_of_before_a_failure() -> None:
    """The failed row takes the task back to its last commit; the town is earlier in time than the
    order.
    """
    app = App("tables", topic_partitions=1, store="memory://")

    def checked(town: Any) -> Any:
        if "bad" in town:
            raise ValueError("bad")
        return town

    by_name = app.flow("towns").group_by_key()
    towns = by_name.reduce(lambda _, new: checked(new), "latest", emit="update")
    app.table("orders").join(towns, pair, key=town, kind="left", name="placed").to("out")
    with TestDriver(app, commit=False, raises=False) as driver:
        driver.pipe("towns", [("rome", {"n": 1}, 1)])
        driver.commit()
        driver.pipe("orders", [("o", {"town": "rome"}, 10)])
        driver.pipe("towns", [("rome", {"bad": 1}, 4), ("rome", {"n": 2}, 5)])
        driver.commit()
        order = {"town": "rome"}
        assert results(driver) == {"o": [[order, {"n": 1}], [order, {"n": 2}]]}
        assert [failure.offset for failure in driver.failures] == [1]
