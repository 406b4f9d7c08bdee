"""Apps that are run on Spark and in a TestDriver: each module attribute is one."""

import asyncio
from typing import Any

from streamsx import App, Stream

# One hop: whose order came first, and how many.

grouped = App("grouped", topic_partitions=2)
sums = grouped.Table("sums", default=int, key_type=str)


@grouped.agent(grouped.topic("orders"), name="sum")
async def add(stream: Stream[Any]) -> None:
    async for order in stream.group_by(lambda order: order["user"], name="user", partitions=3):
        sums[order["user"]] += order["amount"]


# The same, for what goes from workers to Spark and back.

carried = App("carried", topic_partitions=2)
carried.Table("totals", default=int, key_type=str)


@carried.agent(carried.topic("sales"), name="total")
async def total(stream: Stream[Any]) -> None:
    async for sale in stream.group_by(lambda sale: sale["user"], name="user", partitions=3):
        carried.tables["totals"][sale["user"]] += sale["amount"]


# One task: what is set and what is deleted, records that fail, values that cannot be encoded.

keeper = App("keeper", topic_partitions=2)
kept = keeper.Table("kept", key_type=str)


@keeper.agent(
    keeper.topic("edits", key_type=str, value_type=str, value_serializer="raw"), name="keep"
)
async def keep(stream: Stream[str]) -> None:
    async for key, value in stream.items():
        if value == "boom":
            raise ValueError(value)
        kept[key] = None if value == "delete" else object() if value == "set" else value


# Records that fail are dead letters.

burying = App("burying", topic_partitions=1)


@burying.agent(burying.topic("edits", value_serializer="raw"), name="bury", on_error="dlq")
async def bury(stream: Stream[bytes]) -> None:
    async for value in stream:
        if value == b"boom":
            raise ValueError(value)


# Two agents of one topic, each with a table of its own.

pair = App("pair", topic_partitions=1)
ones, twos = (pair.Table(name, key_type=str, default=int) for name in ("ones", "twos"))


@pair.agent(pair.topic("both", key_type=str), name="one")
async def count_one(stream: Stream[Any]) -> None:
    async for key, value in stream.items():
        ones[key] += value


@pair.agent(pair.topic("both", key_type=str), name="two")
async def count_two(stream: Stream[Any]) -> None:
    async for key, value in stream.items():
        twos[key] += value


# The same as its next version, which reads another topic.

next_keeper = App("keeper", version=2)
next_keeper.Table("kept", key_type=str)


@next_keeper.agent(
    next_keeper.topic("edits-12", key_type=str, value_type=str, value_serializer="raw"), name="keep"
)
async def keep_on(stream: Stream[str]) -> None:
    async for key, value in stream.items():
        next_keeper.tables["kept"][key] = None if value == "delete" else value


# A table that is kept by what is in the records, not by their keys.

regrouped = App("regrouped", topic_partitions=2)
by_value = regrouped.Table("by_value", default=int, key_type=str)


@regrouped.agent(
    regrouped.topic("edits", key_type=str, value_type=str, value_serializer="raw"), name="count"
)
async def count(stream: Stream[str]) -> None:
    async for value in stream:
        by_value[value] += 1


# Two topics in one task: the last one to say something is remembered, with all before it.

paired = App("paired", topic_partitions=2)
last = paired.Table("last", default=str, key_type=str)
lefts = paired.topic("lefts", value_type=str, value_serializer="raw")
rights = paired.topic("rights", value_type=str, value_serializer="raw")


@paired.agent(lefts, name="left")
async def left(stream: Stream[str]) -> None:
    async for value in stream:
        last["all"] += value


@paired.agent(rights, name="right")
async def right(stream: Stream[str]) -> None:
    async for event in stream.events():
        last["all"] += event.value.upper()
        last[event.value] = str(event.headers.get("from"))


# One hop, and who comes last counts.

handed = App("handed", topic_partitions=2)
newest = handed.Table("newest", default=str, key_type=str)
told = handed.topic("told", key_type=str, value_type=str, value_serializer="raw")


@handed.agent(
    handed.topic("said", key_type=str, value_type=str, value_serializer="raw"), name="tell"
)
async def tell(stream: Stream[str]) -> None:
    async for key, value in stream.items():
        await told.send(key=key, value=value)


@handed.agent(told, name="hear")
async def hear(stream: Stream[str]) -> None:
    async for key, value in stream.items():
        newest[key] += value


# What a body may not do there.

waiter = App("waiter", topic_partitions=1)


@waiter.agent(waiter.topic("requests", value_type=str), name="wait")
async def wait(stream: Stream[str]) -> None:
    async for value in stream:
        if value == "thread":
            await asyncio.to_thread(len, value)
        if value == "turn":
            await asyncio.sleep(0)
        if value == "sleep":
            await asyncio.sleep(60)
        if value == "back":
            await waiter.send(("x" + "requests")[1:], value="again")
        if value == "large":
            await waiter.send("requests-log", value="x" * (2 << 20))
        if value == "log":
            await waiter.send("requests-log", value=value, headers={"h": b"1"}, partition=0)


waiter.topic("requests-log", value_type=str, value_serializer="raw")


# What no order of stages has.

fed_by_itself = App("fed-by-itself", topic_partitions=1)
again = fed_by_itself.topic("again", value_type=str)


@fed_by_itself.agent(again, name="echo")
async def echo(stream: Stream[str]) -> None:
    async for value in stream:
        await again.send(value=value)
