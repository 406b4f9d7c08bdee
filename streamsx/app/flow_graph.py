"""Graph of an app's flows, as the calls of a user make it, and its stages of the topology.

A root is a topic that flows read. Each operator that a user adds is a step below a root or another
step. A step below two others (`merge`) is one operator of two trees.

Not here: the calls (`flow`, `table_flow`), the code of an operator (`streamsx.operators`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamsx.app.channel import Topic
from streamsx.app.users_code import users_line
from streamsx.errors import NameClash, TopologyError
from streamsx.operators.forward import forward
from streamsx.operators.operator import Code, Operator
from streamsx.operators.send import send, send_windowed
from streamsx.serde.codec import Codec, table_codec, table_key_codec
from streamsx.state.framed import tagged_codec
from streamsx.state.layout import (
    BUFFER,
    KEY_VALUE,
    SESSION,
    SLIDING,
    SUBSCRIPTIONS,
    TIMED,
    WINDOW,
    StoreNode,
    Timing,
)
from streamsx.topology.internal_topics import CONFIGS, TopicKind, TopicSpec, changelog_name
from streamsx.topology.nodes import AS_THE_APP, Branch, OnFailure, Source, SubTopology

if TYPE_CHECKING:
    from streamsx.app.app import App
    from streamsx.app.window import Window

PASS: Final = Code("pass")
ID: Final = table_key_codec(None)
"""Codec of the ids of `deduplicate`: JSON."""
STORE_KINDS: Final = {"session": SESSION, "sliding": SLIDING}
"""Kinds of the stores of windows, beside WINDOW."""


@dataclass(eq=False)
class FlowStep:
    """Operator of a flow, with the steps that follow, which grow while an app is made.

    `topic` is the destination of an operator that sends; `on_failure` counts where the step is the
    first of its flow.
    """

    operator: Operator
    topic: Topic | None = None
    then: list["FlowStep"] = field(default_factory=list)
    on_failure: OnFailure = AS_THE_APP


@dataclass(eq=False)
class Root:
    """Topic that flows read, and the first step of each flow. `keys` decodes the flows' keys."""

    topic: Topic
    kind: TopicKind
    keys: Codec
    then: list[FlowStep] = field(default_factory=list)


