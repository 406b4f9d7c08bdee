"""Batches that a broker refuses for good: the records at fault, and the batches to send anew.

A broker refuses a batch as a whole. The broker may name the records at fault (KIP-467); then the
others are sent again without them. If the broker names none, the batch is halved until one record
is left, so that each record is refused for itself. A refusal that concerns no record (a missing
right) refuses all records.

Not here: numbers (`idempotence`), the order of batches (`record_accumulator`), effects on tasks
(`tasks`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple

from streamsx.model import TaskId, TopicPartition
from streamsx.processing.failure_policy import FailedRecord
from streamsx.protocol.error_codes import ErrorCode, name_of
from streamsx.protocol.record_batch import NO_HEADERS, BatchFormat, Builder, Columns, columns

TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
OF_RECORDS: Final = TOO_LARGE | {ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP}
"""Codes that refuse a batch for some of its records.

Any other code concerns the batch or its topic.
"""
RIGHTS: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)
START: Final = attrgetter("start")
KEY_SHOWN: Final = 100
"""Bytes of a key that a message shows."""


class SourceRecords(NamedTuple):
    """Source records that a task was handling when it sent something."""

    topic: str
    partition: int
    first: int
    last: int

    def until(self, later: "SourceRecords") -> "SourceRecords":
        """Return these records and later ones, if those are of the same partition."""
        if later[:2] != self[:2]:
            return self
        return self._replace(last=max(self.last, later.last))

    def __str__(self) -> str:
        offsets = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        return f"{self.topic}-{self.partition} offset {offsets}"


@dataclass(eq=False, slots=True)
class Sender:
    """Sender of records: one life of a task, or user code outside of tasks (`task` is None).

    A reader with a reaction of its own to refused records is a part of its task's sender, so that
    its records can be told from those of others. A seal of the whole has the records of all parts.
    """

    task: TaskId | None = None
    at_hand: Any = None
    """Function that returns the current `SourceRecords` or None; None without such a function."""
    wrote: dict[Any, None] = field(default_factory=dict)
    """Partitions written to since the last seal; one object for all parts."""
    operator: str = ""
    """Agent or flow that is the part."""
    reaction: Any = None
    """Reaction of the part: a word, or a function of the failure; None for the setting's."""
    parts: "dict[str, Sender]" = field(default_factory=dict)
    sealed: list[tuple[Any, int]] = field(default_factory=list)
    """Goals of the last seal. A dead letter that is sent behind the seal is one more."""

    def part(self, operator: str, reaction: Any) -> "Sender":
        """Return the part for an agent or a flow, the same object each time."""
        if operator not in self.parts:
            made = Sender(self.task, self.at_hand, self.wrote, operator, reaction)
            self.parts[operator] = made
        return self.parts[operator]

    @property
    def whole(self) -> "tuple[Sender, ...]":
        """Return the sender and its parts."""
        return (self, *self.parts.values())

    def seal(self) -> list[tuple[Any, int]]:
        """Return the partitions written to since the last seal, and begin a new interval.

        Returns:
            Partitions, each with the number of batches to be acknowledged before all records have
            arrived.
        """
        goals = []
        whole = self.whole
        for partition in self.wrote:
            goals.append((partition, partition.closed + (partition.builder is not None)))
            if partition.writer in whole:
                partition.writer = None
        self.wrote.clear()
        self.sealed = goals
        return goals


OUTSIDE: Final = Sender()
"""Sender for user code outside of tasks."""


class Run(NamedTuple):
    """Consecutive records of one batch from one sender; `start` is the index of the first."""

    start: int
    sender: Sender
    source: SourceRecords | None
    retimed: bool = False
    """Whether the records, rows of a changelog, were given another time once already."""


class RefusedRecord(NamedTuple):
    """Refused record, or all records of one sender in a batch that is refused as a whole.

    `key` is the key of the first record, `indices` are positions in the batch. `records` is 0 for
    all records of a sender in a partition. `record` are the bytes of a record that is refused for
    itself; None otherwise.
    """

    sender: Sender
    source: SourceRecords | None
    key: bytes | None
    records: int
    why: str
    indices: Sequence[int] = ()
    record: FailedRecord | None = None


class Reworked(NamedTuple):
    """Remains of a refused batch: parts to send in order, with their runs; records not sent."""

    parts: list[tuple[Builder, list[Run]]]
    refused: list[RefusedRecord]


class BatchRefusal(NamedTuple):
    """Broker's refusal of a batch. `named` gives messages about records, by index of the record."""

    code: int
    named: Mapping[int, str]
    message: str


