"""`streamsx table`: the entries of an app's table, or one of them, as its changelog has them.

The command needs the broker and no connection to the workers. Uncommitted changes are not shown.
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
    """Run the command: print a line per entry; exit with 3 for an unknown table or app.

    A line is key, tab, value.
    """
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
    """Print the entries of the table, sorted by key.

    Raises:
        NotFound: the table or the app is unknown.
        BrokerUnreachable: no broker answers.
        StreamsxError: the key is not in the table, or another error.
    """
    from streamsx.tools.cli.records import newest
    from streamsx.topology.internal_topics import changelog_name

    app, *rest = [options.app, *options.words] if options.app else options.words
    if len(rest) not in (1, 2):
        words = " ".join(options.words)
        form = "NAME [KEY]" if options.app else "APP NAME [KEY]"
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
    """Decode JSON; return the text itself if the text is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def plain(key: str) -> str:
    """Return a JSON string without its quotes; return any other key as it is."""
    known = parsed(key)
    return known if isinstance(known, str) else key
