"""A tool in the group for a moment: it joins with marks, is answered, and leaves.

An observer subscribes to nothing and owns nothing; nothing is handed over in a round that has
one. It counts from the moment it has a member id: killed there, it holds the group in a rebalance
until its session ends, and what is withheld at that moment stands still. So the session is short,
and the tool leaves whatever happens.

Not here: what marks say and who heeds them (`streamsx.assignor`), looking at a group without
joining it (`look`), what becomes of who was marked (`marking`).
"""

import asyncio
import logging
import math
from collections.abc import Coroutine, Mapping
from typing import Any

from streamsx.assignor.model import Mark
from streamsx.assignor.observer import lead, observer_data
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor
from streamsx.assignor.wire import read_assignment
from streamsx.clock import Clock
from streamsx.errors import ForeignProtocol, GroupError, WorldError
from streamsx.kafka import wire
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.connection import Connection
from streamsx.kafka.consumer_protocol import PROTOCOL_TYPE, Assignment, Subscription
from streamsx.kafka.errors import ErrorCode, failure, name_of
from streamsx.kafka.wire import Api
from streamsx.membership import events as e
from streamsx.membership import requests

LOG = logging.getLogger("streamsx")
LANE = "observer"
LEAVE_LANE = "observer leaves"
"""A JoinGroup may wait on the other one."""
SESSION_TIMEOUTS_MS = (6_000, 10_000, 30_000)
"""The shortest that the broker takes; Kafka's least is 6 s by default."""
REBALANCE_TIMEOUT_S = 60.0
ANSWER_S = REBALANCE_TIMEOUT_S + 5.0
LEAVE_S = 5.0
PAUSE_S = 0.05
UNREACHABLE_S = 10.0
"""How long a cluster may be away, or without a coordinator for the group."""
AGAIN = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
"""The group moved while we were joining it: once more."""


class Observer:
    """Joins one group, as often as there is something to tell."""

    def __init__(self, cluster: Cluster, clock: Clock, group: str) -> None:
        self._cluster, self._clock, self._group = cluster, clock, group
        self._nonce = int(clock.wall() * 1000)
        """Differs for each join of each tool, or a broker may not notice it."""
        self._member_id = ""
        self._timeouts = list(SESSION_TIMEOUTS_MS)

    async def tell(self, marks: Mapping[str, Mark], timeout_s: float) -> None:
        """Until the group has the marks in its memory, or newer ones of the same instances.

        Raises GroupError when it has not taken them in time, ForeignProtocol for a group of another
        program, WorldError for a cluster that has not answered for 10 s.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._persist(marks)
        except TimeoutError:
            raise GroupError(
                f"the group did not take the marks: {self._group}: nothing in {timeout_s:g} s: "
                "is it rebalancing without end?"
            ) from None
        finally:
            await to_its_end(self._leave())

    async def _persist(self, marks: Mapping[str, Mark]) -> None:
        failing_since = math.inf
        while True:
            try:
                if await self._visit(marks):
                    return
                failing_since = math.inf
            except WorldError:
                failing_since = min(failing_since, self._clock.now())
                if self._clock.now() >= failing_since + UNREACHABLE_S:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _visit(self, marks: Mapping[str, Mark]) -> bool:
        """One round; whether the marks are in. Else it is still in the group and joins again: who
        leaves between two tries makes two more rounds."""
        node = await self._cluster.coordinator(self._group)
        connection = await self._cluster.open(node, LANE)
        compile_codecs(connection)
        joined = await self._join(connection, marks)
        if joined is None:
            return False
        given = self._plan(joined) if joined.leader == self._member_id else {}
        protocol, generation = StreamsPartitionAssignor.name, joined.generation
        body = requests.sync(self._group, protocol, self._member_id, generation, given)
        synced = await connection.ask(Api.SYNC_GROUP, body, ANSWER_S)
        if synced.error_code:
            self._refused(synced.error_code)
            return False
        word = read_assignment(Assignment.read(bytes(synced.assignment)).user_data)
        kept = word.memory.marks
        return all(i in kept and kept[i].epoch_ms >= m.epoch_ms for i, m in marks.items())

    async def _join(self, connection: Connection, marks: Mapping[str, Mark]) -> e.Joined | None:
        """None when the group moved meanwhile."""
        self._nonce += 1
        metadata = Subscription((), observer_data(marks, nonce=self._nonce)).write()
        while True:
            body = {
                "session_timeout": self._timeouts[0],
                "rebalance_timeout": int(REBALANCE_TIMEOUT_S * 1000),
                "protocol_type": PROTOCOL_TYPE,
                "protocols": [{"name": StreamsPartitionAssignor.name, "metadata": metadata}],
            }
            who = requests.identity(self._group, self._member_id)
            reply = await connection.ask(Api.JOIN_GROUP, who | body, ANSWER_S)
            match reply.error_code:
                case ErrorCode.NONE:
                    self._member_id = reply.member_id
                    joined = requests.joined(0, reply).body
                    assert isinstance(joined, e.Joined)
                    return joined
                case ErrorCode.MEMBER_ID_REQUIRED:
                    self._member_id = reply.member_id
                case ErrorCode.INVALID_SESSION_TIMEOUT if len(self._timeouts) > 1:
                    del self._timeouts[0]
                case code:
                    self._refused(code)
                    return None

    def _plan(self, joined: e.Joined) -> dict[str, bytes]:
        """As the leader: nothing moves, and all members get the marks."""
        members = [(member.member_id, member.metadata) for member in joined.members]
        return dict(lead(members, now_ms=int(self._clock.wall() * 1000)))

    def _refused(self, code: int) -> None:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            raise ForeignProtocol(
                f"not a group of streamsx: {self._group}: its members speak another protocol: "
                "give the id of an app"
            )
        if code not in AGAIN:
            raise failure(code, f"group {self._group}")

    async def _leave(self) -> None:
        """One try, also when the tool was interrupted: the group would wait for it."""
        if not self._member_id:
            return
        body, self._member_id = requests.leave(self._group, self._member_id), ""
        try:
            async with asyncio.timeout(LEAVE_S):
                node = await self._cluster.coordinator(self._group)
                connection = await self._cluster.open(node, LEAVE_LANE)
                answer = await connection.ask(Api.LEAVE_GROUP, body)
            why = name_of(answer.error_code) if answer.error_code else ""
        except (WorldError, TimeoutError) as error:
            why = str(error) or f"no answer in {LEAVE_S:g} s"
        if why:
            LOG.warning("the group waits %d s for this tool: %s", self._timeouts[0] // 1000, why)


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Also when who waits for it is cancelled meanwhile: an interrupt may come while a tool leaves
    the group, and not only before.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


def compile_codecs(connection: Connection) -> None:
    """They are made at their first use, which takes 5 ms: "the members are answered, the marked one
    joins again, the tool's SyncGroup comes": REBALANCE_IN_PROGRESS, and one more round for it."""
    for api in (Api.SYNC_GROUP, Api.LEAVE_GROUP):
        version = connection.version(api)
        wire.request_encoder(api, version)
        wire.response_decoder(api, version)
