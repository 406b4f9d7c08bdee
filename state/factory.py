"""Factory of stores: the store of a task for a node of the topology, by the kind of the node.

Worker, test driver, Spark and discovery make their stores here and nowhere else.
"""

from collections.abc import Callable
from typing import Final

from streamsx.state.api import Rows
from streamsx.state.cache import CachedStore
from streamsx.state.join_buffer import JoinBuffer
from streamsx.state.keyed import KeyedStore
from streamsx.state.layout import (
    BUFFER,
    KEY_VALUE,
    SESSION,
    SLIDING,
    SUBSCRIPTIONS,
    TIMED,
    WINDOW,
    StoreNode,
)
from streamsx.state.session_store import SessionStore
from streamsx.state.sliding_store import SlidingStore
from streamsx.state.subscription_store import SubscriptionStore
from streamsx.state.window_store import WindowStore

STORES: Final[dict[str, Callable[[StoreNode, Rows, int], CachedStore]]] = {
    KEY_VALUE: CachedStore,
    WINDOW: WindowStore,
    SESSION: SessionStore,
    SLIDING: SlidingStore,
    BUFFER: JoinBuffer,
    TIMED: KeyedStore,
    SUBSCRIPTIONS: SubscriptionStore,
}
"""Store of each kind: made from its node, its committed rows and a memory budget in bytes."""


def make_store(node: StoreNode, rows: Rows, budget_bytes: int) -> CachedStore:
    """Return the store of a node over its committed rows.

    `budget_bytes` bounds the memory of the decoded objects that the store keeps.
    """
    made = KeyedStore if node.by_bytes and node.kind == KEY_VALUE else STORES[node.kind]
    return made(node, rows, budget_bytes)
