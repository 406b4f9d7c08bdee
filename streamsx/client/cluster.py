"""Cluster metadata (brokers, leaders, partition counts, coordinators) and connections to brokers.

Metadata requests use our own codec, on a connection of their own. Any broker may answer: known
brokers are asked first, then the bootstrap addresses, so that a cluster that moved is found again.
Nothing refreshes in the background: callers call `refresh` when a leader refuses them, or when they
want news. Concurrent calls share one request. No request from here creates a topic.
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
"""Time after which another broker is asked too. A vanished node takes the whole time-out."""
WAITS_S = 3.0
"""Time without an answer after which a start says that it waits. A busy broker takes a second."""
RECORDS_TIMEOUTS = 3
"""Time-outs that a request with records may take.

A broker may first have to give up on a replica that has vanished.
"""
RETRY_BACKOFF_S = 0.1
RETRY_BACKOFF_MAX_S = 1.0
TRIES = 3
"""Attempts of one question at one broker.

An open connection may lead to a broker that is going down.
"""
LANE = "metadata"
NO_LEADER = -1
STARTED = "start a broker there, or give the address of one that runs"
ADVERTISED = (
    "a broker advertises this address: let it advertise one that this machine reaches "
    "(advertised.listeners, broker --advertise)"
)
GROUP = 0
TRANSACTION = 1
"""Key types of FindCoordinator: GROUP and TRANSACTION."""


class Cluster:
    """Kafka cluster as seen by one event loop."""

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
        """Configure the cluster; `start` connects.

        Args:
            bootstrap: HOST:PORT[,HOST:PORT].
            security: TLS and SASL settings of every connection.
            timeout_s: Time for a connection, and for an answer that a broker has at hand.
            user_timeout_ms: See `connection.connect`.
            tries_for_s: Time for which `admin` repeats requests that are worth another try.
            rng: Chooses the broker to ask first.
            unreached: Unreachable addresses of the process, if the process has several clusters.

        Raises:
            SettingError: an address cannot be parsed.
        """
        self._bootstrap = [Address.parse(text) for text in bootstrap.split(",")]
        self._security = security
        self._user_timeout_ms = user_timeout_ms
        self.timeout_s = timeout_s
        self.records_timeout_s = RECORDS_TIMEOUTS * timeout_s
        self.tries_for_s = tries_for_s
        self._rng = rng or random.Random()  # noqa: S311  # no secret depends on it
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
        """Return the user that brokers know this client as, for messages."""
        return self._security.principal

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Find the cluster.

        Raises:
            BrokerUnreachable: no broker answers within `timeout_s`.
            SettingError: a broker refuses this user.
        """
        last: BrokerUnreachable | None = None
        where = ",".join(map(str, self._bootstrap))
        loop = asyncio.get_running_loop()

        def warn() -> None:
            LOG.warning("waiting for %s (%s)", where, last or "no answer")

        waits = loop.call_later(WAITS_S, warn)
        pause_s = RETRY_BACKOFF_S
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
        connections = self._connections
        self._connections = {}
        for connection in connections.values():
            await connection.close()

    async def follow(self, topics: Iterable[str]) -> None:
        """Add topics to those that `refresh` asks for, and refresh if any topic is new.

        Raises:
            BrokerUnreachable: no broker answers.
        """
        if new := set(topics) - self._followed:
            self._followed |= new
            await self.refresh()

    async def refresh(self) -> None:
        """Ask for brokers, and for leaders and partition counts of the followed topics.

        On return, the metadata date from after the call began.

        Raises:
            BrokerUnreachable: no broker answers.
        """
        seen = self._begun
        async with self._refreshing:
            if self._answered > seen:
                return  # a request that began after this call has answered
            self._begun += 1
            reply = await self.metadata(self._followed)
            self._answered = self._begun
            if reply.brokers:  # a starting broker knows none
                self._brokers = {b.node_id: Address(b.host, b.port) for b in reply.brokers}
            self._controller = reply.controller_id
            self._errors = {topic.name: topic.error_code for topic in reply.topics}
            before = self._leaders, self._ids
            self._ids = {
                topic.name: topic.topic_id.hex()
                for topic in reply.topics
                if getattr(topic, "topic_id", UUID_ZERO) != UUID_ZERO
            }
            self._leaders = {
                topic.name: {p.partition_index: p.leader_id for p in topic.partitions}
                for topic in reply.topics
            }
        if before != (self._leaders, self._ids):
            for changed in self._watchers:
                changed()

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each refresh, by any caller, that finds other leaders or topic ids.

        A topic id changes when another topic takes the name.
        """
        self._watchers.append(changed)

    def leader(self, tp: TopicPartition) -> int | None:
        """Return the node id of a partition's leader.

        Return None if there is no leader, or if the partition is unknown.
        """
        node = self._leaders.get(tp.topic, {}).get(tp.partition, NO_LEADER)
        return None if node == NO_LEADER else node

    def partitions(self, topic: str) -> int:
        """Return the number of partitions; 0 for an unknown topic, with the reason in `error`."""
        return len(self._leaders.get(topic, ()))

    def topic_id(self, topic: str) -> str | None:
        """Return the id of the topic with this name, as 32 hex digits.

        Return None if the brokers know no topic ids, or no such topic.
        """
        return self._ids.get(topic)

    def error(self, topic: str) -> int:
        """Return the broker's error code for a topic.

        The code is NONE, a refusal, or UNKNOWN_TOPIC_OR_PARTITION, also for a topic that is not
        followed.
        """
        return self._errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def open(self, node: int, lane: str) -> Connection:
        """Return this lane's connection to a broker, opened anew if there is none or it has ended.

        Raises:
            BrokerUnreachable: the broker is not in the metadata, or does not answer.
            SettingError: the broker refuses this user.
        """
        if node not in self._brokers:
            raise BrokerUnreachable(f"broker {node} is not in the metadata: refresh them")
        return await self._open(self._brokers[node], lane)

    async def any(self, lane: str) -> Connection:
        """Return a connection of this lane to the first broker that answers.

        Raises:
            BrokerUnreachable: no broker answers.
            SettingError: a broker refuses this user.
        """
        return await self._first(lane, lambda address: self._open(address, lane))

    async def controller(self, lane: str) -> Connection:
        """Return a connection to the controller, the broker that takes changes of topics.

        Raises:
            BrokerUnreachable: the controller is unknown, or does not answer.
        """
        return await self.open(self._controller, lane)

    async def coordinator(self, group: str, kind: int = GROUP) -> int:
        """Return the node id of the coordinator of a group, or of a transaction by `kind`.

        Every call asks a broker anew. Afterwards `open` knows the coordinator's address. An answer
        does not mean that the coordinator is ready: for up to 4 s after a restart the coordinator
        answers NOT_COORDINATOR or is still loading.

        Raises:
            WorldError: there is no coordinator now, or no broker answers (BrokerUnreachable).
            SettingError: the broker refuses the group.
        """
        reply = await self._ask_any(Api.FIND_COORDINATOR, {"key": group, "key_type": kind})
        if reply.error_code != ErrorCode.NONE:
            where = f"coordinator of {'transaction' if kind else 'group'} {group}"
            raise failure(reply.error_code, where, reply.error_message or "")
        node: int = reply.node_id
        self._brokers[node] = Address(reply.host, reply.port)
        return node

    async def metadata(self, topics: Iterable[str]) -> Any:
        """Return the Metadata reply for these topics, without following them.

        Raises:
            BrokerUnreachable: no broker answers.
        """
        wanted = [{"name": topic} for topic in sorted(set(topics))]
        # Kafka's default would create an unknown topic, even one that was just deleted.
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
        """Return the result of the first broker that succeeds.

        Brokers with an open connection are tried first. The next broker is tried when the last has
        failed, or has not succeeded for a while (as connections are raced in RFC 8305).

        Raises:
            BrokerUnreachable: every broker failed; the message has the reason of each.
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
        async with self._opening[key]:  # concurrent callers share one connection
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
