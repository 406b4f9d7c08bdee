"""Choice of the offset at which a task begins in each of its source partitions. Pure.

A group that has committed an offset goes on there. Without one, `consumer_auto_offset_reset` names
the start or the end of the log, but for two kinds of partitions, which begin at their start under
`latest` too. Both would lose records that somebody in the app counts on:

- Topics that the app's own tasks write: repartition topics, topics of agents, whatever a body sends
  to. "Task 0_0 forwards a record and commits its source; the owner of 1_3 has no offset yet, and
  asks for the end": the end is behind that record, and 0_0 never sends it again.
- Partitions that a topic gets while the app knows the topic. "A producer sees the new partition
  before the worker does": what stands there by then was sent to a running app.

Not here: asking brokers (`engine/bounds`), what a task does with its offset.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from streamsx.lifecycle.metadata import OffsetMetadata
from streamsx.model import TopicPartition


class Beginnings(NamedTuple):
    """Places at which a task begins: offset, and what stands beside it.

    `chosen`: partitions of which the group has not committed it yet. Their task commits it before
    its first record, so that whoever begins next begins there, and not where the log ends by then.
    """

    places: Mapping[TopicPartition, tuple[int, OffsetMetadata]]
    chosen: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Reset:
    """Rule for partitions of which the group has no offset. `own`: topics that the app's tasks
    write. `counts`: partitions of each topic when this worker started.
    """

    latest: bool = False
    own: Collection[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    def at_end(self, tp: TopicPartition) -> bool:
        """Return whether the partition begins at its end."""
        grown = tp.partition >= self.counts.get(tp.topic, tp.partition + 1)
        return self.latest and tp.topic not in self.own and not grown

    def offset(self, tp: TopicPartition, start: int, end: int) -> int:
        """Return where the partition begins, given where its log begins and ends."""
        return end if self.at_end(tp) else start
