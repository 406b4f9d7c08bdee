"""state/sizes.py: memory of decoded rows, compared with the allocator's own count."""

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

import orjson
import pytest

from streamsx.state.sizes import CHILDREN_MAX, ENTRY_BYTES, SLOT_BYTES, Learned, deep_bytes

ROWS = 60


@dataclass
class Order:
    number: int
    customer: str
    price: float
    parts: list[float]


def document(number: int, fields: int) -> object:
    """Return a document as orjson makes it: field names are shared by all rows."""
    made = {f"f{i}": [f"value {number} {i}", number * 1000 + i, i / 7] for i in range(fields)}
    return orjson.loads(orjson.dumps(made))


SHAPES: dict[str, Callable[[int], object]] = {
    "documents": lambda n: document(n, 15),
    "large documents": lambda n: document(n, 200),
    "text": lambda n: f"{n}" + "x" * 2000,
    "bytes": lambda n: b"%d" % n * 200,
    "numbers": lambda n: [n * 1000 + i for i in range(500)],
    "names of their own": lambda n: {f"id {n} {i}": i for i in range(100)},
    "one list below another": lambda n: {"a": {"b": {"c": [{"e": n + i / 2} for i in range(40)]}}},
    "tuples": lambda n: tuple((n + i / 2, f"x{n}") for i in range(40)),
    "sets": lambda n: {f"x{n} {i}" for i in range(40)},
    "objects": lambda n: [Order(n + 1000 + i, f"c{n}", n / 7, [n + 0.5]) for i in range(20)],
    "times and decimals": lambda n: [(Decimal(n) / 7, datetime.now(UTC)) for _ in range(20)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_measured_row_size_is_near_allocated_size(shape: str) -> None:
    make = SHAPES[shape]
    make(0)  # field names, caches
    gc.collect()  # the interpreter keeps small tuples for later, which tracemalloc does not see
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    rows = [make(number) for number in range(ROWS)]
    real = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    measured = sum(map(deep_bytes, rows))
    assert 0.7 < measured / real < 1.5


def test_values_shared_by_rows_are_not_counted() -> None:
    text = "x" * 100_000
    rows = [[text] for _ in range(ROWS)]
    assert max(map(deep_bytes, rows)) < 1000


def test_self_containing_value_is_measured() -> None:
    value: list[object] = [1]
    value.append(value)
    assert 0 < deep_bytes(value) < 100_000


@pytest.mark.parametrize("count", [*range(70), 1000, 1001])
def test_unsampled_children_are_counted_by_sampled_ones(count: int) -> None:
    value = [str(number) * 20 for number in range(1000, 1000 + count)]
    own = sum(map(deep_bytes, value)) + deep_bytes([])
    assert own * 0.9 <= deep_bytes(value) <= own * 1.3 + 10 * CHILDREN_MAX


def test_grown_rows_are_learned_and_old_ones_forgotten() -> None:
    learned = Learned()
    for number in range(200):
        learned.sample("key", str(number), 8)
    assert learned.of(10, 80) < 10 * (ENTRY_BYTES + 2 * SLOT_BYTES)
    rows = [document(number, 15) for number in range(100)]
    for value in rows * 2:
        learned.sample("key", value, len(orjson.dumps(value)) + 3)
    encoded = sum(len(orjson.dumps(row)) + 3 for row in rows)
    assert learned.of(100, encoded) == pytest.approx(
        sum(map(deep_bytes, rows)) + 100 * SLOT_BYTES, rel=0.2
    )
