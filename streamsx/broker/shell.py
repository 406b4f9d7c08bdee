"""Carries out what the group coordinator decides: writes, answers, timers, the log.

Events wait in a queue while one is being carried out, because an answer can let the next request
of its connection in. If a write fails, or the machine does, its memory is worth nothing: every
open request is answered with 15 COORDINATOR_NOT_AVAILABLE and a new machine is loaded from disk.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import assert_never

from streamsx.broker.classic import GroupConfig
from streamsx.broker.connection import Call
from streamsx.broker.coordinator import Coordinator
from streamsx.broker.events import (
    Effect,
    Event,
    Gone,
    Load,
    Peer,
    Persist,
    Reply,
    Request,
    Story,
    Tick,
    Topics,
    Wake,
)
from streamsx.broker.meta import Meta
from streamsx.clock import Clock
from streamsx.kafka.errors import ErrorCode
from streamsx.kafka.wire import Api

logger = logging.getLogger(__name__)

Catalog = Callable[[], Mapping[str, tuple[bytes, int]]]


class Groups:
    """All groups of a broker, as a machine on disk and on the clock."""

    def __init__(
        self, config: GroupConfig, meta: Meta, clock: Clock, catalog: Catalog,
        fresh_id: Callable[[], object],
    ) -> None:  # fmt: skip
        """Needs a running loop. Raises StoreCorrupt."""
        self._config, self._meta, self._clock = config, meta, clock
        self._catalog, self._fresh_id = catalog, fresh_id
        self._loop = asyncio.get_running_loop()
        self._waiters = count(1)
        self._open: dict[int, tuple[Request, Call]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._queue: deque[Event] = deque()
        self._busy = False
        self._machine: Coordinator | None = None
        self._load()

    def ask(self, call: Call) -> None:
        """Hands a request to its group, which will reply, perhaps later."""
        waiter = next(self._waiters)
        fresh_id = str(self._fresh_id()) if call.api is Api.JOIN_GROUP else ""
        peer = Peer(call.client_id, call.connection.host)
        request = Request(
            waiter, call.api, call.version, peer, call.body, fresh_id, self._wall_ms()
        )
        self._open[waiter] = request, call
        call.gone = lambda: self._gone(waiter)
        self._tell(request)

    def topics_changed(self) -> None:
        """To be told of each change of the catalog."""
        self._tell(Topics(self._catalog()))

    def close(self) -> None:
        """No timer rings any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _gone(self, waiter: int) -> None:
        if self._open.pop(waiter, None) is not None:
            self._tell(Gone(waiter))

    def _tell(self, event: Event) -> None:
        self._queue.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._queue:
                self._take(self._queue.popleft())
        finally:
            self._busy = False

    def _take(self, event: Event) -> None:
        machine = self._machine or self._load()
        try:
            self._step(machine, event)
        except OSError as error:
            logger.error("group_write_failed error=%r: loaded again from disk", str(error))
            self._start_over(machine)
        except Exception:
            self._start_over(machine)
            raise

    def _step(self, machine: Coordinator, event: Event) -> None:
        for effect in machine.step(self._clock.now(), event):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Reply():
                self._reply(effect)
            case Persist():
                self._meta.write(effect.puts, effect.deletes)
            case Wake():
                self._wake(effect)
            case Story():
                logger.info(effect.text)
            case _:
                assert_never(effect)

    def _reply(self, reply: Reply) -> None:
        _, call = self._open.pop(reply.waiter)
        call.reply(reply.body)

    def _wake(self, wake: Wake) -> None:
        if timer := self._timers.pop(wake.group, None):
            timer.cancel()
        delay = max(0.0, wake.at - self._clock.now())
        self._timers[wake.group] = self._loop.call_later(delay, self._ring, wake.group)

    def _ring(self, group: str) -> None:
        del self._timers[group]
        self._tell(Tick(group, self._wall_ms()))

    def _wall_ms(self) -> int:
        return int(self._clock.wall() * 1000)

    def _load(self) -> Coordinator:
        """Raises OSError and StoreCorrupt; then the next event tries again."""
        machine = Coordinator(self._config)
        self._step(machine, Load(tuple(self._meta.rows("GO"))))
        self._step(machine, Topics(self._catalog()))
        self._machine = machine
        return machine

    def _start_over(self, machine: Coordinator) -> None:
        self._machine, waiting = None, list(self._open.values())
        self._open.clear()
        self.close()
        for request, call in waiting:
            call.reply(machine.refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE).body)
        self._load()
