"""Totals per user as a flow, to be measured beside the agent of `aggregate`."""

import os
from typing import Any

from streamsx import App

app = App(
    os.environ.get("GROUP", "throughput"),
    broker=f"kafka://{os.environ.get('BOOTSTRAP', 'localhost:9092')}",
    state_dir=os.environ.get("STATE_DIR"),
    topic_partitions=int(os.environ.get("PARTITIONS", "4")),
)


def add(_key: Any, order: Any, known: list[float] | None) -> list[float]:
    """Return number, amount, lowest and highest price."""
    price = order["price"]
    amount = price * order["qty"]
    if known is None:
        return [1, amount, price, price]
    n, sum_, low, high = known
    low = price if price < low else low  # noqa: FURB136  # 100 ns less than min
    high = price if price > high else high  # noqa: FURB136
    return [n + 1, sum_ + amount, low, high]


orders = app.flow(os.environ.get("TOPIC", "orders"), key_type=str)
orders.group_by_key().aggregate(lambda: None, add, name="totals")
