"""Flows: the steps that the records of a topic go through, declared and compiled into one loop.

    (app.flow("orders", value_type=Order)
        .filter(lambda order: order.price > 10)
        .group_by(lambda order: order.user)
        .count(name="orders-per-user")
        .to("counts"))

Each call returns a new object, and nothing runs until a worker does. Functions see the value. With
`metadata=True` they see value, key, timestamp in ms and headers. State and topics in between have
the names that they are given, never numbers.

Not here: the effect of a step (`streamsx.operators`), tables as results (`table_flow`), the graph
(`flow_graph`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction, signature
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamsx.app.absent_steps import OF_FLOW, OF_GROUPS, AbsentSteps
from streamsx.app.channel import Topic
from streamsx.app.declaration import declares
from streamsx.app.flow_graph import Place, Shape, merged
from streamsx.app.users_code import users_line
from streamsx.app.window import JoinReach, Window, dedup_timing, idle_time, join_reach
from streamsx.errors import TopologyError
from streamsx.operators import aggregate as aggregates
from streamsx.operators.branch import branch, on_branch
from streamsx.operators.deduplicate import deduplicate
from streamsx.operators.filter import filter_values
from streamsx.operators.join_streams import Sides, join_streams
from streamsx.operators.late import LateBounds, LateRecord, bury_late, call_for_late
from streamsx.operators.map import flat_map, flat_map_values, map_records, map_values
from streamsx.operators.operator import Operator
from streamsx.operators.peek import peek
from streamsx.operators.select_key import select_key
from streamsx.operators.sessions import sessions
from streamsx.operators.sliding import sliding
from streamsx.operators.table import join_global, join_table, put
from streamsx.operators.timestamp import set_timestamp
from streamsx.operators.windows import aggregate_windows, count_windows
from streamsx.serde.codec import Codec, FlowKeys, topic_codec
from streamsx.state.layout import StoreNode
from streamsx.topology.internal_topics import TopicKind
from streamsx.topology.nodes import AS_THE_APP, OnFailure

if TYPE_CHECKING:
    from streamsx.app.app import App
    from streamsx.app.table_flow import GlobalTable, TableFlow

METADATA_ARGUMENTS: Final = 4
EMITS: Final = ("commit", "update")
WINDOW_EMITS: Final = (*EMITS, "final")
TABLE_KINDS: Final = ("inner", "left")
FLOW_KINDS: Final = ("inner", "left", "outer")
OnLate = str | Callable[[LateRecord], Any]
DROP: Final = "drop"
DLQ: Final = "dlq"
LATE_BOUNDS: Final = {
    "tumbling": LateBounds("{start}", "{start} + {size}"),
    "hopping": LateBounds("{start}", "{start} + {size}"),
    "session": LateBounds("{start}", "{end}"),
    "sliding": LateBounds("max(0, {timestamp} - {size})", "max({size}, {timestamp})"),
    "join": LateBounds("{timestamp} - {back}", "{timestamp} + {reach}"),
    "deduplicate": LateBounds("{timestamp} - {size}", "{timestamp} + {size}"),
}
"""Bounds of a late record by the kind of the window, or by the step."""


def key_codec(topic: Topic) -> Codec:
    """Return the codec of the keys of a flow: keys without a type are text."""
    if topic.key_type is None and topic.key_serializer is None:
        return TEXT
    return topic.key_codec


TEXT: Final = topic_codec(str, None, "raw", key=True)


@declares
@dataclass(frozen=True)
class Flow(AbsentSteps):
    """Records of a topic behind some steps. Made by `App.flow` and by the steps below.

    Functions are plain. State has the name that it is given, never a number.
    """

    _absent = OF_FLOW
    place: Place
    """Place in the graph, for the modules of flows."""

    def _then(self, operator: Operator, **changes: Any) -> "Flow":
        return Flow(self.place.then(operator, **changes))

    # -- each record by itself

    def filter(self, condition: Callable[..., Any], *, metadata: bool = False) -> "Flow":
        """Keep the records whose value fulfils a condition.

        Args:
            condition: Function of the value.
            metadata: Whether the function takes value, key, timestamp in ms and headers.
        """
        check_function("filter", condition, metadata=metadata)
        return self._then(filter_values(condition, metadata=metadata))

    def filter_not(self, condition: Callable[..., Any], *, metadata: bool = False) -> "Flow":
        """Drop the records whose value fulfils a condition.

        Args:
            condition: Function of the value.
            metadata: Whether the function takes value, key, timestamp in ms and headers.
        """
        check_function("filter_not", condition, metadata=metadata)
        return self._then(filter_values(condition, keeps=False, metadata=metadata))

    def map_values(
        self, fun: Callable[..., Any], *, value_type: Any = None, metadata: bool = False
    ) -> "Flow":
        """Replace each value by what a function makes of it. The key stays.

        Args:
            fun: Function of the value.
            value_type: Type of the new values; None accepts the types of JSON.
            metadata: Whether the function takes value, key, timestamp in ms and headers.
        """
        check_function("map_values", fun, metadata=metadata)
        operator = map_values(fun, metadata=metadata)
        return self._then(operator, source=None, value_type=value_type)

    def flat_map_values(
        self, fun: Callable[..., Iterable[Any]], *, value_type: Any = None, metadata: bool = False
    ) -> "Flow":
        """Replace each value by any number of values, each a record with the same key.

        Args:
            fun: Function of the value that returns an iterable of values.
            value_type: Type of the new values; None accepts the types of JSON.
            metadata: Whether the function takes value, key, timestamp in ms and headers.
        """
        check_function("flat_map_values", fun, metadata=metadata)
        operator = flat_map_values(fun, metadata=metadata)
        return self._then(operator, source=None, value_type=value_type)

    def map(
        self, fun: Callable[[Any, Any], Any], *, key_type: Any = None, value_type: Any = None
    ) -> "Flow":
        """Replace each record.

        Args:
            fun: Function of key and value that returns a pair of the two.
            key_type: Type of the new keys; text unless given.
            value_type: Type of the new values; None accepts the types of JSON.
        """
        check_function("map", fun, 2)
        keys = keys_of(key_type)
        operator = map_records(fun, FlowKeys(keys.encoders, key_type or str, users_line()))
        return self._then(
            operator, keys=keys, source=None, value_type=value_type, keyed=False, windowed=False
        )

    def flat_map(
        self,
        fun: Callable[[Any, Any], Iterable[Any]],
        *,
        key_type: Any = None,
        value_type: Any = None,
    ) -> "Flow":
        """Replace each record by any number of records.

        Args:
            fun: Function of key and value that returns an iterable of pairs of the two.
            key_type: Type of the new keys; text unless given.
            value_type: Type of the new values; None accepts the types of JSON.
        """
        check_function("flat_map", fun, 2)
        keys = keys_of(key_type)
        operator = flat_map(fun, FlowKeys(keys.encoders, key_type or str, users_line()))
        return self._then(
            operator, keys=keys, source=None, value_type=value_type, keyed=False, windowed=False
        )

    def peek(self, fun: Callable[..., Any], *, metadata: bool = False) -> "Flow":
        """Call a function for each record, and go on with the same record.

        Args:
            fun: Function of the value.
            metadata: Whether the function takes value, key, timestamp in ms and headers.
        """
        check_function("peek", fun, metadata=metadata)
        return self._then(peek(fun, metadata=metadata))

    def foreach(self, fun: Callable[..., Any], *, metadata: bool = False) -> None:
        """Call a function for each record, as the last step.

        Args:
            fun: Function of the value.
            metadata: Whether the function takes value, key, timestamp in ms and headers.
        """
        self.peek(fun, metadata=metadata)

    def rekey(
        self, key_of: Callable[..., Any], *, key_type: Any = None, metadata: bool = False
    ) -> "Flow":
        """Give each record another key.

        Where state follows, records go through a topic in between, so that each key has one task.
        That topic is named after the next step with a name.

        Args:
            key_of: Function of the value that returns the key.
            key_type: Type of the new keys; text unless given.
            metadata: Whether the function takes value, key, timestamp in ms and headers.
        """
        check_function("rekey", key_of, metadata=metadata)
        keys = keys_of(key_type)
        encoders = FlowKeys(keys.encoders, key_type or str, users_line())
        return self._then(
            select_key(key_of, encoders, metadata=metadata), keys=keys, keyed=False, windowed=False
        )

    def branch(
        self,
        conditions: Mapping[str, Callable[[Any], Any]] | None = None,
        *,
        default: str = "rest",
        **named: Callable[[Any], Any],
    ) -> "dict[str, Flow]":
        """Return a flow for each condition, by name. A record goes to the first that it fulfils.

            parts = flow.branch(large=lambda order: order["price"] > 100, default="small")
            parts["large"].to("large-orders")

        Args:
            conditions: Functions of the value by the name of their flow.
            default: Name of the flow of the records that fulfil no condition.
            **named: Further conditions.
        """
        if conditions is not None:
            check_type(conditions, Mapping, "conditions by name", "name=condition")
        found = {**(conditions or {}), **named}
        if default in found or not found:
            raise TopologyError(
                f"bad branches: {', '.join(found) or 'none'}, default {default} ({users_line()}): "
                "give at least one condition by name, and a default= that is not one of these "
                "names"
            )
        for condition in found.values():
            check_function("branch", condition)
        fork = self.place.then(branch(tuple(found.values())))
        names = [*found, default]
        return {name: Flow(fork.then(on_branch(n))) for n, name in enumerate(names)}

    def merge(self, *others: "Flow") -> "Flow":
        """Return the records of this flow and of others, in the order in which they arrive.

        Args:
            *others: Flows with keys of the same type.
        """
        for other in others:
            check_type(other, Flow, "a flow", "app.flow(topic)")
        places = [each.place for each in (self, *others)]
        for place in places:
            refuse_other_keys(self.place.shape.keys, place.shape.keys, "rekey one of the flows")
        return Flow(merged(places))

    def deduplicate(
        self,
        *,
        key: Callable[..., Any],
        within: object,
        name: str = "",
        grace: object = None,
        metadata: bool = False,
        on_late: OnLate = DROP,
    ) -> "Flow":
        """Keep the first record of each id, and drop those that follow within a time.

        Ids are those of one partition: group or rekey the flow by the id if records of one id may
        be in several.

        Args:
            key: Function of the value that returns the id, of any type that JSON has. A record with
                the id None passes.
            within: Duration for which an id counts, in stream time.
            name: Name of the store of the ids.
            grace: Duration for which an id is kept beyond `within`, for records that come late.
            metadata: Whether the function takes value, key, timestamp in ms and headers.
            on_late: What becomes of a record that comes later than that, as for `Grouped.count`.
        """
        check_function("deduplicate", key, metadata=metadata)
        timing = dedup_timing(within, grace)
        remedy = f"grace='{self.place.shape.behind}ms'"
        self.place.shape.check_in_time("deduplicate", timing.stays, remedy)
        store = self.place.ids(name, timing)
        operator = deduplicate(store, key, metadata=metadata)
        return self._then(_with_late(operator, on_late, "deduplicate"))

    # -- topics

    def to(self, topic: Topic | str) -> None:
        """Send each record to a topic. A value of None is sent as a deletion.

        Args:
            topic: Topic or its name.
        """
        self.place.send(self.place.topic(topic))

    def through(self, topic: Topic | str) -> "Flow":
        """Send each record to a topic, and go on with the records of that topic.

        Args:
            topic: Topic or its name.
        """
        self._refuse_windowed("through")
        self.to(topic)
        return Flow(self.place.behind(self.place.topic(topic), TopicKind.SOURCE))

    def repartition(self, name: str, *, partitions: int | None = None) -> "Flow":
        """Go through a topic in between, `{app}-{name}-repartition`.

        Args:
            name: Part of the topic's name.
            partitions: Number of its partitions.
        """
        self._refuse_windowed("repartition")
        return Flow(self.place.between(name, partitions))

    def _refuse_windowed(self, step: str) -> None:
        """Refuse to read keys of windows back from a topic. Raises TopologyError."""
        if self.place.shape.windowed:
            raise TopologyError(
                f"{step} with keys of windows ({users_line()}): call rekey before it, with the "
                "plain key or another one"
            )

    # -- by key

    def group_by(
        self,
        key_of: Callable[..., Any],
        name: str = "",
        partitions: int | None = None,
        *,
        key_type: Any = None,
    ) -> "Grouped":
        """Return groups by another key.

        Args:
            key_of: Function of the value that returns the key.
            name: Part of the name of the topic in between; the aggregate's name unless given.
            partitions: Number of partitions of that topic, if `name` is given.
            key_type: Type of the new keys; text unless given.
        """
        place = self.rekey(key_of, key_type=key_type).place
        return Grouped(place.between(name, partitions) if name else place)

    def group_by_key(self) -> "Grouped":
        """Return groups by the records' keys."""
        return Grouped(self.place)

    def to_table(self, name: str = "") -> "TableFlow":
        """Return a table of the newest value of each key. A value of None deletes the key.

        Args:
            name: Name of the store and its changelog.
        """
        from streamsx.app.table_flow import TableFlow

        refuse_lost_deletions(self.place.shape.source)
        place = self.place.keyed(name)
        store = place.store(name, place.shape.value_type)
        return TableFlow(Flow(place.then(put(store))), store)

    def join(
        self,
        other: "TableFlow | Flow | GlobalTable",
        fun: Callable[[Any, Any], Any],
        *,
        kind: str = "inner",
        key: Callable[[Any], Any] | None = None,
        within: object = None,
        grace: object = None,
        idle: object = None,
        name: str = "",
        value_type: Any = None,
        on_late: OnLate = DROP,
    ) -> "Flow":
        """Join each record with a table, a global table, or the records of another flow.

        With a table, the value joins the table's value for the key as it is when the record comes.
        With a flow, records of one key join if their times are `within` a duration of each other. A
        record without a match leaves with None in its place when nothing can match any more.

        Args:
            other: Table, global table or flow.
            fun: Function of both values that returns the joined value.
            kind: `inner`, `left`, or with a flow `outer`.
            key: Function of the value that returns the key of a global table; the record's key
                unless given. With a global table only.
            within: Duration, or a pair (before, after): how much earlier and later than this flow's
                record the other's may be. With a flow only, as are the next two.
            grace: Duration for which the join waits for late records.
            idle: Duration on the wall without any record after which unmatched records leave.
            name: Name of the buffers; with a table, of the topic in between after a `rekey`.
            value_type: Type of the joined values; None accepts the types of JSON.
            on_late: What becomes of late records of either flow, as for `Grouped.count`.
        """
        from streamsx.app.table_flow import GlobalTable, TableFlow

        check_function("join", fun, 2)
        if isinstance(other, GlobalTable):
            _refuse_reach(within, grace, idle, on_late)
            return self._join_global(other, fun, key, kind, value_type)
        if key is not None:
            raise TopologyError(
                f"key= with {other!r} ({users_line()}): a global table alone is joined by any key: "
                "rekey the flow, or make it with app.global_table"
            )
        if isinstance(other, Flow):
            reach = join_reach(within, grace)
            timed = reach, idle_time(idle), on_late
            return self._join_flow(other, fun, kind, *timed, name, value_type)
        if not isinstance(other, TableFlow):
            raise TypeError(f"not a table: {other!r} ({users_line()}): make it with app.table")
        _refuse_reach(within, grace, idle, on_late)
        return self._join_table(other, fun, kind, name, value_type)

    def _join_table(
        self, other: "TableFlow", fun: Callable[[Any, Any], Any], kind: str, name: str, values: Any
    ) -> "Flow":
        check_kind(kind, TABLE_KINDS)
        store = other.store(users_line())
        if other.to_flow().place.shape.windowed:
            raise TopologyError(
                f"join with a table of windows: {other!r} ({users_line()}): its keys have a start "
                "and an end: join the flow of its results (to_flow), rekeyed by the plain key"
            )
        refuse_other_keys(self.place.shape.keys, store.keys, "give both the same key_type=")
        operator = join_table(store, fun, left=kind == "left")
        return Flow(self.place.keyed(name).then(operator, source=None, value_type=values))

    def _join_global(
        self,
        other: "GlobalTable",
        fun: Callable[[Any, Any], Any],
        key_of: Callable[[Any], Any] | None,
        kind: str,
        value_type: Any,
    ) -> "Flow":
        check_kind(kind, TABLE_KINDS)
        keys = other.node.keys
        if key_of is not None:
            check_function("key=", key_of)
        elif keys is not self.place.shape.keys or self.place.shape.windowed:
            raise TopologyError(
                f"key types differ ({users_line()}): the flow's keys are not those of {other}: "
                "give key=, a function of the value"
            )
        operator = join_global(
            other.node, fun, key_of, keys.encoders.or_none(), left=kind == "left"
        )
        return self._then(operator, source=None, value_type=value_type)

    def _join_flow(
        self,
        other: "Flow",
        fun: Callable[[Any, Any], Any],
        kind: str,
        reach: JoinReach,
        idle: int | None,
        on_late: OnLate,
        name: str,
        value_type: Any,
    ) -> "Flow":
        check_kind(kind, FLOW_KINDS)
        if kind != "inner" and not reach.graced:
            raise TopologyError(
                f"{kind} join without a grace ({users_line()}): it has to know how long it waits "
                "for a match: write grace='10m', or grace=0 to wait for no late record"
            )
        if not name:
            raise TopologyError(f"state without a name ({users_line()}): give the join a name=")
        left = self.place.keyed(f"{name}-left")
        right = other.place.keyed(f"{name}-right")
        refuse_other_keys(left.shape.keys, right.shape.keys, "rekey one of the flows")
        for place, least in ((left, reach.after), (right, reach.before)):
            remedy = f"grace='{place.shape.behind}ms'"
            place.shape.check_in_time("join", least + reach.grace, remedy)
        stores = left.buffer(f"{name}-left", reach.left), right.buffer(f"{name}-right", reach.right)
        sides = Sides(kind != "inner", kind == "outer", reach.before, reach.after)
        made = join_streams(*stores, fun, sides, left.shape.keys.decode)
        timed = (replace(operator, idle_ms=idle) for operator in made)
        one, two = (_with_late(operator, on_late, "join") for operator in timed)
        behind = max(left.shape.behind, right.shape.behind)
        if kind != "inner":
            behind += max(reach.before, reach.after) + reach.grace
        made_of = {"source": None, "value_type": value_type, "behind": behind}
        return Flow(left.then_both(one, right, two, **made_of))

    def __repr__(self) -> str:
        return f"<Flow of {self.place.app!r}>"


