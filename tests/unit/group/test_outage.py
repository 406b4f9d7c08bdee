"""Log lines about a group that cannot be reached."""

import pytest

from streamsx.errors import BrokerUnreachable
from streamsx.group.outage import Outage

AWAY = BrokerUnreachable("no broker answers: b:1")
AWAY_LINE = (
    "The group is out of reach{}: no broker answers: b:1. Trying again until a broker answers."
)


class Told:
    """Clock that the test sets, and the log lines with their times."""

    def __init__(self) -> None:
        self.at = 100.0
        self.lines: list[tuple[float, str]] = []
        self.outage = Outage(lambda text: self.lines.append((self.at, text)))


@pytest.fixture
def told() -> Told:
    return Told()


def test_absent_broker_is_logged_every_30_s_and_on_return(told: Told) -> None:
    """There was a line each second, and none at the end."""
    for _ in range(37):
        told.outage.failed(told.at, AWAY)
        told.at += 1
    told.outage.found(told.at)
    told.outage.found(told.at)
    told.outage.failed(told.at, AWAY)
    assert told.lines == [
        (100, AWAY_LINE.format("")),
        (130, AWAY_LINE.format(" for 30 s")),
        (137, "The group is in reach again, after 37 s."),
        (137, AWAY_LINE.format("")),
    ]


def test_suspended_member_is_logged_and_resumption_too(told: Told) -> None:
    for at, until in ((100, 0), (100, 110), (110, 110), (112, 110), (115, 0), (118, 127)):
        told.at = at
        told.outage.leased(at, until, "silence")
    assert [(at, text.partition(":")[0]) for at, text in told.lines] == [
        (110, "Processing is paused"), (118, "Processing continues"),
    ]  # fmt: skip
    assert told.lines[0][1].startswith("Processing is paused: silence. It continues when the group")
    assert told.lines[1][1].endswith("after 8 s more.")


def test_outage_beyond_limit_raises_broker_unreachable(told: Told) -> None:
    outage = Outage(lambda _: None, limit_s=10.0)
    outage.failed(told.at, AWAY)
    told.at += 9.9
    outage.failed(told.at, AWAY)
    told.at += 0.1
    with pytest.raises(BrokerUnreachable):
        outage.failed(told.at, AWAY)
    outage.found(told.at)
    outage.failed(told.at, AWAY)
