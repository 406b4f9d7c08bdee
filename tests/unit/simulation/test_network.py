"""Simulated network compared with TCP: what arrives, in which order, and which errors both ends
see.

The tests use sockets as asyncio does, since transports depend on their answers.
"""

import asyncio
import errno
import socket
import struct
import time
from math import inf
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any

import pytest

from streamsx.simulation.network import Network, SimSocket
from streamsx.simulation.process import Process
from tests.unit.simulation.conftest import Run, for_ever

LINGER_NOT = socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
ENDS: dict[type[OSError], str] = {
    ConnectionResetError: "reset", BrokenPipeError: "pipe", TimeoutError: "timeout",
}  # fmt: skip
REAL_S = 0.05


class Wire:
    """Connection from host `c` to host `s`, once it stands. Each public method is a step of a
    story.
    """

    def __init__(self, net: Network) -> None:
        self.net, self.scheduler = net, net.scheduler
        self.server, self.client = Process(net, "s"), Process(net, "c")
        self.listener: Any = net.listening(self.server, "s", 9092)
        ours: Any = dial(net, self.client)
        self.run(0.5)
        self.ends = {"c": ours, "s": self.listener.accept()[0]}

    def run(self, seconds: float = 1.0) -> None:
        self.scheduler.run_until(self.scheduler.now + seconds)

    def tell(self, story: str) -> None:
        for step in story.split("; "):
            who, does, *what = step.split()
            getattr(self, does)(who, *what)

    def passes(self, seconds: str) -> None:
        self.run(float(seconds))

    def sends(self, who: str, data: str) -> None:
        assert send(self.ends[who], data.encode()) == len(data)

    def reads(self, who: str, *found: str) -> None:
        """Read all that is there at once, and how it ends, if it does."""
        assert [str(one) for one in read(self.ends[who])] == list(found)

    def hears(self, who: str, end: str) -> None:
        """Notice an end after all that can be read, unless that is lost with it."""
        assert read(self.ends[who])[-1] == end

    def fails(self, who: str, *how: str) -> None:
        assert send(self.ends[who], b"and more") in how

    def closes(self, who: str) -> None:
        self.ends[who].close()
        assert self.ends[who].fileno() == -1

    def resets(self, who: str) -> None:
        self.ends[who].setsockopt(*LINGER_NOT)
        self.closes(who)

    def lasts(self, who: str, seconds: str) -> None:
        """Give up after that time without an acknowledgement."""
        self.ends[who].setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(float(seconds) * 1000)
        )

    def breaks(self, who: str) -> None:
        self.net.reset(self.ends[who])

    def misses(self, who: str, host: str, seconds: str) -> None:
        self.net.cut(host, who, float(seconds))

    def vanishes(self, who: str) -> None:
        self.net.lose(who, inf)

    def heals(self, _: str) -> None:
        self.net.heal()

    def slows(self, who: str) -> None:
        self.net.slow[who] = 1000.0

    def dies(self, who: str, *power: str) -> None:
        {"c": self.client, "s": self.server}[who].kill(power=bool(power))

    def boots(self, who: str) -> None:
        Process(self.net, who)


class RealWire(Wire):
    """TCP of this machine, over loopback: the simulated one has to do the same."""

    def __init__(self, _: Network) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            self.ends = {"c": ours, "s": listener.accept()[0]}
        for end in self.ends.values():
            end.setblocking(False)

    def run(self, seconds: float = 1.0) -> None:
        time.sleep(min(seconds, REAL_S))  # noqa: TID251  # what the kernel does is no event


def dial(net: Network, process: Process, host: str = "s") -> SimSocket:
    sock = net.socket(process, host, 9092)
    with pytest.raises(BlockingIOError):
        sock.connect(sock.there)
    return sock


def send(sock: Any, data: bytes) -> int | str:
    """Return how much was sent, or the error."""
    at = 0
    try:
        while at < len(data):
            at += sock.send(data[at:])
    except BlockingIOError:
        return at
    except OSError as error:
        return ENDS[type(error)]
    return at


def read(sock: Any) -> list[str]:
    """Return all that can be read, as one, and how it ends, if it does."""
    data, end = b"", list[str]()
    try:
        while more := sock.recv(1 << 16):
            data += more
        end = ["eof"]
    except BlockingIOError:
        pass
    except OSError as error:
        end = [ENDS[type(error)]]
    return [data.decode(), *end] if data else end


@pytest.fixture
def wire(net: Network) -> Wire:
    return Wire(net)


