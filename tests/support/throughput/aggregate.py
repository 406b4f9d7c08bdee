"""App that totals orders per user, to be measured (`measuring`); the environment has its
settings.
"""

import os
from typing import Any

from streamsx import App, Stream

app = App(
    os.environ.get("GROUP", "throughput"),
    broker=f"kafka://{os.environ.get('BOOTSTRAP', 'localhost:9092')}",
    state_dir=os.environ.get("STATE_DIR"),
    topic_partitions=int(os.environ.get("PARTITIONS", "4")),
)
orders = app.topic(os.environ.get("TOPIC", "orders"), key_type=str)
totals = app.Table("totals", key_type=str)
"""Number, amount, lowest and highest price."""


@app.agent(orders)
async def total(stream: Stream[Any]) -> None:
    async for user, order in stream.items():
        price, amount = order["price"], order["price"] * order["qty"]
        known = totals.get(user)
        if known is None:
            totals[user] = [1, amount, price, price]
        else:
            n, sum_, low, high = known
            low = price if price < low else low  # noqa: FURB136  # 100 ns less than min
            high = price if price > high else high  # noqa: FURB136
            totals[user] = [n + 1, sum_ + amount, low, high]
