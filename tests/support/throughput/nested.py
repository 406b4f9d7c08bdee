"""App that adds up the orders of each user by quantity, in a dict of a dict, and sends receipts.

With POISON=1 one order in a hundred fails half-way through its change, else none: the careful
task beside one that is not.
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
receipts = app.topic(f"{app.conf.id}-receipts", key_type=str)
accounts = app.Table("accounts", key_type=str)
POISON = "07" if os.environ.get("POISON") else "none"
"""End of the ids of the orders that fail."""


@app.agent(orders)
async def total(stream: Stream[Any]) -> None:
    async for user, order in stream.items():
        account = accounts.get(user) or {"orders": 0, "amounts": {}}
        amounts = account["amounts"]
        amount = order["price"] * order["qty"]
        quantity = str(order["qty"])
        account["orders"] += 1
        amounts[quantity] = amounts.get(quantity, 0) + amount
        accounts[user] = account
        if order["order_id"].endswith(POISON):
            raise ValueError("odd order")
        receipt = [order["order_id"], account["orders"], amounts[quantity]]
        await receipts.send(key=user, value=receipt)
