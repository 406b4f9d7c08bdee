"""Where logs begin and end, and what is committed, asked for until there is an answer; where a task
without a position begins.

Not here: what a store or a task does with it.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial

from streamsx.config import Config
from streamsx.engine.journal import LOG
from streamsx.errors import BrokerUnreachable, StateOnSpark, StreamsxError
from streamsx.kafka import admin
from streamsx.kafka.admin import Bounds
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.inquiries import Inquiries
from streamsx.lifecycle.metadata import OffsetMetadata
from streamsx.lifecycle.places import Beginnings, Reset
from streamsx.model import TopicPartition

LATEST = "latest"


class LogBounds:
    """Of the partitions of one cluster. `of`: as of now, while `run` runs, however long it takes:
    whoever waits for it is cancelled by its owner. `committed`: offsets of the app's group, with
    their metadata, in the same way. `reset`: where partitions without an offset begin.
    """

    def __init__(self, cluster: Cluster, config: Config, reset: Reset | None = None) -> None:
        self._cluster, self._app = cluster, config.id
        self._reset = reset or Reset(config.consumer_auto_offset_reset == LATEST)
        self._stale = False
        """A leader did not answer, or was none."""
        inquiries = Inquiries(self.look, lambda why: LOG.warning("offsets: %s", why))
        self.of, self.run = inquiries.of, inquiries.run
        self.committed = Inquiries(
            partial(admin.committed_now, cluster, config.id),
            lambda why: LOG.info("positions: %s", why),
        )

    async def begin(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where partitions begin of which the group has no offset."""
        return {tp: self._reset.offset(tp, *found) for tp, found in (await self.of(tps)).items()}

    async def beginnings(self, tps: Collection[TopicPartition]) -> Beginnings:
        """Return where each partition begins: where the group has committed, else by the rule.

        Raises:
            StateOnSpark: Spark has gone on with the app's state.
        """
        texts = await self.committed.of(tps)
        found = {tp: (offset, OffsetMetadata.decode(text)) for tp, (offset, text) in texts.items()}
        for uri in filter(None, (beside.spark for _, beside in found.values())):
            raise StateOnSpark(
                f"state was not handed over: {self._app}: Spark has gone on with it, in {uri}: "
                f"streamsx spark handover MODULE --state {uri}"
            )
        begin = await self.begin([tp for tp, (offset, _) in found.items() if offset < 0])
        places = {tp: (begin.get(tp, offset), beside) for tp, (offset, beside) in found.items()}
        return Beginnings(places, frozenset(begin))

    async def look(
        self, tps: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, Bounds], StreamsxError | None]:
        """As of now, of those whose leaders answer; else why they do not."""
        if self._stale:
            with suppress(BrokerUnreachable):  # the question will say so
                await self._cluster.refresh()
        found, why = await admin.bounds_now(self._cluster, tps)
        self._stale = why is not None
        return found, why
