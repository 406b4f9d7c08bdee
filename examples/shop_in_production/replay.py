"""Replay of the online shop's dead letters: orders without a price go back, the rest is parked.

    python -m streamsx worker streamsx.examples.shop_in_production.replay

Run it once the cause is mended, here: once the prices are there. An order that had no price goes
back to its topic, byte for byte, with its own headers. All other letters, and orders that fail
again, go to the topic `online-shop-parked`: somebody has to look at them. Nothing goes round, and
as this app is exactly once, too, each letter goes one way once.

End it with Ctrl-C when `streamsx status --app online-shop-replay` shows 0 behind.
"""

from streamsx import App, Stream

PREFIXES = ("__streams.", "__streamsx.")
"""Beginnings of the headers that make a record a dead letter."""
AGAIN = "LookupError"
REPLAYED = "replayed"
"""Header of an order that was sent again."""

app = App("online-shop-replay", processing_guarantee="exactly_once", topic_partitions=6)
letters = app.topic("online-shop-dlq", value_type=bytes, value_serializer="raw")
orders = app.topic("online-orders", value_type=bytes, value_serializer="raw")
parked = app.topic("online-shop-parked", value_type=bytes, value_serializer="raw")


def text(headers: dict[str, bytes | None], name: str) -> str:
    return (headers.get(f"__streams.errors.{name}") or b"").decode()


@app.agent(letters, name="replay")
async def replay(stream: Stream[bytes]) -> None:
    async for letter in stream.events():
        headers = letter.headers
        of = text(headers, "topic"), text(headers, "exception")
        if of == (orders.name, AGAIN) and REPLAYED not in headers:
            own = {name: it for name, it in headers.items() if not name.startswith(PREFIXES)}
            await orders.send(key=letter.key, value=letter.value, headers={**own, REPLAYED: "1"})
        else:
            print(f"parked: {' '.join(of)}: {text(headers, 'message')}")
            await parked.send(key=letter.key, value=letter.value, headers=headers)


if __name__ == "__main__":
    app.main()
