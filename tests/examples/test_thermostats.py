"""examples/thermostats.py, as its docstring tells it."""

import pytest

from streamsx.examples import thermostats
from streamsx.examples.thermostats import Room, Temperature
from streamsx.testing import TestDriver


def test_room_raises_one_alarm_each_time_it_becomes_too_warm() -> None:
    celsius = [21.5, 84, 84, 29.9, 30]
    with TestDriver(thermostats.app) as driver:
        for each in celsius:
            driver.pipe("readings", [("sauna", Temperature(each))])
            driver.restart()
        assert driver.table("rooms") == {"sauna": Room(30, 84, 5)}
        alarms = [(each.key, each.value) for each in driver.read(thermostats.alarms)]
    assert alarms == [("sauna", Temperature(84)), ("sauna", Temperature(30))]


def test_timer_prints_each_room_after_five_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with TestDriver(thermostats.app) as driver:
        driver.pipe("readings", [("sauna", Temperature(84)), ("kitchen", Temperature(21.5))])
        assert capsys.readouterr().out == ""
        driver.advance("5s")
    assert capsys.readouterr().out.splitlines() == [
        "kitchen: 21.5 degrees, 21.5 at most",
        "sauna: 84.0 degrees, 84.0 at most",
    ]


def test_reading_that_is_no_number_is_skipped() -> None:
    with TestDriver(thermostats.app, raises=False) as driver:
        driver.to("readings")(b"sauna", b'{"celsius": "hot"}', 0, None)
        driver.pipe("readings", [("sauna", Temperature(84))])
        assert driver.table("rooms") == {"sauna": Room(84, 84, 1)}
        assert len(driver.failures) == 1
