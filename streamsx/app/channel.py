"""Topics as users hold them: their types, how to send to them, how they are created.

Sending is done when `send` returns: a record of a task is then in its producer's buffer, and the
task's next commit waits for that record. So a send suspends no body, and a body that only sends
needs no event loop.

Not here: reading (`stream`), the partition of a key (the driver's choice).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypedDict

from streamsx.app.compat import FaustNames
from streamsx.app.users_code import users_line
from streamsx.config import seconds
from streamsx.errors import NotFound, RecordRefused, TopologyError, UsageError
from streamsx.model import Headers
from streamsx.processing.inbox import (
    DONE,
    RUNNING,
    Done,
    Host,
    Outbox,
    SentRecord,
    TaskContext,
)
from streamsx.protocol.record_batch import NO_TIMESTAMP
from streamsx.serde.codec import Codec, Encoders, topic_codec
from streamsx.topology.internal_topics import CONFIGS, TopicKind, TopicSpec, repartition_names

if TYPE_CHECKING:
    from streamsx.app.app import App

SECONDS_MAX: Final = float((1 << 52) // 1000)
"""Maximum time in s: milliseconds up to this limit fit into 64 bits, and are exact as floats."""
HeadersArg = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


class SendOptions(TypedDict, total=False):
    """Options of a record to send, besides key and value: see `Topic.send`."""

    partition: int | None
    timestamp: float | None
    headers: HeadersArg | None
    key_serializer: Any
    value_serializer: Any


class Topic(FaustNames):
    """Topic, or several topics that are read alike; made by `App.topic`.

    Args:
        key_type: Type of keys to read; None accepts any value.
        value_type: Type of values to read: a Record, a pydantic model, a type that msgspec reads;
            None accepts any value.
        key_serializer: Serializer of keys; the app's unless the type has one.
        value_serializer: Serializer of values; the app's unless the type has one.
        partitions: Number of partitions of a new topic; the app's `topic_partitions` unless given.
        retention: Duration for which a new topic keeps records.
        compacting: Whether a new topic keeps the newest record of each key.
        deleting: Whether a new topic deletes records after `retention`, beside compaction.
        replicas: Number of replicas of a new topic.
        config: Further configs of a new topic, by Kafka's names.
        allow_empty: Whether a record without a value is read as None. A topic with a `value_type`
            passes over such records otherwise.
        has_prefix: Faust's: the name begins with the app's id already.
    """

    def __init__(
        self,
        app: "App",
        names: Sequence[str],
        *,
        key_type: Any = None,
        value_type: Any = None,
        key_serializer: Any = None,
        value_serializer: Any = None,
        partitions: int | None = None,
        retention: object = None,
        compacting: bool | None = None,
        deleting: bool | None = None,
        replicas: int | None = None,
        config: Mapping[str, object] | None = None,
        allow_empty: bool = False,
        has_prefix: bool = False,
    ) -> None:
        if not names or not all(isinstance(name, str) for name in names):
            raise TypeError(f"not names of topics: {names!r}: write app.topic('a'), or ('a', 'b')")
        self._app = app
        self.topics = tuple(dict.fromkeys(names))
        self.made_at = users_line()
        self.key_type = key_type
        self.value_type = value_type
        self.key_serializer = key_serializer
        self.value_serializer = value_serializer
        self.partitions = partitions
        self.replicas = replicas
        self.has_prefix = has_prefix
        self.allow_empty = allow_empty
        cleanup = [word for word, on in (("compact", compacting), ("delete", deleting)) if on]
        self._config: dict[str, object] = {"cleanup.policy": ",".join(cleanup)} if cleanup else {}
        if retention is not None:
            kept_s = seconds(retention)
            self._config["retention.ms"] = -1 if kept_s == inf else int(kept_s * 1000)
        self._config |= config or {}

    # -- types

    @cached_property
    def key_codec(self) -> Codec:
        default = self._app.conf.key_serializer
        return self._codec(self.key_type, self.key_serializer, default, key=True)

    @cached_property
    def value_codec(self) -> Codec:
        default = self._app.conf.value_serializer
        empty = self.allow_empty
        return self._codec(self.value_type, self.value_serializer, default, empty=empty)

    def _codec(self, kind: Any, serializer: Any, default: Any, **how: bool) -> Codec:
        try:
            return topic_codec(kind, serializer, default, **how)
        except TopologyError as error:
            raise TopologyError(f"topic {self}: {error} ({self.made_at})") from error

    # -- sending

    @cached_property
    def _outgoing(self) -> tuple[str, Encoders, Encoders]:
        """Return name, key encoders and value encoders for `send`, in one lookup.

        A missing key is sent as no bytes, whatever the serializer.
        """
        return self.name, self.key_codec.encoders.or_none(), self.value_codec.encoders

    def send(
        self,
        *,
        key: Any = None,
        value: Any = None,
        partition: int | None = None,
        timestamp: float | None = None,
        headers: HeadersArg | None = None,
        key_serializer: Any = None,
        value_serializer: Any = None,
        force: bool = False,
    ) -> Done:
        """Send one record. The send is complete on return, and awaiting the result never suspends.

        `await (await topic.send(...))` waits for Kafka: it returns the RecordMetadata, or raises
        RecordRefused. In an agent the commit of the record at hand waits for the sent one. A topic
        that is not there is made if `topic_allow_declare` says so: awaiting the result waits.

        Args:
            key: Key of the record.
            value: Value of the record; None deletes its key in a table.
            partition: Partition to send to; chosen by the key unless given.
            timestamp: Time in seconds since 1970; that of the record at hand unless given.
            headers: Names with values of text, bytes or None, as a dict or as pairs.
            key_serializer: Serializer of the key, in place of the topic's.
            value_serializer: Serializer of the value, in place of the topic's.
            force: Faust's; has no effect.

        Raises:
            TypeError: the serializer cannot write a value, or a header is neither text nor bytes.
            RecordTooLarge: the topic takes no record of this size.
            RecordRefused: the topic refuses the timestamp, or a missing key in a compacted topic.
            UsageError: no worker runs, or the caller is on another thread than the event loop's.
            ValueError: the topic has several names.
        """
        name, keys, values = self._outgoing
        task = RUNNING.get(None)
        if task is not None and task.silenced:
            return DONE
        if key_serializer is not None:
            keys = topic_codec(self.key_type, key_serializer, None).encoders.or_none()
        if value_serializer is not None:
            values = topic_codec(self.value_type, value_serializer, None).encoders
        outbox: Outbox | Host
        if task is None:
            outbox = self._app.running_host(f"topic {name}")
        else:
            task.check_thread("topic", name)
            outbox = task.outbox
        at_ms = self._time(task) if timestamp is None else _milliseconds(name, timestamp)
        extra = None if headers is None else encoded_headers(name, headers)
        record = SentRecord(keys[type(key)](key), values[type(value)](value), at_ms, extra)
        try:
            bound = None if task is None or partition is not None else task.to(name)
            (bound or outbox.to(name, partition))(*record)
        except NotFound:
            return self._send_late(outbox, partition, record)
        if task is not None and task.at_work and "send" not in vars(self):
            self._bind(task)
        return outbox.last_sent(name, at_ms)

    def _time(self, task: TaskContext | None) -> int:
        """Return the timestamp of the record at hand, in ms; now if there is none."""
        batch = None if task is None else task.inbox.batch
        if task is None or batch is None:
            return self._app.now_ms()
        return batch.timestamps[task.inbox.index]

    def _bind(self, task: TaskContext) -> None:
        """Let the body that is at work send by the fast path from now on."""
        name, keys, values = self._outgoing
        if name not in task.tracked:
            rare = partial(type(self).send, self)
            task.bind(self, "send", task.outbox.bound(name, keys, values, task, rare))

    def _send_late(self, outbox: Outbox | Host, partition: int | None, record: SentRecord) -> Done:
        """Send to a topic that was unknown when the app began."""
        host = self._app.host
        if host is None:
            raise NotFound(f"unknown topic: {self}: make it with app.topic before the app starts")
        try:
            (spec,) = self.specs(TopicKind.OUTPUT)
        except TopologyError as error:
            raise UsageError(str(error)) from error  # a fault of this record, not of the app
        return host.send_late(outbox, spec, partition, record)

    def send_soon(self, **record: Any) -> Done:
        """Send as `send` does; Faust's name.

        Args:
            **record: Arguments of `send`.
        """
        return self.send(**record)

    async def declare(self) -> None:
        """Do nothing, because topics are created when a worker starts."""

    maybe_declare = declare

    # -- names

    @cached_property
    def name(self) -> str:
        """Return the name.

        Raises:
            ValueError: the topic has several names.
        """
        if len(self.topics) != 1:
            raise ValueError(f"not one topic: {self}: send to a topic object with one name")
        return self.topics[0]

    def get_topic_name(self) -> str:
        """Return `name`; Faust's name for that."""
        return self.name

    def repartition_names(self, agent: str, suffix: str) -> tuple[str, str]:
        """Return a repartition topic's name by the setting, and by the setting's other value."""
        conf = self._app.conf
        names = repartition_names(conf.id, agent, self.name, suffix, has_prefix=self.has_prefix)
        other = "faust" if conf.repartition_names == "app" else "app"
        return names[conf.repartition_names], names[other]

    def derived(self, name: str, partitions: int | None, *, has_prefix: bool) -> "Topic":
        """Return another topic with the same types."""
        made = copy(self)
        made.topics = (name,)
        made.partitions = partitions
        made.has_prefix = has_prefix
        for cached in ("name", "_outgoing", "send"):
            vars(made).pop(cached, None)
        return made

    def specs(self, kind: TopicKind) -> Iterator[TopicSpec]:
        """Yield the specs. Raises TopologyError, also if a type or serializer cannot be sent."""
        _ = self.key_codec, self.value_codec
        config = dict(CONFIGS[kind])
        if kind is not TopicKind.REPARTITION:
            config |= {name: str(value) for name, value in self._config.items()}
        replication = self.replicas or self._app.conf.topic_replication_factor
        for name in self.topics:
            yield TopicSpec(name, kind, self.partitions, replication, config, self.made_at)

    def __str__(self) -> str:
        return ",".join(self.topics)

    def __repr__(self) -> str:
        return f"<Topic: {self}>"


