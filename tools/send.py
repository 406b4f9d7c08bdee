"""`streamsx send`: writes records into a topic, and waits until the broker has all of them."""

import argparse
import asyncio
import os
import stat
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from itertools import cycle
from typing import TYPE_CHECKING

from streamsx.clock import Clock
from streamsx.errors import BrokerUnreachable, NotFound, UsageError
from streamsx.model import RECORD_BYTES_MAX
from streamsx.tools.cli.cluster import ClusterCommand, connected
from streamsx.tools.cli.command import tell
from streamsx.tools.cli.progress import progress

if TYPE_CHECKING:
    from streamsx.client.cluster import Cluster

BLOCK_BYTES = 1 << 16
SILENT_S = 10.0
"""Without any acknowledgement."""
STDIN = "-"
JSON_STARTS = ("{", "[", '"')


def main() -> None:
    """3 for a topic that is not there."""
    command = ClusterCommand("send", "Write records into a topic: bytes as they are given.")
    add = command.add_argument
    add("topic", metavar="TOPIC")
    add(
        "values", metavar="[KEY=]VALUE", nargs="+",
        help="one record each; `-`: lines of stdin, VALUE or KEY<TAB>VALUE; what begins as JSON "
        "does has no key",
    )  # fmt: skip
    add(
        "--null-marker", type=os.fsencode, metavar="WORD",
        help="a value that is this word is sent as none at all, a tombstone: KEY=WORD",
    )  # fmt: skip
    add("--partition", type=int, metavar="N", help="for all of them (chosen by the key)")
    command.ask(send)


async def send(options: argparse.Namespace, clock: Clock) -> None:
    """Raises NotFound, UsageError, BrokerUnreachable and others."""
    from streamsx.client.range_reader import writing
    from streamsx.protocol.partitioner import check_place, partition_of

    topic, room, sent = options.topic, asyncio.Event(), Counter[int]()
    async with connected(options) as cluster, progress(sys.stderr, f"writing to {topic}") as say:
        await cluster.follow([topic])
        partitions = cluster.partitions(topic)
        if not partitions:
            raise NotFound(f"unknown topic: {topic}: make it, or start the app that makes it")
        check_place(topic, options.partition, partitions)
        turns = cycle(range(partitions))
        async with writing(cluster, clock, room.set) as producer:
            senders = [producer.to(topic, number) for number in range(partitions)]
            await in_time(producer.start(), cluster, topic, sent)
            async for key, value in records(options.values):
                place = options.partition
                if place is None:
                    place = next(turns) if key is None else partition_of(key, partitions)
                sent_value = None if value == options.null_marker else value
                senders[place](key, sent_value, int(clock.wall() * 1000), None)
                sent[place] += 1
                while producer.full():
                    say(f"{sent.total()} records")
                    room.clear()
                    await in_time(room.wait(), cluster, topic, sent)
            await in_time(producer.flush(), cluster, topic, sent)
    print(f"{topic}: {sent.total()} records, acknowledged", file=options.people)
    told = {str(number): sent[number] for number in sorted(sent)}
    tell(options, {"topic": topic, "records": sent.total(), "partitions": told})


async def in_time(
    work: Awaitable[object], cluster: "Cluster", topic: str, sent: Counter[int]
) -> None:
    """What waits for brokers; who waits for the next line has all the time there is. Raises
    BrokerUnreachable.
    """
    try:
        async with asyncio.timeout(SILENT_S):
            await work
    except TimeoutError:
        raise BrokerUnreachable(
            f"not acknowledged in {SILENT_S:g} s: topic {topic}: some of "
            f"{sent.total()} records may be there: "
            f"{cluster.unreached.newest or 'look at the brokers'}, and send the rest again"
        ) from None


async def records(values: list[str]) -> AsyncIterator[tuple[bytes | None, bytes]]:
    """Those of the command line, or the lines of stdin where it says `-`."""
    for value in values:
        if value == STDIN:
            async for line in lines():
                key, tab, rest = line.partition(b"\t")
                yield (key, rest) if tab else (None, line)
        else:
            data = os.fsencode(value)  # the bytes that were given, whatever they are
            key, sign, rest = data.partition(b"=")
            keyed = sign and not value.startswith(JSON_STARTS)
            yield (key, rest) if keyed else (None, data)


async def lines() -> AsyncIterator[bytes]:
    """As they come: who types them waits for none to be sent."""
    if sys.stdin is None:
        raise UsageError("nothing to read: stdin is closed: give values, or lines")
    descriptor, rest = sys.stdin.fileno(), b""
    while len(rest) <= RECORD_BYTES_MAX and (block := await block_of(descriptor)):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


async def block_of(descriptor: int) -> bytes:
    """What is there to read, as soon as there is something; nothing at the end.

    Not in a thread: an interrupt would wait for it, and it for who types.
    """
    loop, mode = asyncio.get_running_loop(), os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor):
        ready = asyncio.Event()
        loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)
    else:  # a file, of which the loop watches none
        await asyncio.sleep(0)
    return os.read(descriptor, BLOCK_BYTES)
