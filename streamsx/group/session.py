"""Driver of a group member: a coroutine with its own connections to the coordinator.

The driver performs effects and feeds events, and decides nothing. A worker runs the driver in a
thread of its own. User code may block the data loop for seconds, and heartbeats, commits and plans
go on. A tool runs the driver on the tool's own event loop.

A request that may wait for minutes shares no connection with the requests of a hand-over: JoinGroup
and SyncGroup have one connection, heartbeats and commits another.

Not here: tasks and stores (the data loop), the content of a subscription or plan
(`subscription_builder`), the layout of requests (`requests`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from streamsx.client.cluster import Cluster
from streamsx.client.connection import Connection
from streamsx.client.transactional_id import VERSIONS
from streamsx.clock import Clock
from streamsx.errors import DataError, WorldError
from streamsx.group import member_events as e
from streamsx.group import requests
from streamsx.group.coordinator_connection import CoordinatorConnection
from streamsx.group.leader import Leader
from streamsx.group.member import Member, MemberConfig
from streamsx.group.outage import Outage
from streamsx.group.rebalance_metrics import RebalanceMetrics
from streamsx.group.subscription_builder import SubscriptionBuilder
from streamsx.metrics import MetricRegistry
from streamsx.protocol import wire
from streamsx.protocol.error_codes import ErrorCode, name_of
from streamsx.protocol.wire import Api

LOG = logging.getLogger("streamsx")


class _Over(Exception):
    """Signal that ends the session; all requests in flight are abandoned."""


class Session:
    """Membership of one process in a group.

    `deliver` is called on the session's event loop. `keep` receives each member id before the first
    request with that id, and None once no successor must end that membership.
    """

    def __init__(
        self,
        clock: Clock,
        config: MemberConfig,
        group: str,
        builder: SubscriptionBuilder,
        deliver: Callable[[e.ControlMessage], None],
        outage: Outage,
        registry: MetricRegistry,
        keep: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._config = config
        self._group = group
        self.builder = builder
        self._deliver = deliver
        self._keep = keep
        self._outage = outage
        self.member = Member(config)
        self.metrics = RebalanceMetrics(registry, clock.now())
        self._timers: dict[e.Timer, asyncio.TimerHandle] = {}
        self._posted: deque[e.Event] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.losses = 0
        """Number of `Lost` messages so far; any thread may read this number."""
        self.failed = ""
        """Reason of the newest failed round."""

    def post(self, event: e.Event) -> None:
        """Feed an event from any thread.

        Events wait for the start of the session, and are dropped after its end.
        """
        self._posted.append(event)
        if self._loop is not None:  # else `run` reads the queue right after setting the loop
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._feed_posted)

    def _feed_posted(self) -> None:
        while self._posted:
            event = self._posted.popleft()
            if not self._over.is_set():
                self._feed(event)

    async def run(self, cluster: Cluster, predecessor: str | None = None) -> None:
        """Run until the member has left the group or must not be a member any more.

        `predecessor`: member id of a dead process that used the same state directory.

        Raises:
            WorldError: the outage has lasted for the limit of `outage`.
        """
        self._cluster = cluster
        self._over = asyncio.Event()
        self._lanes = {which: self._lane(which) for which in e.ConnectionName}
        self._leading = Leader(cluster, self._clock, self.builder, self._feed)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for which, lane in self._lanes.items():
                    self._begin(lane.run(), f"lane {which.value}")
                self._begin(self._leading.watch(), "watch topics")
                self._feed(e.Start(predecessor))
                self._loop = asyncio.get_running_loop()
                self._feed_posted()
                await self._over.wait()
                raise _Over
        except* _Over:
            pass
        finally:
            self._over.set()
            for timer in self._timers.values():
                timer.cancel()

    def _begin(self, job: Coroutine[Any, Any, None], name: str) -> None:
        """Run a job that ends by itself or is cancelled with the session."""
        _ = self._tasks.create_task(job, name=name)

    def _lane(self, which: e.ConnectionName) -> CoordinatorConnection:
        return CoordinatorConnection(
            self._cluster, which.value, lambda: self._feed(e.Disconnected(which))
        )

    def _feed(self, event: e.Event) -> None:
        now = self._clock.now()
        effects = self.member.step(now, event)
        self.metrics.observe(now, event, effects)
        for effect in effects:
            self._perform(effect)
        lease = self.member.lease
        self._outage.leased(now, lease.until, lease.limit)

    # -- effects

    def _perform(self, effect: e.Effect) -> None:
        match effect:
            case e.SendRequest():
                self._send(effect)
            case e.Arm(timer, at):
                self._wind(timer, at)
            case e.Find():
                self._begin(self._find(), "find coordinator")
            case e.Close(lane):
                self._lanes[lane].close()
            case e.Assign():
                self._begin(self._leading.plan(effect), "assign")
            case e.Remember(member_id):
                self._keep(member_id)
            case e.Count(metric, why):
                self.failed = why or self.failed
                LOG.debug("%s", f"count {metric}: {why}".rstrip(": "))
            case _:
                self._deliver_message(effect)

    def _deliver_message(self, message: e.ControlMessage) -> None:
        if isinstance(message, e.Left | e.Fatal):
            self._over.set()
        self.losses += isinstance(message, e.Lost)
        self._deliver(message)

    def _wind(self, timer: e.Timer, at: float | None) -> None:
        if (handle := self._timers.pop(timer, None)) is not None:
            handle.cancel()
        if at is not None:
            self._timers[timer] = asyncio.get_running_loop().call_at(at, self._tick, timer)

    def _tick(self, timer: e.Timer) -> None:
        self._timers.pop(timer, None)
        self._feed(e.Tick(timer))

    async def _find(self) -> None:
        try:
            node: int | None = await self._cluster.coordinator(self._group)
            self._outage.found(self._clock.now())
        except WorldError as error:
            self._outage.failed(self._clock.now(), error)
            node = None
        self._feed(e.Found(node))

    # -- requests

    def _send(self, send: e.SendRequest) -> None:
        body = send.body
        subscription = b""
        if isinstance(body, e.JoinGroup):
            subscription = self.builder.subscription(
                body, self._zero(), self.metrics.values(self._clock.now())
            )
        protocol = self.builder.assignor.name
        api, fields = requests.request(self._group, self._config, protocol, send, subscription)

        versions = None
        if isinstance(body, e.TxnOffsetCommit):
            versions = VERSIONS[api, body.transaction.version]

        async def ask(connection: Connection) -> None:
            compile_codecs(connection)
            reply = await connection.ask(api, fields, send.timeout_s, versions)
            self._feed(self._answer(send, reply))

        self._lanes[send.lane].put(send.node, ask)

    def _answer(self, send: e.SendRequest, reply: Any) -> e.Reply:
        """Return the member's view of a reply."""
        match send.body:
            case e.JoinGroup():
                return requests.joined(send.request, reply)
            case e.SyncGroup() if not reply.error_code:
                return self._given(send.request, bytes(reply.assignment))
            case e.OffsetCommit() | e.TxnOffsetCommit():
                return requests.committed(send.request, reply)
            case e.LeaveGroup(member_ids, why):
                left = requests.left(send.request, reply)
                end = f"not out of the group: {name_of(left.error)}" if left.error else why
                LOG.info("leave of %s: %s", ", ".join(member_ids), end)
                return left
            case _:
                return e.Reply(send.request, reply.error_code)

    def _given(self, request: int, data: bytes) -> e.Reply:
        try:
            synced = self.builder.given(data, self._zero())
        except DataError as error:
            LOG.warning("the leader's plan cannot be read: %s: joining again", error)
            return e.Reply(request, ErrorCode.CORRUPT_MESSAGE)
        if synced.view.problem:
            LOG.info("assignment: %s", synced.view.problem)
        return e.Reply(request, 0, synced)

    def _zero(self) -> float:
        return self._clock.wall() - self._clock.now()


def compile_codecs(connection: Connection) -> None:
    """Compile the codecs of SyncGroup and LeaveGroup ahead of their first use, which takes 5 ms.

    The race: the members are answered; the marked member joins again; the tool's SyncGroup comes
    too late. The answer is REBALANCE_IN_PROGRESS, and one more round follows.
    """
    for api in (Api.SYNC_GROUP, Api.LEAVE_GROUP):
        version = connection.version(api)
        wire.request_encoder(api, version)
        wire.response_decoder(api, version)
