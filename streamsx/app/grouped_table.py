"""Groups of a table's rows, by a key that a function makes of the value.

A row that changes leaves the group of its old value and enters that of its new one. So aggregates
need a function that takes a value out again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from streamsx.app.declaration import declares
from streamsx.app.flow import Flow, check_emit, check_function
from streamsx.app.flow_graph import Place
from streamsx.app.users_code import users_line
from streamsx.errors import TopologyError
from streamsx.operators.aggregate import aggregate_changes
from streamsx.operators.change import change_codec
from streamsx.operators.regroup import regroup
from streamsx.serde.codec import Codec, FlowKeys, table_codec
from streamsx.topology.internal_topics import TopicKind

if TYPE_CHECKING:
    from streamsx.app.table_flow import TableFlow

ONE_WAY: Final = frozenset({"min", "max", "reduce", "collect", "window"})
"""Calls of groups of a flow that cannot take a value out again."""


@declares
@dataclass(frozen=True)
class GroupedTable:
    """Rows of a table by group. Each call makes a table; its name names the table's store.

    A row that changes leaves the group of its old value and enters that of its new one.
    """

    _place: Place
    _key_of: Callable[[Any], Any]
    _keys: tuple[Codec, FlowKeys]
    """Codec of the groups' keys, and their encoders."""
    _name: str
    """Name for the topic in between; without it the aggregate's name counts."""
    _partitions: int | None

    def count(self, name: str = "", *, emit: str = "commit") -> "TableFlow":
        """Count the rows of each group; a group without rows stays, with 0.

        Args:
            name: Name of the store and its changelog.
            emit: `commit`: the newest change of a key with each commit. `update`: every change.
        """
        return self._made(
            int, lambda _key, _value, n: n + 1, lambda _key, _value, n: n - 1, name, emit, int
        )

    def sum(
        self,
        fun: Callable[[Any], Any],
        name: str = "",
        *,
        value_type: Any = None,
        emit: str = "commit",
    ) -> "TableFlow":
        """Sum what a function makes of each value.

        Args:
            fun: Function of the value that returns a number.
            name: Name of the store and its changelog.
            value_type: Type of the sum; None accepts the types of JSON.
            emit: As for `count`.
        """
        check_function("sum", fun)
        return self._made(
            int,
            lambda _key, value, so_far: so_far + fun(value),
            lambda _key, value, so_far: so_far - fun(value),
            name,
            emit,
            value_type,
        )

    def aggregate(
        self,
        init: Callable[[], Any],
        fun: Callable[[Any, Any, Any], Any],
        name: str = "",
        *,
        subtract: Callable[[Any, Any, Any], Any] | None = None,
        value_type: Any = None,
        emit: str = "commit",
    ) -> "TableFlow":
        """Aggregate the rows of each group.

        Args:
            init: Function that makes the first aggregate.
            fun: Function of key, value and the aggregate so far that returns the aggregate with the
                value.
            name: Name of the store and its changelog.
            subtract: Function of the same that returns the aggregate without the value.
            value_type: Type of the aggregate; None accepts the types of JSON.
            emit: As for `count`.

        Raises:
            TopologyError: `subtract` is missing.
        """
        check_function("aggregate", init, 0)
        check_function("aggregate", fun, 3)
        if subtract is None:
            raise TopologyError(
                f"aggregate of a table without subtract= ({users_line()}): a row that changes "
                "leaves its group: give the function that takes a value out"
            )
        check_function("aggregate", subtract, 3)
        return self._made(init, fun, subtract, name, emit, value_type)

    def __getattr__(self, name: str) -> NoReturn:
        if name in ONE_WAY:
            raise TopologyError(
                f"{name} of a table's groups ({users_line()}): a row that changes leaves its "
                "group: use count, sum, or aggregate with subtract="
            )
        raise AttributeError(f"no such call on groups of a table: {name}")

    def _made(
        self,
        init: Callable[[], Any],
        fun: Callable[[Any, Any, Any], Any],
        subtract: Callable[[Any, Any, Any], Any],
        name: str,
        emit: str,
        value_type: Any,
    ) -> "TableFlow":
        from streamsx.app.table_flow import TableFlow

        check_emit(emit)
        place = self._between(self._name or name)
        store = place.store(name, value_type)
        operator = aggregate_changes(store, init, fun, subtract, emit=emit)
        operator = replace(operator, changes_in_place=True)
        at_commits = emit == "commit"
        made = place.then(operator, source=None, value_type=value_type, at_commits=at_commits)
        return TableFlow(Flow(made), store)

    def _between(self, name: str) -> Place:
        """Return the place behind the topic that carries old and new values."""
        if not name:
            raise TopologyError(f"state without a name: {users_line()}: give it a name=")
        place = self._place
        values = table_codec(place.shape.value_type)
        keys, encoders = self._keys
        topic_name = place.repartition_topic(name)
        topic = place.internal(topic_name, change_codec(values), self._partitions)
        place.then(regroup(topic_name, self._key_of, encoders, values), topic)
        here = replace(place, shape=place.shape._replace(keys=keys))
        return here.behind(topic, TopicKind.REPARTITION)