@declares
@dataclass(frozen=True)
class Grouped(AbsentSteps):
    """Records of a flow by key. Each call makes a table, and the table's changes.

    A record of several windows is late for each window that has closed, and has one dead letter.
    """

    _absent = OF_GROUPS
    _place: Place
    _window: Window | None = None

    def window(self, window: Window) -> "Grouped":
        """Return groups by key and window. Keys of the results are `WindowedKey`.

        Args:
            window: What `tumbling`, `hopping`, `sliding` or `session` returns.
        """
        if not isinstance(window, Window):
            raise TypeError(f"bad window: {window!r} ({users_line()}): write tumbling('1h')")
        return Grouped(self._place, window)

    def count(self, name: str = "", *, emit: str = "commit", on_late: OnLate = DROP) -> "TableFlow":
        """Count the records of each key.

        Args:
            name: Name of the store and its changelog.
            emit: `commit`: the newest change of a key with each commit. `update`: every change.
                `final`: one result for each window, when the window closes.
            on_late: What becomes of a record whose window has closed: `drop`, `dlq` (keep it as a
                dead letter), or a function of the `LateRecord`. Late records are counted in any
                case.
        """
        return self._made(COUNT, name, emit, on_late)

    def aggregate(
        self,
        init: Callable[[], Any],
        fun: Callable[[Any, Any, Any], Any],
        name: str = "",
        *,
        merge: Callable[[Any, Any, Any], Any] | None = None,
        value_type: Any = None,
        emit: str = "commit",
        on_late: OnLate = DROP,
    ) -> "TableFlow":
        """Aggregate the records of each key.

            groups.aggregate(list, lambda key, value, so_far: [*so_far, value], "latest")

        Args:
            init: Function that makes the first aggregate.
            fun: Function of key, value and the aggregate so far that returns the next aggregate. It
                may change the aggregate in place and return it.
            name: Name of the store and its changelog.
            merge: Function of key and two aggregates, the earlier first, that returns one. Sessions
                need it, because two of them may become one.
            value_type: Type of the aggregate; None accepts the types of JSON.
            emit: As for `count`.
            on_late: As for `count`.
        """
        check_function("aggregate", init, 0)
        check_function("aggregate", fun, 3)
        if merge is not None:
            check_function("aggregate", merge, 3)
        wanted = Aggregate(init, fun, merge, value_type, changes_in_place=True)
        return self._made(wanted, name, emit, on_late)

    def reduce(
        self,
        fun: Callable[[Any, Any], Any],
        name: str = "",
        *,
        emit: str = "commit",
        on_late: OnLate = DROP,
    ) -> "TableFlow":
        """Reduce the records of each key to one value.

        Args:
            fun: Function of two values, the earlier first, that returns one.
            name: Name of the store and its changelog.
            emit: As for `count`.
            on_late: As for `count`.
        """
        check_function("reduce", fun, 2)
        kind = self._place.shape.value_type
        wanted = _reducing(lambda value: value, fun, kind)._replace(changes_in_place=True)
        return self._made(wanted, name, emit, on_late)

    def sum(
        self,
        fun: Callable[[Any], Any],
        name: str = "",
        *,
        value_type: Any = None,
        emit: str = "commit",
        on_late: OnLate = DROP,
    ) -> "TableFlow":
        """Sum what a function makes of each value.

        Args:
            fun: Function of the value that returns a number.
            name: Name of the store and its changelog.
            value_type: Type of the sum; None accepts the types of JSON.
            emit: As for `count`.
            on_late: As for `count`.
        """
        check_function("sum", fun)
        return self._made(_reducing(fun, add, value_type), name, emit, on_late)

    def min(
        self,
        fun: Callable[[Any], Any],
        name: str = "",
        *,
        value_type: Any = None,
        emit: str = "commit",
        on_late: OnLate = DROP,
    ) -> "TableFlow":
        """Keep the least of what a function makes of each value.

        Args:
            fun: Function of the value.
            name: Name of the store and its changelog.
            value_type: Type of the result; None accepts the types of JSON.
            emit: As for `count`.
            on_late: As for `count`.
        """
        check_function("min", fun)
        return self._made(_reducing(fun, min, value_type), name, emit, on_late)

    def max(
        self,
        fun: Callable[[Any], Any],
        name: str = "",
        *,
        value_type: Any = None,
        emit: str = "commit",
        on_late: OnLate = DROP,
    ) -> "TableFlow":
        """Keep the greatest of what a function makes of each value.

        Args:
            fun: Function of the value.
            name: Name of the store and its changelog.
            value_type: Type of the result; None accepts the types of JSON.
            emit: As for `count`.
            on_late: As for `count`.
        """
        check_function("max", fun)
        return self._made(_reducing(fun, max, value_type), name, emit, on_late)

    def collect(
        self,
        name: str = "",
        limit: int | None = None,
        *,
        emit: str = "commit",
        on_late: OnLate = DROP,
    ) -> "TableFlow":
        """Keep a list of the values of each key, in order.

        Args:
            name: Name of the store and its changelog.
            limit: Longest list: only the newest values are kept.
            emit: As for `count`.
            on_late: As for `count`.
        """
        if limit is not None and limit < 1:
            raise TopologyError(f"bad limit: {limit} ({users_line()}): write at least 1")

        def cut(values: list[Any]) -> list[Any]:
            return values if limit is None else values[-limit:]

        kind = self._place.shape.value_type
        return self._made(
            Aggregate(
                list,
                lambda _key, value, so_far: cut([*so_far, value]),
                lambda _key, earlier, later: cut([*earlier, *later]),
                list if kind is None else list[kind],  # type: ignore[valid-type]
            ),
            name,
            emit,
            on_late,
        )

    def _made(self, wanted: "Aggregate", name: str, emit: str, on_late: "OnLate") -> "TableFlow":
        from streamsx.app.table_flow import TableFlow

        window = self._window
        self._check_emit(emit)
        place = self._place.keyed(name)
        self._check_grace(place)
        store = place.store(name, wanted.value_type, window)
        operator = OPERATORS[window.kind if window else ""](place, store, wanted, emit)
        operator = replace(operator, changes_in_place=wanted.changes_in_place)
        changes: dict[str, Any] = {"source": None, "value_type": wanted.value_type}
        if window is not None and emit == "final":
            changes["behind"] = window.behind
        changes["at_commits"] = place.shape.at_commits or emit == "commit"
        if window is not None:
            operator = replace(operator, idle_ms=window.idle)
        operator = _with_late(operator, on_late, window.kind if window else "")
        made = place.then(operator, windowed=window is not None, **changes)
        knows_old = window is None or window.kind != "sliding"
        return TableFlow(Flow(made), store, knows_old)

    def _check_grace(self, place: Place) -> None:
        """Refuse a window that would have closed before its records come."""
        window = self._window
        if window is not None:
            remedy = f"{window.kind}(..., grace='{place.shape.behind}ms')"
            place.shape.check_in_time("window", window.grace, remedy)

    def _check_emit(self, emit: str) -> None:
        window = self._window
        check_emit(emit, EMITS if window is None else WINDOW_EMITS)
        if emit == "final" and window is not None and window.given_grace is None:
            raise TopologyError(
                f"final results without a grace ({users_line()}): a window has to know how long "
                f"it waits for late records: write {window.kind}(..., grace='10m'), or grace=0 to "
                "wait for none"
            )


