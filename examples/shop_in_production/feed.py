"""Customers of the online shop: an app that makes orders and payments, at a steady pace.

    FEED_ORDERS=3000 FEED_PER_SECOND=30 python -m streamsx worker \\
        streamsx.examples.shop_in_production.feed

The times of the orders are those of yesterday, from 8 o'clock on, one order a second, so an hour of
the shop passes in two minutes. The same numbers make the same orders, so the feed can tell at its
end what the takings have to be. Started again it sends the same orders again, and the shop drops
them.

Of a hundred orders about five come late, two are for melons, which have no price, one is for no
pieces, one cannot be decoded, one is sent twice, and ten are never paid.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from heapq import merge
from random import Random
from typing import NamedTuple

from streamsx import App
from streamsx.examples.shop_in_production.app import WebOrder, WebPayment

ORDERS = int(os.environ.get("FEED_ORDERS", "3000"))
PER_SECOND = float(os.environ.get("FEED_PER_SECOND", "30"))
PRICES = {"apples": 80, "pears": 120, "plums": 200, "melons": 350}
"""Prices in cents. The shop learns that of melons last."""
SHARES = {"late": 5, "melons": 2, "no pieces": 1, "garbage": 1, "twice": 1, "unpaid": 10}
"""Of a hundred orders. All others are as they should be."""
LATE_S = 480
PAID_S = 300


class FeedRecord(NamedTuple):
    """Record that the feed sends at `at`, which is also its timestamp unless the order is late."""

    at: float
    topic: str
    key: str
    value: bytes
    timestamp: float
    trace: str


class FeedOrder(NamedTuple):
    """Order of the feed, with what is odd about it: a word of SHARES, or nothing."""

    at: float
    order: WebOrder
    odd: str


def ordered(count: int) -> Iterator[FeedOrder]:
    """Yield the orders, one a second."""
    rng = Random(8)  # noqa: S311  # the same numbers make the same orders
    day = datetime.now(UTC).replace(hour=8, minute=0, second=0, microsecond=0) - timedelta(days=1)
    words = [*SHARES, ""]
    shares = [*SHARES.values(), 100 - sum(SHARES.values())]
    for number in range(count):
        (odd,) = rng.choices(words, shares)
        product = "melons" if odd == "melons" else rng.choice(["apples", "pears", "plums"])
        pieces = 0 if odd == "no pieces" else rng.randint(1, 5)
        order = WebOrder(str(number), f"customer-{rng.randrange(200)}", product, pieces)
        yield FeedOrder(day.timestamp() + number, order, odd)


def placed(of: Iterable[FeedOrder]) -> Iterator[FeedRecord]:
    """Yield the orders as they are sent."""
    for at, order, odd in of:
        value = b"{garbage" if odd == "garbage" else json.dumps(asdict(order)).encode()
        when = at - LATE_S if odd == "late" else at
        for _ in range(2 if odd == "twice" else 1):
            yield FeedRecord(
                at, "online-orders", order.number, value, when, f"trace-{order.number}"
            )


def paid(of: Iterable[FeedOrder]) -> Iterator[FeedRecord]:
    """Yield the payments of the orders, in the order of their times."""
    rng = Random(9)  # noqa: S311  # the same numbers make the same payments
    made = []
    for at, order, odd in of:
        when = at + rng.uniform(1, PAID_S)
        if odd not in ("unpaid", "no pieces", "garbage"):
            cents = order.pieces * PRICES[order.product]
            value = json.dumps(asdict(WebPayment(order.number, cents))).encode()
            trace = f"trace-{order.number}"
            made.append(FeedRecord(when, "online-payments", order.number, value, when, trace))
    return iter(sorted(made))


def records(count: int) -> Iterator[FeedRecord]:
    """Yield all that the feed sends, in the order in which it is sent."""
    of = list(ordered(count))
    return merge(placed(of), paid(of))


def takings_of(count: int, *, melons: bool) -> dict[str, tuple[int, int]]:
    """Return the orders and the cents of each product, by plain Python."""
    number, cents = Counter[str](), Counter[str]()
    for _, order, odd in ordered(count):
        if odd not in ("no pieces", "garbage") and (melons or odd != "melons"):
            number[order.product] += 1
            cents[order.product] += order.pieces * PRICES[order.product]
    return {product: (number[product], cents[product]) for product in sorted(number)}


app = App("online-shop-feed", topic_partitions=6)
topics = {
    name: app.topic(name, key_type=str, value_type=bytes, value_serializer="raw")
    for name in ("online-orders", "online-payments")
}


@app.task
async def send_all() -> None:
    """Send the records at their pace, then print what the takings have to be."""
    first = None
    loop = asyncio.get_running_loop()
    began = loop.time()
    for record in records(ORDERS):
        first = record.at if first is None else first
        await asyncio.sleep(began + (record.at - first) / PER_SECOND - loop.time())
        await topics[record.topic].send(
            key=record.key,
            value=record.value,
            timestamp=record.timestamp,
            headers={"trace": record.trace},
        )
    print("all is sent: end this with kill, or Ctrl-C. The takings have to be:")
    for product, (number, cents) in takings_of(ORDERS, melons=True).items():
        print(f"{product}: {number} orders, {cents / 100:.2f}")


if __name__ == "__main__":
    app.main()
