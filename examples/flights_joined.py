"""Flights with their planes, their airlines and the weather at departure: joins with tables.

    python -m streamsx worker streamsx.examples.flights_joined
    for table in planes airlines weather; do
        python -m streamsx.examples.flights_data $table | python -m streamsx send $table -
    done
    python -m streamsx.examples.flights_data | python -m streamsx send flights -
    python -m streamsx read departures --limit 10

Planes and weather are divided among the tasks by their keys, so flights go through a topic in
between, named after the join. The few airlines are a global table, which each worker has whole. A
flight is joined with a table as it is when the flight comes: fill the tables first.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from streamsx import App
from streamsx.examples.flights import Flight


@dataclass(frozen=True)
class Plane:
    """Plane, by the number on the tail. `built` is the year."""

    model: str
    seats: int
    built: int | None


@dataclass(frozen=True)
class Weather:
    """Weather at an airport in an hour, by `weather_key`. Wind in miles per hour."""

    visibility: float
    wind: float | None
    rain: float


@dataclass(frozen=True)
class Departure:
    """Flight with all that is known about it; None for what is not."""

    flight: Flight
    plane: Plane | None = None
    airline: str | None = None
    weather: Weather | None = None


def weather_key(airport: str, at: datetime) -> str:
    """Return the key of the weather: the airport and the start of the hour, in UTC."""
    return f"{airport} {at:%Y-%m-%dT%H}"


app = App("flights-joined")
flights = app.topic("flights", value_type=Flight)
planes = app.topic("planes", key_type=str, value_type=Plane, allow_empty=True)
airlines = app.topic("airlines", key_type=str, value_type=str, allow_empty=True)
weather = app.topic("weather", key_type=str, value_type=Weather, allow_empty=True)
departures = app.topic("departures", key_type=str, value_type=Departure)

(
    app.flow(flights)
    .rekey(lambda flight: flight.tail)
    .join(app.table(planes), Departure, kind="left", name="with-plane", value_type=Departure)
    .join(
        app.global_table(airlines),
        lambda departure, airline: replace(departure, airline=airline),
        key=lambda departure: departure.flight.carrier,
        kind="left",
        value_type=Departure,
    )
    .rekey(lambda departure: weather_key(departure.flight.origin, departure.flight.departs))
    .join(
        app.table(weather),
        lambda departure, found: replace(departure, weather=found),
        kind="left",
        name="with-weather",
        value_type=Departure,
    )
    .to(departures)
)


if __name__ == "__main__":
    app.main()