def _with_late(operator: Operator, on_late: OnLate, kind: str) -> Operator:
    """Return an operator with what becomes of late records.

    `kind` is that of the window, or the step; empty for an aggregate without a window.
    """
    if on_late == DROP:
        return operator
    if not kind or (isinstance(on_late, str) and on_late != DLQ):
        what = "write drop, dlq, or a function" if kind else "no window"
        raise TopologyError(f"bad on_late: {on_late!r} ({users_line()}): {what}")
    bounds = LATE_BOUNDS[kind]
    if isinstance(on_late, str):
        store = operator.stores.get("own") or operator.stores["store"]
        return bury_late(operator, store.name, bounds)
    check_function("on_late", on_late)
    return call_for_late(operator, on_late, bounds)


class Aggregate(NamedTuple):
    """Functions of an aggregate, and the type of its values: see `Grouped.aggregate`."""

    init: Callable[[], Any]
    fun: Callable[[Any, Any, Any], Any]
    merge: Callable[[Any, Any, Any], Any] | None
    value_type: Any
    unkeyed: Callable[[Any, Any], Any] | None = None
    """`fun` without its key, if it has no use for one."""
    changes_in_place: bool = False
    """Whether `fun` is the user's, and may change the aggregate and return it."""


COUNT: Final = Aggregate(
    int, lambda _key, _value, n: n + 1, lambda _key, earlier, later: earlier + later, int
)


