"""The tour of examples/shop_in_production with real workers: a kill, and a replay of letters."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamsx.examples.shop_in_production.feed import takings_of
from streamsx.testing import Broker
from tests.support.workers import Workers

pytestmark = pytest.mark.slow
SHOP = "streamsx.examples.shop_in_production"
ORDERS = 900
ENV = {
    "STREAMSX_SESSION_TIMEOUT": "6s",
    "FEED_ORDERS": str(ORDERS),
    "FEED_PER_SECOND": "30",
}


class Tour:
    """Broker, workers of the shop, and the commands of README.md."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.shop = self.workers("app")

    def workers(self, module: str) -> Workers:
        return Workers(self.bootstrap, self.folder / module, app=f"{SHOP}.{module}", env=ENV)

    def ask(self, command: str, *arguments: str) -> str:
        line = [sys.executable, "-m", "streamsx", command, *arguments, "--bootstrap"]
        return subprocess.run(
            [*line, self.bootstrap], check=True, capture_output=True, text=True, timeout=60
        ).stdout

    def takings(self) -> dict[str, tuple[int, int]]:
        told = self.ask("table", "--app", "online-shop", "takings", "--json")
        rows = [json.loads(line) for line in told.splitlines()]
        return {row["key"]: (row["value"]["orders"], row["value"]["cents"]) for row in rows}


@pytest.fixture
def tour(tmp_path: Path) -> Iterator[Tour]:
    with Broker() as broker:
        made = Tour(broker.bootstrap, tmp_path)
        with made.shop:
            yield made


@pytest.mark.timeout(300)
def test_takings_are_exact_over_a_kill_and_a_replay(tour: Tour) -> None:
    shop = tour.shop
    shop.start("a", "b", "c")
    shop.until(lambda: len(shop.events("assigned")) >= 3, "all workers have joined")
    tour.ask("send", "online-prices", "apples=80", "pears=120", "plums=200")
    with tour.workers("feed") as feed:
        feed.start("customers")
        shop.until(lambda: tour.takings() != {}, "the first sales are committed")
        shop.kill("b")
        feed.until(lambda: "all is sent" in feed.log("customers"), "all orders are sent", 120)
        feed.stop("customers")
    wanted = takings_of(ORDERS, melons=False)
    shop.until(lambda: tour.takings() == wanted, "the takings are exact after the kill", 60)

    tour.ask("send", "online-prices", "melons=350")
    with tour.workers("replay") as replay:
        replay.start("operator")
        wanted = takings_of(ORDERS, melons=True)
        shop.until(lambda: tour.takings() == wanted, "the takings have the melons, too", 60)
        replay.stop("operator")
    assert shop.stop("a", "c") == [0, 0]
