"""What an app becomes on Spark: stages, one after the other; and every reason why it cannot.

A stage is a sub-topology, with as many tasks as a worker's would have: the same numbers, the same
partition counts, so that state goes from one to the other. Records that one stage sends to a topic
which a later one reads stay within the batch: they are `inner`, and never come from Kafka.

Not here: single operators (they are the task's), and what only a running body shows: that it awaits
something foreign, that it sends to a topic no walk has found (`spark/task`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from inspect import unwrap
from pathlib import Path
from types import CodeType
from typing import Any, Final, NamedTuple

from streamsx.app.agent import Agent, BodyUses
from streamsx.app.app import App
from streamsx.app.discovery import reached, sends_to
from streamsx.errors import NotOnSpark, PartitionCountChanged, PartitionMismatch
from streamsx.model import TopicPartition
from streamsx.topology.build import Topology
from streamsx.topology.internal_topics import TopicKind
from streamsx.topology.nodes import SubTopology
from streamsx.topology.partitions import resolve_partition_counts

LOG, INNER, OUT, META = "log", "inner", "out", "meta"
"""Kinds of rows: for a changelog, for a later stage, for whoever reads the topic, of a task."""
FOREIGN: Final = "waits for something outside its stream: run it in a worker"
STORES_MAX: Final = 64
"""Of a task: so many databases a process keeps open, and closes none that is in use."""
LOOP: Final = "needs a worker's event loop: run it in a worker"
LATE: Final = "which was read before it: name the topic in the body"


class Stage(NamedTuple):
    """`external`: topics that come from outside; `inner`: from stages before it, in the same batch;
    `outputs`: inner topics whose rows leave too, for others who read them.

    `kinds`: of the topics that it may send to, None for those that it may not; what is not in it is
    OUT. `counts`: partitions of every topic of the app.
    """

    subtopology: SubTopology
    tasks: int
    external: tuple[str, ...]
    inner: tuple[str, ...]
    outputs: frozenset[str]
    kinds: Mapping[str, str | None]
    counts: Mapping[str, int]

    @property
    def number(self) -> int:
        return self.subtopology.number

    @property
    def read(self) -> list[TopicPartition]:
        topics = self.subtopology.topics
        return [TopicPartition(topic, n) for topic in topics for n in range(self.counts[topic])]

    def kind(self, topic: str) -> str:
        """Of what it sends there. Raises NotOnSpark."""
        kind = self.kinds.get(topic, OUT)
        if kind is None:
            raise NotOnSpark(f"sends to {topic!r}, {LATE} (stage {self.number})")
        return kind


class Reason(NamedTuple):
    """Why an app cannot run on Spark; or, where it is not `fatal`, what differs there.

    `what`: "agent 'notify'"; `place`: file and line.
    """

    what: str
    place: str
    message: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.what} ({self.place}): {self.message}"


# -- stages


def stages(topology: Topology, found: Mapping[str, int], default: int) -> list[Stage]:
    """In the order in which a batch goes through them: sub-topologies are numbered so.

    `found`, `default`: partition counts as a worker has them. Raises PartitionMismatch,
    PartitionCountChanged. Of an app that feeds itself the stages are none (`check`).
    """
    made = resolve_partition_counts(topology, found, default=default, declare=True)
    reader = {topic: each.number for each in topology.subtopologies for topic in each.topics}
    inner = {
        topic
        for each in topology.subtopologies
        for topic in each.outputs
        if reader.get(topic, -1) > each.number
    }
    derived = {spec.name for spec in topology.topics if spec.kind is TopicKind.REPARTITION}
    return [
        Stage(
            each,
            made.tasks[each.number],
            tuple(topic for topic in each.topics if topic not in inner),
            tuple(topic for topic in each.topics if topic in inner),
            frozenset(inner - derived),
            _kinds(each, reader, inner),
            made.counts,
        )
        for each in topology.subtopologies
    ]


def _kinds(
    each: SubTopology, reader: Mapping[str, int], inner: Iterable[str]
) -> dict[str, str | None]:
    kinds: dict[str, str | None] = dict.fromkeys(reader)
    kinds |= {topic: INNER for topic in inner if reader[topic] > each.number}
    return kinds | {store.changelog: LOG for store in each.stores}


# -- reasons


def check(app: App, found: Mapping[str, int] | None = None) -> list[Reason]:
    """All of them at once. `found`: partition counts, where they are known. Raises what
    `App.topology` raises: such an app runs nowhere.
    """
    topology = app.topology()
    nodes = {name: table.node() for name, table in app.tables.items()}
    agents = [(agent, reached(app, agent, nodes)) for agent in app.agents.values()]
    reasons = [_reason(agent, FOREIGN) for agent, touched in agents if touched.note]
    halves = [(agent, each) for agent, touched in agents for each in _halves(agent, touched)]
    reasons += _circles(topology, halves)
    if any(agent.fun.__module__ == "__main__" for agent in app.agents.values()):
        message = "the app lives in __main__: executors cannot import it: give it a module"
        reasons += [_reason(agent, message) for agent in app.agents.values()][:1]
    reasons += _jobs(app, {topic for each in topology.subtopologies for topic in each.topics})
    try:
        made = stages(topology, found or {}, app.conf.topic_partitions)
    except (PartitionMismatch, PartitionCountChanged) as error:
        return [*reasons, Reason(f"app {topology.app_id!r}", "its topics", str(error))]
    for stage in made:
        if (many := len(stage.subtopology.stores)) > STORES_MAX:
            message = f"{many} tables in one task, at most {STORES_MAX}: divide its agents"
            reasons.append(Reason(f"stage {stage.number}", "its tables", message))
    shared = {topic for each in made for topic in each.inner if topic in each.outputs}
    for agent, each in halves:
        for topic in sorted(shared.intersection(each.topics)):
            message = f"reads {topic!r}, and so only what this app sends there, not what others do"
            reasons.append(_reason(agent, message, fatal=False))
    return reasons


def refuse(app_id: str, reasons: Iterable[Reason]) -> None:
    """Raises NotOnSpark with all of them, if one of them is fatal."""
    fatal = [str(reason) for reason in reasons if reason.fatal]
    if fatal:
        count = f"{len(fatal)} reason{'s' * (len(fatal) > 1)}"
        lines = "".join(f"\n  {line}" for line in fatal)
        raise NotOnSpark(f"app {app_id!r} cannot run on Spark ({count}):{lines}")


def _halves(agent: Agent, touched: BodyUses) -> list[SubTopology]:
    """What it derives it names, and does not send to behind that; who does is refused then."""
    *feeding, last = agent.stages(touched)
    derived = {name for each in touched.derived for name in each.topic.topics}
    return [*feeding, replace(last, outputs=last.outputs - derived)]


def _circles(topology: Topology, halves: Iterable[tuple[Agent, SubTopology]]) -> Iterator[Reason]:
    """Sub-topologies that feed themselves: no order of stages has what they read."""
    reader = {topic: each for each in topology.subtopologies for topic in each.topics}
    ahead = {
        each.number: {reader[topic].number for topic in each.outputs if topic in reader}
        for each in topology.subtopologies
    }
    for _ in ahead:
        ahead = {n: then.union(*(ahead[each] for each in then)) for n, then in ahead.items()}
    for agent, each in halves:
        own = reader[each.topics[0]].number
        for topic in sorted(each.outputs & reader.keys()):
            fed = reader[topic].number
            if own == fed or own in ahead[fed]:
                message = f"feeds itself through {topic!r}: break the cycle or run it in a worker"
                yield _reason(agent, message)


def _jobs(app: App, read: set[str]) -> Iterator[Reason]:
    """Tasks and timers: the app does without them, unless they feed it."""
    for job in app.jobs:
        fed = read.intersection(name for topic in sends_to(app, job.fun) for name in topic.topics)
        what = f"{'task' if job.interval_s is None else 'timer'} {job.name!r}"
        yield Reason(what, place(job.fun), LOOP, fatal=bool(fed))


def _reason(agent: Agent, message: str, *, fatal: bool = True) -> Reason:
    return Reason(f"agent {agent.name!r}", place(agent.fun), message, fatal)


def code_of(function: Callable[..., Any]) -> CodeType:
    """Of a user's function, below what wraps it or binds some of its arguments."""
    function = unwrap(function)
    return code_of(function.func) if isinstance(function, partial) else function.__code__


def place(function: Callable[..., Any], line: int | None = None) -> str:
    """File and line of a user's function; or of a line in it."""
    code = code_of(function)
    path = Path(code.co_filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{line or code.co_firstlineno}"
