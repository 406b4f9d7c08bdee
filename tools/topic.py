"""`streamsx topic`: makes, describes, lists and deletes topics.

The commands need the broker alone. A topic that has records, or that a running app uses, is deleted
only after a question, or with `--yes`.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from streamsx.clock import Clock
from streamsx.config import legal, whole
from streamsx.errors import NotFound, SettingError, StreamsxError, UsageError
from streamsx.log_sentences import counted
from streamsx.tools.cli.cluster import ClusterCommand, asked, connected
from streamsx.tools.cli.command import Command, CommandGroup, tell, value
from streamsx.topology.internal_topics import NAME_LENGTH_MAX

if TYPE_CHECKING:
    from streamsx.client.admin import Bounds
    from streamsx.client.cluster import Cluster

YES = ("y", "yes")
PARTITIONS_MAX = (1 << 31) - 1
COPIES_MAX = (1 << 15) - 1
"""Limits of the numbers that Kafka's protocol carries."""
GONE_TRIES = 50
GONE_EVERY_S = 0.1
UNTOLD = "the broker does not tell what they read"
REMEDY = "streamsx topic list shows what there is"


class TopicCommand(NamedTuple):
    """Command on topics: `add` adds its options, `work` does it and returns an exit code."""

    purpose: str
    examples: str
    add: Callable[[Command], None]
    work: Callable[[argparse.Namespace, "Cluster"], Awaitable[int | None]]


def main() -> None:
    """Run the command: exit with 3 for an unknown topic, with 1 if the change is refused."""
    parser = CommandGroup("topic", "Make, describe, list and delete topics.", ClusterCommand)
    for name, kind in KINDS.items():
        command = parser.add_command(name, kind.purpose)
        command.epilog = kind.examples
        kind.add(command)

    async def work(options: argparse.Namespace, _: Clock) -> int | None:
        async with connected(options) as cluster:
            return await KINDS[options.command].work(options, cluster)

    parser.run(asked(work))


# -- create


def add_create(command: Command) -> None:
    add = command.add_argument
    add("topics", nargs="+", type=new_topic, metavar="NAME[:PARTITIONS]", help="the topics")
    add(
        "--config", action="append", default=[], type=setting, metavar="NAME=VALUE",
        help="a config of the topics, by Kafka's name, such as retention.ms=86400000; may be "
        "repeated",
    )  # fmt: skip
    add(
        "--replication", type=value(copies), default=-1, metavar="N",
        help="copies of each partition (the broker's default)",
    )  # fmt: skip


def new_topic(text: str) -> tuple[str, int]:
    """Parse NAME[:PARTITIONS]; without a number the broker's default, -1.

    Raises:
        argparse.ArgumentTypeError: there is no name, or no number, or Kafka takes neither.
    """
    name, sign, number = text.partition(":")
    if not name or (sign and not (number.isdecimal() and int(number))):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME or NAME:PARTITIONS, as orders:4")
    value(legal)(name)
    if len(name) > NAME_LENGTH_MAX:
        raise argparse.ArgumentTypeError(f"{name!r}: a name has at most {NAME_LENGTH_MAX} letters")
    if sign and int(number) > PARTITIONS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r}: a topic has at most {PARTITIONS_MAX} partitions"
        )
    return name, int(number) if sign else -1


def copies(text: object) -> int:
    """Parse a number of copies."""
    found = whole(1)(text)
    if found > COPIES_MAX:
        raise ValueError(f"{text!r}: a partition has at most {COPIES_MAX} copies, one a broker")
    return found


