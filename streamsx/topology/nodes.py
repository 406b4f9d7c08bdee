"""Nodes of a sub-topology: sources, each the root of a tree, and stores. Values only.

The inner nodes and the leaves of a tree are operators (`streamsx.operators`). Codecs are functions,
chosen once per topic when the app is compiled; user code comes as functions.

Not here: the cut of the graph (`subtopologies`), the effect of an operator, the definition of a
store (`streamsx.state.layout`).
"""

from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from typing import Any, Final, NamedTuple

from streamsx.model import TopicPartition
from streamsx.operators.operator import Operator
from streamsx.serde.codec import Codec
from streamsx.state.layout import StoreNode

READER_DIGITS = 8


@cache
def reader_name(agent: str) -> str:
    """Return the short stable name under which commits keep an agent's position in a source.

    Branch and body of one agent share the name, so that an agent that begins or ends to use
    `group_by` goes on at its position. No source has both.
    """
    return sha256(agent.encode()).hexdigest()[:READER_DIGITS]


class OnFailure(NamedTuple):
    """Reactions of one agent or flow to records that fail, or cannot be decoded, and to outputs
    that brokers refuse.

    Each is a word of the settings `on_error`, `on_decode_error` and `on_produce_error`, a Retry
    (of `on_error`), or a function of the failure that returns either; None for the app's.
    """

    error: Any = None
    decode_error: Any = None
    produce_error: Any = None


AS_THE_APP: Final = OnFailure()
AgentBody = Callable[[Any], Coroutine[Any, Any, None]]
"""Body of an agent, as a function of the stream that the body reads."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Operators of an agent ahead of its body, or of a flow, with failures of their own.

    `agent` is the name of the agent, or a flow's. `keys` decodes the keys in another way than the
    source's codec.
    """

    agent: str
    first: Operator
    keys: Codec | None = None
    on_failure: OnFailure = AS_THE_APP

    @property
    def of_flow(self) -> bool:
        """Return whether the branch is a flow, and not a part of an agent."""
        return self.keys is not None


@dataclass(frozen=True, slots=True)
class AgentNode:
    """Agent's `async def` body, which takes a stream of decoded values and never returns.

    `raised` is called with each exception that ends the body, and awaited if it asks for that.
    """

    name: str
    body: AgentBody
    on_failure: OnFailure = AS_THE_APP
    raised: Callable[[Exception], Any] | None = None


@dataclass(frozen=True)
class Source:
    """Topic that a task reads, with its readers: branches first, then bodies, each on its own.

    `writers`: numbers of the sub-topologies whose tasks tell their stream time through the topic.
    """

    topic: str
    keys: Codec
    values: Codec
    branches: tuple[Branch, ...] = ()
    agents: tuple[AgentNode, ...] = ()
    writers: tuple[int, ...] = ()

    @property
    def on_failures(self) -> list[OnFailure]:
        """Return the reactions of all readers."""
        branches = [each.on_failure for each in self.branches]
        return branches + [each.on_failure for each in self.agents]

    @property
    def readers(self) -> dict[str, str]:
        """Return agents by the names under which commits keep their positions."""
        names = (*(each.agent for each in self.branches), *(each.name for each in self.agents))
        return {reader_name(name): name for name in names}

    @property
    def clash(self) -> tuple[str, ...]:
        """Return the agents that share a name in commits with another agent."""
        names = (*(each.agent for each in self.branches), *(each.name for each in self.agents))
        counts = Counter(map(reader_name, names))
        return tuple(name for name in names if counts[reader_name(name)] > 1)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Return the operators of all branches, one branch after the other."""
        return tuple(operator for branch in self.branches for operator in branch.first.walk())


@dataclass(frozen=True)
class SubTopology:
    """Sub-topology, run by one task per partition number.

    `number` is the first half of a task id. `outputs` are the topics that the tasks send to.
    `tells` are those of them to which the tasks tell their stream time.
    """

    number: int
    sources: tuple[Source, ...]
    stores: tuple[StoreNode, ...] = ()
    outputs: frozenset[str] = frozenset()
    tells: frozenset[str] = frozenset()

    @cached_property
    def topics(self) -> tuple[str, ...]:
        return tuple(source.topic for source in self.sources)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Return the operators of all sources."""
        return tuple(operator for source in self.sources for operator in source.operators)

    @cached_property
    def inputs(self) -> dict[str, set[str]]:
        """Return for each store the topics whose records reach it by operators."""
        found: dict[str, set[str]] = {}
        for source in self.sources:
            for operator in source.operators:
                for node in operator.stores.values():
                    found.setdefault(node.name, set()).add(source.topic)
        return found

    @property
    def stateful(self) -> bool:
        return bool(self.stores)

    @cached_property
    def tables(self) -> dict[str, StoreNode]:
        """Return the global tables that the tasks read, by name; their changelogs are topics."""
        operators = (each for source in self.sources for each in source.operators)
        return {node.name: node for each in operators for node in each.tables.values()}

    def changelogs(self, partition: int) -> dict[str, TopicPartition]:
        """Return the changelog partitions of the task on this partition number, by store."""
        return {node.name: TopicPartition(node.changelog, partition) for node in self.stores}
