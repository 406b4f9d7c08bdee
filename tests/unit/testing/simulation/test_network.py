"""testing/network.py: packets come in order, cuts hold them up, aborts lose them."""

import pytest

from streamsx.testing.simulation.heap import Heap, Life
from streamsx.testing.simulation.network import Connection, Network, Path


class Broker:
    def __init__(self) -> None:
        self.life, self.heard = Life("broker"), list[object]()

    def arrive(self, connection: Connection, number: int, request: object) -> None:
        self.heard.append(request)

    def gone(self, connection: Connection) -> None:
        connection.served = False
        self.heard.append("gone")


class Pair:
    """A client with one lane and a broker that only listens."""

    def __init__(self) -> None:
        self.heap, self.broker, self.told = Heap(), Broker(), list[object]()
        self.network = Network(self.heap, 1, 0.1)
        self.network.server = self.broker
        self.path = Path(Life("m"), "beat")

    def connect(self) -> Connection:
        return self.network.connect(
            self.path, lambda: self.told.append("lost"), lambda _, what: self.told.append(what)
        )

    def run(self, until: float) -> None:
        while self.heap.step(until):
            pass


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_packets_arrive_in_order_also_over_two_connections(pair: Pair) -> None:
    first = pair.connect()
    for number in range(20):
        pair.network.ask(first, number, number)
    pair.network.abort(first)
    pair.network.ask(pair.connect(), 20, 20)
    pair.run(60.0)
    assert pair.broker.heard == [*range(20), "gone", 20]


def test_what_is_sent_into_a_cut_arrives_when_it_ends(pair: Pair) -> None:
    pair.network.cut(pair.path.life).up_until = 10.0
    pair.network.ask(pair.connect(), 1, "late")
    pair.run(9.9)
    assert pair.broker.heard == []
    pair.run(20.0)
    assert pair.broker.heard == ["late"]


def test_nobody_sends_again_what_an_aborted_connection_has_lost_in_a_cut(pair: Pair) -> None:
    pair.network.cut(pair.path.life).up_until = 10.0
    connection = pair.connect()
    pair.network.ask(connection, 1, "lost")
    pair.network.abort(connection)
    pair.run(60.0)
    assert pair.broker.heard == []


def test_the_kernel_of_a_dead_process_says_the_rest(pair: Pair) -> None:
    pair.network.cut(pair.path.life).up_until = 10.0
    pair.network.ask(pair.connect(), 1, "last words")
    pair.network.end(pair.path.life)
    pair.path.life.over = True
    pair.run(60.0)
    assert pair.broker.heard == ["last words", "gone"]


def test_an_answer_to_a_connection_that_was_given_up_is_heard_by_nobody(pair: Pair) -> None:
    connection = pair.connect()
    pair.network.reply(connection, 1, "answer")
    pair.network.abort(connection)
    pair.run(60.0)
    assert pair.told == []


def test_a_broker_that_dies_cuts_everybody_off_once(pair: Pair) -> None:
    pair.connect()
    pair.broker.life.over = True
    pair.network.server_died()
    pair.connect()
    pair.run(60.0)
    assert pair.told == ["lost", "lost"]
