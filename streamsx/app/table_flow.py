"""Tables of flows: the newest value of each key, and the changes of a table as they come."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from streamsx.app.absent_steps import OF_TABLE, AbsentSteps
from streamsx.app.channel import Topic
from streamsx.app.declaration import declares
from streamsx.app.flow import (
    FLOW_KINDS,
    TABLE_KINDS,
    Flow,
    check_function,
    check_kind,
    keys_of,
    refuse_other_keys,
)
from streamsx.app.flow_graph import Place
from streamsx.app.grouped_table import GroupedTable
from streamsx.app.users_code import users_line
from streamsx.app.window import idle_time, wait_ms
from streamsx.errors import TopologyError
from streamsx.operators.foreign_join import (
    ForeignStores,
    ForeignTopics,
    answer_codec,
    foreign_join,
    subscription_codec,
)
from streamsx.operators.join_tables import join_tables
from streamsx.operators.operator import Operator
from streamsx.operators.suppress import suppress
from streamsx.operators.table import filter_table, map_table, put_changes
from streamsx.serde.codec import FlowKeys, table_codec
from streamsx.state.layout import StoreNode
from streamsx.topology.internal_topics import TopicKind


@dataclass(frozen=True)
class GlobalTable:
    """Table of all partitions of a topic, which each worker has whole. Made by `App.global_table`.

    A worker reads all of the topic before its first task runs, and follows the topic then.
    """

    node: StoreNode
    """Node of the store, for the modules of flows."""

    def __repr__(self) -> str:
        return f"<GlobalTable: {self.node.name}>"


@declares
@dataclass(frozen=True)
class TableFlow(AbsentSteps):
    """Newest value of each key, with its changes.

    Made by `App.table`, `Flow.to_table` and aggregates.
    """

    _absent = OF_TABLE
    _changes: Flow
    _store: StoreNode | None
    """Store of the values; None for a table that is computed from another one."""
    _knows_old: bool = True
    """Whether changes have the value before them."""

    def store(self, made_at: str) -> StoreNode:
        """Return the store. Raises TopologyError if the table has none."""
        if self._store is None:
            raise TopologyError(
                f"table without a store ({made_at}): keep it with .to_flow().to_table(name), and "
                "join with that"
            )
        return self._store

    def to_flow(self) -> Flow:
        """Return the changes as a flow; a deletion is a record with the value None."""
        return self._changes

    def to(self, topic: Topic | str) -> None:
        """Send each change to a topic.

        Args:
            topic: Topic or its name.
        """
        self._changes.to(topic)

    def filter(self, condition: Callable[[Any], Any]) -> "TableFlow":
        """Keep the rows whose value fulfils a condition; a row that no longer does is deleted.

        Args:
            condition: Function of the value.
        """
        check_function("filter", condition)
        self._ask_old("filter")
        return self._made(filter_table(condition), source=None)

    def map_values(self, fun: Callable[[Any], Any], *, value_type: Any = None) -> "TableFlow":
        """Replace each value by what a function makes of it.

        Args:
            fun: Function of the value.
            value_type: Type of the new values; None accepts the types of JSON.
        """
        check_function("map_values", fun)

        return self._made(map_table(fun), source=None, value_type=value_type)

    def group_by(
        self,
        key_of: Callable[[Any], Any],
        name: str = "",
        partitions: int | None = None,
        *,
        key_type: Any = None,
    ) -> GroupedTable:
        """Return groups of the rows by another key.

        Args:
            key_of: Function of the value that returns the key; None: the row is in no group.
            name: Part of the name of the topic in between; the aggregate's name unless given.
            partitions: Number of partitions of that topic.
            key_type: Type of the new keys; text unless given.
        """
        check_function("group_by", key_of)
        self._ask_old("group_by")
        keys = keys_of(key_type)
        encoders = FlowKeys(keys.encoders, key_type or str, users_line())
        return GroupedTable(self._changes.place, key_of, (keys, encoders), name, partitions)

    def join(
        self,
        other: "TableFlow",
        fun: Callable[[Any, Any], Any],
        *,
        key: Callable[[Any], Any] | None = None,
        kind: str = "inner",
        name: str = "",
        value_type: Any = None,
    ) -> "TableFlow":
        """Join the rows of two tables: each change joins the other table's newest value.

        Args:
            other: Table to join with.
            fun: Function of both values, None for a missing one, that returns the joined value.
            key: Function of this table's value that returns the key of the other table's row: a
                foreign key. By default rows of one key join.
            kind: Which tables must have a row: `inner` both, `left` this one, `outer` either. With
                `key` `inner` or `left`.
            name: Name of the stores, and with `key` of the topics in between.
            value_type: Type of the joined values; None accepts the types of JSON.
        """
        check_function("join", fun, 2)
        if not isinstance(other, TableFlow):
            raise TypeError(f"not a table: {other!r} ({users_line()}): a table joins tables")
        check_kind(kind, FLOW_KINDS if key is None else TABLE_KINDS)
        if not name:
            raise TopologyError(f"state without a name ({users_line()}): give the join a name=")
        left = self._changes.place.keyed(name)
        right = other.to_flow().place.keyed(name)
        if key is not None:
            check_function("key=", key)
            return join_foreign((left, right), fun, key, kind, name, value_type)
        refuse_other_keys(left.shape.keys, right.shape.keys, "give both tables the same key_type=")
        stores = left.rows(f"{name}-left"), right.rows(f"{name}-right")
        one, two = join_tables(*stores, fun, kind)
        made = left.then_both(one, right, two, source=None, value_type=value_type)
        return TableFlow(Flow(made), None)

    def _made(self, operator: Operator, **changes: Any) -> "TableFlow":
        """Return the table that an operator makes of the changes, which has no store."""
        place = self._changes.place.then(operator, **changes)
        return TableFlow(Flow(place), None, self._knows_old)

    def _ask_old(self, step: str) -> None:
        """Refuse a step that needs the values before changes. Raises TopologyError."""
        if not self._knows_old:
            raise TopologyError(
                f"{step} after suppress or sliding windows ({users_line()}): it needs the values "
                f"before a change, which they do not keep: write {step} before suppress, or "
                ".to_flow().to_table(name) in between"
            )

    def suppress(self, wait: object, *, name: str = "", idle: object = None) -> "TableFlow":
        """Give on at most one change of a key in a time, the newest one, by stream time.

        Args:
            wait: Duration from the first change that is held until the newest one is given on.
            name: Name of the store of what is held; the table's store and `-suppress` unless given.
            idle: Duration on the wall without any record after which all that is held leaves.
        """
        self._ask_old("suppress")
        if not name and self._store is not None:
            name = f"{self._store.name}-suppress"
        if not name:
            raise TopologyError(f"state without a name ({users_line()}): give suppress a name=")
        place = self._changes.place.keyed(name)
        store = place.held(name, wait_ms(wait))
        operator = replace(suppress(store, place.shape.keys), idle_ms=idle_time(idle))
        behind = place.shape.behind + wait_ms(wait)
        made = place.then(operator, source=None, behind=behind)
        return TableFlow(Flow(made), None, _knows_old=False)


def join_foreign(
    sides: tuple[Place, Place],
    fun: Callable[[Any, Any], Any],
    key_of: Callable[[Any], Any],
    kind: str,
    name: str,
    value_type: Any,
) -> TableFlow:
    """Return the table of a foreign-key join of the tables at two places."""
    left, right = sides
    encoders = right.shape.keys.encoders.or_none()

    def foreign(value: Any) -> bytes | None:
        key = key_of(value)
        return encoders[type(key)](key)

    topics = ForeignTopics(
        left.repartition_topic(f"{name}-subscription"), left.repartition_topic(f"{name}-response")
    )
    stores = ForeignStores(
        left.rows(f"{name}-left", tagged=True),
        right.rows(f"{name}-right"),
        right.subscriptions(f"{name}-subscriptions"),
    )
    values = table_codec(left.shape.value_type), table_codec(right.shape.value_type)
    steps = foreign_join(stores, topics, fun, foreign, *values, left=kind == "left")
    asked = right.internal(topics.subscriptions, subscription_codec())
    answered = left.internal(topics.answers, answer_codec(values[1]))
    right.behind(asked, TopicKind.REPARTITION).then(steps.subscriptions, answered)
    right.then(steps.right, answered)
    back = left.behind(answered, TopicKind.REPARTITION)
    made = left.then_both(
        steps.left, back, steps.answers, to=asked, source=None, value_type=value_type
    )
    store = made.store(name, value_type)
    return TableFlow(Flow(made.then(put_changes(store))), store)
