"""What a leader plans with: fresh partition counts of the source topics.

Every member watches them, for each may be elected. Not here: what a plan says (the assignor's),
when one is due (the member's).
"""

import asyncio
import logging
from collections.abc import Callable

from streamsx.clock import Clock
from streamsx.errors import BrokerUnreachable
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.errors import ErrorCode
from streamsx.membership import events as e
from streamsx.membership.counts import Counts
from streamsx.membership.seat import Seat, planned

LOG = logging.getLogger("streamsx")
METADATA_RETRY_S = 0.1
METADATA_WAIT_S = 2.0
"""CreateTopics returns before Metadata knows the topic: a plan without it stands for minutes."""
TOPICS_EVERY_S = 5.0
"""Until then nobody reads what is sent to a new partition."""


class Leading:
    """One per session, on its loop. `deliver` is told of topics with other counts than before."""

    def __init__(
        self, cluster: Cluster, clock: Clock, seat: Seat, deliver: Callable[[e.Counted], None]
    ) -> None:
        self._cluster, self._clock, self._seat, self._deliver = cluster, clock, seat, deliver
        self._counts = Counts(seat.topics)

    async def plan(self, asked: e.Assign) -> e.Planned:
        """Who runs what, as of now, by who led when it was asked: counts may take a while, and a
        member that is fenced meanwhile has no id any more."""
        await self._refresh_counts()
        wall_s = self._clock.wall()
        outcome = self._seat.plan(asked, self._counts.known, int(wall_s * 1000))
        for note in outcome.notes:
            LOG.info("%s", note)
        for decision in outcome.plan.explain if outcome.plan else ():
            LOG.debug("plan task=%s %s: %s", decision.task, decision.decision, decision.why)
        return planned(asked.request, outcome, wall_s - self._clock.now())

    async def watch(self, feed: Callable[[e.Event], None]) -> None:
        """Until cancelled: whoever leads has to plan with new counts."""
        while self._seat.topics:
            await asyncio.sleep(TOPICS_EVERY_S)
            if await self._look():
                feed(e.PartitionsChanged())

    async def _refresh_counts(self) -> None:
        """Fresh, and patient while a topic was just created."""
        give_up_at = self._clock.now() + METADATA_WAIT_S
        await self._look()
        while not self._counts.complete and self._clock.now() < give_up_at:
            await asyncio.sleep(METADATA_RETRY_S)
            await self._look()

    async def _look(self) -> bool:
        """Whether a count has changed."""
        cluster, topics = self._cluster, self._seat.topics
        if not topics:
            return False
        try:
            await cluster.follow(topics)
            await cluster.refresh()
        except BrokerUnreachable:
            return False  # what is known stands
        changed = self._counts.heard(self._clock.now(), self._found())
        for topic in (topic for topic, count in changed.items() if not count):
            LOG.warning("source topic gone: %s: what reads it waits until it is there again", topic)
        if changed:
            self._deliver(e.Counted(changed))
        return bool(changed)

    def _found(self) -> dict[str, int]:
        """A topic that cannot be asked for is neither there nor gone."""
        known = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        cluster, topics = self._cluster, self._seat.topics
        return {t: cluster.partitions(t) for t in topics if cluster.error(t) in known}
