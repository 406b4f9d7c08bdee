"""examples/shop_in_production: its totals against plain Python, and the way of a dead letter."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import pytest

from streamsx.examples.shop_in_production import app as shop
from streamsx.examples.shop_in_production import feed, replay
from streamsx.examples.shop_in_production.app import Takings
from streamsx.examples.shop_in_production.feed import FeedRecord
from streamsx.testing import TestDriver
from streamsx.testing.driver import Record

ORDERS = 800
PARTITIONS = {"online-orders": 3, "online-payments": 3}
LATE = b"streamsx.errors.RecordTooLate"


def pipe(driver: TestDriver, records: Iterable[FeedRecord], at_once: int = 100) -> None:
    """Send records as the feed does, some of them at a time."""
    for some in batched(records, at_once):
        for each in some:
            headers: list[tuple[str, bytes | None]] = [("trace", each.trace.encode())]
            at_ms = round(each.timestamp * 1000)
            driver.to(each.topic)(each.key.encode(), each.value, at_ms, headers)
        driver.pipe("online-prices", [])  # runs what was sent


def batched(records: Iterable[FeedRecord], size: int) -> Iterator[list[FeedRecord]]:
    rest = iter(records)
    while some := list(islice(rest, size)):
        yield some


def exceptions(letters: Iterable[Record]) -> Counter[bytes | None]:
    return Counter(each.headers["__streams.errors.exception"] for each in letters)


def plain(totals: Mapping[str, tuple[int, int]]) -> dict[str, Takings]:
    return {product: Takings(*each) for product, each in totals.items()}


@pytest.fixture
def driver() -> Iterable[TestDriver]:
    with TestDriver(shop.app, partitions=PARTITIONS, raises=False) as driver:
        driver.pipe("online-prices", [(p, n) for p, n in feed.PRICES.items() if p != "melons"])
        yield driver


def test_takings_equal_plain_python_over_restarts(driver: TestDriver) -> None:
    records = list(feed.records(ORDERS))
    for at in range(0, len(records), 400):
        pipe(driver, records[at : at + 400])
        driver.restart()
    assert driver.table("takings") == plain(feed.takings_of(ORDERS, melons=False))
    pipe(driver, records)
    assert driver.table("takings") == plain(feed.takings_of(ORDERS, melons=False))


def test_periods_and_late_letters_make_up_the_takings(driver: TestDriver) -> None:
    pipe(driver, feed.records(ORDERS))
    driver.advance("31s")
    late = [each for each in driver.read(replay.letters) if exceptions([each])[LATE]]
    found = Counter[str]()
    for each in driver.read(shop.periods):
        found[json.loads(each.key)[0]] += each.value.cents
    for each in late:
        sale = json.loads(each.value)
        found[sale["order"]["product"]] += sale["cents"]
    assert found == {name: had.cents for name, had in driver.table("takings").items()}
    assert 20 < len(late) < 60


def test_order_without_a_payment_in_ten_minutes_is_unpaid(driver: TestDriver) -> None:
    records = list(feed.records(ORDERS))
    paid = {each.key: each.timestamp for each in records if each.topic == "online-payments"}
    ordered = {each.key: each.timestamp for each in records if each.topic == "online-orders"}
    pipe(driver, records)
    driver.advance("31s")
    found = [each.value.order.number for each in driver.read(shop.unpaid)]
    sold = [each.value.order.number for each in driver.read(shop.sales)]
    wanted = [n for n in sold if not 0 <= paid.get(n, float("inf")) - ordered[n] <= 600]
    assert sorted(found) == sorted(wanted)
    assert len(found) > ORDERS / 20


def test_receipt_bears_the_trace_of_its_order(driver: TestDriver) -> None:
    pipe(driver, [each for each in feed.records(3) if each.topic == "online-orders"])
    receipts = driver.read(shop.receipts)
    traces = {each.value.split()[1][:-1]: each.headers["trace"] for each in receipts}
    assert traces == {str(n): f"trace-{n}".encode() for n in range(3)}


def test_dead_letters_of_melons_count_after_their_replay(driver: TestDriver) -> None:
    pipe(driver, feed.records(ORDERS))
    letters = driver.read(replay.letters)
    without_price = exceptions(letters)[b"LookupError"]
    assert without_price > 10

    back, parked = replayed(letters)
    assert len(back) == without_price
    assert len(parked) == len(letters) - without_price
    assert all(set(each.headers) == {"trace", "replayed"} for each in back)

    driver.pipe("online-prices", [("melons", feed.PRICES["melons"])])
    put_back(driver, back)
    assert driver.table("takings") == plain(feed.takings_of(ORDERS, melons=True))


def test_order_that_fails_again_is_parked(driver: TestDriver) -> None:
    pipe(driver, feed.records(ORDERS))
    back, parked = replayed(driver.read(replay.letters))
    assert back
    put_back(driver, back)
    again, parked_now = replayed(driver.read(replay.letters))
    assert len(again) == len(back)  # from the first letters, which this replay reads once more
    assert len(parked_now) == len(parked) + len(back)


def replayed(letters: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Return what the replay of letters sends back, and what it parks."""
    with TestDriver(replay.app) as driver:
        for each in letters:
            row = each.key, each.value, round(each.timestamp * 1000), [*each.headers.items()]
            driver.to("online-shop-dlq")(*row)
        driver.pipe(replay.letters, [])
        return driver.read(replay.orders), driver.read(replay.parked)


def put_back(driver: TestDriver, back: Iterable[Record]) -> None:
    for each in back:
        row = each.key, each.value, round(each.timestamp * 1000), [*each.headers.items()]
        driver.to("online-orders")(*row)
    driver.pipe("online-prices", [])
