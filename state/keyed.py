"""Store of an operator, whose cache keys are the encoded keys.

The generated loop has the bytes of a key at hand, and needs no object of the key for a look-up.
Other users of the store ask with keys as users know them.
"""

from typing import Any

from streamsx.state.cache import CachedStore


class KeyedStore(CachedStore):
    """Key-value store with cache keys in bytes."""

    def cache_key(self, key: Any) -> Any:
        return key if type(key) is bytes else self.encode_key(key)

    own_key = cache_key
