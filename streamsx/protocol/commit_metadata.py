"""Metadata text of each committed offset: stream time, and a table of named values.

    AQAAAYvP5WgA {"i":"0f...","r":{"1a2b3c4d":10}}          from a worker
    spark AQAAAYvP5WgA{"r":{"1a2b3c4d":10}} s3://bucket/a   while Spark continues from there

Workers from before the table wrote and read the first word only. From a new text they read the
stream time, and repeat the records that readers ahead of the offset have processed. In Spark's mark
the table is part of that word, because older runs take the text behind the word for the location.
An empty table is left out.

| key | value |
|---|---|
| `v` | version of the table, absent for 1; raised for a change that older readers must not ignore |
| `r` | reader (`topology/nodes:reader_name`) -> how far the reader is ahead of the offset |
| `i` | id of the topic, 32 hex digits |
| `t` | stage of tasks that write the topic -> their times in ms (`_shifted`) |
| `c` | store (`state/layout:store_mark`) -> stream time up to which it has closed, in ms |
| `l` | store (`state/layout:store_mark`) -> records that were too late for it; for people only |
| `w` | wall time of the commit, in Unix seconds; for people only |

A new key needs no new version: readers skip keys that they do not know.

Not here: when a commit is made, how a task uses the positions of its readers.
"""

import base64
import re
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

TEXT_BYTES_MAX: Final = 4096
"""Kafka's default of `offset.metadata.max.bytes`."""
HEADER: Final = struct.Struct(">Bq")
HEADER_VERSION: Final = 1
HEADER_CHARACTERS: Final = 12
TABLE_VERSION: Final = 1
ID: Final = re.compile("[0-9a-f]{32}")
ON_SPARK: Final = "spark "


class OffsetMetadata(NamedTuple):
    """Metadata of one partition's committed offset.

    `stream_time`: in ms, -1 before the first record; `readers`: how far each reader is ahead of the
    offset, without readers at the offset; `topic_id`: id of the offset's topic, 32 hex digits;
    `spark`: URI under which Spark continues from the offset, so that no other worker may; `newer`:
    version of a table that a later release wrote and this release cannot read, otherwise 0;
    `closed`: stream time up to which the windows of each store have closed, by the store's mark;
    `told`: times that the writers of the topic had told, by their stage, one for each partition: -1
    for nothing, None for a writer that is idle; `committed_s`: Unix second of the commit, 0 for one
    that has not written it; `late`: records that were too late for each store, by the store's mark.
    """

    stream_time: int = -1
    readers: Mapping[str, int] = MappingProxyType({})
    topic_id: str | None = None
    spark: str | None = None
    newer: int = 0
    closed: Mapping[str, int] = MappingProxyType({})
    told: Mapping[str, Sequence[int | None]] = MappingProxyType({})
    committed_s: int = 0
    late: Mapping[str, int] = MappingProxyType({})

    def encode(self) -> str:
        """Return the text at any length; `fitted` shortens the values beforehand."""
        header = base64.b64encode(HEADER.pack(HEADER_VERSION, self.stream_time)).decode()
        table = self._table()
        if self.spark is not None:
            return f"{ON_SPARK}{header}{table} {self.spark}"
        return f"{header} {table}" if table else header

    def _table(self) -> str:
        values: dict[str, object] = {}
        if self.readers:
            values["r"] = dict(self.readers)
        if self.topic_id is not None:
            values["i"] = self.topic_id
        if self.closed:
            values["c"] = dict(self.closed)
        if self.told:
            values["t"] = {stage: _shifted(times) for stage, times in self.told.items()}
        if self.late:
            values["l"] = dict(self.late)
        if self.committed_s > 0:
            values["w"] = self.committed_s
        return orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode() if values else ""

    @classmethod
    def decode(cls, text: str) -> "OffsetMetadata":
        """Read the text of any release. A text of another application gives the defaults."""
        header, _, table = text.partition(" ")
        spark = None
        if text.startswith(ON_SPARK):
            word, _, spark = text.removeprefix(ON_SPARK).partition(" ")
            header = word[:HEADER_CHARACTERS]
            table = word[HEADER_CHARACTERS:]
        try:
            version, stream_time = HEADER.unpack(base64.b64decode(header, validate=True))
        except (ValueError, struct.error):
            return cls(spark=spark)
        if version != HEADER_VERSION:
            return cls(spark=spark)
        return _with(cls(stream_time, spark=spark), table)

    def fitted(self, limit: int = TEXT_BYTES_MAX) -> tuple["OffsetMetadata", dict[str, int]]:
        """Drop values until the text fits into `limit` bytes.

        What only people read is dropped first, then readers, and then the times of writers.

        Readers least ahead are dropped first, because they repeat the fewest records. Without the
        times of writers stream time stands until they tell theirs again.

        Returns:
            The remaining metadata, and the dropped readers.
        """
        excess = len(self.encode().encode()) - limit
        if excess > 0 and (self.committed_s or self.late):
            return self._replace(committed_s=0, late={}).fitted(limit)
        dropped: dict[str, int] = {}
        for reader, ahead in sorted(self.readers.items(), key=lambda each: (each[1], each[0])):
            if excess <= 0:
                break
            dropped[reader] = ahead
            excess -= len(f'"{reader}":{ahead},')
        left = {name: ahead for name, ahead in self.readers.items() if name not in dropped}
        told = self.told if excess <= 0 else {}
        return self._replace(readers=left, told=told), dropped


def _with(bare: OffsetMetadata, table: str) -> OffsetMetadata:
    """Add the values of a table, as far as the table is valid."""
    try:
        values = orjson.loads(table or "{}")
    except orjson.JSONDecodeError:
        return bare
    if not isinstance(values, dict):
        return bare
    version = values.get("v", TABLE_VERSION)
    if version != TABLE_VERSION:
        return bare._replace(newer=version if isinstance(version, int) else -1)
    return bare._replace(
        readers=_positive(values.get("r")),
        topic_id=_id(values.get("i")),
        closed=_positive(values.get("c")),
        told=_told(values.get("t")),
        committed_s=_seconds(values.get("w")),
        late=_positive(values.get("l")),
    )


def _shifted(times: Sequence[int | None]) -> list[int | None]:
    """Return the earliest time, and how far each is ahead of it: digits are few.

    -1 stands for nothing, None for idle.
    """
    first = min((each for each in times if each is not None and each >= 0), default=0)
    return [first, *(each if each is None or each < 0 else each - first for each in times)]


def _told(found: Any) -> Mapping[str, Sequence[int | None]]:
    """Keep the valid entries of times that writers have told."""
    if not isinstance(found, dict):
        return {}
    told: dict[str, Sequence[int | None]] = {}
    for stage, times in found.items():
        if isinstance(times, list) and times and all(n is None or type(n) is int for n in times):
            first, *ahead = times
            told[stage] = [n if n is None or n < 0 else first + n for n in ahead]
    return told


def _positive(found: Any) -> Mapping[str, int]:
    """Keep the valid entries of a table of positive numbers."""
    if not isinstance(found, dict):
        return {}
    return {name: n for name, n in found.items() if type(n) is int and n > 0}


def _seconds(found: Any) -> int:
    return found if type(found) is int and found > 0 else 0


def _id(found: Any) -> str | None:
    return found if isinstance(found, str) and ID.fullmatch(found) else None
