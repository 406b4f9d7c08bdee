"""`streamsx table`: the entries of an app's table, or one of them, as its changelog has them.

It needs the broker and no way to the workers; what they have not committed yet is not shown.
"""

import argparse
import asyncio
import json
import sys
from typing import Any, NamedTuple

from streamsx.config import whole
from streamsx.tools.cli.cluster import ClusterCommand, connected
from streamsx.tools.cli.command import value

UNDECODABLE = "backslashreplace"


class Entry(NamedTuple):
    """Of a table; keys and values as text."""

    partition: int
    key: str
    value: str


def main() -> None:
    """One line for each entry: key, tab, value; 3 for an app or a table that is not there."""
    purpose = "Show the entries of a table, as they were last committed."
    command = ClusterCommand("table", purpose)
    command.add_app(required=False)
    add = command.add_argument
    add(
        "words", nargs="+", metavar="[APP] NAME [KEY]",
        help="the id of the app, unless an option names it; the table; the only key to show",
    )  # fmt: skip
    add("--limit", type=value(whole(1)), metavar="N", help="show so many at most (all)")
    command.run(show)


def show(options: argparse.Namespace) -> int:
    """1 for a key that is not there. Raises NotFound, BrokerUnreachable and others."""
    from streamsx.errors import UsageError

    app, *rest = [options.app, *options.words] if options.app else options.words
    if len(rest) not in (1, 2):
        words, form = " ".join(options.words), "NAME [KEY]" if options.app else "APP NAME [KEY]"
        raise UsageError(f"cannot tell app, table and key: {words}: say {form}")
    name, *wanted = rest
    found = asyncio.run(entries(options, app, name))
    if wanted:
        found = [each for each in found if wanted[0] in (each.key, plain(each.key))]
    if wanted and not found:
        print(f"error: no such key: {wanted[0]}: table {name}: nothing is there", file=sys.stderr)
        return 1
    for each in found[: options.limit]:
        told = {"key": parsed(each.key), "value": parsed(each.value)}
        row = json.dumps({"partition": each.partition, **told})
        print(row if options.json else f"{plain(each.key)}\t{each.value}")
    return 0


async def entries(options: argparse.Namespace, app: str, name: str) -> list[Entry]:
    """By key."""
    from streamsx.clock import SystemClock
    from streamsx.errors import NotFound
    from streamsx.tools.cli.progress import progress
    from streamsx.tools.cli.records import newest
    from streamsx.topology.internal_topics import changelog_name

    topic = changelog_name(app, name)
    async with connected(options) as cluster, progress(sys.stderr, f"reading {topic}"):
        await cluster.follow([topic])
        if not cluster.partitions(topic):
            raise NotFound(
                f"no such table: {name}: app {app}: there is no topic {topic}: "
                "an app with a version is called ID-v2"
            )
        rows = await newest(cluster, SystemClock(), topic)
    found = (
        Entry(partition, key.decode(errors=UNDECODABLE), value.decode(errors=UNDECODABLE))
        for (partition, key), value in rows.items()
    )
    return sorted(found, key=lambda entry: (entry.key, entry.partition))


def parsed(text: str) -> Any:
    """As JSON has it, where it is JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def plain(key: str) -> str:
    """A text without the quotes that JSON puts around it."""
    known = parsed(key)
    return known if isinstance(known, str) else key
