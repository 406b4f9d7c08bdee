"""A record that fails behind a table has no part in it: neither in its row nor in its groups."""

from typing import Any

import pytest

from streamsx import App
from streamsx.testing import TestDriver

pytestmark = pytest.mark.usefixtures("rows")


@pytest.fixture
def app() -> App:
    return App("tables", topic_partitions=1, store="memory://")


def country(user: Any) -> Any:
    return user["country"]


STEPS: list[tuple[str, Any]] = [
    ("ann", {"country": "de"}),
    ("bob", {"country": "de"}),
    ("ann", {}),
    ("ann", {"country": "fr"}),
    ("bob", {}),
    ("bob", None),
    ("cat", {}),
    ("cat", {"country": "fr"}),
]


@pytest.mark.parametrize("restarts", [False, True])
def test_groups_hold_after_a_change_that_failed(app: App, *, restarts: bool) -> None:
    users = app.table("users")
    users.group_by(country, name="by-country").count(name="n").to("out")
    with TestDriver(app, raises=False) as driver:
        for step in STEPS:
            driver.pipe("users", [step])
            if restarts:
                driver.restart()
        assert driver.table("n") == {"de": 0, "fr": 2}


def test_filtered_row_leaves_after_a_change_that_failed(app: App) -> None:
    users = app.table("users")
    users.filter(lambda user: user["active"]).to("out")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("users", [("ann", {"active": True}), ("ann", {}), ("ann", {"active": False})])
        assert [each.value for each in driver.read("out")] == [{"active": True}, None]


def test_joined_rows_hold_after_a_change_that_failed(app: App) -> None:
    left, right = app.table("left"), app.table("right")
    both = left.join(right, lambda a, b: [a, b], name="both")
    both.group_by(lambda pair: pair[0]["country"], name="by-country").count(name="n").to("out")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("right", [("ann", 1)])
        driver.pipe("left", [("ann", {"country": "de"}), ("ann", {}), ("ann", {"country": "fr"})])
        assert driver.table("n") == {"de": 0, "fr": 1}
        driver.pipe("right", [("ann", 2)])
        driver.pipe("left", [("ann", None)])
        assert driver.table("n") == {"de": 0, "fr": 0}


def test_groups_hold_after_a_value_that_could_not_be_sent(app: App) -> None:
    """A row that moves is two records: the second one failed when the first had left."""

    def odd(user: Any) -> Any:
        return user if user["n"] else {**user, "n": {1, 2}}

    users = app.table("users").map_values(odd)
    users.group_by(country, name="by-country").sum(lambda user: user["n"], name="n").to("out")
    with TestDriver(app, raises=False) as driver:
        for n, where in ((5, "de"), (0, "fr"), (0, "it"), (7, "fr")):
            driver.pipe("users", [("ann", {"country": where, "n": n})])
        assert driver.table("n") == {"de": 0, "fr": 7}
