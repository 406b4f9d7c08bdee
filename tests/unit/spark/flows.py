"""Flows that are run on Spark and in a TestDriver: windows, sessions, joins, and a hop between."""

from typing import Any

from streamsx import App
from streamsx.app.window import hopping, session, tumbling

flowing = App("flowing", topic_partitions=2)
orders = flowing.flow("orders")
clicks = flowing.flow("clicks")

(orders.group_by_key().window(tumbling("10s", grace="2s"))
    .sum(lambda order: order["n"], name="sums", emit="final").to("final-sums"))  # fmt: skip
(orders.group_by_key().window(hopping("9s", "3s"))
    .count(name="counts", emit="update").to("counts-out"))  # fmt: skip
(clicks.group_by_key().window(session("4s", grace="1s"))
    .count(name="visits", emit="final").to("visits-out"))  # fmt: skip
(orders.group_by(lambda order: order["shop"], name="shop")
    .sum(lambda order: order["n"], name="shops", emit="update"))  # fmt: skip


(orders.group_by(lambda order: order["shop"], name="timely")
    .window(tumbling("20s", grace="10s")).count(name="by-shop", emit="final")
    .to("by-shop-out"))  # fmt: skip


def both(order: Any, click: Any) -> Any:
    return {"order": order, "click": click}


orders.join(clicks, both, kind="outer", within="3s", grace="1s", name="seen").to("seen-out")
