"""Windows over the final results of another window."""

from typing import Any

import pytest

from streamsx import App
from streamsx.app.window import session, sliding, tumbling
from streamsx.errors import TopologyError
from streamsx.testing import TestDriver


def chained(first: Any, second: Any, *, through: bool = False) -> App:
    app = App("chain", topic_partitions=1, store="memory://")
    flow = app.flow("in").group_by_key().window(first).count("first", emit="final").to_flow()
    plain = flow.rekey(lambda _n, key, _t, _h: key.key, metadata=True)
    flow = plain.repartition("between") if through else plain
    flow.group_by_key().window(second).sum(lambda n: n, "second", emit="final").to("out")
    return app


@pytest.mark.parametrize("through", [False, True])
def test_equal_graces_lose_nothing(*, through: bool) -> None:
    app = chained(tumbling("10s", grace="5s"), tumbling("20s", grace="5s"), through=through)
    with TestDriver(app) as driver:
        for at in range(200):
            driver.pipe("in", [("a", 1, float(at))])
        found = [each.value for each in driver.read("out")]
    assert found == [20] * 9


@pytest.mark.parametrize(
    ("first", "second", "needed"),
    [
        (tumbling("10s", grace="5s"), tumbling("20s", grace="4s"), 5000),
        (tumbling("10s", grace="5s"), session("20s", grace=0), 5000),
        (sliding("10s", grace="2s"), tumbling("20s", grace="1s"), 2000),
        (session("10s", grace="2s"), tumbling("20s", grace="11s"), 12000),
    ],
)
@pytest.mark.parametrize("through", [False, True])
def test_smaller_grace_is_refused(first: Any, second: Any, needed: int, *, through: bool) -> None:
    line = rf"\(.*test_chained_windows.py:\d+\).* grace='{needed}ms'"
    with pytest.raises(TopologyError, match=line):
        chained(first, second, through=through)
