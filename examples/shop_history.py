"""Past of the shop: two years of orders as files, in the form that `shop.py` reads.

    python -m streamsx.examples.shop_history lake --orders 100000 --customers 5000

Each month is about one file, parquet or JSON lines, with the columns `key`, `value` and
`timestamp`; the same numbers give the same history. `--form tsv` writes lines for
`streamsx send orders -`, without cancellations; with `--first N` the orders follow N orders of the
past.

Some customers buy often, most do not. One order in twenty is cancelled, by a row without a value.
One order in ten was placed without a network, and comes up to an hour late. Rows of one order stay
in order.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import NamedTuple

from streamsx.examples.shop import Order

START_MS = 1_704_067_200_000
"""Beginning of 2024 in UTC, in ms since 1970."""
MONTHS = 24
MONTH_MS = 2_629_800_000
"""Twelfth part of a year, in ms."""
HOUR_MS = 3_600_000
CANCELLED = 0.05
LATE = 0.1
PRODUCTS = [(f"product-{n}", 199 + 350 * n % 9_000) for n in range(200)]
"""Names of products with their prices in cents."""


class PastOrder(NamedTuple):
    """Row of the history. `timestamp` is in ms since 1970; `value` is JSON, None cancels."""

    key: str
    value: str | None
    timestamp: int


def history(orders: int, customers: int, seed: int = 0, first: int = 0) -> Iterator[PastOrder]:
    """Yield rows in the order of arrival, which is not that of their timestamps."""
    rng = Random(seed + first)  # noqa: S311  # a seed repeats the history
    step = MONTHS * MONTH_MS / max(first or orders, 1)
    waiting: list[PastOrder] = []
    for number in range(first, first + orders):
        now = START_MS + int(number * step)
        product, price = rng.choice(PRODUCTS)
        late = rng.random() < LATE
        at = now - rng.randrange(HOUR_MS) if late else now
        order = Order(
            customer=f"customer-{int(customers * rng.random() ** 2)}",
            product=product,
            price=price,
            pieces=rng.randint(1, 4),
            at=at,
        )
        row = PastOrder(f"order-{number}", json.dumps(vars(order)), at)
        yield row
        if rng.random() < CANCELLED:
            waiting.append(PastOrder(row.key, None, now + rng.randrange(HOUR_MS)))
        while waiting and waiting[0].timestamp < now:
            yield waiting.pop(0)
    yield from waiting


def write(folder: Path, rows: Iterator[PastOrder], form: str, rows_per_file: int) -> int:
    """Write rows into `folder`, which is created; return the number of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for number in count():
        part = list(islice(rows, rows_per_file))
        if not part:
            return total
        FORMS[form](folder / f"orders-{number:03}.{form}", part)
        total += len(part)
    raise AssertionError("count() has an end")


def _jsonl(path: Path, rows: list[PastOrder]) -> None:
    path.write_text("".join(json.dumps(row._asdict()) + "\n" for row in rows))


def _tsv(path: Path, rows: list[PastOrder]) -> None:
    path.write_text("".join(f"{row.key}\t{row.value}\n" for row in rows if row.value))


def _parquet(path: Path, rows: list[PastOrder]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    types = [("key", pa.string()), ("value", pa.string()), ("timestamp", pa.timestamp("ms", "UTC"))]
    columns = [list(column) for column in zip(*rows, strict=True)]
    parquet.write_table(pa.table(columns, schema=pa.schema(types)), path)


FORMS = {"parquet": _parquet, "jsonl": _jsonl, "tsv": _tsv}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a history of the shop's orders.")
    add = parser.add_argument
    add("folder", type=Path)
    add("--orders", type=int, default=100_000)
    add("--customers", type=int, default=5_000)
    add("--first", type=int, default=0)
    add("--seed", type=int, default=0)
    add("--form", choices=list(FORMS), default="parquet")
    given = parser.parse_args()
    rows = history(given.orders, given.customers, given.seed, given.first)
    written = write(given.folder, rows, given.form, max(1, given.orders // MONTHS))
    print(f"{given.folder}: {written} rows")


if __name__ == "__main__":
    main()
