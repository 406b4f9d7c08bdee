"""Plan of an app on Spark: stages that run one after the other, or all reasons against a plan.

A stage is a sub-topology with the tasks that workers would have: the same task numbers and
partition counts, so that state can move between Spark and workers. If one stage sends records to a
topic that a later stage reads, the records stay within the batch: they are `inner`, and are never
read from Kafka.

Not here: single operators, which belong to the task; and faults that only a running body shows,
such as a body that awaits something foreign, or sends to a topic that the walk over the code did
not find (`spark/task`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from inspect import isfunction, unwrap
from pathlib import Path
from types import CodeType
from typing import Any, Final, NamedTuple

from streamsx.app.agent import Agent, BodyUses
from streamsx.app.app import App
from streamsx.app.discovery import reached, sends_to
from streamsx.config import Retry
from streamsx.errors import NotOnSpark, PartitionCountChanged, PartitionMismatch
from streamsx.model import TopicPartition
from streamsx.operators.foreign_join import FOREIGN_LEFT
from streamsx.topology.build import Topology
from streamsx.topology.internal_topics import TopicKind
from streamsx.topology.nodes import SubTopology
from streamsx.topology.partitions import resolve_partition_counts

LOG = "log"
"""Kind of a row for a changelog."""
INNER = "inner"
"""Kind of a row for a later stage."""
OUT = "out"
"""Kind of a row for other readers of the topic."""
META = "meta"
"""Kind of the row that holds a task's report."""
FOREIGN: Final = "waits for something outside its stream: run it in a worker"
STORES_MAX: Final = 64
"""Limit of the stores of a task. A process keeps this many databases open and closes the least
recently used one beyond the limit, so that no database in use is closed."""
LOOP: Final = "needs a worker's event loop: run it in a worker"
RETRIES: Final = "retry would hold up a whole batch: give another reaction, or run it in a worker"
LATE: Final = "which was read before it: name the topic in the body"


class Stage(NamedTuple):
    """Sub-topology as a step of each batch.

    Attributes:
        subtopology: the sub-topology that the stage runs.
        tasks: number of tasks.
        external: topics that are read from outside.
        inner: topics that earlier stages of the same batch send to.
        outputs: inner topics whose rows leave the batch too, for readers outside the app.
        kinds: kind of the rows sent to each topic; None for a topic that the stage must not send
            to. A topic that is missing has the kind OUT.
        counts: number of partitions of every topic of the app.
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
        """Return the kind of the rows that the stage sends to a topic.

        Raises:
            NotOnSpark: the stage must not send to the topic.
        """
        kind = self.kinds.get(topic, OUT)
        if kind is None:
            raise NotOnSpark(f"sends to {topic!r}, {LATE} (stage {self.number})")
        return kind


class Reason(NamedTuple):
    """Reason why an app cannot run on Spark or, if not `fatal`, a difference from a worker.

    `what` names the part of the app, such as "agent 'notify'"; `place` is the file and line.
    """

    what: str
    place: str
    message: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.what} ({self.place}): {self.message}"


class Half(NamedTuple):
    """Stage of one agent, or of the flows of one topic; `what` and `place` as those of a Reason."""

    what: str
    place: str
    plan: SubTopology

    def reason(self, message: str, *, fatal: bool = True) -> Reason:
        return Reason(self.what, self.place, message, fatal)


# -- stages


def stages(topology: Topology, found: Mapping[str, int], default: int) -> list[Stage]:
    """Return the stages in the order in which a batch passes through them.

    Sub-topologies are numbered in that order. `found` and `default` are partition counts, as for a
    worker. The stages of an app that feeds itself are not valid; `check` refuses such an app.

    Raises:
        PartitionMismatch, PartitionCountChanged: the partition counts do not fit the app.
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
    """Return all reasons against running an app on Spark at once.

    `found` holds the known partition counts. Errors of `App.topology` pass through: an app without
    a valid topology runs nowhere.
    """
    topology = app.topology()
    nodes = {name: table.node() for name, table in app.tables.items()}
    agents = [(agent, reached(app, agent, nodes)) for agent in app.agents.values()]
    reasons = [_reason(agent, FOREIGN) for agent, touched in agents if touched.note]
    halves = [
        Half(f"agent {agent.name!r}", place(agent.fun), each)
        for agent, touched in agents
        for each in _halves(agent, touched)
    ]
    halves += _flows(app)
    reasons += _circles(topology, halves)
    if any(fun.__module__ == "__main__" for fun in _functions(app)):
        message = "the app lives in __main__: executors cannot import it: give it a module"
        reasons.append(halves[0].reason(message))
    reasons += _jobs(app, {topic for each in topology.subtopologies for topic in each.topics})
    reasons += [
        Reason(f"global table {name!r}", "its topic", "Spark does not read it: run it in a worker")
        for name in topology.tables
    ]
    reasons += [
        Reason(
            f"join with topic {operator.topic!r}",
            "by a foreign key",
            "its two tables send records to each other, and stages run one after another: run "
            "it in a worker",
        )
        for each in topology.subtopologies
        for source in each.sources
        for operator in source.operators
        if operator.kind == FOREIGN_LEFT
    ]
    chosen = [app.conf.on_error]
    for source in (source for each in topology.subtopologies for source in each.sources):
        chosen += [each.error for each in source.on_failures]
    if any(isinstance(each, Retry) for each in chosen):
        reasons.append(Reason(f"app {topology.app_id!r}", "its on_error", RETRIES))
    try:
        made = stages(topology, found or {}, app.conf.topic_partitions)
    except (PartitionMismatch, PartitionCountChanged) as error:
        return [*reasons, Reason(f"app {topology.app_id!r}", "its topics", str(error))]
    for stage in made:
        if (many := len(stage.subtopology.stores)) > STORES_MAX:
            message = f"{many} tables in one task, at most {STORES_MAX}: divide its agents"
            reasons.append(Reason(f"stage {stage.number}", "its tables", message))
    shared = {topic for each in made for topic in each.inner if topic in each.outputs}
    for half in halves:
        for topic in sorted(shared.intersection(half.plan.topics)):
            message = f"reads {topic!r}, and so only what this app sends there, not what others do"
            reasons.append(half.reason(message, fatal=False))
    return reasons