@pytest.fixture(params=[Wire, RealWire], ids=["simulated", "real"])
def either(request: pytest.FixtureRequest, net: Network) -> Any:
    """Return either kind of connection: a test has to hold for both."""
    made = request.param(net)
    yield made
    for end in made.ends.values():
        end.close()


# -- data and ends, on the machine's own TCP too


def test_sent_data_arrives_in_order(either: Wire) -> None:
    sent = "".join(f"{number:06}" for number in range(2000))
    for at in range(0, len(sent), 600):
        either.sends("c", sent[at : at + 600])
    either.tell("s sends the-other-way; 1 passes; c reads the-other-way")
    either.reads("s", sent)


def test_receive_takes_at_most_the_buffer_size(either: Wire) -> None:
    either.tell("c sends 123456789; 1 passes")
    buffer = bytearray(4)
    assert [either.ends["s"].recv_into(buffer) for _ in range(3)] == [4, 4, 1]
    assert bytes(buffer) == b"9678"
    either.reads("s")


def test_writer_waits_until_reader_reads(either: Wire) -> None:
    left, got = "0123456789abcdef" * (1 << 19), list[str]()
    sent = left
    while left or len("".join(got)) < len(sent):
        taken = send(either.ends["c"], left.encode())
        assert isinstance(taken, int)
        left = left[taken:]
        assert left or got
        either.run()
        got += read(either.ends["s"])
    assert "".join(got) == sent


ENDINGS = {
    "close delivers what was sent, then the end":
        "c sends words; c closes; 1 passes; s reads words eof; s reads eof",
    "a reset comes behind what has been read":
        "c sends last; 1 passes; s reads last; c sends words; 1 passes; c resets; 1 passes;"
        " s hears reset",
    "who writes to a closed connection is reset":
        "c closes; s sends answer; 1 passes; s fails reset pipe",
    "a close over unread data is a reset":
        "c sends words; 1 passes; s closes; 1 passes; c reads reset",
    "who writes after a reset learns of it": "c resets; 1 passes; s fails reset",
}  # fmt: skip


@pytest.mark.parametrize("story", ENDINGS)
def test_connection_ends_like_a_kernel_connection(either: Wire, story: str) -> None:
    either.tell(ENDINGS[story])


# -- what only a simulated one can be asked for

HURT = {
    "something in between resets both": "c breaks; c reads reset; s reads reset",
    # Again after 0.2, 0.6, 1.4 and 3.0 s: the cut is over by the last one.
    "what a cut holds is sent again, later and later":
        "s misses c 2; c sends one; 1 passes; c sends two; s sends not-cut; 1.9 passes; s reads;"
        " c reads not-cut; 0.2 passes; s reads onetwo",
    "and dropped after the user timeout: one side knows, the other is half open":
        "c lasts 3; s misses c 10; c sends commit; 2.9 passes; c reads; 0.2 passes;"
        " c reads timeout; 20 passes; s reads; s sends there?; c closes; 1 passes; s reads reset",
    # The request is carried out; the answer, and that it arrived, never come.
    "an acknowledgement that is cut off drops what has arrived":
        "c lasts 3; c misses s 60; c sends commit; 5 passes; s reads commit; c reads timeout",
    "an idle connection survives a cut":
        "c lasts 3; s misses c 60; c misses s 60; 61 passes; c sends still; 1 passes;"
        " s reads still",
    "a reset into a cut is lost with what it dropped":
        "s misses c 5; c sends commit; 1 passes; c resets; 60 passes; s reads",
    "a usual close into a cut is delivered by the kernel after it":
        "s misses c 5; c sends commit; c closes; 10 passes; s reads commit eof",
    "healing ends all cuts, and what was held comes when it is sent again":
        "s vanishes; c sends x; 10 passes; s reads; net heals; 10 passes; s reads x",
    "a slow host is slow both ways":
        "c slows; c sends x; s sends y; 0.05 passes; s reads; c reads; 30 passes; s reads x;"
        " c reads y",
    "the kernel of a killed process sends what it has and closes":
        "s misses c 1; c sends words; c dies; 5 passes; s reads words eof",
    "a machine without power says nothing, and a new one knows no connection":
        "s dies power; c sends hello?; 30 passes; c reads; s boots; 60 passes; c reads reset",
}  # fmt: skip


@pytest.mark.parametrize("story", HURT)
def test_disturbed_connection_behaves_like_a_kernel_connection(wire: Wire, story: str) -> None:
    wire.tell(HURT[story])


