"""Connection on a recording transport: order, turns, limits."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any

import pytest

from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.metrics import BrokerCounts
from streamsx.broker.net.client_connection import (
    SLICE_S,
    ClientConnection,
    ConnectionLimits,
    ConnectionLoad,
    ServedRequest,
)
from streamsx.metrics import MetricRegistry
from streamsx.protocol.frames import LARGE_BYTES, Frame
from streamsx.protocol.wire import Api


class Wire(asyncio.Transport):
    """Kernel's side of the connection."""

    def __init__(self, port: int) -> None:
        super().__init__({"peername": ("10.0.0.1", port), "sockname": ("10.0.0.2", 9092)})
        self.written: list[bytes] = []
        self.closing = self.paused = False
        self.unsent = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing, self.unsent = True, 0

    def is_reading(self) -> bool:
        return not self.paused

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False


def respond(call: ServedRequest, body: ReplyBody | None) -> None:
    assert body
    call.connection.answer(body["text"])


def reply(call: ServedRequest, text: bytes) -> None:
    call.reply({"text": text})


class Peers:
    """Connections of one broker. Frames of b"wait..." are parked, others are echoed."""

    def __init__(self, **limits: Any) -> None:
        self.limits = ConnectionLimits(**limits)
        self.traffic = ConnectionLoad(BrokerCounts(MetricRegistry()))
        self.now = 0.0
        self.parked: list[ServedRequest] = []
        self.gone: list[ServedRequest] = []

    def dial(self) -> tuple[ClientConnection, Wire]:
        connection = ClientConnection(self.traffic, self.limits, self.serve, lambda: self.now)
        wire = Wire(len(self.traffic.connections) + 1)
        connection.connection_made(wire)
        return connection, wire

    def serve(self, connection: ClientConnection, frame: Frame) -> None:
        call = ServedRequest(connection, Api.FETCH, 11, 1, "", bytes(frame), respond)
        connection.call = call
        if call.body.startswith(b"wait"):
            call.gone = lambda: self.gone.append(call)
            self.parked.append(call)
        else:
            reply(call, call.body)

    def lost(self, connection: ClientConnection) -> None:
        """Do what the loop does after an abort."""
        connection.connection_lost(None)


def send(connection: ClientConnection, *frames: bytes, cut: int = 0) -> None:
    data = b"".join(len(frame).to_bytes(4) + frame for frame in frames)
    data = data[: len(data) - cut]
    while data:
        buffer = connection.get_buffer(-1)
        count = min(len(buffer), len(data))
        buffer[:count], data = data[:count], data[count:]
        connection.buffer_updated(count)


