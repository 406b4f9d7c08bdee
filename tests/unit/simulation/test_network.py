"""The network as TCP has it: what arrives, in which order, what is dropped when, who finds out."""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import Any

import pytest

from streamsx.simulation.connection import Side
from streamsx.simulation.network import Net
from streamsx.simulation.process import Process
from streamsx.simulation.scheduler import Scheduler

REAL_S = 0.05


class End(asyncio.Protocol):
    """Writes down what it is told."""

    def __init__(self, told: Callable[[], float]) -> None:
        self._told = told
        self.data = b""
        self.said: list[tuple[str, float]] = []
        self.side: Side

    def words(self) -> list[str]:
        return [word for word, _ in self.said]

    def at(self, word: str) -> float:
        return dict(self.said)[word]

    def _say(self, word: str) -> None:
        self.said.append((word, self._told()))

    def connection_made(self, transport: Any) -> None:
        self.side = transport
        self._say("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self._say("data")

    def eof_received(self) -> bool:
        self._say("eof")
        return False

    def pause_writing(self) -> None:
        self._say("pause")

    def resume_writing(self) -> None:
        self._say("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self._say(type(exc).__name__ if exc else "lost")


class Wire:
    """A connection from host `c` to host `s`, as soon as it stands."""

    def __init__(self, net: Net) -> None:
        self.net, self.scheduler = net, net.scheduler
        self.much = 2 * net.window_bytes
        """More than there is room for on the way."""
        self.server, self.client = Process(net, "s"), Process(net, "c")
        self.ends: list[End] = []
        self.server.start(self._serve)
        self.run(0.1)
        self.client.start(self._connect)
        self.run(0.5)
        self.theirs, self.ours = self.ends

    def end(self) -> End:
        self.ends.append(End(lambda: self.scheduler.now))
        return self.ends[-1]

    async def _serve(self) -> None:
        await asyncio.get_running_loop().create_server(self.end, "s", 9092)
        await asyncio.get_running_loop().create_future()

    async def _connect(self) -> None:
        await asyncio.get_running_loop().create_connection(self.end, "s", 9092)
        await asyncio.get_running_loop().create_future()

    def run(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now + seconds)

    def do(self, end: End, *what: Callable[[Side], object]) -> None:
        """In a turn of its thread."""
        for each in what:
            end.side.loop.post_at(self.scheduler.now, each, end.side)

    def write(self, end: End, data: bytes) -> None:
        self.do(end, lambda side: side.write(data))

    def user_timeout(self, end: End, seconds: float) -> None:
        sock = end.side.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


class RealWire(Wire):
    """The machine's own TCP, over loopback: what it does is what a simulated one has to do."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.ends, self.much = [], 1 << 20
        self.loop.run_until_complete(self._both())
        self.run(1)
        self.ours, self.theirs = self.ends

    def end(self) -> End:
        self.ends.append(End(self.loop.time))
        return self.ends[-1]

    async def _both(self) -> None:
        listener, client = small(), small()
        listener.bind(("127.0.0.1", 0))
        self.listener = await self.loop.create_server(self.end, sock=listener)
        await self.loop.sock_connect(client, listener.getsockname())
        await self.loop.create_connection(self.end, sock=client)

    def run(self, seconds: float) -> None:
        """Until nothing has happened for a moment."""
        before = -1
        while before != (before := sum(len(end.said) for end in self.ends)):
            self.loop.run_until_complete(asyncio.sleep(min(seconds, REAL_S)))

    def do(self, end: End, *what: Callable[[Side], object]) -> None:
        for each in what:
            self.loop.call_soon(each, end.side)

    def close(self) -> None:
        self.listener.close()
        for end in self.ends:
            if not end.side.is_closing():
                end.side.abort()
        self.run(1)
        self.loop.close()


def small() -> socket.socket:
    """One with little room."""
    made = socket.socket()
    made.setblocking(False)
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        made.setsockopt(socket.SOL_SOCKET, buffer, 1 << 15)
    return made


def linger_not(side: Side) -> None:
    sock = side.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


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
    real.close()


pause, resume = methodcaller("pause_reading"), methodcaller("resume_reading")
close, abort = methodcaller("close"), methodcaller("abort")


# -- data


def test_each_side_knows_both_addresses(wire: Wire) -> None:
    assert wire.ours.side.get_extra_info("peername") == ("s", 9092)
    assert wire.theirs.side.get_extra_info("sockname") == ("s", 9092)
    host, port = wire.ours.side.get_extra_info("sockname")
    assert wire.theirs.side.get_extra_info("peername") == (host, port) == ("c", port)


def test_what_is_written_arrives_in_order(either: Wire) -> None:
    sent = b"".join(b"%06d" % number for number in range(2000))
    for at in range(0, len(sent), 600):
        either.write(either.ours, sent[at : at + 600])
    either.write(either.theirs, b"the other way")
    either.run(1)
    assert either.theirs.data == sent
    assert either.ours.data == b"the other way"


def test_what_arrives_while_a_process_is_frozen_is_read_when_it_wakes(wire: Wire) -> None:
    wire.server.freeze(5)
    for _ in range(10):
        wire.write(wire.ours, b"x")
    wire.run(4)
    assert wire.theirs.data == b""
    wire.run(2)
    assert wire.theirs.data == b"x" * 10
    assert wire.theirs.words().count("data") == 1  # one read takes what is there


def test_data_that_come_with_the_connection_wait_for_connection_made(net: Net) -> None:
    net.mean_s = 1e-6  # they are there before the server has had a turn
    wire = Wire(net)
    wire.server.freeze(3)
    second = wire.end()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        side, _ = await loop.create_connection(lambda: second, "s", 9092)
        side.write(b"early")
        side.close()

    Process(net, "d").start(main)
    wire.run(1)
    assert len(wire.ends) == 3  # nobody has accepted
    wire.run(5)
    assert wire.ends[3].words() == ["made", "data", "eof", "lost"]
    assert wire.ends[3].data == b"early"


def test_a_buffered_protocol_is_given_as_much_as_fits_its_buffer(either: Wire) -> None:
    class Buffered(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer, self.sizes = bytearray(4), list[int]()

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.sizes.append(nbytes)

    protocol = Buffered()
    either.theirs.side.set_protocol(protocol)
    either.write(either.ours, b"123456789")
    either.run(1)
    assert protocol.sizes == [4, 4, 1]


def test_pieces_split_what_was_written_anywhere(wire: Wire) -> None:
    wire.net.split = 0.9
    wire.write(wire.ours, bytes(1000))
    wire.run(1)
    assert wire.theirs.words().count("data") > 3


# -- back-pressure


def test_a_writer_is_paused_while_nobody_reads_and_resumed_after_that(either: Wire) -> None:
    either.do(either.theirs, pause)
    either.run(0.1)
    sent = bytes(range(256)) * (either.much // 256)
    for at in range(0, len(sent), 1 << 14):
        either.write(either.ours, sent[at : at + (1 << 14)])
    either.run(10)
    assert either.theirs.data == b""
    assert either.ours.words() == ["made", "pause"]
    assert 0 < either.ours.side.get_write_buffer_size() < len(sent)

    either.do(either.theirs, resume)
    either.run(1)
    assert either.theirs.data == sent
    assert either.ours.words() == ["made", "pause", "resume"]
    assert either.ours.side.get_write_buffer_size() == 0


def test_a_side_that_closes_with_a_full_buffer_delivers_it_first(either: Wire) -> None:
    either.do(either.theirs, pause)
    either.run(0.1)
    sent = b"x" * either.much
    either.write(either.ours, sent)
    either.do(either.ours, close)
    either.run(1)
    assert "lost" not in either.ours.words()
    either.do(either.theirs, resume)
    either.run(1)
    assert either.theirs.data == sent
    assert either.theirs.words()[-2:] == ["eof", "lost"]
    assert either.ours.words()[-1] == "lost"


def test_a_window_that_stays_full_ends_in_a_time_out(wire: Wire) -> None:
    wire.user_timeout(wire.ours, 3)
    wire.do(wire.theirs, pause)
    wire.run(0.1)
    wire.write(wire.ours, b"x" * 2 * wire.net.window_bytes)
    wire.run(5)
    assert wire.ours.words() == ["made", "pause", "TimeoutError"]


# -- ends


def test_close_delivers_what_was_written_then_eof(either: Wire) -> None:
    either.write(either.ours, b"last words")
    either.do(either.ours, close)
    either.run(1)
    assert either.theirs.data == b"last words"
    assert either.theirs.words()[-2:] == ["eof", "lost"]
    assert either.ours.words() == ["made", "lost"]


def test_abort_resets_and_what_had_arrived_is_read_first(either: Wire) -> None:
    either.write(either.ours, b"last words")
    either.run(0.5)
    either.do(either.ours, linger_not, abort)
    either.run(1)
    assert either.theirs.data == b"last words"
    assert either.theirs.words()[-1] == "ConnectionResetError"
    assert either.ours.words() == ["made", "lost"]


def test_who_writes_to_a_closed_connection_is_reset(either: Wire) -> None:
    """The other side has answered nothing yet: its data meet a socket that is gone."""
    either.do(either.ours, close)
    either.run(0.0001)
    either.write(either.theirs, b"an answer")
    either.run(1)
    assert either.theirs.words()[-1] in ("ConnectionResetError", "lost")
    assert either.ours.data == b""


def test_a_close_over_unread_data_is_a_reset(either: Wire) -> None:
    either.do(either.theirs, pause)
    either.write(either.ours, b"never read")
    either.run(1)
    either.do(either.theirs, close)
    either.run(1)
    assert either.ours.words() == ["made", "ConnectionResetError"]


def test_a_reset_is_not_noticed_by_who_does_not_read_until_it_writes(either: Wire) -> None:
    either.do(either.theirs, pause)
    either.run(0.1)
    either.do(either.ours, linger_not, abort)
    either.run(10)
    assert either.theirs.words() == ["made"]
    either.write(either.theirs, b"hello?")
    either.run(1)
    assert either.theirs.words() == ["made", "ConnectionResetError"]


def test_something_in_between_resets_both(wire: Wire) -> None:
    wire.net.reset(wire.ours.side)
    wire.run(1)
    assert wire.ours.words() == wire.theirs.words() == ["made", "ConnectionResetError"]


# -- cuts


def test_a_cut_holds_what_is_sent_and_it_is_sent_again_later_and_later(wire: Wire) -> None:
    wire.net.cut("c", "s", 2)
    wire.write(wire.ours, b"one")
    wire.run(1)
    wire.write(wire.ours, b"two")
    wire.write(wire.theirs, b"not cut this way")
    wire.run(0.5)
    assert wire.theirs.data == b""
    assert wire.ours.data == b"not cut this way"
    wire.run(3)
    assert wire.theirs.data == b"onetwo"
    # Sent again after 0.2, 0.6, 1.4 and 3.0 s: the cut was over by the last one.
    assert 3.4 < wire.theirs.at("data") < 3.7


def test_what_a_cut_holds_is_dropped_after_the_user_timeout_and_only_one_side_knows(
    wire: Wire,
) -> None:
    wire.user_timeout(wire.ours, 3)
    wire.net.cut("c", "s", 10)
    wire.write(wire.ours, b"a commit")
    wire.run(5)
    assert wire.ours.words() == ["made", "TimeoutError"]
    assert wire.ours.at("TimeoutError") == pytest.approx(3.6, abs=0.1)
    wire.run(20)
    assert wire.theirs.words() == ["made"]  # half open
    assert wire.theirs.data == b""
    wire.write(wire.theirs, b"are you there?")
    wire.run(1)
    assert wire.theirs.words() == ["made", "ConnectionResetError"]


def test_an_acknowledgement_that_is_cut_off_drops_what_has_arrived(wire: Wire) -> None:
    """The request is carried out; the answer, and that it arrived, never come."""
    wire.user_timeout(wire.ours, 3)
    wire.net.cut("s", "c", 60)
    wire.write(wire.ours, b"a commit")
    wire.run(5)
    assert wire.theirs.data == b"a commit"
    assert wire.ours.words() == ["made", "TimeoutError"]


def test_an_idle_connection_survives_a_cut(wire: Wire) -> None:
    wire.user_timeout(wire.ours, 3)
    wire.net.cut("c", "s", 60)
    wire.net.cut("s", "c", 60)
    wire.run(61)
    wire.write(wire.ours, b"still here")
    wire.run(1)
    assert wire.theirs.data == b"still here"


def test_a_reset_into_a_cut_is_lost_with_what_it_dropped(wire: Wire) -> None:
    wire.net.cut("c", "s", 5)
    wire.write(wire.ours, b"a commit")
    wire.run(1)
    wire.do(wire.ours, linger_not, abort)
    wire.run(60)
    assert wire.theirs.words() == ["made"]
    assert wire.theirs.data == b""


def test_a_usual_close_into_a_cut_is_delivered_by_the_kernel_after_it(wire: Wire) -> None:
    wire.net.cut("c", "s", 5)
    wire.write(wire.ours, b"a commit")
    wire.do(wire.ours, close)
    wire.run(1)
    assert wire.ours.words() == ["made", "lost"]
    wire.run(10)
    assert wire.theirs.words() == ["made", "data", "eof", "lost"]


def test_healing_ends_all_cuts_and_what_was_held_comes_when_it_is_sent_again(wire: Wire) -> None:
    wire.net.lose("s", float("inf"))
    wire.write(wire.ours, b"x")
    wire.run(10)
    assert wire.theirs.data == b""
    wire.net.heal()
    wire.run(10)
    assert wire.theirs.data == b"x"


# -- processes and machines


def test_the_kernel_of_a_killed_process_sends_what_it_has_and_closes(wire: Wire) -> None:
    wire.net.cut("c", "s", 1)
    wire.write(wire.ours, b"last words")
    wire.run(0.5)
    wire.client.kill()
    wire.run(5)
    assert wire.theirs.data == b"last words"
    assert wire.theirs.words()[-2:] == ["eof", "lost"]
    assert wire.ours.words() == ["made"]  # it hears of nothing any more


def test_a_machine_without_power_says_nothing_and_a_new_one_knows_no_connection(wire: Wire) -> None:
    wire.server.kill(power=True)
    wire.write(wire.ours, b"hello?")
    wire.run(30)
    assert wire.ours.words() == ["made"]
    Process(wire.net, "s")
    wire.run(60)
    assert wire.ours.words() == ["made", "ConnectionResetError"]


def dial(net: Net, name: str = "d", host: str = "s") -> tuple[list[object], Process]:
    """What comes of a connection that a new process asks for."""
    told: list[object] = []
    process = Process(net, name)

    async def main() -> None:
        try:
            side, _ = await asyncio.get_running_loop().create_connection(
                lambda: End(lambda: 0.0), host, 9092
            )
            told.append(side)
        except OSError as error:
            told.append(type(error))

    process.start(main)
    return told, process


def test_where_nobody_listens_a_connection_is_refused(scheduler: Scheduler, net: Net) -> None:
    told, _ = dial(net)
    scheduler.run_until(1)
    assert told == [ConnectionRefusedError]


def test_who_was_killed_listens_no_more_and_its_successor_may(wire: Wire) -> None:
    wire.server.kill()
    told, _ = dial(wire.net)
    wire.run(1)
    assert told == [ConnectionRefusedError]
    wire.server = Process(wire.net, "s")
    wire.server.start(wire._serve)
    told, _ = dial(wire.net)
    wire.run(1)
    assert isinstance(told[0], Side)


def test_an_address_that_is_taken_cannot_be_listened_at(wire: Wire) -> None:
    second = Process(wire.net, "s")
    thread = second.start(wire._serve)
    wire.run(1)
    assert isinstance(thread.error, OSError)


def test_a_host_that_is_away_answers_nothing_until_a_later_try(wire: Wire) -> None:
    wire.net.lose("s", 2)
    told, _ = dial(wire.net)
    wire.run(2.5)
    assert told == []
    wire.run(1)  # tried again after 1 and 3 s
    assert isinstance(told[0], Side)


def test_a_host_that_stays_away_is_given_up(wire: Wire) -> None:
    wire.net.lose("s", float("inf"))
    told, _ = dial(wire.net)
    wire.run(200)
    assert told == [TimeoutError]


def test_a_listener_is_reached_at_its_alias_and_knows_it(wire: Wire) -> None:
    wire.net.alias(("t", 9092), ("s", 9092))
    told, _ = dial(wire.net, host="t")
    wire.run(1)
    assert isinstance(told[0], Side)
    assert wire.ends[-1].side.get_extra_info("sockname") == ("t", 9092)
    wire.net.lose("t", 5)
    assert not wire.net.open("d", "t")
    assert wire.net.open("d", "s")


def test_a_connection_that_nobody_waits_for_any_more_is_closed(wire: Wire) -> None:
    wire.net.slow["d"] = 1.0
    _, process = dial(wire.net)
    wire.run(0.0001)
    assert process.main.task is not None
    process.main.loop.post_at(wire.scheduler.now, process.main.task.cancel)  # type: ignore[union-attr]
    wire.run(5)
    assert [end.words()[-1] for end in wire.ends[2:]] in ([], ["lost"])


def test_a_slow_host_is_slow_both_ways(wire: Wire) -> None:
    wire.net.slow["c"] = 1000.0
    before = wire.scheduler.now
    wire.write(wire.ours, b"x")
    wire.write(wire.theirs, b"y")
    wire.run(30)
    assert wire.theirs.at("data") - before > 0.05
    assert wire.ours.at("data") - before > 0.05
