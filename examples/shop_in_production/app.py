"""Online shop: prices, takings, receipts, unpaid orders, and the sales of every five minutes.

    python -m streamsx worker streamsx.examples.shop_in_production.app --instance-id a

The key of an order is its number, its timestamp is the time of the order, and it has a header
`trace`. It goes this way:

    online-orders ─► seen before? ─► its price ─┬─► online-sales ─► takings, online-receipts
                     (then dropped)  (none: a   ├─► by product and five minutes ─► online-periods
                                   dead letter) └─► paid within ten minutes? ─no─► online-unpaid
    online-payments ─► seen before? ───────────────┘

All of it is exactly once: the tables, the outputs and the dead letters of a worker are committed
together, ten times a second. README.md in this folder has the tour.
"""

from dataclasses import dataclass, replace

from streamsx import App, Stream, tumbling


@dataclass(frozen=True)
class WebOrder:
    """Order of some pieces of a product."""

    number: str
    customer: str
    product: str
    pieces: int


@dataclass(frozen=True)
class WebPayment:
    """Payment of an order. `order` is the number of the order, as is the key of the record."""

    order: str
    cents: int


@dataclass(frozen=True)
class WebSale:
    """Order with its amount, and with the payment if there is one."""

    order: WebOrder
    cents: int
    paid: int | None = None


@dataclass(frozen=True)
class Takings:
    """Sales of a product: orders and cents."""

    orders: int = 0
    cents: int = 0


app = App(
    "online-shop",
    processing_guarantee="exactly_once",
    on_error="dlq",
    on_decode_error="dlq",
    num_standby_replicas=1,
    topic_partitions=6,
)
orders = app.topic("online-orders", key_type=str, value_type=WebOrder)
payments = app.topic("online-payments", key_type=str, value_type=WebPayment)
prices = app.topic("online-prices", key_type=str, value_type=int, compacting=True, allow_empty=True)
sales = app.topic("online-sales", key_type=str, value_type=WebSale)
receipts = app.topic("online-receipts", key_type=str, value_type=str, value_serializer="raw")
periods = app.topic("online-periods", value_type=Takings)
unpaid = app.topic("online-unpaid", key_type=str, value_type=WebSale)
takings = app.Table("takings", default=Takings, key_type=str, value_type=Takings)


def priced(order: WebOrder, price: int | None) -> WebSale:
    """Return the sale of an order. What this raises makes the order a dead letter."""
    if price is None:
        raise LookupError(f"no price: {order.product}")
    if order.pieces < 1:
        raise ValueError(f"{order.pieces} pieces: order {order.number}")
    return WebSale(order, order.pieces * price)


def add(_product: str, sale: WebSale, so_far: Takings) -> Takings:
    return Takings(so_far.orders + 1, so_far.cents + sale.cents)


def settled(sale: WebSale, payment: WebPayment | None) -> WebSale:
    return sale if payment is None else replace(sale, paid=payment.cents)


# each order once, with its price; a customer who clicks twice orders once
sold = (
    app.flow(orders)
    .deduplicate(key=lambda order: order.number, within="1h", name="seen")
    .join(
        app.global_table(prices),
        priced,
        key=lambda order: order.product,
        kind="left",
        value_type=WebSale,
    )
)

# each sale to the agent `book` below, by its product
sold.rekey(lambda sale: sale.order.product).to(sales)

# the sales of each product in five minutes: one result, when the five minutes are over
(
    sold.group_by(lambda sale: sale.order.product)
    .window(tumbling("5m", grace="1m", idle="30s"))
    .aggregate(Takings, add, "periods", value_type=Takings, emit="final", on_late="dlq")
    .to(periods)
)

# orders that nobody has paid within ten minutes
(
    sold.join(
        app.flow(payments).deduplicate(
            key=lambda payment: payment.order, within="1h", name="paid-before"
        ),
        settled,
        within=("0s", "10m"),
        grace="5m",
        idle="30s",
        kind="left",
        name="paid",
        value_type=WebSale,
    )
    .filter(lambda sale: sale.paid is None)
    .to(unpaid)
)


@app.agent(sales, name="book")
async def book(stream: Stream[WebSale]) -> None:
    """Add each sale to the takings of its product, and send a receipt with the order's trace."""
    async for event in stream.events():
        sale, order = event.value, event.value.order
        takings[event.key] = add(event.key, sale, takings[event.key])
        text = f"order {order.number}: {order.pieces} {order.product}, {sale.cents / 100:.2f}"
        trace = event.headers.get("trace")
        await receipts.send(key=order.customer, value=text, headers={"trace": trace})


@app.timer("10s")
async def show() -> None:
    """Print the takings of the products that are booked on this worker."""
    for product, had in sorted(takings.items()):
        print(f"{product}: {had.orders} orders, {had.cents / 100:.2f}")


if __name__ == "__main__":
    app.main()
