"""Streams, which agents' bodies iterate: values, or keys with values, or events.

`filter` puts a step before the body. `group_by` and `through` end one half of an agent and begin
the other. The steps before them are compiled into a loop that feeds the derived topic; the body
reads that topic. A body calls them before its first wait for input, so that discovery finds the
derived topics before anything runs.

Not here: the origin of values (`streamsx.processing.inbox`), the inspection of bodies
(`discovery`).
"""

from collections.abc import AsyncIterator, Callable
from inspect import iscoroutinefunction
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from streamsx.app.channel import Topic
from streamsx.app.compat import FaustNames
from streamsx.errors import TopologyError
from streamsx.model import TopicPartition
from streamsx.operators.filter import filter_values
from streamsx.operators.operator import Operator
from streamsx.operators.rekey import rekey
from streamsx.processing.batch import Batch
from streamsx.processing.inbox import RUNNING, Values
from streamsx.topology.internal_topics import TopicKind

V = TypeVar("V")


class Derived(NamedTuple):
    """Topic that an agent feeds and then reads, with the steps ahead of it.

    `kind` is REPARTITION, or SOURCE for a topic of the user. `otherwise` is the name of a
    repartition topic under the setting's other value.
    """

    topic: Topic
    kind: TopicKind
    steps: tuple[Operator, ...]
    otherwise: str = ""


class Message(NamedTuple):
    """Record in its original form, with key and value as bytes.

    Attributes:
        topic: Topic of the record.
        partition: Partition of the record.
        offset: Offset of the record.
        timestamp: Time in seconds since 1970.
        headers: Names with values, in order; None without headers.
        key: Bytes of the key.
        value: Bytes of the value.
    """

    topic: str
    partition: int
    offset: int
    timestamp: float
    headers: list[tuple[str, bytes | None]] | None
    key: bytes | None
    value: bytes | None

    @property
    def tp(self) -> TopicPartition:
        """Return topic and partition."""
        return TopicPartition(self.topic, self.partition)


class Event(FaustNames):
    """Record of a stream with its context; made by `Stream.events`.

    Attributes:
        key: Decoded key.
        value: Decoded value.
    """

    __slots__ = ("_batch", "_index", "key", "value")

    def __init__(self, key: Any, value: Any, batch: Batch, index: int) -> None:
        self.key = key
        self.value = value
        self._batch = batch
        self._index = index

    @property
    def headers(self) -> dict[str, bytes | None]:
        """Return the headers as a dict; of several with one name the last counts."""
        return dict(self.message.headers or ())

    @property
    def message(self) -> Message:
        """Return the record in its original form."""
        batch = self._batch
        index = self._index
        return Message(
            batch.topic,
            batch.partition,
            batch.offsets[index],
            batch.timestamps[index] / 1000,
            batch.headers[index] if batch.headers else None,
            batch.keys[index],
            batch.values[index],
        )

    def __repr__(self) -> str:
        return f"<Event: k={self.key!r} v={self.value!r}>"


