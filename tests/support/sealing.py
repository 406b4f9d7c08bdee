"""`python -m tests.support.sealing`: cost of a commit per row, and the part of its checks.

Each kind of value is sealed with the check and without it, in turns, in CPU time; the least of the
rounds counts. On a commit without checks the second figure is missing.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import faust
import msgspec

from streamsx.serde.codec import Codec, table_codec
from streamsx.state.cache import CachedStore
from streamsx.state.layout import StoreNode
from streamsx.state.memory import MemoryRows

ROUNDS = 15
ORDER = {
    "user": "annabelle", "product": "shoes-42", "price": 12.5, "n": 3, "paid": True,
    "at": 1700000000000, "country": "DE",
}  # fmt: skip


class Order(faust.Record):
    user: str
    price: float
    n: int


@dataclasses.dataclass
class Line:
    user: str
    price: float
    n: int


class Leg(msgspec.Struct):
    user: str
    price: float
    n: int


CASES: dict[str, tuple[Any, Callable[[int], Any], int]] = {
    "count": (None, lambda n: n, 20_000),
    "total": (None, lambda n: n + 0.5, 20_000),
    "text": (None, str, 20_000),
    "dict of 100 bytes": (None, lambda n: {**ORDER, "n": n}, 5_000),
    "nested, 100 bytes": (None, lambda n: {"a": {"n": n}, "l": [1, 2, {"x": "y" * 40}]}, 5_000),
    "dict of 100 KB": (None, lambda n: {f"f{i}": f"value {i} {n}" for i in range(4_000)}, 10),
    "lists of 100 KB": (None, lambda n: {f"f{i}": [f"v {i}", n, i / 7] for i in range(2_500)}, 10),
    "Record": (Order, lambda n: Order("ann", 1.5, n), 5_000),
    "dataclass": (Line, lambda n: Line("ann", 1.5, n), 5_000),
    "Struct": (Leg, lambda n: Leg("ann", 1.5, n), 5_000),
    "int": (int, lambda n: n, 20_000),
}


def sealed_ns(codec: Codec, make: Callable[[int], Any], rows: int) -> float:
    """Return the CPU time of a row, in ns."""
    store = CachedStore(StoreNode("s", "log", table_codec(str), codec), MemoryRows(), 1 << 30)
    store.entry_bytes = 200
    for n in range(rows):
        store.put(f"key {n}", make(n))
    began = time.process_time_ns()
    while store.seal(1_000).keys:
        pass
    return (time.process_time_ns() - began) / rows


def main() -> None:
    """Print a line for each kind of value."""
    for name, (kind, make, rows) in CASES.items():
        codec = table_codec(kind)
        kinds = [codec]
        if getattr(codec, "check", None) is not None:
            kinds.append(codec._replace(check=None))
        found = [[sealed_ns(each, make, rows) for each in kinds] for _ in range(ROUNDS)]
        least = [min(column) for column in zip(*found, strict=True)]
        figures = "  ".join(f"{ns:>10,.0f}" for ns in least)
        share = f"{least[0] / least[1] - 1:>7.1%}" if len(least) > 1 else ""
        print(f"{name:<20}{figures}{share}")


if __name__ == "__main__":
    main()