def setting(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE.

    Raises:
        argparse.ArgumentTypeError: there is no name or no `=`.
    """
    name, sign, given = text.partition("=")
    if not name.strip() or not sign:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=VALUE, as retention.ms=86400000")
    return name.strip(), given.strip()


async def create(options: argparse.Namespace, cluster: "Cluster") -> None:
    """Create the topics, or none of them if one exists.

    Raises:
        StreamsxError: a topic exists, or the broker refuses one.
    """
    from streamsx.client import admin

    names = [name for name, _ in options.topics]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"named twice: topic {twice[0]}: name it once")
    if there := await admin.partition_counts(cluster, names):
        name, count = next(iter(there.items()))
        remedy = f"nothing was made: streamsx topic describe {name} shows it"
        raise StreamsxError(f"exists already: topic {name}, with {count} partitions: {remedy}")
    made = [
        admin.NewTopic(name, count, options.replication, dict(options.config))
        for name, count in options.topics
    ]
    await _allowed(admin.create_topics(cluster, made))
    counts = await admin.partition_counts(cluster, names)
    for name in names:
        print(f"{name}: made, {counted(counts.get(name, 0), 'partition')}", file=options.people)
    tell(options, {"created": {name: counts.get(name, 0) for name in names}})


async def _allowed(change: Awaitable[None]) -> None:
    """Make a change.

    Raises:
        StreamsxError: the broker refuses; the exit code is 1, as for all that was tried.
    """
    try:
        await change
    except SettingError as error:
        raise StreamsxError(f"the broker refused: {error}") from None


# -- describe, list


def add_describe(command: Command) -> None:
    command.add_argument("topic", metavar="NAME", help="the topic")


async def describe(options: argparse.Namespace, cluster: "Cluster") -> None:
    """Print partitions, copies, configs and offsets of a topic.

    Raises:
        NotFound: there is no such topic.
    """
    from streamsx.client import admin

    name = options.topic
    facts = (await admin.all_topics(cluster)).get(name)
    if facts is None:
        raise NotFound(f"unknown topic: {name}: {REMEDY}")
    bounds = await _bounds(cluster, {name: facts.partitions})
    configs = await admin.own_configs(cluster, name)
    running = await admin.running_groups(cluster)
    told = {
        "topic": name,
        "replication": facts.replicas,
        "configs": configs,
        "read_by": users_of(name, running),
        "perhaps_read_by": perhaps_users(running),
        "records": sum(high - low for low, high in bounds[name]),
        "partitions": [
            {"partition": number, "start": low, "end": high, "records": high - low}
            for number, (low, high) in enumerate(bounds[name])
        ],
    }
    for text in description(told):
        print(text, file=options.people)
    tell(options, told)


def description(told: Mapping[str, Any]) -> list[str]:
    """Return the lines that people read about a topic."""
    configs = ", ".join(f"{name}={given}" for name, given in sorted(told["configs"].items()))
    rows = [
        f"{each['partition']:>9}  {each['start']:>12}  {each['end']:>12}  {each['records']:>12}"
        for each in told["partitions"]
    ]
    sizes = [
        counted(len(rows), "partition"),
        f"{counted(told['replication'], 'copy', 'copies')} of each",
        f"at most {counted(told['records'], 'record')}",
    ]
    users = [
        f"running groups that use it: {', '.join(told['read_by']) or 'none'}",
        f"running groups that may use it: {', '.join(told['perhaps_read_by'])}: {UNTOLD}",
    ]
    return [
        f"{told['topic']}: {', '.join(sizes)}",
        f"configs that differ from the broker's: {configs or 'none'}",
        *(users if told["perhaps_read_by"] else users[:1]),
        f"{'partition':>9}  {'start offset':>12}  {'end offset':>12}  {'records':>12}",
        *rows,
        "records: at most so many; a compacted topic, and one of transactions, has fewer",
    ]


def add_list(command: Command) -> None:
    command.add_argument("--all", action="store_true", help="the broker's own topics too")


async def list_topics(options: argparse.Namespace, cluster: "Cluster") -> None:
    """Print the name and the number of partitions of each topic."""
    from streamsx.client import admin

    found = {
        name: facts.partitions
        for name, facts in (await admin.all_topics(cluster)).items()
        if options.all or not (facts.internal or name.startswith("__"))
    }
    for name, count in found.items():
        print(f"{name}\t{counted(count, 'partition')}", file=options.people)
    tell(options, {"topics": found})


# -- delete


class Loss(NamedTuple):
    """Loss by a deletion: at most so many records of a topic, and the groups that use it.

    `perhaps` are running groups of which the broker does not tell what they read.
    """

    topic: str
    records: int
    groups: list[str]
    perhaps: list[str]

    def __str__(self) -> str:
        runs = "runs" if len(self.groups) == 1 else "run"
        users = f", in use by {', '.join(self.groups)}, which {runs} now" if self.groups else ""
        perhaps = f", perhaps in use by {', '.join(self.perhaps)}: {UNTOLD}" if self.perhaps else ""
        return f"{self.topic}: at most {counted(self.records, 'record')}{users}{perhaps}"


def add_delete(command: Command) -> None:
    add = command.add_argument
    add("topics", nargs="+", metavar="NAME", help="the topics")
    add("--yes", action="store_true", help="delete without a question, also what is in use")


async def delete(options: argparse.Namespace, cluster: "Cluster") -> int:
    """Delete the topics, after a question if anything is lost.

    Returns:
        Exit code: 1 if the answer was no.

    Raises:
        NotFound: there is no such topic; nothing is deleted.
        UsageError: records would be lost, `--yes` is missing, and nobody can be asked.
        StreamsxError: the broker refuses.
    """
    from streamsx.client import admin

    names = sorted(set(options.topics))
    counts = await admin.partition_counts(cluster, names)
    if unknown := [name for name in names if name not in counts]:
        what = f"unknown topic: {', '.join(unknown)}"
        raise NotFound(f"{what}: nothing was deleted: {REMEDY}")
    if not options.yes and (losses := await _losses(cluster, counts)):
        for loss in losses:
            print(loss, file=sys.stderr)
        if not sys.stdin or not sys.stdin.isatty():
            raise UsageError(
                "records or a running app would lose their topic: "
                f"{', '.join(loss.topic for loss in losses)}: nothing was deleted: look at the "
                "lines above, and say --yes"
            )
        print(f"delete {counted(len(names), 'topic')} for good? [y/N] ", end="", file=sys.stderr)
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in YES:
            print("nothing was deleted", file=options.people)
            return 1
    await _allowed(admin.delete_topics(cluster, names))
    left = await _until_gone(cluster, names)
    for name in names:
        more = ": brokers still show it for a while" if name in left else ""
        print(f"{name}: deleted{more}", file=options.people)
    tell(options, {"deleted": names})
    return 0


async def _until_gone(cluster: "Cluster", names: list[str]) -> Collection[str]:
    """Wait until brokers no longer show the topics, so that they can be made again at once.

    Apache Kafka answers a deletion some tens of milliseconds before its brokers have heard of it.

    Returns:
        Topics that are still there after GONE_TRIES looks.
    """
    from streamsx.client import admin

    left: Collection[str] = names
    for _ in range(GONE_TRIES):
        left = await admin.partition_counts(cluster, names)
        if not left:
            break
        await asyncio.sleep(GONE_EVERY_S)
    return left


async def _losses(cluster: "Cluster", counts: Mapping[str, int]) -> list[Loss]:
    """Return the topics that hold records, or that a running group uses."""
    from streamsx.client import admin

    groups = await admin.running_groups(cluster)
    perhaps = perhaps_users(groups)
    bounds = await _bounds(cluster, counts)
    found = [
        Loss(name, sum(high - low for low, high in bounds[name]), users_of(name, groups), perhaps)
        for name in counts
    ]
    return [loss for loss in found if loss.records or loss.groups or loss.perhaps]


def users_of(topic: str, groups: Mapping[str, Iterable[str] | None]) -> list[str]:
    """Return the groups that read a topic, or that have named it: `ID-TABLE-changelog`, say."""
    return sorted(
        group
        for group, read in groups.items()
        if (read is not None and topic in read) or topic.startswith(f"{group}-")
    )


def perhaps_users(groups: Mapping[str, Iterable[str] | None]) -> list[str]:
    """Return the groups that may read any topic, since the broker does not tell what they read."""
    return sorted(group for group, read in groups.items() if read is None)


async def _bounds(cluster: "Cluster", counts: Mapping[str, int]) -> "dict[str, list[Bounds]]":
    """Return the start and the end of each partition, by topic."""
    from streamsx.client import admin
    from streamsx.model import TopicPartition

    found = await admin.bounds(
        cluster, [TopicPartition(name, n) for name, count in counts.items() for n in range(count)]
    )
    return {
        name: [found[TopicPartition(name, number)] for number in range(count)]
        for name, count in counts.items()
    }


KINDS = {
    "create": TopicCommand(
        "Make topics. With one that exists already nothing is made, and the exit code is 1.",
        "example:\n  streamsx topic create orders:4 --config retention.ms=86400000",
        add_create,
        create,
    ),
    "describe": TopicCommand(
        "Show partitions, copies, configs, offsets and running readers of a topic.",
        "example:\n  streamsx topic describe orders",
        add_describe,
        describe,
    ),
    "delete": TopicCommand(
        "Delete topics for good. Asks, or needs --yes, where records are or a running app reads.",
        "example:\n  streamsx topic delete orders --yes",
        add_delete,
        delete,
    ),
    "list": TopicCommand(
        "List all topics and their partitions.",
        "example:\n  streamsx topic list --bootstrap localhost:9092",
        add_list,
        list_topics,
    ),
}
