"""Choice of the offset at which a task begins in each source partition. Pure.

A group that has committed an offset goes on there. Without one, `consumer_auto_offset_reset` names
the start or the end of the log. Two kinds of partitions begin at their start under `latest` too,
because the app would lose records otherwise:

- Topics that the app's own tasks write: repartition topics, topics of agents, any topic to which a
  body sends. The race: task 0_0 forwards a record and commits the source; the owner of 1_3 has no
  offset yet, and asks for the end; the end is after that record, and 0_0 never sends it again.
- Partitions that a topic gets while the app knows the topic. The race: a producer sees the new
  partition before the worker does, and sends records to an app that is running.

An offset belongs to one topic, not to a name. A topic that was deleted and made anew has another id
(KIP-516), which is committed beside the offset: the task begins at the new topic's start. With the
same id, an offset after the end means that brokers lost records, and the task goes on at the end.
An offset before the start means that records were deleted unread. Brokers without ids do not
distinguish a new topic from a shorter log: there the task begins by the rule for partitions without
an offset.

Offsets may be gone while state is there: a group without workers forgets them after a week
(`offsets.retention.minutes`), and people delete groups. A task commits before its first record, so
state without an offset means that the offset is gone. If none of the task's partitions has an
offset, and the changelog holds rows, going on would count records twice. The task stops until
`on_lost_offsets` names the place to begin. The task does not stop if there is another explanation:

- the topics hold no records;
- the topics were made anew since (brokers forget the offsets of a topic with the topic);
- the group has offsets of topics that the app no longer reads, so the app reads another topic now.

Offsets from which Spark continues are no start for a worker until Spark hands them over: the
state of a task is there, and its records would be processed twice.

Not here: asking brokers (`tasks/log_bounds`), the use of the offset by the task.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from streamsx.errors import StateOnSpark
from streamsx.model import TopicPartition
from streamsx.protocol.commit_metadata import OffsetMetadata


class StartPositions(NamedTuple):
    """Places at which a task begins: the offset of each source partition, and the metadata.

    Attributes:
        places: offset and metadata by partition.
        chosen: partitions with an offset that the group has not committed. Their task commits the
            offset before its first record, so that the next owner begins there too, and not at the
            log's later end.
        stop: reason why the task must not begin at all, and commits nothing; empty without one.
    """

    places: Mapping[TopicPartition, tuple[int, OffsetMetadata]]
    chosen: frozenset[TopicPartition]
    stop: str = ""


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Rule for partitions without a committed offset.

    Attributes:
        latest: whether `consumer_auto_offset_reset` is `latest`.
        own: topics that the app's tasks write.
        counts: partition count of each topic when a worker of this state directory first saw it.
        ids: id of each topic when a worker of this state directory last saw it.
        lost: the setting `on_lost_offsets`.
    """

    latest: bool = False
    own: Collection[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    lost: str = "stop"

    def anew(self, topic: str, now: str | None) -> bool:
        """Return whether a topic was made anew since a worker here saw it; `now` is its id now."""
        return other(self.ids.get(topic), now)

    def at_end(self, tp: TopicPartition, now: str | None = None) -> bool:
        """Return whether a partition begins at the end; `now` is the topic's id now."""
        grown = tp.partition >= self.counts.get(tp.topic, tp.partition + 1)
        new = grown or tp.topic in self.own or self.anew(tp.topic, now)
        return self.latest and not new

    def offset(self, tp: TopicPartition, start: int, end: int, now: str | None = None) -> int:
        """Return the offset at which a partition begins, given the start and end of the log."""
        return end if self.at_end(tp, now) else start

    def without_offsets(
        self, task: str, sources: Mapping[TopicPartition, tuple[int, int]]
    ) -> "WithoutOffsets":
        """Return the start of a task that has state and lost its offsets."""
        where = ", ".join(map(str, sorted(sources)))
        what = (
            f"committed offsets are gone: {task}: none for {where}, but the state made of their "
            "records is there"
        )
        begin = {
            tp: end if self.lost == "latest" else start for tp, (start, end) in sources.items()
        }
        if self.lost == "stop":
            stop = (
                f"task stopped: {what}: records would count twice: set on_lost_offsets to "
                "earliest or latest to start there anyway, or raise the app's version to start "
                "without state"
            )
            return WithoutOffsets(begin, stop, stops=True)
        twice = "skipped" if self.lost == "latest" else "counted twice"
        why = (
            f"{what}: continuing at the {self.lost} offsets, as on_lost_offsets is set: "
            "records may be"
        )
        return WithoutOffsets(begin, f"{why} {twice}", stops=False)

    def out_of_range(
        self, tp: TopicPartition, offset: int, start: int, end: int, *, done: int, same: bool
    ) -> "Move":
        """Return the place to go on when the log does not have the offset.

        Args:
            tp: the source partition.
            offset: next offset that the task wants.
            start: first offset of the log.
            end: end of the log.
            done: position of the slowest reader, which may still need records before the end.
            same: whether the topic is known to be the one to which the offset belongs.
        """
        if offset < start:
            lost = start - offset
            return Move(
                start,
                f"records deleted unread: {tp}: {lost} from offset {offset} on, by retention or "
                f"by hand: continuing at the first record, {start}: raise retention.ms of the "
                "topic if they were needed",
            )
        if offset <= end:
            return Move(offset, "")
        if same:
            return Move(
                max(start, min(end, done)),
                f"topic ends before the task's position: {tp}: it ends at {end}, the task was at "
                f"{offset}: its brokers lost records: continuing at its end; no action needed",
            )
        begins = self.offset(tp, start, end)
        return Move(
            begins,
            f"topic ends before the task's position: {tp}: it ends at {end}, the task was at "
            f"{offset}: its brokers lost records, or the topic was deleted and created again: "
            f"continuing at {begins}",
        )


class WithoutOffsets(NamedTuple):
    """Start of a task that lost its offsets: new ones, and the reason to go on or to stop."""

    begin: Mapping[TopicPartition, int]
    why: str
    stops: bool


class Move(NamedTuple):
    """Offset at which a task goes on in a source partition, and the reason in one line."""

    offset: int
    why: str


def made_anew(tp: TopicPartition, offset: int | None, start: int) -> Move:
    """Return the place to go on in a topic that took the place of another one.

    Args:
        tp: the source partition.
        offset: offset in the old topic; None if the group has none any more.
        start: first offset of the new topic's log.
    """
    old = (
        "the committed offset was deleted with it"
        if offset is None
        else f"offset {offset} was the old topic's"
    )
    return Move(
        start,
        f"topic was deleted and created again: {tp}: continuing at its start, {start}: {old}; no "
        "action needed",
    )


def refuse_on_spark(app: str, committed: Iterable[OffsetMetadata]) -> None:
    """Refuse committed offsets from which Spark continues.

    Raises:
        StateOnSpark: the metadata name the place at which Spark keeps the state.
    """
    for uri in filter(None, (metadata.spark for metadata in committed)):
        raise StateOnSpark(
            f"state was not handed over: {app}: Spark continued it in {uri}: run streamsx spark "
            f"handover MODULE --state {uri}"
        )


def other(before: str | None, now: str | None) -> bool:
    """Return whether two ids belong to two topics; None matches every id."""
    return None not in (before, now) and before != now


def holds(bounds: Mapping[TopicPartition, tuple[int, int]]) -> bool:
    """Return whether any log has records, given the start and end of each."""
    return any(start < end for start, end in bounds.values())
