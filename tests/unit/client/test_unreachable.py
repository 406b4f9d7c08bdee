"""client/unreachable.py: log lines about addresses that cannot be reached."""

import pytest

from streamsx.client.unreachable import (
    FORGET_AFTER_S,
    WARN_AFTER_S,
    WARN_EVERY_S,
    UnreachableAddresses,
    UnreachableReason,
)

ADDRESS = "b:9092"
TROUBLE = UnreachableReason(f"no connection: {ADDRESS}: refused", "start it")


@pytest.fixture
def unreached() -> UnreachableAddresses:
    return UnreachableAddresses()


def fail(unreached: UnreachableAddresses, *times: float, takes_s: float = 0.5) -> None:
    """Play attempts that fail at these times."""
    for now in times:
        unreached.failed(ADDRESS, now - takes_s, now, TROUBLE)


def test_unreached_address_logged_soon_and_then_rarely(
    unreached: UnreachableAddresses, caplog: pytest.LogCaptureFixture
) -> None:
    fail(unreached, *range(1, 70))
    assert [message.partition(":")[0] for message in caplog.messages] == [
        *(f"A broker is out of reach for {seconds} s" for seconds in (4, 34, 64)),
    ]  # fmt: skip
    assert caplog.messages[0].endswith(f"{TROUBLE.why}: start it. Trying again until it answers.")
    assert WARN_AFTER_S + 1 < 10  # with an attempt a second: within 10 s
    assert WARN_EVERY_S == 30


def test_short_broker_restart_is_not_logged(
    unreached: UnreachableAddresses, caplog: pytest.LogCaptureFixture
) -> None:
    fail(unreached, 1, 2, 3)
    assert unreached.newest == f"{TROUBLE.why}: start it"
    unreached.reached(ADDRESS)
    fail(unreached, 6, 7, 8)
    assert caplog.messages == []


def test_rarely_tried_address_is_not_logged(
    unreached: UnreachableAddresses, caplog: pytest.LogCaptureFixture
) -> None:
    """One of several brokers is away, and tried whenever metadata is needed."""
    fail(unreached, *(n * (FORGET_AFTER_S + 1) for n in range(9)))
    assert caplog.messages == []


def test_single_long_attempt_is_logged(
    unreached: UnreachableAddresses, caplog: pytest.LogCaptureFixture
) -> None:
    fail(unreached, 5, takes_s=5)
    assert len(caplog.messages) == 1


def test_reached_address_clears_failure_reason(unreached: UnreachableAddresses) -> None:
    fail(unreached, 1)
    unreached.reached("another:9092")
    assert unreached.newest
    unreached.reached(ADDRESS)
    assert unreached.newest == ""
