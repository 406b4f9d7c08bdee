"""The tool that marks an instance, in a world: an observer that joins, is answered and leaves."""

from collections.abc import Mapping
from functools import partial

from streamsx.assignor.model import Mark
from streamsx.assignor.observer import lead, observer_data
from streamsx.kafka.consumer_protocol import Subscription
from streamsx.membership import events as e
from streamsx.membership.member import Member
from streamsx.testing.simulation.control import Control
from streamsx.testing.simulation.heap import Heap, Life
from streamsx.testing.simulation.network import Network

GIVES_UP_S = 5.0


class Tool:
    """One visit."""

    def __init__(
        self, heap: Heap, network: Network, name: str, member: Member, marks: Mapping[str, Mark]
    ) -> None:
        self.heap, self.network, self.marks = heap, network, marks
        self.life = Life(name)
        self.control = Control(heap, network, self.life, member, self)

    def start(self) -> None:
        self.control.feed(e.Start())

    def kill(self) -> None:
        self.life.over = True
        self.network.end(self.life)

    def subscription(self, join: e.JoinGroup) -> bytes:
        return Subscription((), observer_data(self.marks, nonce=join.nonce)).write()

    def plan(self, assign: e.Assign) -> e.Planned:
        metadata = [(m.member_id, m.metadata) for m in assign.members]
        assignments = lead(metadata, now_ms=int(self.heap.now * 1000))
        return e.Planned(assign.request, tuple(sorted(assignments.items())))

    def read(self, assignment: bytes) -> e.Synced:
        return e.Synced(frozenset(), assignment)

    def hear(self, effect: e.Effect) -> None:
        match effect:
            case e.OnAssignment():
                leave = e.Stop(self.heap.now + GIVES_UP_S)
                self.heap.after(0.0, self.life, "leaves", None, partial(self.control.feed, leave))
            case e.Left() | e.Fatal():
                self.kill()