def _reducing(
    of: Callable[[Any], Any], merge: Callable[[Any, Any], Any], value_type: Any
) -> Aggregate:
    """Return an aggregate that begins with the first value."""

    def step(value: Any, so_far: Any) -> Any:
        found = of(value)
        return found if so_far is None else merge(so_far, found)

    return Aggregate(
        _nothing,
        lambda _key, value, so_far: step(value, so_far),
        lambda _key, earlier, later: merge(earlier, later),
        value_type,
        step,
    )


def _by_key(place: Place, store: StoreNode, wanted: Aggregate, emit: str) -> Operator:
    if wanted is COUNT:
        return aggregates.count(store, absent=_absent(place.shape), emit=emit)
    fun = wanted.unkeyed or wanted.fun
    keyed = wanted.unkeyed is None
    return aggregates.aggregate(store, wanted.init, fun, emit=emit, keyed=keyed)


def _by_window(place: Place, store: StoreNode, wanted: Aggregate, emit: str) -> Operator:
    keys = place.shape.keys
    if wanted is COUNT:
        return count_windows(store, keys, absent=_absent(place.shape), emit=emit)
    fun = wanted.unkeyed or wanted.fun
    keyed = wanted.unkeyed is None
    return aggregate_windows(store, keys, wanted.init, fun, emit=emit, keyed=keyed)


