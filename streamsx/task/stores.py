"""A task's store from what the topology says of it: the cache over committed rows.

Not here: which rows, and where they lie.
"""

from typing import Any

from streamsx.state.api import Rows
from streamsx.state.cache import CachedStore
from streamsx.topology.nodes import StoreNode


def cached(
    node: StoreNode, rows: Rows, budget_bytes: int, kind: type[CachedStore[Any, Any]] = CachedStore
) -> CachedStore[Any, Any]:
    """`budget_bytes` bounds the decoded objects that are kept."""
    return kind(
        node.name,
        rows,
        encode_key=node.encode_key,
        decode_key=node.decode_key,
        encode=node.encode,
        decode=node.decode,
        budget_bytes=budget_bytes,
        key_type=node.key_type,
    )
