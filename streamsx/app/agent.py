"""Agents: `async def` bodies that read a topic, and the stages of the topology made from them.

An agent that derives a topic is two stages: a loop that feeds the derived topic, which moves like
any stateless task, and the body with its tables, which reads that topic.

Not here: the inspection of bodies (`discovery`), the execution of bodies
(`streamsx.processing.inbox`).
"""

import sys
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction, signature, unwrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Unpack

from streamsx.app.channel import SendOptions, Topic
from streamsx.app.compat import FaustNames
from streamsx.app.stream import Derived, Stream, only
from streamsx.app.table import Table
from streamsx.app.users_code import users_line
from streamsx.errors import TopologyError
from streamsx.operators.forward import forward
from streamsx.operators.operator import chain
from streamsx.processing.inbox import Done, Values
from streamsx.state.layout import StoreNode
from streamsx.topology.internal_topics import TopicKind, TopicSpec, agent_topic_name
from streamsx.topology.nodes import (
    AS_THE_APP,
    AgentNode,
    Branch,
    OnFailure,
    Source,
    SubTopology,
)

if TYPE_CHECKING:
    from streamsx.app.app import App

TOPIC_OPTIONS: Final = signature(Topic).parameters.keys() - {"app", "names", "has_prefix"}
AGENT_OPTIONS: Final = sorted({
    *TOPIC_OPTIONS, "name", "sink", "tables", "on_error", "on_decode_error", "on_produce_error",
})  # fmt: skip
"""Arguments of `@app.agent`: its own, and those of the topic that it makes."""
Sink = Any
"""Topic, other agent, or function of the value, plain or async."""


class BodyUses(NamedTuple):
    """Stores that a body uses, topics that it may send to, and topics that it derives.

    `note` is a remark, for the user who starts the app, about uses that could not be found; empty
    if there are none.
    """

    stores: tuple[StoreNode, ...]
    topics: tuple[Topic, ...]
    derived: tuple[Derived, ...] = ()
    note: str = ""


