"""Where everything is: brokers, leaders, partition counts, coordinators; and connections to them.

Metadata are asked with our codec, on a lane of their own, of any broker that answers: the known
ones first, then the addresses given at the start, so that a cluster that moved is found again.
Nothing here runs by itself: who was refused by a leader, or wants news, calls `refresh`, and those
who call at the same time share one request. No request of ours brings a topic into being.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from streamsx.client.connect_race import first_success
from streamsx.client.connection import Address, Connection, connect
from streamsx.client.security import PLAINTEXT, Security
from streamsx.client.unreachable import UnreachableAddresses, UnreachableReason
from streamsx.errors import BrokerUnreachable
from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import ErrorCode, failure
from streamsx.protocol.schema import UUID_ZERO
from streamsx.protocol.wire import Api, Body

T = TypeVar("T")
LOG = logging.getLogger("streamsx")

START_TIMEOUT_S = 10.0
TRIES_FOR_S = 10.0
TIMEOUT_S = 5.0
PATIENCE_S = 0.5
"""Then another broker is asked too: a node that has vanished takes all of a time-out."""
RECORDS_TIMEOUTS = 3
"""So many time-outs a request that carries records may take: a broker may first have to give up a
replica that has vanished."""
RETRY_BACKOFF_S, RETRY_BACKOFF_MAX_S = 0.1, 1.0
TRIES = 3
"""Of one question to a broker: an open connection may lead to one that is just going down."""
LANE = "metadata"
NO_LEADER = -1
STARTED = "start a broker there, or give the address of one that runs"
ADVERTISED = (
    "the brokers say that one of them is there: let them advertise an address that this machine "
    "reaches (advertised.listeners, broker --advertise)"
)
GROUP, TRANSACTION = 0, 1
"""FindCoordinator's kinds of keys."""