class Stream(FaustNames, Generic[V]):
    """Stream of one agent in one task, which the agent's body iterates.

        async for order in orders: ...                  # values
        async for user, order in orders.items(): ...    # keys with values
        async for event in orders.events(): ...         # records

    `filter`, `group_by` and `through` come ahead of everything in the body that waits.
    """

    def __init__(
        self,
        agent: str,
        topic: Topic,
        values: Values,
        derive: Callable[[Derived], None],
        steps: tuple[Operator, ...] = (),
    ) -> None:
        self._agent = agent
        self._topic = topic
        self._values = values
        self._derive = derive
        self._steps = steps
        """Steps between the topic and the values."""

    def __aiter__(self) -> AsyncIterator[V]:
        return aiter(self._values)

    def items(self) -> AsyncIterator[tuple[Any, V]]:
        """Yield keys with values. A key that cannot be decoded fails its record."""
        return self._values.items()

    async def events(self) -> AsyncIterator[Event]:
        """Yield records as events, with value, key, headers, topic, offset and time."""
        inbox = RUNNING.get().inbox
        async for key, value in self.items():
            assert inbox.batch is not None, "a value without a record"
            yield Event(key, value, inbox.batch, inbox.index)

    def group_by(
        self,
        key: Any,
        *,
        name: str | None = None,
        topic: Topic | str | None = None,
        partitions: int | None = None,
    ) -> "Stream[V]":
        """Return a stream of the same records by another key, through a topic in between.

            async for order in orders.group_by(lambda order: order["user"], name="user"): ...

        Headers and the bytes of the value pass unchanged.

        Args:
            key: Field of a Record, or plain function of the value. The function must not change the
                value: other agents get the same object.
            name: Part of the name of the topic in between; needed with a function.
            topic: Topic to use in place of the one in between.
            partitions: Number of partitions of the topic in between.

        Raises:
            TypeError: a function without a name, an async function, or another object.
        """
        if not (hasattr(key, "ident") or callable(key)):
            raise TypeError(
                f"group_by {key!r}: agent {self._agent}: give it a field of a Record, or a function"
            )
        if iscoroutinefunction(key):
            raise TypeError(f"group_by with async function: agent {self._agent}: use a plain one")
        suffix = name or getattr(key, "ident", None)
        if not suffix:
            raise TypeError(f"group_by with a function: agent {self._agent}: give it a name=")
        if topic is not None:
            return self._derived(self._named(topic), TopicKind.SOURCE, key)
        derived, otherwise = self._topic.repartition_names(self._agent, suffix)
        made = self._topic.derived(derived, partitions, has_prefix=True)
        return self._derived(made, TopicKind.REPARTITION, key, otherwise)

    def through(self, channel: Topic | str) -> "Stream[V]":
        """Return a stream of the same records, through another topic.

        Args:
            channel: Topic to send to and read from, or its name.
        """
        return self._derived(self._named(channel), TopicKind.SOURCE)

    def filter(self, condition: Any) -> "Stream[V]":
        """Return a stream of the records whose value fulfils a condition.

        A condition that raises fails its record. Steps ahead of a `group_by` or `through` run ahead
        of the topic in between.

        Args:
            condition: Plain function of the value.

        Raises:
            TypeError: an async function, or another object.
        """
        if not callable(condition) or iscoroutinefunction(condition):
            raise TypeError(
                f"filter {condition!r}: agent {self._agent}: give it a plain function of the value"
            )
        step = filter_values(condition)
        values = self._values.behind(step)
        return Stream(self._agent, self._topic, values, self._derive, (*self._steps, step))

    def _named(self, channel: Topic | str) -> Topic:
        if isinstance(channel, str):
            return self._topic.derived(channel, None, has_prefix=False)
        return channel

    def _derived(
        self, topic: Topic, kind: TopicKind, key: Any = None, otherwise: str = ""
    ) -> "Stream[V]":
        """Return the stream of a derived topic, whose steps so far run ahead of that topic."""
        steps = self._steps
        if key is not None:
            where = f"agent {self._agent}, topic {self._topic}"
            keys = topic.key_codec.encoders.grouping(where)
            steps += (rekey(_key_function(key), keys.encode),)
        self._derive(Derived(topic, kind, steps, otherwise))
        return Stream(self._agent, topic, self._values.anew(), self._derive)


def only(agent: str, known: tuple[Derived, ...]) -> Callable[[Derived], None]:
    """Return a check for running streams: a topic that discovery missed has no task to read it."""
    names = {derived.topic.topics for derived in known}

    def check(derived: Derived) -> None:
        if derived.topic.topics not in names:
            raise TopologyError(
                f"group_by or through too late: agent {agent}, topic {derived.topic}: call them "
                "before the body waits for anything, and the same ones each time"
            )

    return check


def _key_function(key: Any) -> Callable[[Any], Any]:
    """Return the function of a key. A field of a Record may be one of a Record in a Record."""
    if not hasattr(key, "ident"):
        return key  # type: ignore[no-any-return]  # the user's function
    path = [key.field]
    field = key.parent
    while field is not None:
        path = [field.field, *path]
        field = field.parent
    return attrgetter(".".join(path))