class FlowGraph:
    """Roots and stores of the flows of an app."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._roots: list[Root] = []
        self.stores: dict[str, StoreNode] = {}
        self.tables: dict[str, tuple[Topic, StoreNode]] = {}
        """Global tables by name: the topic, and the store of each worker."""

    def root(self, topic: Topic, kind: TopicKind, keys: Codec) -> Root:
        """Return the root of a topic; one for all flows that read the topic in one way."""
        for root in self._roots:
            if root.topic.topics != topic.topics or root.keys is not keys:
                continue
            if kind is TopicKind.REPARTITION:
                raise NameClash(
                    f"two repartition topics with one name: {topic} ({users_line()}): give one of "
                    "the steps another name"
                )
            if root.topic.value_codec is not topic.value_codec:
                raise TopologyError(
                    f"one topic, read in two ways: {topic} ({users_line()}): its flows and tables "
                    "have different value types or serializers: give them the same topic object"
                )
            return root
        root = Root(topic, kind, keys)
        self._roots.append(root)
        return root

    def store(
        self,
        name: str,
        keys: Codec,
        values: Codec,
        made_at: str,
        kind: str,
        timing: Timing | None,
    ) -> StoreNode:
        """Make a store of keys in bytes. Raises NameClash, or TopologyError without a name."""
        if not name:
            raise TopologyError(f"state without a name: {made_at}: give it a name=")
        self._refuse_twice(name, made_at)
        conf = self._app.conf
        changelog = changelog_name(conf.id, name)
        persistent = not conf.store.startswith("memory")
        node = StoreNode(
            name, changelog, keys, values, bytes, persistent, kind, timing, by_bytes=True
        )
        self.stores[name] = node
        return node

    def _refuse_twice(self, name: str, made_at: str) -> None:
        """Raise NameClash if a table has the name."""
        if name in self.stores or name in self._app.tables or name in self.tables:
            raise NameClash(f"name used twice: table {name} ({made_at}): rename one of them")

    def table(self, name: str, topic: Topic, keys: Codec, made_at: str) -> StoreNode:
        """Make a global table of a topic. Raises NameClash."""
        self._refuse_twice(name, made_at)
        node = StoreNode(name, topic.name, keys, topic.value_codec, bytes, False, by_bytes=True)
        self.tables[name] = topic, node
        return node

    def stages(self) -> Iterator[SubTopology]:
        """Yield a stage for each root, with one branch for each flow that begins there."""
        made: dict[int, Operator] = {}
        names: dict[str, int] = {}
        for root in self._roots:
            branches = []
            for step in root.then:
                first = _tree(step, made)
                name = _name(root, first)
                names[name] = names.get(name, 0) + 1
                label = name if names[name] == 1 else f"{name} ({names[name]})"
                branches.append(Branch(label, first, root.keys, step.on_failure))
            if branches:
                yield _stage(root, tuple(branches))

    def specs(self) -> Iterator[TopicSpec]:
        """Yield the spec of each topic that flows read or send to, and of each changelog."""
        read = {root.topic.topics for root in self._roots}
        for root in self._roots:
            yield from root.topic.specs(root.kind)
            for step in _walk(root.then):
                if step.topic is not None and step.topic.topics not in read:
                    yield from step.topic.specs(TopicKind.OUTPUT)
        for topic, _ in self.tables.values():
            yield from topic.specs(TopicKind.SOURCE)
        replication = self._app.conf.topic_replication_factor
        config = dict(CONFIGS[TopicKind.CHANGELOG])
        for node in self.stores.values():
            yield TopicSpec(node.changelog, TopicKind.CHANGELOG, None, replication, config)


def _tree(step: FlowStep, made: dict[int, Operator]) -> Operator:
    """Return the tree of operators below a step. A step below two others gives one object."""
    found = made.get(id(step))
    if found is None:
        below = tuple(_tree(each, made) for each in step.then)
        found = made[id(step)] = step.operator.above(below)
    return found


def _stage(root: Root, branches: tuple[Branch, ...]) -> SubTopology:
    topic = root.topic
    operators = [each for branch in branches for each in branch.first.walk()]
    stores = {node.name: node for each in operators for node in each.stores.values()}
    outputs = frozenset(each.topic for each in operators if each.topic is not None)
    keys = topic.key_codec
    values = topic.value_codec
    sources = tuple(Source(name, keys, values, branches) for name in topic.topics)
    return SubTopology(0, sources, tuple(stores.values()), outputs)


def _name(root: Root, first: Operator) -> str:
    """Return the name of a flow, by its topic and the first store or topic below.

    The name does not depend on the order of an app's lines, because commits keep positions by it.
    """
    found = (
        name
        for each in first.walk()
        for name in (*(node.name for node in each.stores.values()), each.topic)
        if name is not None
    )
    below = next(found, None)
    return f"flow of {root.topic}" + (f" to {below}" if below else "")


def _walk(steps: list[FlowStep]) -> Iterator[FlowStep]:
    seen: set[int] = set()
    left = list(steps)
    while left:
        step = left.pop()
        if id(step) not in seen:
            seen.add(id(step))
            yield step
            left += step.then


class Shape(NamedTuple):
    """Form of the records at one place of a flow.

    `keys`: codec of the keys; `source`: topic whose bytes the values still are, None where a step
    has made other values; `value_type`: type of the values; `keyed`: whether a record is in the
    partition of its key; `windowed`: whether keys are those of windows; `behind`: ms by which
    results of windows that have closed are behind stream time, at most; `at_commits`: whether
    records come at commits, when stream time has moved on.
    """

    keys: Codec
    source: Topic | None
    value_type: Any
    keyed: bool = True
    windowed: bool = False
    behind: int = 0
    at_commits: bool = False

    def check_in_time(self, what: str, grace_ms: int, remedy: str) -> None:
        """Refuse an operator for which the records here would be late. Raises TopologyError.

        `grace_ms` is how far behind stream time a record may be; `remedy` says how to give more.
        """
        if self.at_commits:
            raise TopologyError(
                f"{what} after results that are sent at commits ({users_line()}): they would be "
                "late, because time has moved on by then: write emit='update' before it"
            )
        if grace_ms < self.behind:
            raise TopologyError(
                f"{what} closes before the records come ({users_line()}): results before it are "
                f"up to {self.behind} ms behind: write {remedy}"
            )


@dataclass(frozen=True)
class Place:
    """Place in the graph at which the next operator of a flow is put."""

    app: "App"
    graph: FlowGraph
    at: Root | FlowStep
    shape: Shape
    on_failure: OnFailure = AS_THE_APP

    def then(self, operator: Operator, to: Topic | None = None, **changes: Any) -> "Place":
        """Put an operator here; return the place behind. `changes` are those of the shape."""
        step = FlowStep(operator, to, on_failure=self.on_failure)
        self.at.then.append(step)
        return replace(self, at=step, shape=self.shape._replace(**changes))

    def then_both(
        self,
        operator: Operator,
        other: "Place",
        second: Operator,
        *,
        to: Topic | None = None,
        **changes: Any,
    ) -> "Place":
        """Put one operator here and a second one elsewhere; the records of both go on as one."""
        step = FlowStep(operator, to, on_failure=self.on_failure)
        self.at.then.append(step)
        other.at.then.append(FlowStep(second, then=step.then, on_failure=other.on_failure))
        shapes = self.shape, other.shape
        late = {
            "behind": max(each.behind for each in shapes),
            "at_commits": any(each.at_commits for each in shapes),
        }
        return replace(self, at=step, shape=self.shape._replace(**{**late, **changes}))

    def topic(self, topic: Topic | str) -> Topic:
        return topic if isinstance(topic, Topic) else self.app.topic(topic)

    def send(self, topic: Topic) -> None:
        """Send each record to a topic; results of windows to the partition of the plain key."""
        operator = send_windowed if self.shape.windowed else send
        self.then(operator(topic.name, topic.value_codec.encoders.or_none()), topic)

    def behind(self, topic: Topic, kind: TopicKind) -> "Place":
        """Return the place behind a topic that the flow has sent to."""
        keys = self.shape.keys
        shape = Shape(keys, topic, topic.value_type, behind=self.shape.behind)
        return replace(self, at=self.graph.root(topic, kind, keys), shape=shape)

    def between(self, name: str, partitions: int | None = None) -> "Place":
        """Return the place behind a repartition topic. Raises TopologyError without a name."""
        if not name:
            raise TopologyError(
                f"repartition topic without a name ({users_line()}): the key was changed: give "
                "the next step with state a name=, or call repartition(name)"
            )
        topic_name = self.repartition_topic(name)
        source = self.shape.source
        if source is not None:
            topic = source.derived(topic_name, partitions, has_prefix=True)
            self.then(forward(topic_name), topic)
        else:
            kind = self.shape.value_type
            topic = Topic(
                self.app, (topic_name,), value_type=kind, partitions=partitions, allow_empty=True
            )
            self.send(topic)
        return self.behind(topic, TopicKind.REPARTITION)

    def repartition_topic(self, name: str) -> str:
        """Return the name of a topic in between."""
        return f"{self.app.conf.id}-{name}-repartition"

    def internal(self, topic_name: str, values: Codec, partitions: int | None = None) -> Topic:
        """Make a topic in between with a format of its own."""
        topic = Topic(self.app, (topic_name,), partitions=partitions, allow_empty=True)
        topic.value_codec = values
        return topic

    def keyed(self, name: str) -> "Place":
        """Return a place where each record is in the partition of its key."""
        if self.shape.windowed:
            raise TopologyError(
                f"state by keys of windows ({users_line()}): rekey the flow by the plain key first"
            )
        return self if self.shape.keyed else self.between(name)

    def store(self, name: str, value_type: Any, window: "Window | None" = None) -> StoreNode:
        """Make a store of values by key, or by key and window."""
        values = table_codec(value_type)
        kind = KEY_VALUE
        timing = None
        if window is not None:
            kind = STORE_KINDS.get(window.kind, WINDOW)
            timing = Timing(window.size, window.step, window.stays)
        return self.graph.store(name, self.shape.keys, values, users_line(), kind, timing)

    def ids(self, name: str, timing: Timing) -> StoreNode:
        """Make a store of ids, for `deduplicate`."""
        return self.graph.store(name, ID, table_codec(None), users_line(), SESSION, timing)

    def rows(self, name: str, *, tagged: bool = False) -> StoreNode:
        """Make a store of the table here: the newest value of each key, with its time."""
        values = table_codec(self.shape.value_type)
        if tagged:
            values = tagged_codec(values)
        return self.graph.store(name, self.shape.keys, values, users_line(), TIMED, None)

    def held(self, name: str, wait_ms: int) -> StoreNode:
        """Make a store of the changes of a table that wait: sessions that close at the wait."""
        values = table_codec(self.shape.value_type)
        timing = Timing(wait_ms, wait_ms, wait_ms - 1)
        return self.graph.store(name, self.shape.keys, values, users_line(), SESSION, timing)

    def subscriptions(self, name: str) -> StoreNode:
        """Make a store of the subscriptions of a foreign-key join."""
        raw = table_codec(bytes)
        return self.graph.store(name, raw, raw, users_line(), SUBSCRIPTIONS, None)

    def buffer(self, name: str, timing: Timing) -> StoreNode:
        """Make a buffer of the records here, for a join."""
        values = table_codec(self.shape.value_type)
        made_at = users_line()
        return self.graph.store(name, self.shape.keys, values, made_at, BUFFER, timing)


def merged(places: Sequence[Place]) -> Place:
    """Return the place behind several, with one operator for the records of all."""
    shapes = [place.shape for place in places]
    if len({shape.windowed for shape in shapes}) > 1:
        raise TopologyError(
            f"merge of flows with keys of windows and with plain keys ({users_line()}): rekey "
            "one of the flows"
        )
    if any(place.on_failure != places[0].on_failure for place in places):
        raise TopologyError(
            f"merge of flows with different reactions to failures ({users_line()}): the steps "
            "after it can have only one: give all the flows the same on_error=, on_decode_error= "
            "and on_produce_error="
        )
    step = FlowStep(Operator("merge", PASS), on_failure=places[0].on_failure)
    for place in places:
        place.at.then.append(step)
    first = shapes[0]
    same = len({id(shape.source and shape.source.value_codec) for shape in shapes}) == 1
    one_type = all(shape.value_type == first.value_type for shape in shapes)
    shape = first._replace(
        source=first.source if same else None,
        value_type=first.value_type if one_type else None,
        keyed=all(shape.keyed for shape in shapes),
        behind=max(shape.behind for shape in shapes),
        at_commits=any(shape.at_commits for shape in shapes),
    )
    return replace(places[0], at=step, shape=shape)
