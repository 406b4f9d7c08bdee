"""Memory of decoded rows: measured on some of them, and estimated for the others. Pure.

A row of JSON takes up to ten times its bytes as Python objects: 0.8 KB of small lists took 5.3 KB.
A limit on encoded bytes alone would therefore allow ten times the memory.

Out of scope: the choice of rows to keep (`cache`).
"""

import gc
import sys
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Final

SLOT_BYTES: Final = 100
"""Bytes of a dict for one entry, between two growths of the dict."""
OBJECTS_BYTES: Final = 80
"""Bytes of the smallest key and value of an entry: a short text and an int."""
ENTRY_BYTES: Final = SLOT_BYTES + OBJECTS_BYTES
ENCODED_BYTES: Final = SLOT_BYTES + 2 * sys.getsizeof(b"")
"""Bytes of an entry with encoded key and value, beside these bytes themselves."""
MEASURED_MAX: Final = 100
"""Objects of one value to examine, 0.2 us each; no new level begins after that many."""
CHILDREN_MAX: Final = 31
"""Children of one object, and objects of one level: 1,000 equal fields show no more than 31."""
SHARED_REFERENCES: Final = 12
"""References from which on an object is shared by rows: field names, small numbers, types."""
MEMORY: Final = 64
"""Samples after which older ones count half."""
ATOMS: Final = frozenset({str, bytes, int, float, bool, type(None)})
NO_DATA: Final = (type, ModuleType, FunctionType, BuiltinFunctionType)


def deep_bytes(value: object) -> int:
    """Return roughly the memory of a value in bytes, with the objects that belong to it alone.

    The walk is breadth first, level by level, over some of the references of each object. A value
    without references takes 0.5 us instead of 1.2; each chunk measures two.
    """
    kind = type(value)
    if kind in ATOMS:
        return own_bytes(value)
    if kind is list and ATOMS.issuperset(map(type, value)):  # type: ignore[call-overload]
        return own_bytes(value) + _leaf_bytes(value)  # type: ignore[arg-type]
    total = 0.0
    looked = 0
    level: list[tuple[object, float]] = [(value, 1.0)]
    while level and looked < MEASURED_MAX:
        below: list[tuple[object, float]] = []
        for each, weight in level:
            total += weight * own_bytes(each)
            if type(each) not in ATOMS:  # gc.is_tracked would miss a dict of texts alone
                children, share = own_children(each)
                below += [(child, weight * share) for child in children]
        looked += len(level)
        part = below[:: odd_step(len(below))]
        level = [(each, weight * len(below) / len(part)) for each, weight in part]
    return int(total)


def _leaf_bytes(leaves: list[object]) -> int:
    """Return the bytes of leaves of one list alone: 2 us for four, where the walk takes 13."""
    part = leaves[:: odd_step(len(leaves))]
    own = [sys.getsizeof(each) for each in part if sys.getrefcount(each) < SHARED_REFERENCES]
    return sum(own) * len(leaves) // max(1, len(part))


def own_bytes(value: object) -> int:
    """Return the bytes of one object, without the objects that it refers to."""
    size = sys.getsizeof(value, OBJECTS_BYTES)
    if type(value).__dictoffset__:  # fields lie outside the object, and Python does not count them
        size += SLOT_BYTES
    return size


def own_children(value: object) -> tuple[list[object], float]:
    """Return some objects that only this one refers to, and the number that each stands for."""
    found = gc.get_referents(value)
    if isinstance(value, dict):  # gc.get_referents omits keys that are texts
        found = [*value, *value.values()]
    part = found[:: odd_step(len(found))]
    own = [
        child
        for child in part
        if sys.getrefcount(child) < SHARED_REFERENCES and not isinstance(child, NO_DATA)
    ]
    return own, len(found) / max(1, len(part))


def odd_step(count: int) -> int:
    """Return the step that takes at most CHILDREN_MAX of `count`; odd, since fields alternate."""
    return -(-count // CHILDREN_MAX) | 1


class Learned:
    """Learned ratio of memory to encoded bytes for one store's rows, beyond `ENTRY_BYTES` a row."""

    def __init__(self) -> None:
        self._memory = 0.0
        self._encoded = 0.0
        self._samples = 0
        self.factor = 1.0

    def sample(self, key: object, value: object, encoded_bytes: int) -> None:
        """Add the memory of one decoded row; key and value have `encoded_bytes`."""
        if self._samples >= MEMORY:
            self._memory /= 2
            self._encoded /= 2
            self._samples //= 2
        self._samples += 1
        self._memory += max(0, sys.getsizeof(key) + deep_bytes(value) - OBJECTS_BYTES)
        self._encoded += encoded_bytes
        self.factor = max(1.0, self._memory / max(1.0, self._encoded))

    def of(self, rows: int, encoded_bytes: int) -> int:
        """Estimate the bytes of that many decoded rows."""
        return rows * ENTRY_BYTES + int(encoded_bytes * self.factor)