def encoded_headers(topic: str, headers: HeadersArg) -> Headers:
    """Return headers with values as bytes. Raises TypeError for a header of another type."""
    items = headers.items() if isinstance(headers, Mapping) else headers
    try:
        made = [(name, v.encode() if isinstance(v, str) else v) for name, v in items]
    except UnicodeEncodeError:
        raise
    except (TypeError, ValueError):  # no pairs
        raise TypeError(
            f"headers refused: topic {topic}: {headers!r}: give a dict, or pairs of a name and a "
            "value, as [('trace', '7')]"
        ) from None
    for name, value in made:
        if not isinstance(name, str) or not isinstance(value, bytes | None):
            raise TypeError(
                f"header refused: topic {topic}: {name!r} is a {type(value).__name__}: give its "
                "name as text, and its value as text, bytes or None"
            )
    return made


def _milliseconds(topic: str, timestamp: float) -> int:
    """Return a time in s as Kafka's ms. Raises RecordRefused if that is no timestamp."""
    if 0 <= timestamp <= SECONDS_MAX or timestamp == NO_TIMESTAMP / 1000:  # False for NaN
        return round(timestamp * 1000)
    raise RecordRefused(
        f"record refused: topic {topic}: its timestamp is {timestamp!r}: give seconds since 1970"
    )
