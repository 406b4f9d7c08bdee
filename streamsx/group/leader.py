"""Group leader's inputs: fresh partition counts of the source topics, and the call of the assignor.

Every member watches the counts, because every member may be elected leader. Not here: the content
of a plan (`assignor`), and the moment when a plan is due (`member`).
"""

import asyncio
import logging
from collections.abc import Callable

from streamsx.assignor.membership import MemberChange, MemberNews
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
"""Longest wait for the metadata of a new topic. CreateTopics returns before Metadata knows the
topic, and a plan without the topic would stand for minutes."""
TOPICS_EVERY_S = 5.0
"""Interval between two looks at the partition counts. Records sent to a new partition are not read
before the next look."""

GONE = "Source topic %s is not there any more: its tasks wait until it is. Create it again."


class Leader:
    """Leader's part of a session, on the session's event loop.

    `feed` receives an event for each finished plan and for topics whose partition counts changed.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        builder: SubscriptionBuilder,
        feed: Callable[[e.Event], None],
        journal: Callable[..., object],
        session_timeout_s: float,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._builder = builder
        self._feed = feed
        self._journal = journal
        self._session_timeout_s = session_timeout_s
        self._counts = PartitionCounts()

    async def plan(self, asked: e.Assign) -> None:
        """Assign tasks to members with fresh partition counts, and feed the result as `Planned`.

        The plan is made under the member id and generation of the request `asked`. Reading the
        counts may take a while, and a member that is fenced meanwhile has no member id any more.
        """
        await self._refresh_counts()
        wall_s = self._clock.wall()
        outcome = self._builder.assignor.assign(
            asked.members,
            self._counts.known,
            leader=asked.member_id,
            generation=asked.generation,
            now_ms=int(wall_s * 1000),
        )
        LOG.debug("%s", outcome.summary)
        for note in outcome.notes:
            LOG.log(logging.WARNING if outcome.error else logging.INFO, "%s", note)
        for news in outcome.news:
            self._report(news)
        if outcome.alarm:
            LOG.warning("%s", outcome.alarm)
        zero = wall_s - self._clock.now()
        ends = {member: at_ms / 1000 - zero for member, at_ms in outcome.evictions.items()}
        self._feed(e.Planned(asked.request, outcome.assignments, bool(outcome.error), ends))

    def _report(self, news: MemberNews) -> None:
        """Write a change of the members to the journal."""
        tasks = list(map(str, news.tasks))
        match news.change:
            case MemberChange.JOINED:
                self._journal(
                    "worker_joined",
                    worker=news.worker,
                    tasks=tasks,
                    total=news.total,
                    back=news.back,
                )
            case MemberChange.RESTARTED:
                self._journal("worker_restarted", worker=news.worker, tasks=tasks, was=news.was)
            case MemberChange.LEFT:
                self._journal(
                    "worker_left",
                    worker=news.worker,
                    tasks=tasks,
                    to=dict(news.to),
                    led=news.led,
                )
            case MemberChange.LOST:
                self._journal(
                    "worker_lost",
                    worker=news.worker,
                    tasks=tasks,
                    to=dict(news.to),
                    led=news.led,
                    session_timeout_s=self._session_timeout_s,
                )
            case MemberChange.DIFFERS:
                self._journal("worker_differs", worker=news.worker)

    async def watch(self) -> None:
        """Refresh partition counts every `TOPICS_EVERY_S` until cancelled.

        Any member may become the leader, and the leader must plan with the new counts.
        """
        while self._builder.topics:
            await asyncio.sleep(TOPICS_EVERY_S)
            await self._look()

    async def _refresh_counts(self) -> None:
        """Read the partition counts, and retry for `METADATA_WAIT_S` while a topic is unknown."""
        known = self._counts.known
        topics = self._builder.topics
        give_up_at = self._clock.now() + METADATA_WAIT_S
        await self._look()
        while len(known) < len(topics) and self._clock.now() < give_up_at:
            await asyncio.sleep(METADATA_RETRY_S)
            await self._look()

    async def _look(self) -> None:
        """Read the partition counts once and feed the changes.

        A topic whose metadata request failed counts neither as present nor as deleted.
        """
        cluster = self._cluster
        topics = self._builder.topics
        if not topics:
            return
        try:
            await cluster.follow(topics)
            await cluster.refresh()
        except BrokerUnreachable:
            return  # keep the counts known so far
        answered = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        found = {t: cluster.partitions(t) for t in topics if cluster.error(t) in answered}
        changed = self._counts.update(self._clock.now(), found)
        for topic in (topic for topic, count in changed.items() if not count):
            LOG.warning(GONE, topic)
        if changed:
            self._feed(e.PartitionsChanged(changed))