def refuse(app_id: str, reasons: Iterable[Reason]) -> None:
    """Raise NotOnSpark with all fatal reasons, if there are any."""
    fatal = [str(reason) for reason in reasons if reason.fatal]
    if fatal:
        count = f"{len(fatal)} reason{'s' * (len(fatal) > 1)}"
        lines = "".join(f"\n  {line}" for line in fatal)
        raise NotOnSpark(f"app {app_id!r} cannot run on Spark ({count}):{lines}")


def _halves(agent: Agent, touched: BodyUses) -> list[SubTopology]:
    """Return the stages of an agent; the last one has no derived topics among its outputs.

    The body names its derived topics, but only the stages that feed these topics send to them. A
    body that sends to a derived topic itself is refused when the body runs.
    """
    *feeding, last = agent.stages(touched)
    derived = {name for each in touched.derived for name in each.topic.topics}
    return [*feeding, replace(last, outputs=last.outputs - derived)]


def _flows(app: App) -> Iterator[Half]:
    """Yield the stages of the app's flows."""
    for each in app.flows.stages():
        yield Half(each.sources[0].branches[0].agent, "its topics", each)


def _functions(app: App) -> Iterator[Callable[..., Any]]:
    """Yield the functions of users that the app's tasks call."""
    yield from (agent.fun for agent in app.agents.values())
    sources = (source for each in app.flows.stages() for source in each.sources)
    found = (
        fun for source in sources for step in source.operators for fun in step.functions.values()
    )
    yield from (fun for fun in found if isfunction(fun))


def _circles(topology: Topology, halves: Iterable[Half]) -> Iterator[Reason]:
    """Yield a reason for each sub-topology that feeds itself.

    No order of stages could run such a sub-topology after the stages that feed it.
    """
    reader = {topic: each for each in topology.subtopologies for topic in each.topics}
    ahead = {
        each.number: {reader[topic].number for topic in each.outputs if topic in reader}
        for each in topology.subtopologies
    }
    for _ in ahead:
        ahead = {n: then.union(*(ahead[each] for each in then)) for n, then in ahead.items()}
    for half in halves:
        own = reader[half.plan.topics[0]].number
        for topic in sorted(half.plan.outputs & reader.keys()):
            fed = reader[topic].number
            if own == fed or own in ahead[fed]:
                message = f"feeds itself through {topic!r}: break the cycle or run it in a worker"
                yield half.reason(message)


def _jobs(app: App, read: set[str]) -> Iterator[Reason]:
    """Yield a reason for each task and timer; fatal only if the app reads a topic that it feeds."""
    for job in app.jobs:
        fed = read.intersection(name for topic in sends_to(app, job.fun) for name in topic.topics)
        what = f"{'task' if job.interval_s is None else 'timer'} {job.name!r}"
        yield Reason(what, place(job.fun), LOOP, fatal=bool(fed))


def _reason(agent: Agent, message: str, *, fatal: bool = True) -> Reason:
    return Reason(f"agent {agent.name!r}", place(agent.fun), message, fatal)


def code_of(function: Callable[..., Any]) -> CodeType:
    """Return the code of a user's function, below decorators and `partial`."""
    function = unwrap(function)
    return code_of(function.func) if isinstance(function, partial) else function.__code__


def place(function: Callable[..., Any], line: int | None = None) -> str:
    """Return the file and line of a user's function, or of the given line of that function."""
    code = code_of(function)
    path = Path(code.co_filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{line or code.co_firstlineno}"
