"""Store of a global table: all partitions of a topic, on every worker, read by operators alone.

The topic is the changelog. Whoever reads the topic applies the records here, and nothing is sealed.
"""

from collections.abc import Sequence

from streamsx.state.api import ROW, Rows
from streamsx.state.keyed import KeyedStore
from streamsx.state.layout import StoreNode


class GlobalStore(KeyedStore):
    """Key-value store that the records of a topic change, and no operator."""

    def __init__(self, node: StoreNode, rows: Rows, budget_bytes: int) -> None:
        super().__init__(node, rows, budget_bytes)
        self.complete = False

    def apply(self, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> None:
        """Take records of the topic in order; a record without a key is passed over."""
        rows = {
            ROW + key: value for key, value in zip(keys, values, strict=True) if key is not None
        }
        self.rows.write(dict(sorted(rows.items())), None)
        for key in keys:
            self.young.pop(key, None)
            self.old.pop(key, None)
            self._large.pop(key, None)
