"""Choice of the offset at which a task begins in each of its source partitions. Pure.

A group that has committed an offset goes on there. Without one, `consumer_auto_offset_reset` names
the start or the end of the log, but for two kinds of partitions, which begin at their start under
`latest` too. Both would lose records that somebody in the app counts on:

- Topics that the app's own tasks write: repartition topics, topics of agents, whatever a body sends
  to. "Task 0_0 forwards a record and commits its source; the owner of 1_3 has no offset yet, and
  asks for the end": the end is behind that record, and 0_0 never sends it again.
- Partitions that a topic gets while the app knows the topic. "A producer sees the new partition
  before the worker does": what stands there by then was sent to a running app.

An offset belongs to one topic, not to a name. A topic that was deleted and made anew has another id
(KIP-516), which stands beside the offset: its task begins at the new topic's start. With the same
id, an offset behind the end means that brokers lost records, and the task goes on at the end; one
before the start that records were deleted unread. Brokers without ids cannot tell a new topic from
a shorter log: there the task begins by the rule for partitions without an offset.

Offsets may be gone while state is there: a group without workers forgets them after a week
(`offsets.retention.minutes`), people delete groups. A task that has committed before its first
record has state only behind an offset. So where none of its partitions has one, and its changelog
holds rows, going on counts twice, and the task stops until `on_lost_offsets` says where to begin.
It does not stop where something else explains it: its topics hold nothing, were made anew since
(brokers forget the offsets of a topic with it), or the group has offsets of topics that the app
does not read any more: then it reads another topic than before.

Not here: asking brokers (`tasks/log_bounds`), what a task does with its offset.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from streamsx.model import TopicPartition
from streamsx.protocol.commit_metadata import OffsetMetadata


class StartPositions(NamedTuple):
    """Places at which a task begins: offset, and what stands beside it.

    `chosen`: partitions of which the group has not committed it yet. Their task commits it before
    its first record, so that whoever begins next begins there, and not where the log ends by then.
    `stop`: why it must not begin at all; nothing of it is committed then.
    """

    places: Mapping[TopicPartition, tuple[int, OffsetMetadata]]
    chosen: frozenset[TopicPartition]
    stop: str = ""


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Rule for partitions of which the group has no offset.

    `own`: topics that the app's tasks write; `counts`: partitions of each topic when a worker of
    this state directory saw it first; `ids`: of topics when one saw them last; `lost`: the setting
    `on_lost_offsets`.
    """

    latest: bool = False
    own: Collection[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    lost: str = "stop"

    def anew(self, topic: str, now: str | None) -> bool:
        """Return whether the topic was made anew since a worker here saw it, given its id now."""
        return other(self.ids.get(topic), now)

    def at_end(self, tp: TopicPartition, now: str | None = None) -> bool:
        """Return whether the partition begins at its end. `now`: id of its topic."""
        grown = tp.partition >= self.counts.get(tp.topic, tp.partition + 1)
        new = grown or tp.topic in self.own or self.anew(tp.topic, now)
        return self.latest and not new

    def offset(self, tp: TopicPartition, start: int, end: int, now: str | None = None) -> int:
        """Return where the partition begins, given where its log begins and ends."""
        return end if self.at_end(tp, now) else start

    def without_offsets(
        self, task: str, sources: Mapping[TopicPartition, tuple[int, int]]
    ) -> "WithoutOffsets":
        """Return where a task goes on whose state is there, and whose offsets are gone."""
        where = ", ".join(map(str, sorted(sources)))
        what = (
            f"offsets are gone: {task}: none is committed of {where}, and the state made of their "
            "records is there"
        )
        begin = {
            tp: end if self.lost == "latest" else start for tp, (start, end) in sources.items()
        }
        if self.lost == "stop":
            stop = (
                f"task stopped: {what}: records would count twice: set on_lost_offsets to earliest "
                "or latest to begin there all the same, or raise the app's version to begin "
                "without state"
            )
            return WithoutOffsets(begin, stop, stops=True)
        twice = "skipped" if self.lost == "latest" else "counted twice"
        told = (
            f"{what}: going on at the {self.lost} offsets, as on_lost_offsets says: records may be"
        )
        return WithoutOffsets(begin, f"{told} {twice}", stops=False)

    def out_of_range(
        self, tp: TopicPartition, offset: int, start: int, end: int, *, done: int, same: bool
    ) -> "Move":
        """Return where to go on when the log does not have the offset. `done`: position of the
        slowest reader, which may still need what is before the end; `same`: the topic is known to
        be the one that the offset is of.
        """
        if offset < start:
            lost = start - offset
            return Move(
                start,
                f"records deleted unread: {tp}: {lost} from offset {offset} on, by retention or by "
                f"hand: going on at the log's start, {start}: keep records for longer if they "
                "were needed",
            )
        if offset <= end:
            return Move(offset, "")
        if same:
            return Move(
                max(start, min(end, done)),
                f"log is shorter than what was read: {tp}: it ends at {end}, the task was at "
                f"{offset}: its brokers lost records: going on at its end; nothing to do",
            )
        begins = self.offset(tp, start, end)
        return Move(
            begins,
            f"log is shorter than what was read: {tp}: it ends at {end}, the task was at {offset}: "
            f"its brokers lost records, or the topic was made anew: going on at {begins}",
        )


class WithoutOffsets(NamedTuple):
    """Offsets at which a task begins whose own are gone, and why, in one line; or why it stops."""

    begin: Mapping[TopicPartition, int]
    why: str
    stops: bool


class Move(NamedTuple):
    """Offset at which a task goes on in a source partition, and why, in one line."""

    offset: int
    why: str


def made_anew(tp: TopicPartition, offset: int | None, start: int) -> Move:
    """Return where to go on in a topic that took the place of another one. `offset`: that of the
    old one, if the group still has it.
    """
    old = (
        "the group's offset went with it"
        if offset is None
        else f"offset {offset} was the old topic's"
    )
    return Move(
        start,
        f"topic was deleted and made anew: {tp}: going on at its start, {start}: {old}; nothing to "
        "do",
    )


def other(before: str | None, now: str | None) -> bool:
    """Return whether two ids are of two topics; None is of any."""
    return None not in (before, now) and before != now


def holds(bounds: Mapping[TopicPartition, tuple[int, int]]) -> bool:
    """Return whether there are records in any of the logs, given where each begins and ends."""
    return any(start < end for start, end in bounds.values())