def test_sent_data_may_arrive_in_split_segments(wire: Wire) -> None:
    wire.net.split, wire.net.mean_s = 0.9, 1.0
    wire.sends("c", "x" * 1000)
    while not (found := read(wire.ends["s"])):
        wire.run(0.01)
    assert 0 < len(found[0]) < 1000


def test_full_window_reopens_on_read_or_times_out(wire: Wire) -> None:
    ours, much = wire.ends["c"], bytes(2 * wire.net.window_bytes)
    assert send(ours, much) == wire.net.window_bytes
    assert ours.ready() == 0
    wire.run()
    _ = read(wire.ends["s"])
    wire.run()
    assert ours.ready() == EVENT_WRITE
    _ = send(ours, much)
    wire.tell("c lasts 3; 5 passes; c fails timeout")
    assert ours.ready() == EVENT_READ | EVENT_WRITE


def asked(wire: Wire, host: str, seconds: float) -> int | None:
    """Return the outcome of a connect: None while there is none, 0 if it stands."""
    sock = dial(wire.net, wire.client, host)
    wire.run(seconds)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if sock.connected else None


def test_connection_is_accepted_refused_or_timed_out(wire: Wire) -> None:
    assert asked(wire, "s", 1) == 0
    assert asked(wire, "nobody", 1) == errno.ECONNREFUSED
    wire.net.lose("s", 2)
    assert asked(wire, "s", 2.5) is None
    wire.net.lose("s", 2)
    assert asked(wire, "s", 3.5) == 0  # tried again after 1 and 3 s
    wire.net.lose("s", inf)
    assert asked(wire, "s", 200) == errno.ETIMEDOUT


def test_killed_process_frees_listener_for_successor(wire: Wire) -> None:
    with pytest.raises(OSError, match="in use"):
        wire.net.listening(wire.client, "s", 9092)
    wire.server.kill()
    assert asked(wire, "s", 1) == errno.ECONNREFUSED
    wire.net.listening(Process(wire.net, "s"), "s", 9092)
    assert asked(wire, "s", 1) == 0


def test_listener_is_reached_by_alias_and_reports_alias(wire: Wire) -> None:
    wire.net.alias(("t", 9092), ("s", 9092))
    assert asked(wire, "t", 1) == 0
    accepted, at = wire.listener.accept()
    assert accepted.getsockname() == ("t", 9092)
    assert accepted.getpeername() == at
    assert at[0] == "c"
    wire.net.lose("t", 5)
    assert not wire.net.open("d", "t")
    assert wire.net.open("d", "s")


def test_abandoned_connection_is_closed(wire: Wire) -> None:
    wire.net.slow["c"] = 100.0
    sock = dial(wire.net, wire.client)
    while not wire.listener.ready():
        wire.run(0.0001)
    sock.close()
    wire.run(5)
    assert read(wire.listener.accept()[0]) == ["eof"]


# -- under asyncio's transports


def echo(net: Network, heard: list[bytes]) -> Process:
    """Run an echo server."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            heard.append(data)
            writer.write(data)
            await writer.drain()
        writer.close()

    async def main() -> None:
        await asyncio.start_server(talk, "s", 9092)
        await for_ever()

    process = Process(net, "s")
    process.start(main)
    return process


@pytest.mark.parametrize("much", [10, 3 << 20])
def test_asyncio_streams_work_over_simulated_network(net: Network, run: Run, much: int) -> None:
    """More bytes than fit on the way: the writer drains as the reader reads."""

    async def main() -> bytes:
        await asyncio.sleep(1)
        reader, writer = await asyncio.open_connection("s", 9092)
        writer.write(bytes(much))
        found = await reader.readexactly(much)
        writer.close()
        await writer.wait_closed()
        return found

    _ = echo(net, [])
    assert run(main, limit_s=2.0) == bytes(much)
    net.scheduler.run_until(net.scheduler.now + 1)
    assert len(net.sockets) == 1  # who listens


def test_data_sent_to_frozen_process_is_read_on_wake(net: Network) -> None:
    heard: list[bytes] = []

    async def main() -> None:
        _, writer = await asyncio.open_connection("s", 9092)
        server.freeze(3)
        for _ in range(10):
            writer.write(b"x")
            await asyncio.sleep(0.1)
        await for_ever()

    server = echo(net, heard)
    net.scheduler.at(0.1, Process(net, "c").start, main)
    net.scheduler.run_until(3)
    assert heard == []
    net.scheduler.run_until(4)
    assert heard == [b"x" * 10]
