"""Watch over limits and partition counts of output topics, as their brokers have them.

Limits of a topic that the app names are asked for before the first record is sent. Limits of any
other topic are asked for beside its first records. They are asked for again after a refusal by a
limit, and every few minutes. A topic that this user may not describe has the default limits, and
those learned from refusals.

`client/topic_limits` defines the limits.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any

from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.client.topic_limits import ASKED, UNKNOWN, TopicLimits, limits_of
from streamsx.clock import Clock
from streamsx.errors import BrokerUnreachable, StreamsxError
from streamsx.journal import LOG

LOOK_EVERY_S = 5.0
"""Time between looks for partitions added to output topics: one Metadata request for all topics."""
ASK_EVERY_S = 300.0
"""Time between requests for limits, like `metadata.max.age.ms`."""
AGAIN_S = 5.0
"""Shortest time between two requests about one topic, however often that topic refuses records."""


class OutputLimits:
    """Limits of the output topics of one worker."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        spawn: Callable[..., object],
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._spawn = spawn
        self._found: dict[str, TopicLimits] = {}
        self._asked: dict[str, float] = {}
        self._watchers: list[Callable[[str, TopicLimits], None]] = []

    def watch(self, changed: Callable[[str, TopicLimits], None]) -> None:
        """Call `changed` with each topic and its limits, whenever a broker has given them."""
        self._watchers.append(changed)

    def of(self, topic: str) -> TopicLimits:
        """Return the limits known by now, and ask for unknown ones."""
        if topic not in self._asked:
            self.ask(topic)
        return self._found.get(topic, UNKNOWN)

    def ask(self, topic: str) -> None:
        """Ask for the limits of a topic again, at most every AGAIN_S seconds."""
        now = self._clock.now()
        if now - self._asked.get(topic, -AGAIN_S) >= AGAIN_S:
            self._asked[topic] = now
            job: Coroutine[Any, Any, None] = self.learn([topic])
            self._spawn(job, name=f"limits of {topic}")

    async def learn(self, topics: Collection[str]) -> None:
        """Ask for the limits of these topics; without an answer the known limits stay."""
        now = self._clock.now()
        self._asked.update(dict.fromkeys(topics, now))
        try:
            configs = await admin.configs_now(self._cluster, topics, ASKED)
        except StreamsxError as error:  # asked again: when refused, and every ASK_EVERY_S
            LOG.debug("limits of topics: %s", error)
            return
        for topic, found in configs.items():
            limits = limits_of(found)
            if self._found.get(topic) != limits:
                self._found[topic] = limits
            for changed in self._watchers:
                changed(topic, limits)

    async def run(self) -> None:
        """Look for new partitions and limits, until cancelled."""
        asked_at = self._clock.now()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with suppress(BrokerUnreachable):  # senders and fetchers report it
                await self._cluster.refresh()
            if self._clock.now() - asked_at >= ASK_EVERY_S:
                asked_at = self._clock.now()
                await self.learn(tuple(self._asked))
