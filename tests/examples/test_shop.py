"""examples/shop.py on a history of shop_history.py, and that history as files."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

from pyarrow import parquet

from streamsx.examples import shop
from streamsx.examples.shop_history import PastOrder, history, write
from streamsx.testing import TestDriver

ROWS = list(history(2_000, 300))
PARTITIONS = {"orders": 4, "shop-changes": 3}


def plain(
    rows: list[PastOrder],
) -> tuple[dict[str, shop.Order], dict[str, shop.Customer], dict[str, int]]:
    """The three tables, by plain Python."""
    placed = {row.key: shop.Order(**json.loads(row.value)) for row in rows if row.value}
    cancelled = {row.key for row in rows if row.value is None}
    standing = {key: order for key, order in placed.items() if key not in cancelled}
    names = {order.customer for order in placed.values()}
    by_customer = {name: [o for o in placed.values() if o.customer == name] for name in names}
    stood = {name: [o for o in standing.values() if o.customer == name] for name in names}
    customers = {
        name: shop.Customer(
            len(stood[name]),
            sum(order.price * order.pieces for order in stood[name]),
            max(order.at for order in by_customer[name]),
        )
        for name in names
    }
    sold = Counter({order.product: 0 for order in placed.values()})
    for order in standing.values():
        sold[order.product] += order.pieces
    return standing, customers, dict(sold)


def test_shop_tables_equal_plain_python_over_a_restart() -> None:
    with TestDriver(shop.app, partitions=PARTITIONS) as driver:
        send = driver.to("orders")
        for rows in (ROWS[:900], ROWS[900:]):
            for row in rows:  # bytes: a value of None would be JSON's null, and cancel nothing
                value = None if row.value is None else row.value.encode()
                send(row.key.encode(), value, row.timestamp, None)
            driver.pipe(shop.orders, [])
            driver.restart()
        found = tuple(driver.table(name) for name in ("standing", "customers", "sold"))
        assert driver.failures == []
    assert found == plain(ROWS)


def test_shop_history_is_deterministic_with_late_and_cancelled_orders() -> None:
    assert list(history(2_000, 300)) == ROWS != list(history(2_000, 300, seed=1))
    times = [row.timestamp for row in ROWS]
    assert sum(a > b for a, b in pairwise(times)) > 100
    placed = {row.key: row.timestamp for row in ROWS if row.value is not None}
    cancelled = {row.key: row.timestamp for row in ROWS if row.value is None}
    assert len(placed) == 2_000
    assert 50 < len(cancelled) < 200
    assert all(placed[key] <= at for key, at in cancelled.items())


def test_parquet_and_jsonl_files_hold_the_shop_history(tmp_path: Path) -> None:
    for form in ("parquet", "jsonl"):
        assert write(tmp_path / form, iter(ROWS), form, 500) == len(ROWS)
    lines = [
        line
        for path in sorted((tmp_path / "jsonl").glob("orders-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert [PastOrder(**json.loads(line)) for line in lines] == ROWS
    files = sorted((tmp_path / "parquet").glob("orders-*.parquet"))
    assert len(files) == 5
    rows = [row for path in files for row in parquet.read_table(path).to_pylist()]
    assert [
        PastOrder(r["key"], r["value"], int(r["timestamp"].timestamp() * 1000)) for r in rows
    ] == ROWS
