"""`streamsx table`: the entries of an app's table, or one of them, as its changelog has them.

It needs the broker and no way to the workers; what they have not committed yet is not shown.
"""

import argparse
import json
import sys
from typing import Any

from streamsx.clock import Clock
from streamsx.config import whole
from streamsx.errors import NotFound, StreamsxError, UsageError
from streamsx.tools.cli.cluster import ClusterCommand, connected
from streamsx.tools.cli.command import value
from streamsx.tools.cli.progress import progress

UNDECODABLE = "backslashreplace"


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
    command.ask(show)


async def show(options: argparse.Namespace, clock: Clock) -> None:
    """By key. Raises StreamsxError for one that is not there; NotFound, BrokerUnreachable and
    others.
    """
    from streamsx.tools.cli.records import newest
    from streamsx.topology.internal_topics import changelog_name

    app, *rest = [options.app, *options.words] if options.app else options.words
    if len(rest) not in (1, 2):
        words, form = " ".join(options.words), "NAME [KEY]" if options.app else "APP NAME [KEY]"
        raise UsageError(f"cannot tell app, table and key: {words}: say {form}")
    name, *wanted = rest
    topic = changelog_name(app, name)
    async with connected(options) as cluster, progress(sys.stderr, f"reading {topic}"):
        await cluster.follow([topic])
        if not cluster.partitions(topic):
            raise NotFound(
                f"no such table: {name}: app {app}: there is no topic {topic}: "
                "an app with a version is called ID-v2"
            )
        rows = await newest(cluster, clock, topic)
    found = sorted(
        (key.decode(errors=UNDECODABLE), partition, entry.decode(errors=UNDECODABLE))
        for (partition, key), entry in rows.items()
    )
    if wanted:
        found = [row for row in found if wanted[0] in (row[0], plain(row[0]))]
    if wanted and not found:
        raise StreamsxError(f"no such key: {wanted[0]}: table {name}: nothing is there")
    for key, partition, entry in found[: options.limit]:
        row = {"partition": partition, "key": parsed(key), "value": parsed(entry)}
        print(json.dumps(row) if options.json else f"{plain(key)}\t{entry}")


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
