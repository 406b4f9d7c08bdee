"""Thermostats: the newest temperature of each room, and an alarm when a room becomes too warm.

    python -m streamsx worker streamsx.examples.thermostats
    python -m streamsx send readings kitchen='{"celsius": 21.5}' sauna='{"celsius": 84}'
    python -m streamsx table --app thermostats rooms

The worker prints its rooms every five seconds. The alarm for the sauna is in the topic `alarms`;
a second reading of 84 raises none, because the table knows that the room was warm before. Stop the
worker with Ctrl-C and start it again: it still knows.

Values are dataclasses: a record that does not fit, such as '{"celsius": "hot"}', is skipped and
logged, and the body never sees it. A timer reads a table and does not write it, and sees the rooms
of its own worker alone.
"""

from dataclasses import dataclass

from streamsx import App, Stream

LIMIT = 30.0
"""Temperature from which on a room is too warm, in degrees Celsius."""


@dataclass(frozen=True)
class Temperature:
    """Reading of a thermostat. The key of the record is the room."""

    celsius: float


@dataclass(frozen=True)
class Room:
    """Room with its newest temperature, its highest one, and the number of readings."""

    celsius: float
    highest: float
    readings: int


app = App("thermostats")
readings = app.topic("readings", key_type=str, value_type=Temperature)
alarms = app.topic("alarms", key_type=str, value_type=Temperature)
rooms = app.Table("rooms", key_type=str, value_type=Room)


@app.agent(readings)
async def follow(stream: Stream[Temperature]) -> None:
    async for name, reading in stream.items():
        before = rooms.get(name) or Room(float("-inf"), float("-inf"), 0)
        highest = max(before.highest, reading.celsius)
        rooms[name] = Room(reading.celsius, highest, before.readings + 1)
        if before.celsius < LIMIT <= reading.celsius:
            await alarms.send(key=name, value=reading)


@app.timer("5s")
async def show() -> None:
    for name, room in sorted(rooms.items()):
        print(f"{name}: {room.celsius} degrees, {room.highest} at most")


if __name__ == "__main__":
    app.main()
