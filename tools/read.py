"""`streamsx read`: prints the records of a topic, one a line, up to its end or as they come.

A line is partition, offset, time, key, value, with tabs in between. Only committed records are
shown. Records come partition by partition; with `--follow` new ones come as they arrive.
"""

import argparse
import sys
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from streamsx.clock import Clock
from streamsx.config import seconds, whole
from streamsx.errors import NotFound, UsageError
from streamsx.tools.cli.cluster import ClusterCommand, connected
from streamsx.tools.cli.command import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from streamsx.client.cluster import Cluster
    from streamsx.client.range_reader import Range
    from streamsx.model import TopicPartition
    from streamsx.processing.batch import Batch

EARLIEST = "earliest"
LATEST = "latest"
ReadStart = str | int | datetime | timedelta
"""Place where a read begins: a word, an offset (below 0: from the end), a time, or a time ago."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
AGO_MAX_DAYS = 36_500
EXAMPLES = """\
examples:
  streamsx read orders --from -10            the last 10 records of each partition
  streamsx read shop-dlq --headers           why each record failed, and where it came from
  streamsx read orders --from 10m --follow   the last 10 minutes, and what comes"""


def main() -> None:
    """Run the command: print a line per record; exit with 3 if the topic does not exist."""
    purpose = "Print the committed records of a topic: partition, offset, time, key, value."
    command = ClusterCommand("read", purpose, EXAMPLES)
    add = command.add_argument
    add("topic", metavar="TOPIC")
    add("--partition", type=value(whole(0)), metavar="N", help="only this partition (all)")
    add(
        "--from", dest="start", type=value(start), default=EARLIEST, metavar="WHERE",
        help="earliest, latest, an offset, -N for the last N of each partition, a time in UTC as "
        "2026-11-28T12:00, or a time ago as 10m (earliest)",
    )  # fmt: skip
    add("--limit", type=value(whole(1)), metavar="N", help="end after N records (all)")
    add("--follow", action="store_true", help="wait for new records at the end; Ctrl-C ends it")
    add("--headers", action="store_true", help="print headers too; of dead letters the failure")
    command.ask(read)


def start(text: object) -> ReadStart:
    """Parse the place where a read begins.

    Raises:
        ValueError: the text is none of the forms.
    """
    word = str(text).strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    if word.removeprefix("-").isdecimal():
        return int(word)
    with suppress(ValueError):
        return ago(seconds(word))
    try:
        at = datetime.fromisoformat(word.upper())
    except ValueError:
        forms = "write earliest, latest, an offset, -10, 10m or 2026-11-28T12:00"
        raise ValueError(f"{text!r} is no place to read from: {forms}") from None
    return at.replace(tzinfo=at.tzinfo or UTC)


def ago(duration_s: float) -> timedelta:
    """Return a time ago.

    Raises:
        argparse.ArgumentTypeError: it is so long that no calendar has it.
    """
    if duration_s > AGO_MAX_DAYS * 86_400:
        raise argparse.ArgumentTypeError(
            f"a time ago is at most {AGO_MAX_DAYS}d: write earliest for all records"
        )
    return timedelta(seconds=duration_s)


async def read(options: argparse.Namespace, clock: Clock) -> None:
    """Print the records of the topic.

    Raises:
        NotFound: the topic does not exist, or was deleted while the command followed it.
        UsageError: the partition does not exist.
        StreamsxError: any other error, such as BrokerUnreachable.
    """
    async with connected(options) as cluster:
        await cluster.follow([options.topic])
        ranges = await ranges_of(options, cluster, clock)
        records = batches(cluster, clock, ranges, follow=options.follow)
        left = options.limit
        async with aclosing(records):
            async for batch in records:
                count = len(batch.offsets) if left is None else min(left, len(batch.offsets))
                show(options, batch, count)
                if left is not None and not (left := left - count):
                    return


async def ranges_of(
    options: argparse.Namespace, cluster: "Cluster", clock: Clock
) -> "dict[TopicPartition, Range]":
    """Return the offsets to read: from `--from` up to the end now, where no transaction is open.

    Raises:
        NotFound: the topic does not exist.
        UsageError: the partition does not exist.
    """
    from streamsx.client import admin
    from streamsx.client.range_reader import Range
    from streamsx.model import TopicPartition

    topic = options.topic
    count = cluster.partitions(topic)
    if not count:
        raise NotFound(f"unknown topic: {topic}: streamsx topic list shows what there is")
    if options.partition is not None and options.partition >= count:
        last = f"it has 0 to {count - 1}"
        raise UsageError(f"no such partition: {topic} {options.partition}: {last}: choose one")
    numbers = range(count) if options.partition is None else [options.partition]
    tps = [TopicPartition(topic, number) for number in numbers]
    ends = await admin.bounds(cluster, tps, committed=True)
    at_ms = time_ms(options.start, clock.wall())
    found = {} if at_ms is None else await admin.offsets_at(cluster, tps, at_ms)
    return {
        tp: Range(first(options.start, *ends[tp], found.get(tp)), ends[tp].high_watermark)
        for tp in tps
    }


def time_ms(begin: ReadStart, now_s: float) -> int | None:
    """Return the time at which a read begins, in ms since 1970; None if it begins otherwise."""
    if isinstance(begin, timedelta):
        begin = EPOCH + timedelta(seconds=now_s) - begin
    return max(0, (begin - EPOCH) // MILLISECOND) if isinstance(begin, datetime) else None


def first(begin: ReadStart, low: int, high: int, at_time: int | None) -> int:
    """Return the first offset to read of a partition.

    `at_time` is the offset that the broker knows for a time, -1 if all records are older.
    """
    if at_time is not None:
        return high if at_time < 0 else min(at_time, high)
    if isinstance(begin, int):
        return min(max(begin if begin >= 0 else high + begin, low), high)
    return high if begin == LATEST else low


async def batches(
    cluster: "Cluster", clock: Clock, ranges: "Mapping[TopicPartition, Range]", *, follow: bool
) -> "AsyncGenerator[Batch, None]":
    """Yield the records of the ranges, partition by partition; then those that arrive."""
    from streamsx.tools.cli.records import arriving, in_ranges

    told = in_ranges(cluster, clock, ranges)
    async with aclosing(told):
        async for batch in told:
            yield batch
    if not follow:
        return
    print("end of the topic: waiting for new records, Ctrl-C ends", file=sys.stderr)
    news = arriving(cluster, clock, {tp: each.end for tp, each in ranges.items()})
    async with aclosing(news):
        async for batch in news:
            yield batch


def show(options: argparse.Namespace, batch: "Batch", count: int) -> None:
    """Print the first `count` records of a batch, at once."""
    from streamsx.tools.cli.record_text import as_data, json_text, line

    for index in range(count):
        if options.json:
            print(json_text(as_data(batch, index)))
        else:
            print(line(batch, index, headers=options.headers))
    sys.stdout.flush()
