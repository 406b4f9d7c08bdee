"""What a leader does: plan with fresh partition counts, and remove who overstays its deadline.

Every member watches the counts, for each may be elected. Not here: what a plan says (the
assignor's), when one or a removal is due (the member's).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from streamsx.assignor.partition_assignor import Outcome, StreamsPartitionAssignor
from streamsx.clock import Clock
from streamsx.errors import BrokerUnreachable, WorldError
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.wire import Api
from streamsx.membership import events as e
from streamsx.membership import requests

METADATA_RETRY_S = 0.1
METADATA_WAIT_S = 2.0
"""CreateTopics returns before Metadata knows the topic: a plan without it stands for minutes."""
TOPICS_EVERY_S = 30.0
EVICT_TIMEOUT_S = 5.0

AskCoordinator = Callable[[Api, dict[str, Any], float], Awaitable[Any]]


class Leading:
    """One per session, on its thread."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        group: str,
        subscribed: Sequence[str],
        assignor: StreamsPartitionAssignor,
        ask: AskCoordinator,
        log: Callable[[str], None],
    ) -> None:
        self._cluster, self._clock, self._group = cluster, clock, group
        self._subscribed, self._assignor = subscribed, assignor
        self._ask, self._log = ask, log
        self._counts: dict[str, int] = {}

    async def plan(self, asked: e.Assign) -> Outcome:
        """Who runs what, as of now, by who led when it was asked: counts may take a while, and a
        member that is fenced meanwhile has no id any more."""
        await self._refresh_counts()
        outcome = self._assignor.assign(
            [(member.member_id, member.metadata) for member in asked.members],
            self._counts,
            leader=asked.member_id,
            generation=asked.generation,
            now_ms=int(self._clock.wall() * 1000),
        )
        for note in outcome.notes:
            self._log(note)
        for decision in outcome.plan.explain if outcome.plan else ():
            self._log(f"plan task={decision.task} {decision.decision}: {decision.why}")
        return outcome

    async def watch(self, changed: Callable[[], None]) -> None:
        """Until cancelled: tell when a topic has another number of partitions than planned with."""
        while True:
            await asyncio.sleep(TOPICS_EVERY_S)
            await self._refresh()
            found = self._found()
            if self._counts and found != self._counts:
                self._counts = found
                changed()

    async def _refresh_counts(self) -> None:
        """Fresh, and patient while a topic was just created."""
        give_up_at = self._clock.now() + METADATA_WAIT_S
        while True:
            await self._refresh()
            self._counts = self._found()
            if all(self._counts.values()) or self._clock.now() >= give_up_at:
                return
            await asyncio.sleep(METADATA_RETRY_S)

    async def _refresh(self) -> None:
        with suppress(BrokerUnreachable):  # what is known stands
            await self._cluster.follow(self._subscribed)
            await self._cluster.refresh()

    def _found(self) -> dict[str, int]:
        return {topic: self._cluster.partitions(topic) for topic in self._subscribed}

    async def remove(self, member_id: str) -> None:
        """A marked member that may still be there behind its deadline."""
        body = requests.leave(self._group, member_id)
        try:
            reply = await self._ask(Api.LEAVE_GROUP, body, EVICT_TIMEOUT_S)
        except WorldError as error:
            self._log(f"not evicted: {member_id}: {error}")
            return
        if not any(told.error_code for told in reply.members):
            self._log(f"evicted {member_id}: it did not leave by its deadline")
