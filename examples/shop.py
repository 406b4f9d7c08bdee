"""Shop: money spent by each customer and pieces sold of each product, minus cancellations.

    python -m streamsx worker streamsx.examples.shop
    python -m streamsx send orders \\
        1='{"customer": "ann", "product": "tea", "price": 350, "pieces": 2, "at": 1795860000000}'
    python -m streamsx table --app shop customers     # ann has one order of 700 cents
    python -m streamsx send orders 1=none --null-marker none
    python -m streamsx table --app shop customers     # and now none

Orders come with their id as key; a record without a value cancels the order with that id. So the
first agent keeps the standing orders, and sends the value of each change; the others add the
changes up, by customer and by product. Amounts are cents: sums are equal in any order of addition.

`shop_history.py` makes a past of any size for the shop.
"""

from dataclasses import dataclass

from streamsx import App, Stream


@dataclass(frozen=True)
class Order:
    """Order of a product. `price` is per piece, in cents; `at` is in ms since 1970."""

    customer: str
    product: str
    price: int
    pieces: int
    at: int


@dataclass(frozen=True)
class Change:
    """Effect of an order on the sums; a cancellation has negative numbers, except for `at`."""

    customer: str
    product: str
    orders: int
    pieces: int
    cents: int
    at: int


@dataclass(frozen=True)
class Customer:
    """Sums of a customer. `last` is the time of the newest order, cancelled or not."""

    orders: int = 0
    cents: int = 0
    last: int = 0


app = App("shop")
orders = app.topic("orders", key_type=str, value_type=Order, allow_empty=True)
changes = app.topic("shop-changes", key_type=str, value_type=Change)
standing = app.Table("standing", key_type=str, value_type=Order)
customers = app.Table("customers", default=Customer, key_type=str, value_type=Customer)
sold = app.Table("sold", default=int, key_type=str, value_type=int)


def change(order: Order, sign: int) -> Change:
    pieces = sign * order.pieces
    return Change(order.customer, order.product, sign, pieces, pieces * order.price, order.at)


@app.agent(orders)
async def place(stream: Stream[Order | None]) -> None:
    async for number, order in stream.items():
        if before := standing.pop(number, None):
            await changes.send(key=before.customer, value=change(before, -1))
        if order is not None:
            standing[number] = order
            await changes.send(key=order.customer, value=change(order, 1))


@app.agent(changes)
async def spend(stream: Stream[Change]) -> None:
    async for update in stream:
        had = customers[update.customer]
        customers[update.customer] = Customer(
            had.orders + update.orders, had.cents + update.cents, max(had.last, update.at)
        )


@app.agent(changes)
async def sell(stream: Stream[Change]) -> None:
    async for update in stream.group_by(lambda update: update.product, name="product"):
        sold[update.product] += update.pieces


if __name__ == "__main__":
    app.main()
