"""Tables of flows: the newest value of each key, and the changes of a table as they come."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamsx.app.absent_steps import OF_TABLE, AbsentSteps
from streamsx.app.channel import Topic
from streamsx.app.flow import Flow, check_function
from streamsx.errors import TopologyError
from streamsx.state.layout import StoreNode


@dataclass(frozen=True)
class TableFlow(AbsentSteps):
    """Table: made by `App.table`, `Flow.to_table` and aggregates.

    `_changes` are the changes of the table. `_store` holds the values; None for a table that is
    computed from another one and has no store.
    """

    _absent = OF_TABLE
    _changes: Flow
    _store: StoreNode | None

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
        """Send each change to a topic."""
        self._changes.to(topic)

    def filter(self, condition: Callable[[Any], Any]) -> "TableFlow":
        """Keep the rows whose value fulfils a condition; a row that no longer does is deleted."""
        check_function("filter", condition)
        kind = self._changes.place.shape.value_type

        def kept(value: Any) -> Any:
            return value if value is not None and condition(value) else None

        return TableFlow(self._changes.map_values(kept, value_type=kind), None)

    def map_values(self, fun: Callable[[Any], Any], *, value_type: Any = None) -> "TableFlow":
        """Replace each value by what a function makes of it."""
        check_function("map_values", fun)

        def made(value: Any) -> Any:
            return None if value is None else fun(value)

        return TableFlow(self._changes.map_values(made, value_type=value_type), None)
