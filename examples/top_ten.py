"""Top ten: the best sold products of each category, renewed with each commit.

    python -m streamsx worker streamsx.examples.top_ten
    python -m streamsx send sales '{"category": "books", "product": "Faust"}'
    python -m streamsx send sales '{"category": "books", "product": "Emma"}'
    python -m streamsx send sales '{"category": "books", "product": "Emma"}'
    python -m streamsx read top-ten

Two aggregates follow each other. The first counts the sales of each product. Its changes, the
newest count of each product at each commit, go to the category, which keeps the ten best. A product
that is not among the ten comes back when it is sold again, since counts only grow.
"""

from dataclasses import dataclass

from streamsx import App


@dataclass(frozen=True)
class Sale:
    """Sale of a product of a category."""

    category: str
    product: str


@dataclass(frozen=True)
class Sold:
    """Number of sales of a product."""

    product: str
    sales: int


def renew(_category: str, newest: Sold, best: list[Sold]) -> list[Sold]:
    others = [each for each in best if each.product != newest.product]
    return sorted([*others, newest], key=lambda each: (-each.sales, each.product))[:10]


def by_category(product: str, sales: int) -> tuple[str, Sold]:
    category, _, name = product.partition("/")
    return category, Sold(name, sales)


app = App("top-ten")
sales = app.topic("sales", value_type=Sale)
top_ten = app.topic("top-ten", key_type=str, value_type=list[Sold])

(
    app.flow(sales)
    .group_by(lambda sale: f"{sale.category}/{sale.product}")
    .count("sold")
    .to_flow()
    .map(by_category, value_type=Sold)
    .group_by_key()
    .aggregate(list, renew, "best", value_type=list[Sold])
    .to(top_ten)
)


if __name__ == "__main__":
    app.main()