class Agent(FaustNames):
    """Agent that `@app.agent` makes of a function.

    Args:
        channel: Topic or its name; None makes a topic with the agent's name, from `options`.
        sinks: Destinations of yielded values.
        tables: Tables that the body uses; None: they are discovered.
        raised: Function that is called with the agent and each exception that ends its body.
    """

    def __init__(
        self,
        app: "App",
        fun: Callable[..., Any],
        *,
        name: str | None,
        channel: Topic | str | None,
        sinks: Iterable[Sink],
        tables: Iterable[Table[Any, Any] | str] | None,
        options: dict[str, Any],
        on_failure: OnFailure = AS_THE_APP,
        raised: Callable[["Agent", Exception], Any] | None = None,
    ) -> None:
        if not (iscoroutinefunction(fun) or isasyncgenfunction(fun)):
            raise TypeError(f"not an async function: {fun!r}: write `async def`")
        check_call(fun, "its stream", object())
        if isinstance(channel, Topic) and options:
            raise TypeError(
                f"for a topic, not for an agent: {', '.join(options)}: {name_of(fun)}: give it to "
                "app.topic"
            )
        self._app = app
        self.fun = fun
        self.name = name or name_of(fun)
        self.made_at = line_of(fun)
        self.sinks: list[Sink] = []
        for sink in _checked_list("sink", sinks):
            self.add_sink(sink)
        names = None if tables is None else map(_table_name, _checked_list("tables", tables))
        self.tables = None if names is None else frozenset(names)
        self._channel = channel
        self._options = options
        self._on_failure = on_failure
        self._raised = None if raised is None else partial(raised, self)

    @property
    def channel(self) -> Topic:
        """Return the topic that the agent reads."""
        if not isinstance(self._channel, Topic):
            own = self._channel is None
            name = self._channel or agent_topic_name(self._app.conf.id, self.name)
            self._channel = self._app.topic(name, has_prefix=own, **self._options)
            self._channel.made_at = self.made_at
        return self._channel

    def send(self, *, key: Any = None, value: Any = None, **options: Unpack[SendOptions]) -> Done:
        """Send one record to the topic that the agent reads, as `Topic.send` does.

        Args:
            key: Key of the record.
            value: Value of the record.
            **options: Partition, timestamp, headers and serializers, as for `Topic.send`.
        """
        return self.channel.send(key=key, value=value, **options)

    async def cast(
        self, value: Any = None, *, key: Any = None, **options: Unpack[SendOptions]
    ) -> None:
        """Send as `send` does; Faust's name.

        Args:
            value: Value of the record.
            key: Key of the record.
            **options: As for `send`.
        """
        await self.send(key=key, value=value, **options)

    def add_sink(self, sink: Sink) -> None:
        """Add a destination of yielded values.

        Args:
            sink: Topic, agent, or function of the value, plain or async.

        Raises:
            TypeError: `sink` is another object.
        """
        if not (isinstance(sink, Topic | Agent) or callable(sink)):
            raise TypeError(f"not a sink: {sink!r}: {self!r}: give a topic, an agent or a function")
        if sink not in self.sinks:
            self.sinks.append(sink)

    def __repr__(self) -> str:
        return f"<Agent: {self.name}>"

    # -- what it becomes

    def body(self, stream: Stream[Any]) -> Coroutine[Any, Any, None]:
        """Run the user's function on a stream; yielded values go to the sinks."""
        made: Coroutine[Any, Any, None]
        made = self._yielding(stream) if isasyncgenfunction(self.fun) else self.fun(stream)
        return made

    async def _yielding(self, stream: Stream[Any]) -> None:
        async for value in self.fun(stream):
            for sink in self.sinks:
                if isinstance(sink, Topic | Agent):
                    await sink.send(value=value)
                elif isawaitable(answer := sink(value)):
                    await answer

    def stages(self, reached: BodyUses) -> list[SubTopology]:
        """Return the stages of this agent, each to run in one place and not numbered yet.

        The stages that feed derived topics come first, the body comes last.

        Raises:
            TopologyError: sinks of an agent that yields nothing, or a topic that would feed itself.
        """
        if self.sinks and not isasyncgenfunction(self.fun):
            raise TopologyError(
                f"sinks of an agent that yields nothing: {self.name}: yield the values for the "
                "sinks, or leave the sinks out"
            )
        stages = []
        topic = self.channel
        read = [*topic.topics, *(n for each in reached.derived for n in each.topic.topics)]
        if len(set(read)) < len(read):
            raise TopologyError(
                f"agent would feed itself: {self.name}: {', '.join(read)}: its records would go "
                "round for ever: let each group_by and through have a topic of its own"
            )
        for derived in reached.derived:
            steps = chain(*derived.steps, forward(derived.topic.name))
            branches = (Branch(self.name, steps, on_failure=self._on_failure),)
            keys = topic.key_codec
            values = topic.value_codec
            sources = tuple(Source(name, keys, values, branches) for name in topic.topics)
            stages.append(SubTopology(0, sources, outputs=frozenset(derived.topic.topics)))
            topic = derived.topic
        check = only(self.name, reached.derived)

        def body(values: Values) -> Coroutine[Any, Any, None]:
            return self.body(Stream(self.name, self.channel, values, check))

        node = AgentNode(self.name, body, self._on_failure, self._raised)
        keys = topic.key_codec
        values = topic.value_codec
        sources = tuple(Source(name, keys, values, agents=(node,)) for name in topic.topics)
        outputs = frozenset(name for topic in reached.topics for name in topic.topics)
        return [*stages, SubTopology(0, sources, reached.stores, outputs)]

    def specs(self, reached: BodyUses) -> Iterable[TopicSpec]:
        """Yield the spec of every topic that the agent reads, derives or may send to."""
        yield from self.channel.specs(TopicKind.SOURCE)
        for derived in reached.derived:
            yield from derived.topic.specs(derived.kind)
        for topic in reached.topics:
            yield from topic.specs(TopicKind.OUTPUT)


def check_call(fun: Callable[..., Any], takes: str, *arguments: object) -> None:
    """Raise TypeError for a function that cannot be called with these arguments."""
    try:
        signature(fun).bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{error}: {fun!r}: let it take {takes}") from None


def _checked_list(what: str, given: Iterable[Any]) -> Iterable[Any]:
    """Return a list of sinks or tables. Raise TypeError for a single table or name.

    Both are iterable, by keys and by letters, so the mistake would go unnoticed.
    """
    if isinstance(given, str | FaustNames):
        raise TypeError(f"not a list: {what}={given!r}: write {what}=[...]")
    return given


def _table_name(table: Table[Any, Any] | str) -> str:
    return table if isinstance(table, str) else table.name


def line_of(fun: Callable[..., Any]) -> str:
    """Return file and line of a function, that of its first decorator; else of the user's call."""
    code = getattr(unwrap(fun), "__code__", None)
    return users_line() if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def name_of(fun: Callable[..., Any]) -> str:
    """Return `module.function`, as Faust names agents; in a script the file replaces `module`."""
    if fun.__module__ == "__main__" and hasattr(sys.modules["__main__"], "__file__"):
        from mode.utils.objects import canonshortname

        return str(canonshortname(fun))
    return f"{fun.__module__}.{fun.__name__}"
