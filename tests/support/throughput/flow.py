"""App that totals orders per user as a flow, to be compared with the agent of `aggregate`.

CODEC=msgspec: orders and totals are models, else dicts and lists. Both are changed in place.
"""

import os
from typing import Any

import msgspec

from streamsx import App


class Order(msgspec.Struct, gc=False):
    """Fields of an order that are read."""

    order_id: str
    user_id: str
    qty: int
    price: float
    ts: int


class Total(msgspec.Struct, gc=False, array_like=True):
    """Number, amount, lowest and highest price."""

    number: int
    amount: float
    low: float
    high: float


def add(_key: Any, order: Any, known: list[float] | None) -> list[float]:
    """Add an order to number, amount, lowest and highest price."""
    price = order["price"]
    amount = price * order["qty"]
    if known is None:
        return [1, amount, price, price]
    known[0] += 1
    known[1] += amount
    if price < known[2]:
        known[2] = price
    if price > known[3]:
        known[3] = price
    return known


def add_typed(_key: Any, order: Order, known: Total | None) -> Total:
    """Add an order to a total."""
    price = order.price
    amount = price * order.qty
    if known is None:
        return Total(1, amount, price, price)
    known.number += 1
    known.amount += amount
    if price < known.low:
        known.low = price
    if price > known.high:
        known.high = price
    return known


app = App(
    os.environ.get("GROUP", "throughput"),
    broker=f"kafka://{os.environ.get('BOOTSTRAP', 'localhost:9092')}",
    state_dir=os.environ.get("STATE_DIR"),
    topic_partitions=int(os.environ.get("PARTITIONS", "4")),
)
topic = os.environ.get("TOPIC", "orders")
if os.environ.get("CODEC") == "msgspec":
    orders = app.flow(topic, key_type=str, value_type=Order)
    orders.group_by_key().aggregate(lambda: None, add_typed, name="totals", value_type=Total)
else:
    orders = app.flow(topic, key_type=str)
    orders.group_by_key().aggregate(lambda: None, add, name="totals")
