"""Limits and partition counts of the topics that are sent to, as their brokers have them by now.

A topic's limits are asked for before it is first sent to, where it is named in the app, and beside
the first records of one that is not. They are asked for again when something was refused by them,
and every few minutes. A topic that we may not describe has the defaults, and what a refusal taught.

What limits mean is said in `client/topic_limits`.
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
"""For partitions that were added to an output topic, with one Metadata request for all topics."""
ASK_EVERY_S = 300.0
"""For limits, as `metadata.max.age.ms` has it."""
AGAIN_S = 5.0
"""Between two questions about one topic, however often it refuses something."""


class OutputLimits:
    """One per worker. `watch` is called with each topic whose limits are known anew."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        spawn: Callable[..., object],
    ) -> None:
        self._cluster, self._clock, self._spawn = cluster, clock, spawn
        self._found: dict[str, TopicLimits] = {}
        self._asked: dict[str, float] = {}
        self._watchers: list[Callable[[str, TopicLimits], None]] = []

    def watch(self, changed: Callable[[str, TopicLimits], None]) -> None:
        """Call it when limits are known."""
        self._watchers.append(changed)

    def of(self, topic: str) -> TopicLimits:
        """Return what is known by now; what is not is asked for."""
        if topic not in self._asked:
            self.ask(topic)
        return self._found.get(topic, UNKNOWN)

    def ask(self, topic: str) -> None:
        """Ask again, but not at once again."""
        now = self._clock.now()
        if now - self._asked.get(topic, -AGAIN_S) >= AGAIN_S:
            self._asked[topic] = now
            job: Coroutine[Any, Any, None] = self.learn([topic])
            self._spawn(job, name=f"limits of {topic}")

    async def learn(self, topics: Collection[str]) -> None:
        """Ask for the limits of these; without an answer what was known stays."""
        now = self._clock.now()
        self._asked.update(dict.fromkeys(topics, now))
        try:
            configs = await admin.configs_now(self._cluster, topics, ASKED)
        except StreamsxError as error:  # asked again: by whoever is refused, and now and then
            LOG.debug("limits of topics: %s", error)
            return
        for topic, found in configs.items():
            limits = limits_of(found)
            if self._found.get(topic) != limits:
                self._found[topic] = limits
            for changed in self._watchers:
                changed(topic, limits)

    async def run(self) -> None:
        """Look until cancelled."""
        asked_at = self._clock.now()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with suppress(BrokerUnreachable):  # whoever sends or fetches says so
                await self._cluster.refresh()
            if self._clock.now() - asked_at >= ASK_EVERY_S:
                asked_at = self._clock.now()
                await self.learn(tuple(self._asked))
