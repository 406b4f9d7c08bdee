"""Progress of event time through a repartition topic: stream time is that of the slowest writer.

The newest record of a repartition topic says little about the records that are still to come: in a
catch-up one writer may be an hour ahead of the others, in perfectly ordered input. So each task
that writes such a topic tells its stream time there, and a task that reads the topic has the lowest
one of all writers.

A writer tells its time to each partition, with a commit, behind the records of that commit, if the
time has moved. So no reader has a time without the records before it. A writer without input tells
that it is idle, where an operator below has `idle=`: readers then go by the others. A writer that
has told nothing holds the time of its readers. Times never go back.

A time is a record without a key, with one header, `__streamsx.time`, without a value. Its value is

    u8 version (1), u8 idle (0, 1), i64 stream time in ms, u32 stage, u32 partition of the writer

Stage is a digest of the writer's source topics. Readers pass over a time of another version.
Any other record is a record, whatever headers it has.

Not here: the topics that carry times (`streamsx.topology.time_links`), sending, reading.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from streamsx.model import Headers
from streamsx.processing.batch import Batch
from streamsx.topology.time_links import Writer

HEADER: Final = "__streamsx.time"
HEADERS: Final[Headers] = [(HEADER, None)]
VALUE: Final = struct.Struct(">BBqII")
VERSION: Final = 1
NOTHING: Final = -1
IDLE: Final = None
"""Time of a writer that is idle."""


class Told(NamedTuple):
    """Time that a writer tells: stream time in ms, -1 before the first record."""

    writer: Writer
    time: int
    idle: bool = False

    def encode(self) -> bytes:
        return VALUE.pack(VERSION, self.idle, self.time, *self.writer)


def decode(value: bytes) -> Told | None:
    """Return the time in a value; None for one of another version."""
    if len(value) != VALUE.size or value[0] != VERSION:
        return None
    _, idle, time, stage, partition = VALUE.unpack(value)
    return Told(Writer(stage, partition), time, bool(idle))


class TimeMark(NamedTuple):
    """Time that comes ahead of a record; `place`: index of that record in its batch."""

    place: int
    told: Told


def separated(batch: Batch) -> Batch:
    """Return a batch without records of times, which become marks of the batch."""
    if batch.headers is None:
        return batch
    at = [
        n
        for n, headers in enumerate(batch.headers)
        if len(headers) == 1 and headers[0] == HEADERS[0] and batch.keys[n] is None
        if batch.values[n]
    ]
    if not at:
        return batch
    marks = list[TimeMark]()
    for removed, n in enumerate(at):
        value = batch.values[n]
        assert isinstance(value, bytes | memoryview | bytearray), value
        if (told := decode(bytes(value))) is not None:
            marks.append(TimeMark(n - removed, told))
    gone = set(at)
    left = [n for n in range(len(batch.offsets)) if n not in gone]
    headers = [batch.headers[n] for n in left]
    return batch._replace(
        keys=[batch.keys[n] for n in left],
        values=[batch.values[n] for n in left],
        timestamps=[batch.timestamps[n] for n in left],
        offsets=[batch.offsets[n] for n in left],
        headers=headers if any(headers) else None,
        marks=tuple(marks),
    )


class Progress:
    """Stream time of one partition of a topic that its writers tell.

    `writers` are those that are known from the topology. Another one counts too if its stage is
    known: its source has got more partitions. A writer of another stage is of the app before its
    sources were changed; it would hold the time for ever. `committed` is what writers had told by a
    commit.
    """

    def __init__(
        self, writers: Iterable[Writer], committed: Mapping[Writer, int | None] | None = None
    ) -> None:
        self.times: dict[Writer, int | None] = dict.fromkeys(writers, NOTHING)
        """Time that each writer has told last; None for one that is idle."""
        self._stages = {writer.stage for writer in self.times}
        known = (committed or {}).items()
        self.times.update({w: time for w, time in known if w.stage in self._stages})
        self.time = NOTHING
        """Stream time in ms, -1 while a writer has told nothing."""
        self._move()

    @property
    def silent(self) -> list[Writer]:
        """Return the writers that have told nothing and hold the time."""
        return [writer for writer, time in self.times.items() if time == NOTHING]

    @property
    def idle(self) -> bool:
        """Return whether all writers are idle."""
        return all(time is IDLE for time in self.times.values())

    def tell(self, told: Told) -> bool:
        """Take the time of a writer; return whether stream time has moved."""
        if told.writer.stage not in self._stages:
            return False
        known = self.times.get(told.writer, NOTHING)
        self.times[told.writer] = IDLE if told.idle else max(told.time, known or NOTHING)
        return self._move()

    def _move(self) -> bool:
        lowest = min((each for each in self.times.values() if each is not IDLE), default=NOTHING)
        moved = lowest > self.time
        if moved:
            self.time = lowest
        return moved
