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
from streamsx.group.round_wait import RoundWait
from streamsx.group.subscription_builder import SubscriptionBuilder
from streamsx.metrics import MetricRegistry
from streamsx.protocol import wire
from streamsx.protocol.error_codes import ErrorCode, name_of
from streamsx.protocol.wire import Api

LOG = logging.getLogger("streamsx")


def unheard(_event: str, **_fields: object) -> None:
    """Write no event; for tools, which have no journal."""


class _Over(Exception):
    """Signal that ends the session; all requests in flight are abandoned."""


class Session:
    """Membership of one process in a group.

    `deliver` is called on the session's event loop. `keep` receives each member id before the first
    request with that id, and None once no successor must end that membership. `journal` receives
    changes of the group's members, and rounds that take long.
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
        journal: Callable[..., object] = unheard,
    ) -> None:
        self._clock = clock
        self._config = config
        self._group = group
        self.builder = builder
        self._deliver = deliver
        self._keep = keep
        self._outage = outage
        self._journal = journal
        self._round = RoundWait()
        self._round_timer: asyncio.TimerHandle | None = None
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
        timeout_s = self._config.session_timeout_s
        self._leading = Leader(
            cluster, self._clock, self.builder, self._feed, self._journal, timeout_s
        )
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
            self._await_round(None)

    def _begin(self, job: Coroutine[Any, Any, None], name: str) -> None:
        """Run a job that ends by itself or is cancelled with the session."""
        _ = self._tasks.create_task(job, name=name)

    def _lane(self, which: e.ConnectionName) -> CoordinatorConnection:
        return CoordinatorConnection(
            self._cluster, which.value, lambda: self._feed(e.Disconnected(which))
        )

    def _feed(self, event: e.Event) -> None:
        now = self._clock.now()
        due_at = self._round.due_at
        if isinstance(event, e.Disconnected) and event.lane is e.ConnectionName.JOIN:
            self._round.over()
        effects = self.member.step(now, event)
        self.metrics.observe(now, event, effects)
        for effect in effects:
            self._perform(effect)
        if self._round.due_at != due_at:
            self._await_round(self._round.due_at)
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
                if lane is e.ConnectionName.JOIN:
                    self._round.over()
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

    def _await_round(self, due_at: float | None) -> None:
        """Arm the timer of the next line about the round under way, if there is to be one."""
        if self._round_timer is not None:
            self._round_timer.cancel()
        self._round_timer = None
        if due_at is not None and not self._over.is_set():
            self._round_timer = asyncio.get_running_loop().call_at(due_at, self._still_waits)

    def _still_waits(self) -> None:
        """Log that the round under way is not over yet."""
        if (waited_s := self._round.waited_s(self._clock.now())) is not None:
            assignor = self.builder.assignor
            self._journal(
                "rebalance_waits",
                seconds=round(waited_s, 1),
                phase="plan" if self._round.syncs else "join",
                workers=list(assignor.others),
                leader=assignor.led_by,
            )
        self._await_round(self._round.due_at)

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
        if isinstance(body, e.JoinGroup | e.SyncGroup):
            self._round.sent(self._clock.now(), syncs=isinstance(body, e.SyncGroup))
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
        if isinstance(send.body, e.JoinGroup | e.SyncGroup):
            self._round.over()
        match send.body:
            case e.JoinGroup():
                return requests.joined(send.request, reply)
            case e.SyncGroup() if not reply.error_code:
                return self._given(send.request, bytes(reply.assignment))
            case e.OffsetCommit() | e.TxnOffsetCommit():
                return requests.committed(send.request, reply)
            case e.LeaveGroup(member_ids, why):
                left = requests.left(send.request, reply)
                self._log_leave(member_ids, why, left.error)
                return left
            case _:
                return e.Reply(send.request, reply.error_code)

    def _log_leave(self, member_ids: tuple[str, ...], why: str, error: int) -> None:
        """Log the end of a LeaveGroup; the removal of others is for people, by their names."""
        result = f"refused: {name_of(error)}" if error else why
        LOG.debug("LeaveGroup of %s: %s.", ", ".join(member_ids), result)
        if why != e.EVICTED:
            return
        known = [self.builder.assignor.worker(member) for member in member_ids]
        who = f"Worker {', '.join(filter(None, known))}" if any(known) else "A worker"
        if error:
            text = "%s did not leave by its deadline and is not removed (%s); another try follows."
            LOG.warning(text, who, name_of(error))
        else:
            LOG.info("%s did not leave by its deadline and was removed from the group.", who)

    def _given(self, request: int, data: bytes) -> e.Reply:
        try:
            synced = self.builder.given(data, self._zero())
        except DataError as error:
            LOG.warning("The leader's plan cannot be read: %s. The worker joins again.", error)
            return e.Reply(request, ErrorCode.CORRUPT_MESSAGE)
        if synced.view.problem:
            LOG.warning(
                "The leader's plan cannot be read: %s. The worker keeps its tasks; run the same "
                "version of streamsx on all workers.",
                synced.view.problem,
            )
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
