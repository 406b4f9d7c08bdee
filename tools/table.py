"""`streamsx table`: the entries of an app's table, or one of them, as its changelog has them.

It needs the broker and no way to the workers; what they have not committed yet is not shown.
"""

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING

from streamsx.tools.cli.cluster import cluster_options, connected
from streamsx.tools.cli.command import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

UNDECODABLE = "backslashreplace"


def main() -> None:
    """One line for each entry: key, tab, value; 3 for a table or a key that is not there."""
    command = Command("table", "Show the entries of a table, as they were last committed.")
    add = command.add_argument
    add("app", metavar="APP", help="the id of the app, as in App('ID')")
    add("name", metavar="NAME", help="of the table")
    add("key", metavar="KEY", nargs="?", help="of the only entry to show")
    cluster_options(command)
    command.run(show)


def show(options: argparse.Namespace) -> None:
    """Raises NotFound, BrokerUnreachable and others."""
    from streamsx.errors import NotFound

    rows = asyncio.run(entries(options))
    if options.key is not None:
        rows = {key: value for key, value in rows.items() if options.key in (key, plain(key))}
        if not rows:
            raise NotFound(f"no such key: {options.key}: table {options.name}: nothing is there")
    if not options.json:
        for key, value in sorted(rows.items()):
            print(f"{plain(key)}\t{value}")
        return
    print(json.dumps({"app": options.app, "table": options.name, "rows": parsed(rows)}))


async def entries(options: argparse.Namespace) -> dict[str, str]:
    """Keys and values as text."""
    from streamsx.clock import SystemClock
    from streamsx.errors import NotFound
    from streamsx.tools.cli.progress import progress
    from streamsx.tools.cli.records import newest
    from streamsx.topology.internal_topics import changelog_name

    topic = changelog_name(options.app, options.name)
    async with connected(options) as cluster, progress(sys.stderr, f"reading {topic}"):
        await cluster.follow([topic])
        if not cluster.partitions(topic):
            raise NotFound(
                f"no such table: {options.name}: app {options.app}: there is no topic {topic}: "
                "an app with a version is called ID-v2"
            )
        rows = await newest(cluster, SystemClock(), topic)
    return {
        key.decode(errors=UNDECODABLE): value.decode(errors=UNDECODABLE)
        for key, value in rows.items()
    }


def plain(key: str) -> str:
    """A text without the quotes that JSON puts around it."""
    try:
        known = json.loads(key)
    except ValueError:
        return key
    return known if isinstance(known, str) else key


def parsed(rows: "Mapping[str, str]") -> dict[str, object]:
    """Values as JSON has them, where they are JSON."""

    def value_of(text: str) -> object:
        try:
            return json.loads(text)
        except ValueError:
            return text

    return {plain(key): value_of(value) for key, value in sorted(rows.items())}
