"""Shell of the coordinator: carries out writes, replies, markers, timers and log lines.

An event is carried out before the next one comes: sending a reply lets no request in
(`net.client_connection`).

If the machine of one group fails, the state in memory of this group is not trusted any more. The
group's open requests are answered with 15 COORDINATOR_NOT_AVAILABLE, and the group is loaded from
the disk; other groups go on. If a write fails, or an event that concerns several groups, the same
is done for all groups.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import assert_never

from streamsx import metrics
from streamsx.broker.groups import coordinator_events as e
from streamsx.broker.groups.coordinator import Coordinator, refuse
from streamsx.broker.groups.group import GroupConfig
from streamsx.broker.log.markers import MarkerWriter
from streamsx.broker.metadata_rows import OF_GROUPS, OF_TRANSACTIONS
from streamsx.broker.metadata_store import MetadataStore
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.clock import Clock
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api

logger = logging.getLogger(__name__)

ReadCatalog = Callable[[], Mapping[str, tuple[bytes, int]]]

EXPIRY_S = 600.0
"""Interval of deleting unused offsets, as Kafka's offsets.retention.check.interval.ms."""
AGAIN = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""Error code after which clients retry: the group, or all groups, are loaded from the disk."""
OF_ONE_GROUP = frozenset(
    {
        Api.OFFSET_COMMIT,
        Api.OFFSET_DELETE,
        Api.JOIN_GROUP,
        Api.HEARTBEAT,
        Api.LEAVE_GROUP,
        Api.SYNC_GROUP,
        Api.CONSUMER_GROUP_HEARTBEAT,
    }
)
NAMING = (Api.JOIN_GROUP, Api.CONSUMER_GROUP_HEARTBEAT)
"""Requests that may get a member id if they come without one."""


class CoordinatorRuntime:
    """Groups and transactions of a broker, as a machine with disk, clock and timers."""

    def __init__(
        self, config: GroupConfig, meta: MetadataStore, clock: Clock, catalog: ReadCatalog,
        fresh_id: Callable[[], object], markers: MarkerWriter, events: metrics.Counter,
    ) -> None:  # fmt: skip
        """Load everything from the disk; needs a running event loop.

        `events` counts the log lines of groups and transactions, by their first word.

        Raises:
            OSError: The disk failed.
            StoreCorrupt: The rows cannot be read.
        """
        self.config = config
        self._meta = meta
        self._clock = clock
        self._catalog = catalog
        self._fresh_id = fresh_id
        self._markers = markers
        self._loop = asyncio.get_running_loop()
        self._waiters = count(1)
        self._open: dict[int, tuple[e.ClientRequest, ServedRequest]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures: Counter[tuple[str, type[Exception]]] = Counter()
        self._expiry = self._loop.call_later(EXPIRY_S, self._expire)
        self._events = events
        self.machine: Coordinator | None = None
        """Machine in memory, None if loading failed; public for observers."""
        self._load()

    def ask(self, call: ServedRequest, fresh_id: str = "") -> None:
        """Pass a request to its group, which replies now or later."""
        waiter = next(self._waiters)
        if call.api in NAMING and not call.body.member_id:
            fresh_id = str(self._fresh_id())
        peer = e.Peer(call.client_id, f"/{call.connection.host}")  # an address as Java prints it
        request = e.ClientRequest(
            waiter, call.api, call.version, peer, call.body, fresh_id, self._wall_ms()
        )
        self._open[waiter] = request, call
        call.gone = lambda: self._gone(waiter)
        self._tell(request, group_of(request))

    def may_write(
        self, transactional_id: str, owner: tuple[int, int], place: tuple[str, int], *, adds: bool
    ) -> ErrorCode:
        """Return the error code for a transactional write to this partition.

        With `adds` a partition that the transaction lacks is added first.
        """
        machine = self.machine or self._load()
        code = machine.transactions.may_write(transactional_id, owner, place)
        if adds and code is ErrorCode.INVALID_TXN_STATE:
            self._tell(e.AddPartition(transactional_id, owner, place, self._wall_ms()))
            machine = self.machine or self._load()
            code = machine.transactions.may_write(transactional_id, owner, place)
            if code is ErrorCode.INVALID_TXN_STATE:  # the previous transaction is still ending
                return ErrorCode.CONCURRENT_TRANSACTIONS
        return code

    def topics_changed(self, topics: Mapping[str, tuple[bytes, int] | None]) -> None:
        """Apply a change of topics: id and number of partitions by name; None if deleted."""
        self._tell(e.TopicsChanged(topics))

    def end_strays(self) -> None:
        """End open transactions in the logs that belong to no transactional id.

        Call this after logs were opened again, or refused a marker.
        """
        if not self._expiry.cancelled():
            self._tell(self._markers.found_open(self._wall_ms()))

    def move(self) -> None:
        """Act as if the coordinator moved: refuse all waiting clients, and load everything again.

        Raises:
            OSError: The disk failed.
            StoreCorrupt: The rows cannot be read.
        """
        if self.machine is not None:
            self._start_over(ErrorCode.NOT_COORDINATOR)

    def close(self) -> None:
        """Stop all timers."""
        self._expiry.cancel()
        self._stop_timers(*self._timers)

    def _stop_timers(self, *groups: str) -> None:
        for group in groups:
            if timer := self._timers.pop(group, None):
                timer.cancel()

    def _expire(self) -> None:
        self._expiry = self._loop.call_later(EXPIRY_S, self._expire)
        self._tell(e.ExpireOffsets(self._wall_ms()))

    def _gone(self, waiter: int) -> None:
        if (found := self._open.pop(waiter, None)) and (group := group_of(found[0])) is not None:
            self._tell(e.ClientGone(group, waiter), group)

    def _tell(self, event: e.Event, group: str | None = None) -> None:
        """Carry out an event; `group` is set if the event concerns this group alone."""
        try:
            self._carry_out(event, group)
        except OSError as error:  # waiting clients were refused already
            logger.error("Groups are not loaded: %s. The next request tries it again.", error)

    def _carry_out(self, event: e.Event, group: str | None) -> None:
        machine = self.machine or self._load()
        try:
            try:
                self._step(machine, event)
            except Exception as error:
                if group is None or isinstance(error, OSError):  # a disk error concerns all groups
                    raise
                self._start_group_over(machine, group, error)
        except OSError as error:
            logger.error(
                "A group was not written: %s. All groups are loaded again from the disk.", error
            )
            self._start_over()
        except Exception:
            self._start_over()
            raise

    def _step(self, machine: Coordinator, event: e.Event) -> None:
        ended: list[e.WriteMarkers] = []
        for effect in machine.step(self._clock.now(), event):
            match effect:
                case e.ClientReply():
                    _, call = self._open.pop(effect.waiter)
                    call.reply(effect.body)
                case e.Persist():
                    self._meta.write(effect.puts, effect.deletes)
                case e.WriteMarkers():
                    ended.append(effect)
                case e.Wake():
                    self._wake(effect)
                case e.Story():
                    self._events.add(1, effect.text.partition(" ")[0])
                    if effect.said:
                        logger.info("%s", effect.said)
                    logger.debug("%s", effect.text)
                case _:
                    assert_never(effect)
        for effect in ended:
            written = e.MarkersWritten(effect.transactional_id, effect.decision, self._wall_ms())
            later = partial(self._tell_of, machine, written)
            if self._markers.write(effect, written.wall_ms, later):
                self._step(machine, written)

    def _tell_of(self, machine: Coordinator, written: e.MarkersWritten) -> None:
        """Report written markers to the machine that asked for them.

        A machine that was loaded since then asks for markers itself.
        """
        if machine is self.machine and not self._expiry.cancelled():
            self._tell(written)

    def _wake(self, wake: e.Wake) -> None:
        self._stop_timers(wake.group)
        delay = max(0.0, wake.at - self._clock.now())
        self._timers[wake.group] = self._loop.call_later(delay, self._ring, wake.group)

    def _ring(self, group: str) -> None:
        del self._timers[group]
        self._tell(e.BrokerTick(group, self._wall_ms()), group or None)

    def _wall_ms(self) -> int:
        return int(self._clock.wall() * 1000)

    def _load(self) -> Coordinator:
        """Load a new machine from the disk.

        After a failure no client is kept waiting, and the next event tries again.

        Raises:
            OSError: The disk failed.
            StoreCorrupt: The rows cannot be read.
        """
        machine = Coordinator(self.config)
        try:
            self._step(machine, e.Load(tuple(self._meta.rows(OF_GROUPS + OF_TRANSACTIONS))))
            self._step(machine, e.Topics(self._catalog()))
            self._step(machine, self._markers.found_open(self._wall_ms()))
        except Exception:
            self._dismiss()
            raise
        self.machine = machine
        return machine

    def _start_group_over(self, machine: Coordinator, group: str, error: Exception) -> None:
        """Load one group again, after its machine failed because of a bug of ours.

        Clients retry for ever: the first failure of a kind is logged with its traceback, the next
        only with their count.
        """
        kind = group, type(error)
        self._failures[kind] = times = self._failures[kind] + 1
        line = f"Group {group} failed ({times} times so far): {error}. It is loaded again."
        logger.error(line, exc_info=error if times == 1 else None)
        self._stop_timers(group)
        machine.forget(group)
        self._dismiss(group)
        rows = self._meta.rows(OF_GROUPS)
        self._step(machine, e.Load(tuple(row for row in rows if row[0].group == group)))

    def _start_over(self, code: ErrorCode = AGAIN) -> None:
        self.machine = None
        self._stop_timers(*self._timers)
        self._dismiss(code=code)
        self._load()

    def _dismiss(self, group: str | None = None, code: ErrorCode = AGAIN) -> None:
        """Refuse the open requests of one group, or all open requests."""
        for waiter, (request, call) in tuple(self._open.items()):
            if group is None or group == group_of(request):
                del self._open[waiter]
                call.reply(refuse(request, code).body)


def group_of(request: e.ClientRequest) -> str | None:
    """Return the one group that this request can change; None for requests about several groups."""
    return str(request.body.group_id) if request.api in OF_ONE_GROUP else None