def rework(
    data: bytearray, runs: Sequence[Run], refusal: BatchRefusal, batches: BatchFormat,
    bytes_max: int, now_ms: int | None = None,
) -> Reworked:  # fmt: skip
    """Return the parts of a refused batch to send again, and the records that are not sent.

    Given `now_ms`, a batch that was refused for its times goes again as a whole, with that time in
    all records. This is for changelogs: no reader uses their times.
    """
    rows = columns(data, 0, check=False)
    count = len(rows.keys)
    everything = range(count)
    if refusal.code == ErrorCode.INVALID_TIMESTAMP and now_ms is not None:
        rows = rows._replace(timestamps=[now_ms] * count)
        again = [run._replace(retimed=True) for run in runs]
        return Reworked(_built(rows, again, everything, batches, bytes_max), [])
    if refusal.code not in OF_RECORDS:
        return Reworked([], _whole(rows, runs, refusal))
    named = {index: why for index, why in refusal.named.items() if 0 <= index < count}
    if refusal.code in TOO_LARGE:
        named = {}
    if count == 1:
        named = {0: named.get(0, refusal.message)}
    if named:
        left = [index for index in everything if index not in named]
        bad = [_refused(rows, runs, index, why) for index, why in sorted(named.items())]
        return Reworked(_built(rows, runs, left, batches, bytes_max), bad)
    half = count // 2
    parts = _built(rows, runs, everything[:half], batches, bytes_max)
    return Reworked(parts + _built(rows, runs, everything[half:], batches, bytes_max), [])


def _built(
    rows: Columns, runs: Sequence[Run], wanted: Iterable[int], batches: BatchFormat, bytes_max: int
) -> list[tuple[Builder, list[Run]]]:
    """Return batches with these records, as few as possible."""
    made: list[tuple[Builder, list[Run]]] = []
    for index in wanted:
        headers = rows.headers[index] if rows.headers else NO_HEADERS
        record = rows.timestamps[index], rows.keys[index], rows.values[index], headers
        if not made or not made[-1][0].append(*record):
            made.append((batches.builder(bytes_max), []))
            made[-1][0].append(*record)
        builder, kept = made[-1]
        run = run_of(runs, index)
        if not kept or kept[-1].sender is not run.sender or kept[-1].source != run.source:
            kept.append(run._replace(start=builder.count - 1))
    return made


def run_of(runs: Sequence[Run], index: int) -> Run:
    """Return the run that contains a record."""
    return runs[bisect_right(runs, index, key=START) - 1]


def _refused(rows: Columns, runs: Sequence[Run], index: int, why: str) -> RefusedRecord:
    run = run_of(runs, index)
    key = rows.keys[index]
    headers = rows.headers[index] if rows.headers else None
    record = FailedRecord(key, rows.values[index], rows.timestamps[index], headers)
    return RefusedRecord(run.sender, run.source, key, 1, why, [index], record)


def _whole(rows: Columns, runs: Sequence[Run], refusal: BatchRefusal) -> list[RefusedRecord]:
    """Return one refusal for each sender with records in the batch."""
    ends = [run.start for run in runs[1:]] + [len(rows.keys)]
    found: dict[Sender, RefusedRecord] = {}
    indices: dict[Sender, list[int]] = {}
    for run, end in zip(runs, ends, strict=True):
        count = end - run.start
        its = indices.setdefault(run.sender, [])
        its.extend(range(run.start, end))
        if count and run.sender in found:
            before = found[run.sender]
            found[run.sender] = before._replace(
                source=_both(before.source, run.source), records=before.records + count
            )
        elif count:
            key = rows.keys[run.start]
            found[run.sender] = RefusedRecord(
                run.sender, run.source, key, count, refusal.message, its
            )
    return list(found.values())


def _both(one: SourceRecords | None, other: SourceRecords | None) -> SourceRecords | None:
    return one if one is None or other is None else one.until(other)


def refusal_message(tp: TopicPartition, code: int, record: RefusedRecord, principal: str) -> str:
    """Return one line about a refused record: the event, and the remedy."""
    key = "no key" if record.key is None else f"key {record.key[:KEY_SHOWN]!r}"
    what = key if record.records == 1 else f"{record.records} records, the first with {key}"
    if not record.records:
        what = "all records"
    sender = "sent outside of tasks"
    if record.sender.task is not None:
        sender = f"sent by task {record.sender.task}"
        if record.source is not None:
            sender += f" at {record.source}"
    message = f" ({record.why})" if record.why else ""
    return f"record refused: {tp}, {what}, {sender}: {name_of(code)}{message}: " + advice(
        tp, code, principal
    )


def advice(tp: TopicPartition, code: int, principal: str) -> str:
    """Return what a person can do about a refusal."""
    if code in TOO_LARGE:
        return "send less, or raise max.message.bytes of the topic"
    if code in RIGHTS:
        return f"let {principal} write to topic {tp.topic}"
    if code == ErrorCode.INVALID_TIMESTAMP:
        return "correct its timestamp, or raise message.timestamp.after.max.ms of the topic"
    if code == ErrorCode.INVALID_RECORD:
        return "fix the code that sends it: does the topic need a key, or a schema?"
    return "see the log of the broker"
