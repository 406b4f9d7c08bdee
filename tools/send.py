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
from streamsx.log_sentences import counted
from streamsx.model import RECORD_BYTES_MAX
from streamsx.tools.cli.cluster import ClusterCommand, connected
from streamsx.tools.cli.command import tell, value
from streamsx.tools.cli.progress import progress

if TYPE_CHECKING:
    from streamsx.client.cluster import Cluster

EXAMPLES = """\
examples:
  streamsx send orders '{"user": "ann", "price": 2.5}'
  streamsx send orders ann='{"price": 2.5}'        with the key ann
  streamsx send orders - < lines.txt               a record a line
  streamsx send orders '{"price": 1}' --header source=web"""
BLOCK_BYTES = 1 << 16
SILENT_S = 10.0
"""Longest wait without any acknowledgement."""
STDIN = "-"
JSON_STARTS = ("{", "[", '"')


def main() -> None:
    """Run the command: exit with 3 if the topic does not exist."""
    command = ClusterCommand(
        "send", "Write records into a topic, as the bytes that are given.", EXAMPLES
    )
    add = command.add_argument
    add("topic", metavar="TOPIC", help="the topic, which must exist")
    add(
        "values", metavar="[KEY=]VALUE", nargs="+",
        help="one record each; - reads lines of stdin, VALUE or KEY<TAB>VALUE; a word that begins "
        "with {, [ or a quote is a value without a key",
    )  # fmt: skip
    add(
        "--null-marker", type=os.fsencode, metavar="WORD",
        help="send a value that is this word as a tombstone, which deletes the key: KEY=WORD",
    )  # fmt: skip
    add("--partition", type=int, metavar="N", help="the partition of all records (by the key)")
    add(
        "--header", type=value(header), action="append", dest="headers", metavar="NAME=VALUE",
        help="a header of all records; may be given several times",
    )  # fmt: skip
    command.ask(send)


async def send(options: argparse.Namespace, clock: Clock) -> None:
    """Write the records into the topic and wait until the broker has acknowledged all of them.

    Raises:
        NotFound: the topic does not exist.
        UsageError: the partition does not exist, or stdin is closed.
        BrokerUnreachable: there was no acknowledgement for 10 s.
        StreamsxError: any other refusal of the broker.
    """
    from streamsx.client.range_reader import writing
    from streamsx.protocol.partitioner import check_place, partition_of

    topic = options.topic
    room = asyncio.Event()
    sent = Counter[int]()
    async with connected(options) as cluster, progress(sys.stderr, f"writing to {topic}") as say:
        await cluster.follow([topic])
        partitions = cluster.partitions(topic)
        if not partitions:
            raise NotFound(
                f"unknown topic: {topic}: make it with streamsx topic create {topic}, or start the "
                "app that makes it"
            )
        check_place(topic, options.partition, partitions)
        turns = cycle(range(partitions))
        async with writing(cluster, clock, room.set) as producer:
            senders = [producer.to(topic, number) for number in range(partitions)]
            await in_time(producer.start(), cluster, topic, sent)
            async for key, data in records(options.values):
                place = options.partition
                if place is None:
                    place = next(turns) if key is None else partition_of(key, partitions)
                sent_value = None if data == options.null_marker else data
                senders[place](key, sent_value, int(clock.wall() * 1000), options.headers)
                sent[place] += 1
                while producer.full():
                    say(f"{sent.total()} records")
                    room.clear()
                    await in_time(room.wait(), cluster, topic, sent)
            await in_time(producer.flush(), cluster, topic, sent)
    print(f"{topic}: {counted(sent.total(), 'record')}, acknowledged", file=options.people)
    told = {str(number): sent[number] for number in sorted(sent)}
    tell(options, {"topic": topic, "records": sent.total(), "partitions": told})


def header(text: object) -> tuple[str, bytes]:
    """Return name and value of a header, of which the value has exactly the given bytes.

    Raises:
        ValueError: the text has no `=`, or no name of text.
    """
    name, sign, rest = str(text).partition("=")
    if not (sign and name and name.isprintable()):
        raise ValueError(f"bad header: {text!r}: write NAME=VALUE")
    return name, os.fsencode(rest)


async def in_time(
    work: Awaitable[object], cluster: "Cluster", topic: str, sent: Counter[int]
) -> None:
    """Await work that depends on brokers, for at most 10 s.

    Reading the next line of the input has no such limit.

    Raises:
        BrokerUnreachable: the work was not done in time.
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
    """Yield keys and values from the command line, and from the lines of stdin for a `-`."""
    for each in values:
        if each == STDIN:
            async for line in lines():
                key, tab, rest = line.partition(b"\t")
                yield (key, rest) if tab else (None, line)
        else:
            data = os.fsencode(each)  # exactly the given bytes, even if they are no valid text
            key, sign, rest = data.partition(b"=")
            keyed = sign and not each.startswith(JSON_STARTS)
            yield (key, rest) if keyed else (None, data)


async def lines() -> AsyncIterator[bytes]:
    """Yield the lines of stdin as they arrive, so a typed line is sent before more input comes.

    Raises:
        UsageError: stdin is closed.
    """
    if sys.stdin is None:
        raise UsageError("nothing to read: stdin is closed: give values, or lines")
    descriptor = sys.stdin.fileno()
    rest = b""
    while len(rest) <= RECORD_BYTES_MAX and (block := await block_of(descriptor)):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


async def block_of(descriptor: int) -> bytes:
    """Return the bytes that can be read, as soon as there are some; no bytes at the end of input.

    The read is not done in a thread: an interrupt would wait for the thread, and the thread for
    the person at the keyboard.
    """
    loop = asyncio.get_running_loop()
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor):
        ready = asyncio.Event()
        loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)
    else:  # a regular file: the event loop cannot watch one
        await asyncio.sleep(0)
    return os.read(descriptor, BLOCK_BYTES)
