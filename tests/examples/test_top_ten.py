"""examples/top_ten.py, against plain Python."""

import random
from collections import Counter, defaultdict
from typing import Any

from streamsx.examples import top_ten
from streamsx.examples.top_ten import Sale, Sold
from streamsx.testing import TestDriver


def some_sales() -> list[Sale]:
    rng = random.Random(11)
    return [
        Sale(rng.choice(("books", "games", "tools")), f"p{int(rng.expovariate(0.05))}")
        for _ in range(3_000)
    ]


def plain_top_ten(sales: list[Sale]) -> dict[str, list[Sold]]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for each in sales:
        counts[each.category][each.product] += 1
    return {
        category: [
            Sold(product, number)
            for product, number in sorted(of.items(), key=lambda each: (-each[1], each[0]))[:10]
        ]
        for category, of in counts.items()
    }


def test_top_ten_of_each_category_equals_plain_python_over_restarts() -> None:
    sales = some_sales()
    newest: dict[Any, Any] = {}
    with TestDriver(top_ten.app, partitions={"sales": 3}) as driver:
        for at in range(0, len(sales), 300):
            driver.pipe(top_ten.sales, sales[at : at + 300])
            driver.restart()
            newest = {each.key: each.value for each in driver.read(top_ten.top_ten)}
            assert newest == plain_top_ten(sales[: at + 300])
    assert {len(best) for best in newest.values()} == {10}