def on_a_loop(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a story on an event loop: requests after a late answer are served in a later turn."""
    return lambda: asyncio.run(story())


@on_a_loop
async def test_requests_after_late_answer_served_in_next_loop_turn() -> None:
    """The code that answers is in the middle of its own work, as is all that its
    answers lead to.
    """
    peers = Peers()
    connection, wire = peers.dial()
    send(connection, b"wait for it", b"the next", b"and next")
    assert wire.written == []
    (call,) = peers.parked
    reply(call, b"late")
    assert wire.written == [b"late"]
    await asyncio.sleep(0)
    assert wire.written == [b"late", b"the next", b"and next"]


@on_a_loop
async def test_slow_requests_yield_to_other_connections() -> None:
    peers = Peers()
    slow, wire = peers.dial()
    serve = slow._serve

    def slowly(connection: ClientConnection, frame: Frame) -> None:
        peers.now += SLICE_S * 0.6
        serve(connection, frame)

    slow._serve = slowly
    send(slow, *(b"request%d" % number for number in range(6)))
    other, others = peers.dial()
    send(other, b"a little")
    assert (len(wire.written), len(others.written)) == (2, 1)
    for turn in (2, 3):
        await asyncio.sleep(0)
        assert len(wire.written) == 2 * turn
    await asyncio.sleep(0)
    assert wire.written == [b"request%d" % number for number in range(6)]


@on_a_loop
async def test_late_or_repeated_answer_is_dropped() -> None:
    peers = Peers()
    connection, wire = peers.dial()
    send(connection, b"wait 1..", b"wait 2..")
    first = peers.parked[0]
    reply(first, b"one")
    await asyncio.sleep(0)
    reply(first, b"again")
    connection.abort()
    assert peers.gone == [peers.parked[1]]
    reply(peers.parked[1], b"two")
    await asyncio.sleep(0)
    assert wire.written == [b"one"]


@on_a_loop
async def test_request_queue_not_served_after_abort() -> None:
    peers = Peers()
    connection, wire = peers.dial()
    send(connection, b"wait....", b"the next")
    reply(peers.parked[0], b"late")
    connection.abort()
    await asyncio.sleep(0)
    assert wire.written == [b"late"]
    peers.lost(connection)
    assert (peers.traffic.connections, peers.traffic.in_flight_bytes) == ({}, 0)


@on_a_loop
async def test_in_flight_bytes_counted_until_answered() -> None:
    peers = Peers()
    one, _ = peers.dial()
    two, _ = peers.dial()
    send(one, b"wait" * 10, b"x" * 30)
    send(two, b"y" * LARGE_BYTES, cut=1)
    send(two)
    assert peers.traffic.in_flight_bytes == 70 + LARGE_BYTES
    reply(peers.parked[0], b"late")
    assert peers.traffic.in_flight_bytes == 30 + LARGE_BYTES
    await asyncio.sleep(0)
    assert peers.traffic.in_flight_bytes == LARGE_BYTES
    two.abort()
    assert peers.traffic.in_flight_bytes == 0
    peers.lost(two)
    assert peers.traffic.in_flight_bytes == 0


def test_largest_connection_closed_when_in_flight_limit_exceeded() -> None:
    peers = Peers(in_flight_bytes_max=200)
    one, wire_of_one = peers.dial()
    two, wire_of_two = peers.dial()
    send(one, b"wait" * 30)
    send(two, b"wait" * 20)
    assert (wire_of_one.closing, wire_of_two.closing) == (False, False)
    send(two, b"a byte..")
    assert (wire_of_one.closing, wire_of_two.closing) == (True, False)
    assert [call.connection for call in peers.gone] == [one]
    assert peers.traffic.in_flight_bytes == 88


def test_longest_silent_connection_closed_among_equals() -> None:
    peers = Peers(in_flight_bytes_max=100)
    wires = []
    for peers.now in (2.0, 1.0, 3.0):
        connection, wire = peers.dial()
        send(connection, b"wait" * 10)
        wires.append(wire)
    assert [wire.closing for wire in wires] == [False, True, False]


@pytest.mark.parametrize(
    ("limits", "most"),
    [({"queued_requests_max": 3}, 3), ({"queued_bytes_max": 40}, 5)],
    ids=["number", "size"],
)
def test_full_request_queue_pauses_reading_until_room(limits: dict[str, int], most: int) -> None:
    """The size counts requests being served, too; the number does not."""

    @on_a_loop
    async def story() -> None:
        peers = Peers(**limits)
        connection, wire = peers.dial()
        send(connection, b"wait....")
        for sent in range(1, most + 1):
            assert wire.is_reading(), sent
            send(connection, b"wait....")
        assert not wire.is_reading()
        reply(peers.parked[0], b"late")
        await asyncio.sleep(0)
        assert wire.is_reading()
        for late in peers.parked:
            reply(late, b"late")
            await asyncio.sleep(0)
        assert wire.written == [b"late"] * (most + 1)
        assert peers.traffic.in_flight_bytes == 0

    story()


def test_requests_not_served_while_writing_is_paused() -> None:
    peers = Peers(unsent_bytes_max=77)
    connection, wire = peers.dial()
    assert wire.high == 77
    connection.pause_writing()
    send(connection, b"1.......", b"2.......")
    assert wire.written == []
    connection.resume_writing()
    assert wire.written == [b"1.......", b"2......."]


def test_connection_with_most_unsent_bytes_closed_at_total_limit() -> None:
    peers = Peers(unsent_by_all_bytes_max=100)
    ends = [peers.dial() for _ in range(4)]
    for (_, wire), unsent in zip(ends, (0, 40, 50, 10), strict=True):
        wire.unsent = unsent
    send(ends[3][0], b"1.......")
    assert [wire.closing for _, wire in ends] == [False] * 4
    ends[3][1].unsent = 11
    send(ends[0][0], b"2.......")  # it takes what it is sent
    assert [wire.closing for _, wire in ends] == [False] * 4
    send(ends[3][0], b"3.......")
    assert [wire.closing for _, wire in ends] == [False, False, True, False]
    assert ends[3][1].written == [b"1.......", b"3......."]


def test_connection_beyond_limit_closed_and_others_kept() -> None:
    peers = Peers(connections_max=2)
    wires = [peers.dial()[1] for _ in range(3)]
    assert [wire.closing for wire in wires] == [False, False, True]


@pytest.mark.parametrize("size", [-1, 7, 101])
def test_invalid_frame_length_closes_connection_and_is_logged(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    peers = Peers(frame_bytes_max=100)
    connection, wire = peers.dial()
    send(connection, b"wait....")
    connection.get_buffer(-1)[:4] = size.to_bytes(4, signed=True)
    connection.buffer_updated(4)
    assert wire.closing
    assert peers.gone == peers.parked
    assert (
        f"Closed the connection of 10.0.0.1:1: a frame of {size} bytes: 8 to 100 can be"
        in caplog.text
    )


def test_connection_knows_both_addresses() -> None:
    connection, _ = Peers().dial()
    assert (connection.host, connection.peer) == ("10.0.0.1", "10.0.0.1:1")
    assert connection.address == ("10.0.0.2", 9092)


@on_a_loop
async def test_connection_active_on_receive_and_on_answer() -> None:
    peers = Peers()
    connection, _ = peers.dial()
    assert connection.active_at == 0
    peers.now = 5
    send(connection, b"wait....")
    assert connection.active_at == 5
    peers.now = 9
    reply(peers.parked[0], b"late")
    assert connection.active_at == 9


def test_connection_limits_have_chosen_defaults() -> None:
    """A request may be as large as all that wait, and several are in flight."""
    mib = 1024 * 1024
    assert asdict(ConnectionLimits()) == {
        "connections_max": 512,
        "connections_max_idle_s": 600,
        "frame_bytes_max": 32 * mib,
        "queued_requests_max": 64,
        "queued_bytes_max": 32 * mib,
        "in_flight_bytes_max": 64 * mib,
        "unsent_bytes_max": 8 * mib,
        "unsent_by_all_bytes_max": 32 * mib,
        "partitions_max": 10_000,
    }