def _by_session(place: Place, store: StoreNode, wanted: Aggregate, emit: str) -> Operator:
    if wanted.merge is None:
        raise TopologyError(
            f"sessions without merge= ({users_line()}): two sessions may become one: give the "
            "function that makes one aggregate of two"
        )
    absent = _absent(place.shape) if wanted is COUNT else "{value} is None"
    functions = wanted.fun, wanted.init, wanted.merge
    return sessions(store, place.shape.keys, *functions, absent=absent, emit=emit)


def _by_sliding(place: Place, store: StoreNode, wanted: Aggregate, emit: str) -> Operator:
    absent = _absent(place.shape) if wanted is COUNT else "{value} is None"
    keys = place.shape.keys
    return sliding(store, keys, wanted.fun, wanted.init, absent=absent, emit=emit)


OPERATORS: Final[Mapping[str, Callable[[Place, StoreNode, Aggregate, str], Operator]]] = {
    "": _by_key,
    "tumbling": _by_window,
    "hopping": _by_window,
    "session": _by_session,
    "sliding": _by_sliding,
}
"""Maker of the operator of an aggregate, by the kind of the window; "" without one."""


def begin_flow(
    app: "App",
    topic: Topic,
    time_of: Callable[[Any], Any] | None,
    on_failure: OnFailure = AS_THE_APP,
) -> Flow:
    """Return the flow of a topic's records."""
    keys = key_codec(topic)
    root = app.flows.root(topic, TopicKind.SOURCE, keys)
    shape = Shape(keys, topic, topic.value_type)
    flow = Flow(Place(app, app.flows, root, shape, on_failure))
    if time_of is None:
        return flow
    check_function("timestamp=", time_of)
    return Flow(flow.place.then(set_timestamp(time_of)))


