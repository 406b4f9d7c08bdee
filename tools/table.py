"""`streamsx table`: prints the tables of an app, the entries of one, or one entry.

The entries come from the changelog of the table. The command needs the broker and no connection to
the workers. Uncommitted changes are not shown. Keys of windows and sessions are shown as `[key,
start, end]` in ms, those of records that wait for a join as `[key, time]`; the kind of a table
shows in the bytes of the changelog.
"""

import argparse
import json
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from streamsx.clock import Clock
from streamsx.config import whole
from streamsx.errors import NotFound, StreamsxError, UsageError
from streamsx.log_sentences import counted
from streamsx.tools.cli.cluster import ClusterCommand, connected
from streamsx.tools.cli.command import value
from streamsx.tools.cli.progress import progress
from streamsx.tools.cli.record_text import encodable, json_text, parsed_text
from streamsx.topology.internal_topics import changelog_name

EXAMPLES = """\
examples:
  streamsx table shop --list           the tables of the app shop
  streamsx table shop totals           all entries of its table totals
  streamsx table shop totals ann       the entry of the key ann"""
UNDECODABLE = "backslashreplace"
TIME: Final = b"\0"
"""First byte of a time in ms, with which no key or value of JSON begins."""


class TableEntry(NamedTuple):
    """Entry of a table as text: `key` with its window, `plain` without; JSON or a key's bytes."""

    key: str
    partition: int
    value: str
    plain: str


def main() -> None:
    """Run the command: print a line per entry; exit with 3 for an unknown table or app.

    A line is key, tab, value.
    """
    purpose = (
        "Print the entries of a table, as they were last committed, or list the tables of an app."
    )
    command = ClusterCommand("table", purpose, EXAMPLES)
    command.add_app(required=False)
    add = command.add_argument
    add(
        "words", nargs="*", metavar="[APP] NAME [KEY]",
        help="the id of the app, unless an option names it; the table; the only key to show, "
        "with all of its windows",
    )  # fmt: skip
    add("--limit", type=value(whole(1)), metavar="N", help="show so many at most (all)")
    add("--list", action="store_true", help="the tables of the app instead: [APP] alone")
    command.ask(lambda options, clock: (listed if options.list else show)(options, clock))


async def listed(options: argparse.Namespace, _: Clock) -> None:
    """Print the tables of an app: name, partitions, records of the changelog, changelog.

    Raises:
        NotFound: the cluster has no changelog of the app.
        UsageError: the words are not the id of one app.
    """
    from streamsx.client import admin
    from streamsx.model import TopicPartition

    app, *rest = [options.app, *options.words] if options.app else (options.words or [""])
    if not app or rest:
        form = "--list alone" if options.app else "APP --list"
        raise UsageError(f"cannot tell the app: {' '.join(options.words) or 'no word'}: say {form}")
    async with connected(options) as cluster, progress(sys.stderr, f"looking for tables of {app}"):
        topics = await admin.all_topics(cluster)
        tables = {name: topics[topic].partitions for name, topic in changelogs(app, topics).items()}
        if not tables:
            raise NotFound(
                f"no tables: app {app}: there is no topic {changelog_name(app, 'NAME')}: check the "
                "id; an app with a version is called ID-v2"
            )
        tps = [
            TopicPartition(changelog_name(app, name), number)
            for name, count in tables.items()
            for number in range(count)
        ]
        bounds = await admin.bounds(cluster, tps)
    for name, count in tables.items():
        topic = changelog_name(app, name)
        ends = (each for tp, each in bounds.items() if tp.topic == topic)
        records = sum(high - low for low, high in ends)
        if options.json:
            row = {"table": name, "partitions": count, "rows_max": records, "changelog": topic}
            print(json.dumps(row))
        else:
            sizes = f"{counted(count, 'partition')}\tat most {counted(records, 'row')}"
            print(f"{name}\t{sizes}\t{topic}")


