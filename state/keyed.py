"""Store of an operator, whose cache keys are the encoded keys.

The generated loop has the bytes of a key at hand, and needs no object of the key for a look-up.
Other users of the store ask with keys as users know them.
"""

from typing import Any

from streamsx.state.api import Rows
from streamsx.state.cache import CachedStore
from streamsx.state.layout import StoreNode


class KeyedStore(CachedStore):
    """Key-value store with cache keys in bytes."""

    def __init__(self, node: StoreNode, rows: Rows, budget_bytes: int) -> None:
        super().__init__(node, rows, budget_bytes)
        self._key_encoders = {bytes: _same}

    def cache_key(self, key: Any) -> Any:
        return key if type(key) is bytes else self.encode_key(key)

    own_key = cache_key


def _same(key: Any) -> Any:
    return key
