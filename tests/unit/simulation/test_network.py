"""The network as TCP has it: what arrives, in which order, what is dropped when, who finds out.

At its sockets, as asyncio uses them: whatever they answer, its transports make of it what they do.
"""

import asyncio
import errno
import socket
import struct
import time
from collections.abc import Iterator
from math import inf
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any

import pytest

from streamsx.simulation.network import Net
from streamsx.simulation.process import Process
from streamsx.simulation.tcp import SimSocket
from tests.unit.simulation.conftest import Run, for_ever

LINGER_NOT = socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
LOST, EOF = "ConnectionResetError", "eof"
REAL_S = 0.05


class Wire:
    """A connection from host `c` to host `s`, as soon as it stands: `ours` and `theirs`."""

    def __init__(self, net: Net) -> None:
        self.net, self.scheduler = net, net.scheduler
        self.server, self.client = Process(net, "s"), Process(net, "c")
        self.listener: Any = net.listening(self.server, "s", 9092)
        self.ours: Any = dial(net, self.client)
        self.run(0.5)
        self.theirs: Any = self.listener.accept()[0]

    def run(self, seconds: float = 1.0) -> None:
        self.scheduler.run_until(self.scheduler.now + seconds)


class RealWire(Wire):
    """The machine's own TCP, over loopback: what it does is what a simulated one has to do."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.ours = socket.create_connection(listener.getsockname())
            self.theirs = listener.accept()[0]
        for end in (self.ours, self.theirs):
            end.setblocking(False)

    def run(self, seconds: float = 1.0) -> None:
        time.sleep(min(seconds, REAL_S))  # noqa: TID251  # what the kernel does is no event


def dial(net: Net, process: Process, host: str = "s") -> SimSocket:
    sock = net.socket(process, host, 9092)
    with pytest.raises(BlockingIOError):
        sock.connect(sock.there)
    return sock


def send(sock: Any, data: bytes) -> int | str:
    """How much of it was taken, or what is wrong."""
    at = 0
    try:
        while at < len(data):
            at += sock.send(data[at:])
    except BlockingIOError:
        return at
    except OSError as error:
        return type(error).__name__
    return at


def read(sock: Any) -> list[bytes | str]:
    """All that is there, as one, and how it ends, if it does."""
    data, end = b"", list[bytes | str]()
    try:
        while more := sock.recv(1 << 16):
            data += more
        end = [EOF]
    except BlockingIOError:
        pass
    except OSError as error:
        end = [type(error).__name__]
    return [data, *end] if data else end


def patient(sock: Any, seconds: float) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


@pytest.fixture
def wire(net: Net) -> Wire:
    return Wire(net)


@pytest.fixture(params=["simulated", "real"])
def either(request: pytest.FixtureRequest, net: Net) -> Iterator[Wire]:
    """What is said of one has to hold for the other."""
    if request.param == "simulated":
        yield Wire(net)
        return
    real = RealWire()
    yield real
    real.ours.close()
    real.theirs.close()


# -- data and ends, on the machine's own TCP too


def test_what_is_sent_arrives_in_order(either: Wire) -> None:
    sent = b"".join(b"%06d" % number for number in range(2000))
    for at in range(0, len(sent), 600):
        assert send(either.ours, sent[at : at + 600]) == 600
    send(either.theirs, b"the other way")
    either.run()
    assert read(either.theirs) == [sent]
    assert read(either.ours) == [b"the other way"]


def test_as_much_is_received_as_fits_a_buffer(either: Wire) -> None:
    send(either.ours, b"123456789")
    either.run()
    buffer = bytearray(4)
    assert [either.theirs.recv_into(buffer) for _ in range(3)] == [4, 4, 1]
    assert bytes(buffer) == b"9678"
    assert read(either.theirs) == []


def test_a_writer_waits_while_nobody_reads(either: Wire) -> None:
    sent, got = bytes(range(256)) * (1 << 15), b""
    left = sent
    while left or len(got) < len(sent):
        taken = send(either.ours, left)
        assert isinstance(taken, int)
        left = left[taken:]
        assert left or got
        either.run()
        got += b"".join(data for data in read(either.theirs) if isinstance(data, bytes))
    assert got == sent


def test_close_delivers_what_was_sent_then_the_end(either: Wire) -> None:
    send(either.ours, b"last words")
    either.ours.close()
    either.run()
    assert either.ours.fileno() == -1
    assert read(either.theirs) == [b"last words", EOF]
    assert read(either.theirs) == [EOF]


def test_a_reset_comes_behind_what_has_arrived(either: Wire) -> None:
    send(either.ours, b"last words")
    either.run()
    assert either.theirs.recv(4) == b"last"
    either.ours.setsockopt(*LINGER_NOT)
    either.ours.close()
    either.run()
    assert read(either.theirs)[-1] == LOST


def test_who_writes_to_a_closed_connection_is_reset(either: Wire) -> None:
    either.ours.close()
    send(either.theirs, b"an answer")
    either.run()
    assert send(either.theirs, b"and more") in (LOST, "BrokenPipeError")


def test_a_close_over_unread_data_is_a_reset(either: Wire) -> None:
    send(either.ours, b"never read")
    either.run()
    either.theirs.close()
    either.run()
    assert read(either.ours) == [LOST]


def test_who_writes_after_a_reset_learns_of_it(either: Wire) -> None:
    either.ours.setsockopt(*LINGER_NOT)
    either.ours.close()
    either.run()
    assert send(either.theirs, b"hello?") == LOST


# -- what only a simulated one can be asked for


def test_each_side_knows_both_addresses(wire: Wire) -> None:
    assert wire.ours.getpeername() == wire.theirs.getsockname() == ("s", 9092)
    assert wire.theirs.getpeername() == wire.ours.getsockname()
    assert wire.ours.getsockname()[0] == "c"


def test_segments_split_what_was_sent_anywhere(wire: Wire) -> None:
    wire.net.split, wire.net.mean_s = 0.9, 1.0
    send(wire.ours, bytes(1000))
    while not (found := read(wire.theirs)):
        wire.run(0.01)
    assert 0 < len(found[0]) < 1000


def test_a_window_that_stays_full_ends_in_a_time_out(wire: Wire) -> None:
    patient(wire.ours, 3)
    much = bytes(2 * wire.net.window_bytes)
    assert send(wire.ours, much) == wire.net.window_bytes
    assert wire.ours.ready() == 0
    wire.run(5)
    assert wire.ours.ready() == EVENT_READ | EVENT_WRITE
    assert send(wire.ours, much) == "TimeoutError"


def test_a_window_opens_when_it_is_read(wire: Wire) -> None:
    send(wire.ours, bytes(2 * wire.net.window_bytes))
    wire.run()
    read(wire.theirs)
    assert wire.ours.ready() == EVENT_WRITE


def test_something_in_between_resets_both(wire: Wire) -> None:
    wire.net.reset(wire.ours)
    assert read(wire.ours) == read(wire.theirs) == [LOST]


def test_a_cut_holds_what_is_sent_and_it_is_sent_again_later_and_later(wire: Wire) -> None:
    wire.net.cut("c", "s", 2)
    send(wire.ours, b"one")
    wire.run(1)
    send(wire.ours, b"two")
    send(wire.theirs, b"not cut this way")
    wire.run(1.9)  # sent again after 0.2, 0.6, 1.4 and 3.0 s: the cut was over by the last one
    assert read(wire.theirs) == []
    assert read(wire.ours) == [b"not cut this way"]
    wire.run(0.2)
    assert read(wire.theirs) == [b"onetwo"]


def test_what_a_cut_holds_is_dropped_after_the_user_timeout_and_only_one_side_knows(
    wire: Wire,
) -> None:
    patient(wire.ours, 3)
    wire.net.cut("c", "s", 10)
    send(wire.ours, b"a commit")
    wire.run(2.9)
    assert read(wire.ours) == []
    wire.run(0.2)
    assert read(wire.ours) == ["TimeoutError"]
    wire.run(20)
    assert read(wire.theirs) == []  # half open
    send(wire.theirs, b"are you there?")
    wire.ours.close()
    wire.run()
    assert read(wire.theirs) == [LOST]


def test_an_acknowledgement_that_is_cut_off_drops_what_has_arrived(wire: Wire) -> None:
    """The request is carried out; the answer, and that it arrived, never come."""
    patient(wire.ours, 3)
    wire.net.cut("s", "c", 60)
    send(wire.ours, b"a commit")
    wire.run(5)
    assert read(wire.theirs) == [b"a commit"]
    assert read(wire.ours) == ["TimeoutError"]


def test_an_idle_connection_survives_a_cut(wire: Wire) -> None:
    patient(wire.ours, 3)
    wire.net.cut("c", "s", 60)
    wire.net.cut("s", "c", 60)
    wire.run(61)
    send(wire.ours, b"still here")
    wire.run()
    assert read(wire.theirs) == [b"still here"]


def test_a_reset_into_a_cut_is_lost_with_what_it_dropped(wire: Wire) -> None:
    wire.net.cut("c", "s", 5)
    send(wire.ours, b"a commit")
    wire.run()
    wire.ours.setsockopt(*LINGER_NOT)
    wire.ours.close()
    wire.run(60)
    assert read(wire.theirs) == []


def test_a_usual_close_into_a_cut_is_delivered_by_the_kernel_after_it(wire: Wire) -> None:
    wire.net.cut("c", "s", 5)
    send(wire.ours, b"a commit")
    wire.ours.close()
    wire.run(10)
    assert read(wire.theirs) == [b"a commit", EOF]


def test_healing_ends_all_cuts_and_what_was_held_comes_when_it_is_sent_again(wire: Wire) -> None:
    wire.net.lose("s", inf)
    send(wire.ours, b"x")
    wire.run(10)
    assert read(wire.theirs) == []
    wire.net.heal()
    wire.run(10)
    assert read(wire.theirs) == [b"x"]


def test_a_slow_host_is_slow_both_ways(wire: Wire) -> None:
    wire.net.slow["c"] = 1000.0
    send(wire.ours, b"x")
    send(wire.theirs, b"y")
    wire.run(0.05)
    assert read(wire.theirs) == read(wire.ours) == []
    wire.run(30)
    assert (read(wire.theirs), read(wire.ours)) == ([b"x"], [b"y"])


# -- processes and machines


def test_the_kernel_of_a_killed_process_sends_what_it_has_and_closes(wire: Wire) -> None:
    wire.net.cut("c", "s", 1)
    send(wire.ours, b"last words")
    wire.client.kill()
    wire.run(5)
    assert read(wire.theirs) == [b"last words", EOF]


def test_a_machine_without_power_says_nothing_and_a_new_one_knows_no_connection(wire: Wire) -> None:
    wire.server.kill(power=True)
    send(wire.ours, b"hello?")
    wire.run(30)
    assert read(wire.ours) == []
    Process(wire.net, "s")
    wire.run(60)
    assert read(wire.ours) == [LOST]


def asked(wire: Wire, host: str, seconds: float) -> int | None:
    """What comes of a connection that is asked for: None while nothing has, 0 if it stands."""
    sock = dial(wire.net, wire.client, host)
    wire.run(seconds)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if sock.connected else None


def test_a_connection_stands_is_refused_or_given_up(wire: Wire) -> None:
    assert asked(wire, "s", 1) == 0
    assert asked(wire, "nobody", 1) == errno.ECONNREFUSED
    wire.net.lose("s", 2)
    assert asked(wire, "s", 2.5) is None
    wire.net.lose("s", 2)
    assert asked(wire, "s", 3.5) == 0  # tried again after 1 and 3 s
    wire.net.lose("s", inf)
    assert asked(wire, "s", 200) == errno.ETIMEDOUT


def test_who_was_killed_listens_no_more_and_its_successor_may(wire: Wire) -> None:
    with pytest.raises(OSError, match="in use"):
        wire.net.listening(wire.client, "s", 9092)
    wire.server.kill()
    assert asked(wire, "s", 1) == errno.ECONNREFUSED
    wire.net.listening(Process(wire.net, "s"), "s", 9092)
    assert asked(wire, "s", 1) == 0


def test_a_listener_is_reached_at_its_alias_and_knows_it(wire: Wire) -> None:
    wire.net.alias(("t", 9092), ("s", 9092))
    assert asked(wire, "t", 1) == 0
    accepted, _ = wire.listener.accept()
    assert accepted.getsockname() == ("t", 9092)
    wire.net.lose("t", 5)
    assert not wire.net.open("d", "t")
    assert wire.net.open("d", "s")


def test_a_connection_that_nobody_waits_for_any_more_is_closed(wire: Wire) -> None:
    wire.net.slow["c"] = 100.0
    sock = dial(wire.net, wire.client)
    while not wire.listener.ready():
        wire.run(0.0001)
    sock.close()
    wire.run(5)
    assert read(wire.listener.accept()[0]) == [EOF]


# -- under asyncio's transports


@pytest.mark.parametrize("much", [10, 3 << 20])
def test_streams_of_asyncio_talk_over_it(net: Net, run: Run, much: int) -> None:
    """More than there is room for on the way, too: the writer drains as the reader reads."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve() -> None:
        await asyncio.start_server(echo, "s", 9092)
        await for_ever()

    async def main() -> bytes:
        await asyncio.sleep(1)
        reader, writer = await asyncio.open_connection("s", 9092)
        writer.write(bytes(much))
        found = await reader.readexactly(much)
        writer.close()
        await writer.wait_closed()
        return found

    Process(net, "s").start(serve)
    assert run(main, limit_s=2.0) == bytes(much)
    net.scheduler.run_until(net.scheduler.now + 1)
    assert len(net.sockets) == 1  # who listens


def test_what_arrives_while_a_process_is_frozen_is_read_at_once_when_it_wakes(net: Net) -> None:
    heard: list[bytes] = []

    async def collect(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            heard.append(data)

    async def serve() -> None:
        await asyncio.start_server(collect, "s", 9092)
        await for_ever()

    async def main() -> None:
        _, writer = await asyncio.open_connection("s", 9092)
        server.freeze(3)
        for _ in range(10):
            writer.write(b"x")
            await asyncio.sleep(0.1)
        await for_ever()

    server = Process(net, "s")
    server.start(serve)
    net.scheduler.at(0.1, Process(net, "c").start, main)
    net.scheduler.run_until(3)
    assert heard == []
    net.scheduler.run_until(4)
    assert heard == [b"x" * 10]
