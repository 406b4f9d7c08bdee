"""What a leader plans with: fresh partition counts of the source topics.

Every member watches them, for each may be elected. Not here: what a plan says (the assignor's),
when one is due (the member's).
"""

import asyncio
import logging
from collections.abc import Callable

from streamsx.client.cluster import Cluster
from streamsx.clock import Clock
from streamsx.errors import BrokerUnreachable
from streamsx.group import member_events as e
from streamsx.group.partition_counts import PartitionCounts
from streamsx.group.subscription_builder import SubscriptionBuilder
from streamsx.protocol.error_codes import ErrorCode

LOG = logging.getLogger("streamsx")
METADATA_RETRY_S = 0.1
METADATA_WAIT_S = 2.0
"""CreateTopics returns before Metadata knows the topic: a plan without it stands for minutes."""
TOPICS_EVERY_S = 5.0
"""Until then nobody reads what is sent to a new partition."""


class Leader:
    """One per session, on its loop. `feed` is told of plans, and of topics with other counts than
    before."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        seat: SubscriptionBuilder,
        feed: Callable[[e.Event], None],
    ) -> None:
        self._cluster, self._clock, self._seat, self._feed = cluster, clock, seat, feed
        self._counts = PartitionCounts()

    async def plan(self, asked: e.Assign) -> None:
        """Who runs what, as of now, by who led when it was asked: counts may take a while, and a
        member that is fenced meanwhile has no id any more."""
        await self._refresh_counts()
        wall_s = self._clock.wall()
        outcome = self._seat.assignor.assign(
            asked.members,
            self._counts.known,
            leader=asked.member_id,
            generation=asked.generation,
            now_ms=int(wall_s * 1000),
        )
        for note in outcome.notes:
            LOG.log(logging.WARNING if outcome.error else logging.INFO, "%s", note)
        if outcome.alarm:
            LOG.warning("%s", outcome.alarm)
        zero = wall_s - self._clock.now()
        ends = {member: at_ms / 1000 - zero for member, at_ms in outcome.evictions.items()}
        self._feed(e.Planned(asked.request, outcome.assignments, bool(outcome.error), ends))

    async def watch(self) -> None:
        """Until cancelled: whoever leads has to plan with new counts."""
        while self._seat.topics:
            await asyncio.sleep(TOPICS_EVERY_S)
            await self._look()

    async def _refresh_counts(self) -> None:
        """Fresh, and patient while a topic was just created."""
        known, topics = self._counts.known, self._seat.topics
        give_up_at = self._clock.now() + METADATA_WAIT_S
        await self._look()
        while len(known) < len(topics) and self._clock.now() < give_up_at:
            await asyncio.sleep(METADATA_RETRY_S)
            await self._look()

    async def _look(self) -> None:
        """A topic that cannot be asked for is neither there nor gone."""
        cluster, topics = self._cluster, self._seat.topics
        if not topics:
            return
        try:
            await cluster.follow(topics)
            await cluster.refresh()
        except BrokerUnreachable:
            return  # what is known stands
        answered = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        found = {t: cluster.partitions(t) for t in topics if cluster.error(t) in answered}
        changed = self._counts.heard(self._clock.now(), found)
        for topic in (topic for topic, count in changed.items() if not count):
            LOG.warning("source topic gone: %s: what reads it waits until it is there again", topic)
        if changed:
            self._feed(e.PartitionsChanged(changed))
