"""examples/failures.py, as its docstring tells it."""

import pytest

from streamsx.examples import failures
from streamsx.examples.failures import Transfer
from streamsx.testing import TestDriver


@pytest.fixture(autouse=True)
def bank() -> None:
    failures.asked.clear()


def test_busy_bank_is_asked_again_until_it_pays() -> None:
    with TestDriver(failures.app, raises=False) as driver:
        driver.pipe("payments", [("2", Transfer("busy", 500))])
        assert driver.table("paid") == {"2": 500}
        assert driver.read("failures-dlq") == []
    assert failures.asked["2"] == 3


def test_payment_that_nobody_can_make_is_a_dead_letter() -> None:
    with TestDriver(failures.app, raises=False) as driver:
        driver.pipe("payments", [("1", Transfer("ann", 500)), ("3", Transfer("ann", -5))])
        driver.to("payments")(b"4", b'{"account": "ann"}', 0, None)
        driver.pipe("payments", [("5", Transfer("bob", 700))])
        assert driver.table("paid") == {"1": 500, "5": 700}
        letters = {each.key: each for each in driver.read("failures-dlq")}
    headers = {
        key: (each.headers["__streams.errors.exception"], each.headers["__streamsx.attempt"])
        for key, each in letters.items()
    }
    assert headers == {
        b"3": (b"ValueError", b"1"),
        b"4": (b"msgspec.ValidationError", b"1"),
    }
    assert letters[b"3"].headers["__streams.errors.message"] == b"payment 3 of -5 cents"