def _nothing() -> None:
    """Return None, the aggregate before the first value."""


def _refuse_reach(within: object, grace: object, idle: object, on_late: OnLate) -> None:
    if (within, grace, idle, on_late) != (None, None, None, DROP):
        raise TopologyError(
            f"within=, grace=, idle= or on_late= with a table ({users_line()}): tables are joined "
            "as they are when the record comes: leave them out"
        )


def check_emit(emit: str, emits: tuple[str, ...] = EMITS) -> None:
    if emit not in emits:
        words = " or ".join(emits) + ("" if "final" in emits else "; final needs a window")
        raise TopologyError(f"bad emit: {emit!r} ({users_line()}): write {words}")


def check_kind(kind: str, kinds: tuple[str, ...]) -> None:
    if kind not in kinds:
        words = ", ".join(kinds)
        raise TopologyError(f"bad kind of join: {kind!r} ({users_line()}): write one of {words}")


def refuse_lost_deletions(source: Topic | None) -> None:
    """Refuse a table of a topic that passes over deletions. Raises TopologyError."""
    if source is not None and source.value_type is not None and not source.allow_empty:
        raise TopologyError(
            f"table of a topic that skips deletions: {source} ({users_line()}): write "
            "app.topic(..., allow_empty=True)"
        )


def refuse_other_keys(keys: Codec, others: Codec, remedy: str) -> None:
    """Refuse to bring records together whose keys have other types. Raises TopologyError."""
    if keys is not others:
        raise TopologyError(f"key types differ ({users_line()}): {remedy}")


