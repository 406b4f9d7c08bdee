"""Short membership of a tool in the group: the tool joins with marks, is answered, and leaves.

An observer is a member that subscribes to no topics and owns no partitions. A round with an
observer hands nothing over. The observer counts from the moment it has a member id: killed then, it
holds the group in a rebalance until its session ends, and withheld tasks stand still. So the
session is short, and the tool leaves in every case.

Not here: the content and effect of marks (`streamsx.assignor`), joining and leaving
(`streamsx.group`), a view of the group without joining (`describe`), the progress of marked
instances (`leave_progress`).
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from streamsx.assignor.model import Mark
from streamsx.assignor.observer import observing
from streamsx.client.cluster import Cluster
from streamsx.clock import Clock
from streamsx.errors import GroupError, first_of
from streamsx.group import member_events as e
from streamsx.group.member import LEAVE_S, MemberConfig
from streamsx.group.outage import Outage
from streamsx.group.session import Session
from streamsx.group.subscription_builder import SubscriptionBuilder
from streamsx.metrics import MetricRegistry
from streamsx.protocol.consumer_protocol import PROTOCOL_TYPE
from streamsx.protocol.error_codes import ErrorCode, failure

LOG = logging.getLogger("streamsx")
SESSION_TIMEOUTS_S = (6.0, 10.0, 30.0)
"""Session timeouts to try, shortest first: the broker has a minimum, 6 s by Kafka's default."""
AGAIN_S = 0.2
"""Pause between tries; each try makes a round for all members. Marks may stay out while newer ones
take all the room."""
UNREACHABLE_S = 10.0
"""Longest time that the cluster may be away, or be without a coordinator for the group."""


async def send_marks(
    cluster: Cluster, clock: Clock, group: str, marks: Mapping[str, Mark], timeout_s: float,
    protocol_type: str = PROTOCOL_TYPE,
) -> bool:  # fmt: skip
    """Bring marks into the group's memory.

    Returns:
        True when the group has these marks, or newer ones of the same instances; False when a
            leader received the marks in time and the outcome is unknown.

    Raises:
        GroupError: no leader received the marks in time.
        ForeignProtocol: the group belongs to another program.
        WorldError: the cluster has not answered for 10 s.
    """
    give_up_at = clock.now() + timeout_s
    for session_s in SESSION_TIMEOUTS_S:
        visit = ToolMembership(clock, group, marks, session_s, protocol_type)
        await visit.pay(cluster, give_up_at - clock.now())
        if visit.refused == ErrorCode.INVALID_SESSION_TIMEOUT:
            continue
        if visit.refused:
            foreign = visit.refused == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            advice = "its members are not workers of streamsx: give the id of an app" * foreign
            raise failure(visit.refused, f"group {group}", advice)
        if not (visit.taken or visit.shown):
            raise not_taken(group, timeout_s, visit.session.failed)
        return visit.taken
    raise failure(ErrorCode.INVALID_SESSION_TIMEOUT, f"group {group}")


class ToolMembership:
    """One membership of a tool.

    `refused`: Kafka's code, if the group refuses the tool. `shown`: a leader received the marks.
    `taken`: all members know the marks.

    The race: the leader has planned with the marks; a marked member joins again before the tool's
    SyncGroup comes; SyncGroup hangs. The marks are in, and no answer confirms it.
    """

    def __init__(
        self, clock: Clock, group: str, marks: Mapping[str, Mark], session_s: float,
        protocol_type: str = PROTOCOL_TYPE,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._marks = marks
        self._session_s = session_s
        builder = SubscriptionBuilder(observing(marks, nonce=int(clock.wall() * 1000)), ())
        config = MemberConfig(session_timeout_s=session_s, protocol_type=protocol_type)
        outage = Outage(LOG.debug, UNREACHABLE_S)
        metrics = MetricRegistry()
        self.session = Session(clock, config, group, builder, self._handle, outage, metrics)
        self.refused = 0
        self.shown = False
        self.taken = False

    async def pay(self, cluster: Cluster, limit_s: float) -> None:
        """Run the membership and leave within `limit_s`, whatever happens.

        The tool also leaves when the caller is cancelled. An interrupt, or another one, may come
        while the tool is leaving the group, and not only before.
        """
        member = asyncio.create_task(self.session.run(cluster), name="observer")
        limit = asyncio.get_running_loop().call_later(limit_s, self._leave)
        try:
            await asyncio.shield(member)
        except asyncio.CancelledError:
            self._leave()
            while not member.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([member])
            raise
        except BaseExceptionGroup as group:
            raise first_of(group) from None
        finally:
            limit.cancel()

    def _leave(self) -> None:
        self.shown = self.shown or self.session.member.generation >= 0
        self.session.post(e.Stop(self._clock.now() + LEAVE_S))

    def _handle(self, message: e.ControlMessage) -> None:
        match message:
            case e.OnAssignment(view=view):
                kept = view.memory.marks
                marks = self._marks.items()
                self.taken = all(i in kept and kept[i].epoch_ms >= m.epoch_ms for i, m in marks)
                if self.taken:
                    self._leave()
                else:
                    again = e.Want("the workers have not confirmed the request yet")
                    asyncio.get_running_loop().call_later(AGAIN_S, self.session.post, again)
            case e.Fatal(code=code):
                self.refused = code
            case e.Left(why) if why:
                LOG.warning("the group waits %g s for this tool: %s", self._session_s, why)


def not_taken(group: str, timeout_s: float, why: str = "") -> GroupError:
    """Return the error for marks that did not get in; `why` is the end of the last failed round."""
    return GroupError(
        f"the workers did not confirm the request in {timeout_s:g} s: {group}: "
        f"{why or 'does the group rebalance all the time? (streamsx status)'}"
    )
