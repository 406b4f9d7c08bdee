"""Memory of decoded rows: measured on some of them, and learned for the others. Pure.

A row of JSON takes up to ten times its bytes as Python objects: 0.8 KB of small lists took 5.3 KB.
So whoever bounds what is held by encoded bytes holds ten times what it may.

Not here: which rows are held (`cache`).
"""

import gc
import sys
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Final

SLOT_BYTES: Final = 100
"""Of a dict, for one entry, between two growths of it."""
OBJECTS_BYTES: Final = 80
"""Of the key and the value of an entry as small as can be: a short text and an int."""
ENTRY_BYTES: Final = SLOT_BYTES + OBJECTS_BYTES
ENCODED_BYTES: Final = SLOT_BYTES + 2 * sys.getsizeof(b"")
"""What an entry costs beside its bytes, where key and value are encoded."""
MEASURED_MAX: Final = 100
"""Objects of one value that are looked at, 0.2 us each; no level begins behind them."""
CHILDREN_MAX: Final = 31
"""Of one object, and of one level: 1,000 equal fields say no more than 31."""
SHARED_REFERENCES: Final = 12
"""More references than that are no row's own: field names, small numbers, types."""
MEMORY: Final = 64
"""Samples after which older ones count half."""
ATOMS: Final = frozenset({str, bytes, int, float, bool, type(None)})
NO_DATA: Final = (type, ModuleType, FunctionType, BuiltinFunctionType)


def deep_bytes(value: object) -> int:
    """Return about how many bytes of memory a value takes, with all that is its own.

    Breadth first, over a part of what each object refers to, level by level.
    """
    total = 0.0
    looked = 0
    level: list[tuple[object, float]] = [(value, 1.0)]
    while level and looked < MEASURED_MAX:
        below: list[tuple[object, float]] = []
        for each, weight in level:
            total += weight * own_bytes(each)
            if type(each) not in ATOMS:  # the collector tracks no dict of texts alone
                children, share = own_children(each)
                below += [(child, weight * share) for child in children]
        looked += len(level)
        part = below[:: odd_step(len(below))]
        level = [(each, weight * len(below) / len(part)) for each, weight in part]
    return int(total)


def own_bytes(value: object) -> int:
    """Return the bytes of one object, without those that it refers to."""
    size = sys.getsizeof(value, OBJECTS_BYTES)
    if type(value).__dictoffset__:  # its fields lie beside it, and Python does not count them
        size += SLOT_BYTES
    return size


def own_children(value: object) -> tuple[list[object], float]:
    """Return some of the objects that only this one refers to; each stands for so many of them."""
    found = gc.get_referents(value)
    if isinstance(value, dict):  # texts that are its keys are not among them
        found = [*value, *value.values()]
    part = found[:: odd_step(len(found))]
    own = [
        child
        for child in part
        if sys.getrefcount(child) < SHARED_REFERENCES and not isinstance(child, NO_DATA)
    ]
    return own, len(found) / max(1, len(part))


def odd_step(count: int) -> int:
    """Return the step that takes at most CHILDREN_MAX of so many; odd, since fields alternate."""
    return -(-count // CHILDREN_MAX) | 1


class Learned:
    """Bytes in memory for each encoded byte of one store's rows, beyond `ENTRY_BYTES` a row."""

    def __init__(self) -> None:
        self._memory = 0.0
        self._encoded = 0.0
        self._samples = 0
        self.factor = 1.0

    def sample(self, key: object, value: object, encoded_bytes: int) -> None:
        """Take in what a decoded row costs whose key and value have so many bytes."""
        if self._samples >= MEMORY:
            self._memory /= 2
            self._encoded /= 2
            self._samples //= 2
        self._samples += 1
        self._memory += max(0, sys.getsizeof(key) + deep_bytes(value) - OBJECTS_BYTES)
        self._encoded += encoded_bytes
        self.factor = max(1.0, self._memory / max(1.0, self._encoded))

    def of(self, rows: int, encoded_bytes: int) -> int:
        """Return the bytes of so many decoded rows."""
        return rows * ENTRY_BYTES + int(encoded_bytes * self.factor)
