"""What a leader does: plan with fresh partition counts, and remove who overstays its deadline.

Every member watches the counts, for each may be elected. Not here: what a plan says (the
assignor's), when one or a removal is due (the member's).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from streamsx.assignor.partition_assignor import Outcome, StreamsPartitionAssignor
from streamsx.clock import Clock
from streamsx.errors import BrokerUnreachable, WorldError
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.errors import ErrorCode, name_of
from streamsx.kafka.wire import Api
from streamsx.membership import events as e
from streamsx.membership import requests
from streamsx.membership.counts import Counts

LOG = logging.getLogger("streamsx")
METADATA_RETRY_S = 0.1
METADATA_WAIT_S = 2.0
"""CreateTopics returns before Metadata knows the topic: a plan without it stands for minutes."""
TOPICS_EVERY_S = 5.0
"""Until then nobody reads what is sent to a new partition."""
EVICT_TIMEOUT_S = 5.0

AskCoordinator = Callable[[Api, dict[str, Any], float], Awaitable[Any]]


class Leading:
    """One per session, on its thread. `changed` is told of topics with other counts than before."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        group: str,
        subscribed: Sequence[str],
        assignor: StreamsPartitionAssignor,
        ask: AskCoordinator,
        changed: Callable[[Mapping[str, int]], None],
        log: Callable[[str], None],
    ) -> None:
        self._cluster, self._clock, self._group = cluster, clock, group
        self._subscribed, self._assignor = subscribed, assignor
        self._ask, self._changed, self._log = ask, changed, log
        self._counts = Counts(subscribed)

    async def plan(self, asked: e.Assign) -> Outcome:
        """Who runs what, as of now, by who led when it was asked: counts may take a while, and a
        member that is fenced meanwhile has no id any more."""
        await self._refresh_counts()
        outcome = self._assignor.assign(
            [(member.member_id, member.metadata) for member in asked.members],
            self._counts.known,
            leader=asked.member_id,
            generation=asked.generation,
            now_ms=int(self._clock.wall() * 1000),
        )
        for note in outcome.notes:
            self._log(note)
        for decision in outcome.plan.explain if outcome.plan else ():
            self._log(f"plan task={decision.task} {decision.decision}: {decision.why}")
        return outcome

    async def watch(self, replan: Callable[[], None]) -> None:
        """Until cancelled: whoever leads has to plan with new counts."""
        while True:
            await asyncio.sleep(TOPICS_EVERY_S)
            if await self._look():
                replan()

    async def _refresh_counts(self) -> None:
        """Fresh, and patient while a topic was just created."""
        give_up_at = self._clock.now() + METADATA_WAIT_S
        await self._look()
        while not self._counts.complete and self._clock.now() < give_up_at:
            await asyncio.sleep(METADATA_RETRY_S)
            await self._look()

    async def _look(self) -> bool:
        """Whether a count has changed."""
        try:
            await self._cluster.follow(self._subscribed)
            await self._cluster.refresh()
        except BrokerUnreachable:
            return False  # what is known stands
        changed = self._counts.heard(self._clock.now(), self._found())
        for topic in (topic for topic, count in changed.items() if not count):
            LOG.warning("source topic gone: %s: what reads it waits until it is there again", topic)
        if changed:
            self._changed(changed)
        return bool(changed)

    def _found(self) -> dict[str, int]:
        """A topic that cannot be asked for is neither there nor gone."""
        known = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        cluster, topics = self._cluster, self._subscribed
        return {t: cluster.partitions(t) for t in topics if cluster.error(t) in known}

    async def remove(self, member_id: str) -> None:
        """A marked member that may still be there behind its deadline."""
        body = requests.leave(self._group, member_id)
        try:
            reply = await self._ask(Api.LEAVE_GROUP, body, EVICT_TIMEOUT_S)
        except WorldError as error:
            self._log(f"not evicted: {member_id}: {error}")
            return
        code = next((told.error_code for told in (reply, *reply.members) if told.error_code), 0)
        if not code:
            self._log(f"evicted {member_id}: it did not leave by its deadline")
        elif code != ErrorCode.UNKNOWN_MEMBER_ID:  # it has left
            self._log(f"not evicted: {member_id}: {name_of(code)}")
