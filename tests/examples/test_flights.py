"""examples/flights.py and flights_joined.py, against plain Python."""

import json
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from streamsx.examples import flights, flights_data, flights_joined
from streamsx.examples.flights import Delays, Flight
from streamsx.examples.flights_joined import Departure, weather_key
from streamsx.testing import TestDriver

LATER = datetime(2014, 6, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def month() -> list[Flight]:
    return flights_data.flights(range(1, 2))


def plain_delays(month: list[Flight]) -> dict[tuple[str, int], Delays]:
    """Return the delays by airport and start of the hour, by plain Python."""
    cells: defaultdict[tuple[str, int], list[int | None]] = defaultdict(list)
    for each in month:
        hour = each.departs.replace(minute=0)
        cells[each.origin, round(hour.timestamp() * 1000)].append(each.delay)
    return {
        cell: Delays(
            len(delays),
            delays.count(None),
            sum(delay for delay in delays if delay is not None and delay > 0),
            max(0, *(delay or 0 for delay in delays)),
        )
        for cell, delays in cells.items()
    }


def test_hourly_delays_of_a_month_equal_plain_python_over_restarts(month: list[Flight]) -> None:
    assert len(month) == 27_004
    airports = {each.origin for each in month}
    last = [replace(month[-1], origin=airport, departs=LATER) for airport in airports]
    with TestDriver(flights.app, partitions={"flights": 1}) as driver:
        for at in range(0, len(month), 10_000):
            driver.pipe(flights.flights, month[at : at + 10_000])
            driver.restart()
        driver.pipe(flights.flights, last)  # time goes on, and so the last hour closes
        found = driver.read(flights.hourly)
    keys = [tuple(json.loads(each.key)[:2]) for each in found]
    assert len(keys) == len(set(keys))  # one final for each airport and hour
    assert dict(zip(keys, (each.value for each in found), strict=True)) == plain_delays(month)


def test_joined_flights_equal_plain_python(month: list[Flight]) -> None:
    planes = dict(flights_data.planes())
    airlines = dict(flights_data.airlines())
    weather = dict(flights_data.weather())
    some = month[::5]
    with TestDriver(flights_joined.app, partitions={"flights": 2}) as driver:
        driver.pipe("planes", planes.items())
        driver.pipe("airlines", airlines.items())
        driver.pipe("weather", weather.items())
        driver.restart()
        driver.pipe("flights", some)
        found = [each.value for each in driver.read(flights_joined.departures)]
        assert driver.failures == []
    wanted = [
        Departure(
            flight,
            planes.get(flight.tail or ""),
            airlines[flight.carrier],
            weather.get(weather_key(flight.origin, flight.departs)),
        )
        for flight in some
    ]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert any(each.plane is None for each in found)
    assert any(each.weather is None for each in found)