def changelogs(app: str, topics: Iterable[str]) -> dict[str, str]:
    """Return the changelogs of an app, by table. Tables of an app `ID-...` look like its own."""
    before, behind = changelog_name(app, "\0").split("\0")
    return {
        topic.removeprefix(before).removesuffix(behind): topic
        for topic in sorted(topics)
        if topic.startswith(before) and topic.endswith(behind) and len(topic) > len(before + behind)
    }


async def show(options: argparse.Namespace, clock: Clock) -> None:
    """Print the entries of the table, sorted by key.

    Raises:
        NotFound: the table or the app is unknown.
        BrokerUnreachable: no broker answers.
        StreamsxError: the key is not in the table, or another error.
    """
    from streamsx.tools.cli.records import newest

    app, *rest = [options.app, *options.words] if options.app else (options.words or [""])
    if len(rest) not in (1, 2):
        words = " ".join(options.words)
        form = "NAME [KEY]" if options.app else "APP NAME [KEY]"
        raise UsageError(
            f"cannot tell app, table and key: {words or 'no word'}: say {form}, or --list"
        )
    name, *wanted = rest
    topic = changelog_name(app, name)
    async with connected(options) as cluster, progress(sys.stderr, f"reading {topic}"):
        await cluster.follow([topic])
        if not cluster.partitions(topic):
            raise NotFound(
                f"no such table: {name}: app {app}: there is no topic {topic}: streamsx table "
                f"{app} --list shows its tables; an app with a version is called ID-v2"
            )
        rows = await newest(cluster, clock, topic)
    found = sorted(
        entry for (number, key), value in rows.items() for entry in entries(number, key, value)
    )
    if wanted:
        found = [
            each for each in found if wanted[0] in (each.key, plain(each.key), plain(each.plain))
        ]
    if wanted and not found:
        raise StreamsxError(f"no such key: {wanted[0]}: table {name}: nothing is there")
    for key, partition, entry, _ in found[: options.limit]:
        row = {"partition": partition, "key": parsed_text(key), "value": parsed_text(entry)}
        print(json.dumps(row) if options.json else f"{plain(key)}\t{entry}")


def entries(partition: int, key: bytes, value: bytes) -> Iterator[TableEntry]:
    """Yield the entries of a row of a changelog: each session, and each record of a join."""
    try:
        yield from [*_framed(partition, key, value)]
    except struct.error:  # of a kind without entries for people
        yield _entry(partition, key, value)


def _framed(partition: int, key: bytes, value: bytes) -> Iterator[TableEntry]:
    """Yield the entries of a row. Raises struct.error if the value is not framed."""
    from streamsx.serde.codec import topic_codec
    from streamsx.state.framed import entries_codec, sessions_codec
    from streamsx.state.layout import TIME_BYTES, window_of

    values = topic_codec(bytes, None, "raw")
    if not value.startswith(TIME):
        window = window_of(key) if key.count(b".") > 1 else None  # bounds are floats
        yield _entry(partition, window[0] if window else key, value, *(window or ())[1:])
    elif key.startswith(TIME):
        for at, _, each in entries_codec(values).decode(value):
            yield _entry(partition, key[TIME_BYTES:], each, at)
    elif value[TIME_BYTES : TIME_BYTES + 1] != TIME:  # a time, and the value
        yield _entry(partition, key, value[TIME_BYTES:])
    else:
        for start, end, each in sessions_codec(values).decode(value):
            if each is not None:  # the time of a record in sliding windows
                yield _entry(partition, key, each, start, end)


def _entry(partition: int, key: bytes, value: bytes | None, *times: int) -> TableEntry:
    plain_key = key.decode(errors=UNDECODABLE)
    shown = json_text([parsed_text(plain_key), *times]) if times else plain_key
    text = "null" if value is None else value.decode(errors=UNDECODABLE)
    return TableEntry(shown, partition, text, plain_key)


def plain(key: str) -> str:
    """Return a JSON string without its quotes; return any other key as it is."""
    known = parsed_text(key)
    return known if isinstance(known, str) and encodable(known) else key
