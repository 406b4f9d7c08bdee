"""What a sub-topology consists of: sources, each the root of a tree, and stores. Values only.

The leaves of a tree are agents' bodies, and operators that send. What needs a place tomorrow has it
here: an operator that uses a store names it beside its topic; one that lets some records through,
or joins, or waits for stream time, is an inner one.

Codecs are functions, chosen once per topic when the app is compiled; user code comes as functions.

Not here: how the graph is cut (`subtopologies`), what an operator does (`streamsx.operators`), what
a store is (`streamsx.state.layout`).
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from streamsx.model import TopicPartition
from streamsx.serde.codec import Codec
from streamsx.state.layout import StoreNode

READER_DIGITS = 8


def reader_name(agent: str) -> str:
    """Return the short stable name under which commits keep an agent's position in a source.

    Branch and body of one agent share it, so that an agent that begins or ends to group goes on
    where it was. No source has both.
    """
    return sha256(agent.encode()).hexdigest()[:READER_DIGITS]


AgentBody = Callable[[Any], Coroutine[Any, Any, None]]
"""Of what it reads."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One step for a record.

    `kind` names its fragment; `functions`: what the fragment calls, by the names it uses for them;
    `topic`: where it sends; `then`: who goes on with what it makes, each for itself.
    """

    kind: str
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    topic: str | None = None
    then: tuple["Operator", ...] = ()

    def walk(self) -> Iterator["Operator"]:
        """It, and all that are below it, each ahead of those below."""
        yield self
        for each in self.then:
            yield from each.walk()


@dataclass(frozen=True, slots=True)
class Branch:
    """What an agent does ahead of its body. It has a key, a value and failures of its own."""

    agent: str
    first: Operator


@dataclass(frozen=True, slots=True)
class AgentNode:
    """An `async def` body that is handed its stream of decoded values and never returns."""

    name: str
    body: AgentBody


@dataclass(frozen=True, slots=True)
class Source:
    """A topic that a task reads, and who reads it: branches first, then bodies, each on its own."""

    topic: str
    keys: Codec
    values: Codec
    branches: tuple[Branch, ...] = ()
    agents: tuple[AgentNode, ...] = ()

    @property
    def readers(self) -> dict[str, str]:
        """Names under which commits keep positions -> agents."""
        names = (*(each.agent for each in self.branches), *(each.name for each in self.agents))
        return {reader_name(name): name for name in names}

    @property
    def clash(self) -> tuple[str, ...]:
        """Agents of which two have one name in commits."""
        names = (*(each.agent for each in self.branches), *(each.name for each in self.agents))
        counts = Counter(map(reader_name, names))
        return tuple(name for name in names if counts[reader_name(name)] > 1)

    @property
    def operators(self) -> tuple[Operator, ...]:
        """Of all branches, one after the other."""
        return tuple(operator for branch in self.branches for operator in branch.first.walk())


@dataclass(frozen=True, slots=True)
class SubTopology:
    """What one task runs. `number` is the first half of its id; `outputs`: topics it sends to."""

    number: int
    sources: tuple[Source, ...]
    stores: tuple[StoreNode, ...] = ()
    outputs: frozenset[str] = frozenset()

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(source.topic for source in self.sources)

    @property
    def stateful(self) -> bool:
        return bool(self.stores)

    def changelogs(self, partition: int) -> dict[str, TopicPartition]:
        """Of the task of this number, by store."""
        return {node.name: TopicPartition(node.changelog, partition) for node in self.stores}
