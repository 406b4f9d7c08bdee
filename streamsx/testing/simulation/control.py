"""The control thread of a simulated process: a `Member`, its timers, its lanes to the broker.

It performs effects and feeds events, and decides nothing: what `membership/session.py` does with
sockets, on the heap of a world, with the same requests, frames and answers. What faces the worker
goes to its `Seat`.

Not here: user data and plans, which the seat makes; the data loop.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from streamsx.errors import WorldError
from streamsx.kafka import wire
from streamsx.kafka.connection import NEWEST
from streamsx.kafka.wire import Api
from streamsx.membership import events as e
from streamsx.membership import requests
from streamsx.membership.member import Member
from streamsx.model import TopicPartition
from streamsx.testing.simulation.heap import Alarm, Call, Heap, Life
from streamsx.testing.simulation.network import Connection, Network, Path
from streamsx.testing.simulation.node import GROUP, Frame

PLAN_S, FIND_S, UNREACHABLE_S, RETRY_S, OFFSETS_S = 0.02, 0.005, 1.0, 0.1, 5.0
NODE, PROTOCOL = 1, "streamsx"


@dataclass(slots=True, eq=False)
class Ask:
    """`answer` gets the answer; `lost`, if any, hears that there will be none."""

    request: object
    timeout_s: float
    answer: Callable[[Any], object]
    lost: Call | None = None


class Lane:
    """A queue in front of a connection, which is opened when it is needed."""

    def __init__(self, heap: Heap, network: Network, path: Path, lost: Call | None = None) -> None:
        self._heap, self._network, self._path, self._lost = heap, network, path, lost
        self._connection: Connection | None = None
        self._queue: deque[Ask] = deque()
        self._flying: Ask | None = None
        self._number = 0
        self._late = Alarm(heap, path.life, "late", path.lane, self._broken)

    def put(self, ask: Ask) -> None:
        self._queue.append(ask)
        self._next()

    def close(self) -> None:
        if self._connection is not None and self._connection.open:
            self._network.abort(self._connection)
        self._connection = None
        given_up = [*([self._flying] if self._flying else []), *self._queue]
        self._flying, self._number = None, self._number + 1
        self._late.clear()
        self._queue.clear()
        for ask in given_up:
            if ask.lost is not None:
                ask.lost()

    def _next(self) -> None:
        if self._flying is not None or not self._queue:
            return
        self._flying, self._number = self._queue.popleft(), self._number + 1
        if self._connection is None:
            self._connection = self._network.connect(self._path, self._broken, self._answered)
        self._network.ask(self._connection, self._number, self._flying.request)
        self._late.set(self._heap.now + self._flying.timeout_s)

    def _answered(self, number: int, answer: object) -> None:
        ask = self._flying
        if ask is not None and number == self._number:
            self._flying = None
            self._late.clear()
            ask.answer(answer)
            self._next()

    def _broken(self) -> None:
        self.close()
        if self._lost is not None:
            self._lost()


class Seat(Protocol):
    """What stands behind a member: a worker, or a tool."""

    def subscription(self, join: e.JoinGroup) -> bytes: ...
    def plan(self, assign: e.Assign) -> e.Planned: ...
    def read(self, assignment: bytes) -> e.Synced: ...
    def hear(self, effect: e.Effect) -> None: ...


class Control:
    """`member` may be read at any time."""

    def __init__(
        self, heap: Heap, network: Network, life: Life, member: Member, seat: Seat
    ) -> None:
        self.heap, self.network, self.life, self.member = heap, network, life, member
        self._seat = seat
        self._lanes = {lane: self._lane(lane) for lane in e.Lane}
        self._offsets = Lane(heap, network, Path(life, "offsets"))
        self._alarms = {timer: self._alarm(timer) for timer in e.Timer}
        self._metadata: tuple[int, bytes] = (0, b"")

    def _lane(self, lane: e.Lane) -> Lane:
        lost = partial(self.feed, e.Disconnected(lane))
        return Lane(self.heap, self.network, Path(self.life, lane.value), lost)

    def _alarm(self, timer: e.Timer) -> Alarm:
        tick = partial(self.feed, e.Tick(timer))
        return Alarm(self.heap, self.life, "tick", timer.value, tick)

    def feed(self, event: e.Event) -> None:
        for effect in self.member.step(self.heap.now, event):
            self._perform(effect)

    def fetch_offsets(
        self, tps: Iterable[TopicPartition], told: Callable[[Mapping[TopicPartition, int]], None]
    ) -> None:
        """Committed offsets, -1 for none; asked for until they come."""

        def answered(reply: Any) -> None:
            try:
                found = requests.offsets_found(reply)
            except WorldError:
                again()
            else:
                told({tp: offset for tp, (offset, _) in found.items()})

        def again() -> None:
            self.heap.after(RETRY_S, self.life, "offsets again", wanted, ask)

        def ask() -> None:
            body = requests.offsets_wanted(GROUP, wanted)
            self._put(self._offsets, Api.OFFSET_FETCH, body, OFFSETS_S, answered, again)

        wanted = tuple(tps)
        ask()

    def remove(self, member_id: str) -> None:
        """Out of the group, if it is still in it; one try."""
        body = requests.leave(GROUP, member_id)
        self._put(self._offsets, Api.LEAVE_GROUP, body, OFFSETS_S, lambda _: None)

    def _perform(self, effect: e.Effect) -> None:
        match effect:
            case e.Send():
                self._send(effect)
            case e.Close(lane):
                self._lanes[lane].close()
            case e.Arm(timer, at):
                self._alarms[timer].set(at)
            case e.Disarm(timer):
                self._alarms[timer].clear()
            case e.Find():
                near = self.network.reaches(self.life)
                found, wait = e.Found(NODE if near else None), FIND_S if near else UNREACHABLE_S
                self.heap.after(wait, self.life, "found", found.node, partial(self.feed, found))
            case e.Assign():
                self.heap.after(
                    PLAN_S, self.life, "plan", None, lambda: self.feed(self._seat.plan(effect))
                )
            case e.Evict(member_id):
                self.heap.note(self.life, "evict", member_id)
                self.remove(member_id)
            case e.Count(metric):
                self.heap.note(self.life, metric)
            case _:
                self.heap.note(self.life, "says", effect)
                self._seat.hear(effect)

    def _send(self, send: e.Send) -> None:
        if isinstance(send.body, e.JoinGroup):
            api = Api.JOIN_GROUP
            if self._metadata[0] != send.body.nonce:
                self._metadata = send.body.nonce, self._seat.subscription(send.body)
            metadata = self._metadata[1]
            body = requests.join(GROUP, self.member.config, PROTOCOL, send.body, metadata)
        else:
            api, body = requests.request(GROUP, PROTOCOL, send.body)
        told = lambda reply: self.feed(self._answer(send, reply))  # noqa: E731
        self._put(self._lanes[send.lane], api, body, send.timeout_s, told)

    def _put(
        self,
        lane: Lane,
        api: Api,
        body: dict[str, Any],
        timeout_s: float,
        told: Callable[[Any], object],
        lost: Call | None = None,
    ) -> None:
        def answered(frame: Frame) -> None:
            told(frame.read())

        version = NEWEST[api]
        data = bytes(wire.request_encoder(api, version)(0, None, body))
        lane.put(Ask(Frame(api, version, data), timeout_s, answered, lost))

    def _answer(self, send: e.Send, reply: Any) -> e.Reply:
        match send.body:
            case e.JoinGroup():
                return requests.joined(send.request, reply)
            case e.SyncGroup() if not reply.error_code:
                return e.Reply(send.request, 0, self._seat.read(bytes(reply.assignment)))
            case e.OffsetCommit():
                return requests.committed(send.request, reply)
            case _:
                return e.Reply(send.request, reply.error_code)
