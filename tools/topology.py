"""`streamsx topology`: shows the sub-topologies, tables and topics of an app; needs no broker.

Partition counts are computed as if none of the topics existed yet, and the text says so.
"""

import argparse
import json
import sys

from streamsx.tools.cli.command import Command

EXAMPLES = """\
examples:
  streamsx topology shop
  streamsx topology shop --format mermaid    a drawing for Markdown"""
FORMATS = ("text", "mermaid", "json")


def main() -> None:
    """Run the command: print sub-topologies, tasks, stores and topics of an app."""
    purpose = "Show the sub-topologies, tasks, tables and topics of an app. Needs no broker."
    command = Command("topology", purpose, epilog=EXAMPLES)
    add = command.add_argument
    add("app", metavar="MODULE[:ATTR]", help="the app, as in an import, or its file")
    add("--format", choices=FORMATS, default="text", help="the format (text)")
    add("--source", action="store_true", help="print the generated code of flows too")
    command.add_json()
    command.run(show)


def show(options: argparse.Namespace) -> None:
    """Print the topology of an app.

    Raises:
        UsageError: the name does not lead to an app, or the app has no valid topology.
    """
    from streamsx.app.lookup import app_named
    from streamsx.processing.compile import source_text
    from streamsx.topology.describe import as_data, as_mermaid, as_text
    from streamsx.topology.partitions import resolve_partition_counts

    app = app_named(options.app)
    topology = app.topology()
    partitions = resolve_partition_counts(
        topology, {}, default=app.conf.topic_partitions, declare=True
    )
    data = json.dumps(as_data(topology, partitions))
    people = sys.stderr if options.json or options.format == "json" else sys.stdout
    if options.format == "text":
        print("\n".join(as_text(topology, partitions)), file=people)
    if options.format == "mermaid":
        print("\n".join(as_mermaid(topology)), file=people)
    for note in (*app.settled.notes, *topology.notes):
        print(f"note: {note}", file=sys.stderr)
    if options.source:
        for source in (source for each in topology.subtopologies for source in each.sources):
            if source.branches:
                print(f"\n# {source.topic}\n{source_text(source)}", end="", file=people)
    if options.json or options.format == "json":
        print(data)
