"""A tool in the group for a moment: it joins with marks, is answered, and leaves.

An observer subscribes to nothing and owns nothing; nothing is handed over in a round that has
one. It counts from the moment it has a member id: killed there, it holds the group in a rebalance
until its session ends, and what is withheld at that moment stands still. So the session is short,
and the tool leaves whatever happens.

Not here: what marks say and who heeds them (`streamsx.assignor`), looking at a group without
joining it (`streamsx.kafka.admin`).
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from streamsx.assignor.model import Mark
from streamsx.assignor.observer import lead, observer_data
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor
from streamsx.assignor.wire import read_assignment
from streamsx.clock import Clock
from streamsx.errors import ForeignProtocol, GroupError, WorldError
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.connection import Connection
from streamsx.kafka.consumer_protocol import PROTOCOL_TYPE, Assignment, Subscription
from streamsx.kafka.errors import ErrorCode, failure, name_of
from streamsx.kafka.wire import Api
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
PAUSE_S = 0.1
AGAIN = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""The group moved while we were joining it: once more."""


class Observer:
    """One visit. `nonce`: differs for each visit of each tool, or a broker may not notice it."""

    def __init__(self, cluster: Cluster, clock: Clock, group: str, nonce: int) -> None:
        self._cluster, self._clock, self._group, self._nonce = cluster, clock, group, nonce
        self._member_id = ""
        self._timeouts = list(SESSION_TIMEOUTS_MS)

    async def tell(self, marks: Mapping[str, Mark], timeout_s: float) -> None:
        """Until the group has the marks in its memory.

        Raises GroupError when it has not taken them in time, ForeignProtocol for a group of another
        program, WorldError.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._visit(marks):
                    self._nonce += 1
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            raise GroupError(
                f"the group did not take the marks: {self._group}: nothing in {timeout_s:g} s: "
                "is it rebalancing without end?"
            ) from None
        finally:
            await self._leave()

    async def _visit(self, marks: Mapping[str, Mark]) -> bool:
        """One join; whether the marks are in."""
        node = await self._cluster.coordinator(self._group)
        connection = await self._cluster.open(node, LANE)
        joined = await self._join(connection, marks)
        if joined is None:
            return False
        leads = joined.leader == self._member_id
        given = {}
        if leads:
            members = [(m.member_id, bytes(m.metadata)) for m in joined.members]
            given = dict(lead(members, now_ms=int(self._clock.wall() * 1000)))
        protocol, generation = StreamsPartitionAssignor.name, joined.generation_id
        body = requests.sync(self._group, protocol, self._member_id, generation, given)
        synced = await connection.ask(Api.SYNC_GROUP, body, ANSWER_S)
        if synced.error_code:
            self._refused(synced.error_code)
            return False
        word = read_assignment(Assignment.read(bytes(synced.assignment)).user_data)
        kept = word.memory.marks
        return all(kept.get(instance) == mark for instance, mark in marks.items())

    async def _join(self, connection: Connection, marks: Mapping[str, Mark]) -> Any:
        """The answer with a generation; None when the group moved meanwhile."""
        metadata = Subscription((), observer_data(marks, nonce=self._nonce)).write()
        body = {
            "session_timeout": self._timeouts[0],
            "rebalance_timeout": int(REBALANCE_TIMEOUT_S * 1000),
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": StreamsPartitionAssignor.name, "metadata": metadata}],
        }
        while True:
            answer = await connection.ask(
                Api.JOIN_GROUP, requests.identity(self._group, self._member_id) | body, ANSWER_S
            )
            code = answer.error_code
            if not code or code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = answer.member_id
            if not code:
                return answer
            if code == ErrorCode.INVALID_SESSION_TIMEOUT and len(self._timeouts) > 1:
                body["session_timeout"] = self._timeouts.pop(0) and self._timeouts[0]
            elif code != ErrorCode.MEMBER_ID_REQUIRED:
                self._refused(code)
                return None

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
        body = requests.leave(self._group, self._member_id)
        try:
            node = await self._cluster.coordinator(self._group)
            connection = await self._cluster.open(node, LEAVE_LANE)
            answer = await connection.ask(Api.LEAVE_GROUP, body, LEAVE_S)
            why = name_of(answer.error_code) if answer.error_code else ""
        except WorldError as error:
            why = str(error)
        if why:
            LOG.warning("the group waits %d s for this tool: %s", self._timeouts[0] // 1000, why)
