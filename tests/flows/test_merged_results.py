"""Flows that read several topics: of one commit interval, one result of each key leaves at the
commit.
"""

from streamsx import App
from streamsx.testing import TestDriver


def test_newest_result_of_a_key_leaves_whichever_topic_it_came_from() -> None:
    app = App("shop", topic_partitions=1, store="memory://")
    orders = app.flow("a").merge(app.flow("b")).group_by_key()
    orders.sum(lambda value: value, "totals").to("results")
    with TestDriver(app, commit=False) as driver:
        driver.pipe("b", [("ann", 1)])
        driver.pipe("a", [("ann", 2)])
        driver.commit()
        driver.pipe("b", [("ann", 4)])
        driver.commit()
        assert [each.value for each in driver.read("results")] == [3, 7]