class Cluster:
    """One Kafka cluster as one event loop sees it."""

    def __init__(
        self,
        bootstrap: str,
        security: Security = PLAINTEXT,
        *,
        timeout_s: float = TIMEOUT_S,
        user_timeout_ms: int | None = None,
        tries_for_s: float = TRIES_FOR_S,
        rng: random.Random | None = None,
        unreached: UnreachableAddresses | None = None,
    ) -> None:
        """`bootstrap`: HOST:PORT[,HOST:PORT]. `timeout_s`: for a connection, and for an answer to
        what a broker knows by heart. `user_timeout_ms`: see `connection.connect`. `tries_for_s`:
        so long `admin` asks again what is worth another try. `rng` draws whom to ask first.
        `unreached`: that of the process, where it has several clusters.

        Raises SettingError for an address that is none.
        """
        self._bootstrap = [Address.parse(text) for text in bootstrap.split(",")]
        self._security, self._user_timeout_ms = security, user_timeout_ms
        self.timeout_s, self.records_timeout_s = timeout_s, RECORDS_TIMEOUTS * timeout_s
        self.tries_for_s = tries_for_s
        self._rng = rng or random.Random()  # noqa: S311  # no secret
        self.unreached = unreached or UnreachableAddresses()
        self._followed: set[str] = set()
        self._brokers: dict[int, Address] = {}
        self._controller = -1
        self._leaders: dict[str, dict[int, int]] = {}
        self._errors: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        self._connections: dict[tuple[Address, str], Connection] = {}
        self._opening: defaultdict[tuple[Address, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._refreshing = asyncio.Lock()
        self._begun = self._answered = 0
        self._watchers: list[Callable[[], None]] = []

    @property
    def principal(self) -> str:
        """The user that the brokers know us as, for people."""
        return self._security.principal

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Find the cluster. Raises BrokerUnreachable after `timeout_s`, SettingError if a broker
        refuses who we are.
        """
        last: BrokerUnreachable | None = None
        where = ",".join(map(str, self._bootstrap))
        loop = asyncio.get_running_loop()

        def tell() -> None:
            LOG.warning("waiting for %s (%s)", where, last or "no answer")

        waits, pause_s = loop.call_later(PATIENCE_S, tell), RETRY_BACKOFF_S
        try:
            async with asyncio.timeout(timeout_s):
                while not self._brokers:
                    try:
                        await self.refresh()
                    except BrokerUnreachable as error:
                        last = error
                        await asyncio.sleep(pause_s)
                        pause_s = min(pause_s * 1.5, RETRY_BACKOFF_MAX_S)
        except TimeoutError:
            raise BrokerUnreachable(
                f"no Kafka broker in {timeout_s:g} s: {where}: start one, or give the address,"
                f" and the credentials, of one that runs ({last or 'no answer'})"
            ) from None
        finally:
            waits.cancel()

    async def stop(self) -> None:
        """Close all connections."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    async def follow(self, topics: Iterable[str]) -> None:
        """Know these topics too, from now on. Raises BrokerUnreachable."""
        if new := set(topics) - self._followed:
            self._followed |= new
            await self.refresh()

    async def refresh(self) -> None:
        """Ask for brokers, leaders and partition counts of what is followed: once this returns,
        what is known was true after it was called. Raises BrokerUnreachable.
        """
        seen = self._begun
        async with self._refreshing:
            if self._answered > seen:
                return  # one that began after we came
            self._begun += 1
            told = await self.metadata(self._followed)
            self._answered = self._begun
            if told.brokers:  # a broker that is just starting knows none
                self._brokers = {b.node_id: Address(b.host, b.port) for b in told.brokers}
            self._controller = told.controller_id
            self._errors = {topic.name: topic.error_code for topic in told.topics}
            before = self._leaders, self._ids
            self._ids = {
                topic.name: topic.topic_id.hex()
                for topic in told.topics
                if getattr(topic, "topic_id", UUID_ZERO) != UUID_ZERO
            }
            self._leaders = {
                topic.name: {p.partition_index: p.leader_id for p in topic.partitions}
                for topic in told.topics
            }
        if before != (self._leaders, self._ids):
            for changed in self._watchers:
                changed()

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a refresh, whoever asked for it, has found other leaders, or
        another topic under a name.
        """
        self._watchers.append(changed)

    def leader(self, tp: TopicPartition) -> int | None:
        """The broker to ask; None while there is none, or the partition is not known."""
        node = self._leaders.get(tp.topic, {}).get(tp.partition, NO_LEADER)
        return None if node == NO_LEADER else node

    def partitions(self, topic: str) -> int:
        """How many; 0 while the topic is not known, and `error` says why."""
        return len(self._leaders.get(topic, ()))

    def topic_id(self, topic: str) -> str | None:
        """Return the id of the topic that has this name, as 32 hex digits; None where brokers know
        no ids, or no such topic.
        """
        return self._ids.get(topic)

    def error(self, topic: str) -> int:
        """The code the broker answered for this topic: NONE, UNKNOWN_TOPIC_OR_PARTITION also for
        one that is not followed, or a refusal.
        """
        return self._errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def open(self, node: int, lane: str) -> Connection:
        """The connection of this lane to a broker, opened if there is none or it has ended.

        Raises BrokerUnreachable, SettingError.
        """
        if node not in self._brokers:
            raise BrokerUnreachable(f"broker {node} is not in the metadata: refresh them")
        return await self._open(self._brokers[node], lane)

    async def any(self, lane: str) -> Connection:
        """A connection of this lane to whichever broker answers. Raises BrokerUnreachable,
        SettingError.
        """
        return await self._first(lane, lambda address: self._open(address, lane))

    async def controller(self, lane: str) -> Connection:
        """A connection to the broker that takes changes of topics. Raises BrokerUnreachable."""
        return await self.open(self._controller, lane)

    async def coordinator(self, group: str, kind: int = GROUP) -> int:
        """The broker that coordinates a group, asked anew each time; `open` knows it then. Or, of
        that `kind`, a transaction.

        Raises WorldError while there is none, which includes BrokerUnreachable; SettingError for a
        group that the broker refuses. That it answers does not mean that it is ready: for up to 4 s
        after a restart it says NOT_COORDINATOR or loads.
        """
        told = await self._ask_any(Api.FIND_COORDINATOR, {"key": group, "key_type": kind})
        if told.error_code != ErrorCode.NONE:
            where = f"coordinator of {'transaction' if kind else 'group'} {group}"
            raise failure(told.error_code, where, told.error_message or "")
        node: int = told.node_id
        self._brokers[node] = Address(told.host, told.port)
        return node

    async def metadata(self, topics: Iterable[str]) -> Any:
        """The Metadata reply for these topics, which are not followed by that. Raises
        BrokerUnreachable.
        """
        wanted = [{"name": topic} for topic in sorted(set(topics))]
        # Kafka's default would create what it does not know, also a topic that was just deleted.
        body = {"topics": wanted, "allow_auto_topic_creation": False}
        return await self._ask_any(Api.METADATA, body)

    async def _ask_any(self, api: int, body: Body) -> Any:
        async def ask(address: Address) -> Any:
            for _ in range(TRIES - 1):
                connection = await self._open(address, LANE)
                with suppress(BrokerUnreachable):
                    return await connection.ask(api, body, self.timeout_s)
            return await (await self._open(address, LANE)).ask(api, body, self.timeout_s)

        return await self._first(LANE, ask)

    async def _first(self, lane: str, attempt: Callable[[Address], Awaitable[T]]) -> T:
        """Of all brokers, whoever succeeds first: the next one is tried when the last has failed,
        or has not succeeded for a while (as connections are raced in RFC 8305). Those with an open
        connection come first. Raises BrokerUnreachable with what each has said.
        """
        known = list(self._brokers.values())
        drawn = dict.fromkeys((*self._rng.sample(known, len(known)), *self._bootstrap))
        ordered = sorted(drawn, key=lambda address: not self._speaks(address, lane))
        try:
            return await first_success(ordered, attempt, min(PATIENCE_S, self.timeout_s))
        except BrokerUnreachable as error:
            raise BrokerUnreachable(f"no broker answers: {error}") from None

    def _speaks(self, address: Address, lane: str) -> bool:
        connection = self._connections.get((address, lane))
        return connection is not None and not connection.closed

    async def _open(self, address: Address, lane: str) -> Connection:
        key = (address, lane)
        async with self._opening[key]:  # two that come at once get the same one
            if not self._speaks(address, lane):
                self._connections[key] = await self._connect(address)
            return self._connections[key]

    async def _connect(self, address: Address) -> Connection:
        now = asyncio.get_running_loop().time
        began = now()
        try:
            made = await connect(
                address,
                self._security,
                timeout_s=self.timeout_s,
                user_timeout_ms=self._user_timeout_ms,
            )
        except BrokerUnreachable as error:
            remedy = STARTED if address in self._bootstrap else ADVERTISED
            self.unreached.failed(str(address), began, now(), UnreachableReason(str(error), remedy))
            raise
        self.unreached.reached(str(address))
        return made
