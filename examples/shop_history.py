"""Two years of a shop's orders, as files: what `shop.py` would have read, had it been there.

    python -m streamsx.examples.shop_history lake --orders 100000 --customers 5000

About a file per month, parquet or JSON lines, with the columns `key`, `value` and `timestamp`; the
same numbers give the same history. `--form tsv` is lines as `streamsx send orders -` reads them,
without cancellations; with `--first N` they follow upon N orders of the past.

Some customers buy often, most do not. One order in twenty is cancelled, by a row without a value,
and one in ten was placed where there was no network: it comes up to an hour late. What belongs to
one order stays in order.
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
"""The beginning of 2024, in UTC."""
MONTHS = 24
MONTH_MS = 2_629_800_000
"""A twelfth of a year."""
HOUR_MS = 3_600_000
CANCELLED, LATE = 0.05, 0.1
PRODUCTS = [(f"product-{n}", 199 + 350 * n % 9_000) for n in range(200)]
"""With their prices."""


class PastOrder(NamedTuple):
    """`timestamp`: ms since 1970, when it was recorded; `value` is JSON, None where it cancels."""

    key: str
    value: str | None
    timestamp: int


def history(orders: int, customers: int, seed: int = 0, first: int = 0) -> Iterator[PastOrder]:
    """In the order in which they arrived, which is not that of their timestamps."""
    rng = Random(seed + first)  # noqa: S311  # the same each time
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
    """Into `folder`, which is made; how many rows there are."""
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
