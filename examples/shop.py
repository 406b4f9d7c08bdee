"""A shop: what each customer has spent, and how often each product was sold, cancellations counted.

    python -m streamsx worker streamsx.examples.shop

Orders come with their id as key; one without a value cancels the order that bore its id. So the
first agent keeps the orders that stand, and tells what each change is worth; the others add that
up, by customer and by product. Amounts are cents: whatever their order, sums of them are equal.

`shop_history.py` makes as much of its past as is wanted.
"""

from dataclasses import dataclass

from streamsx import App, Stream


@dataclass(frozen=True)
class Order:
    """`price`: of one piece, in cents; `at`: when it was placed, in ms since 1970."""

    customer: str
    product: str
    price: int
    pieces: int
    at: int


@dataclass(frozen=True)
class Change:
    """What an order adds; all of it is negative for one that is cancelled, but for `at`."""

    customer: str
    product: str
    orders: int
    pieces: int
    cents: int
    at: int


@dataclass(frozen=True)
class Customer:
    """`last`: when the newest order was placed, be it cancelled or not."""

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
    async for what in stream:
        had = customers[what.customer]
        customers[what.customer] = Customer(
            had.orders + what.orders, had.cents + what.cents, max(had.last, what.at)
        )


@app.agent(changes)
async def sell(stream: Stream[Change]) -> None:
    async for what in stream.group_by(lambda what: what.product, name="product"):
        sold[what.product] += what.pieces


if __name__ == "__main__":
    app.main()