def _absent(shape: Shape) -> str:
    """Return an expression that is true for a record without a value, undecoded if possible."""
    if shape.source is None:
        return "{value} is None"
    json = shape.source.value_codec.name == "json"
    return "({raw} is None or {raw} == b'null')" if json else "{raw} is None"


def keys_of(key_type: Any) -> Codec:
    """Return the codec of keys of a type; text without one."""
    return topic_codec(key_type or str, None, "raw", key=True)


def check_type(given: object, kind: type, what: str, write: str) -> None:
    """Refuse an argument of another type. Raises TypeError with the line."""
    if not isinstance(given, kind):
        raise TypeError(f"not {what}: {given!r} ({users_line()}): write {write}")


def check_function(step: str, fun: Any, arguments: int = 1, *, metadata: bool = False) -> None:
    """Refuse what is no plain function of so many arguments. Raises TypeError with the line."""
    count = METADATA_ARGUMENTS if metadata else arguments
    if not callable(fun) or iscoroutinefunction(fun):
        raise TypeError(f"{step}({fun!r}): not a plain function ({users_line()})")
    try:
        form = signature(fun)
    except ValueError:  # builtins in C have none
        return
    try:
        form.bind(*range(count))
    except TypeError as error:
        raise TypeError(
            f"{step}({fun!r}): {error} ({users_line()}): it is called with {count} arguments"
        ) from None
