"""Fetch loops, one per broker and lane; partitions come and go without touching the others.

A broker answers one request per connection at a time, so what may wait long has a lane of its
own: an idle poll for changelogs must never delay hot data. The next request goes out before the
records of the last one are looked at; positions come from batch headers, columns are made when a
batch is taken. A partition that holds too much is left out of the next request and the others go
on, so a slow task never stops its broker.

What becomes of an offset that is out of range is the owner's affair. Not here: who reads what.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from streamsx.clock import Clock
from streamsx.engine.journal import LOG
from streamsx.errors import BrokerUnreachable, CorruptRecord
from streamsx.kafka.batch import columns, scan
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.errors import ErrorCode, name_of
from streamsx.kafka.wire import Api
from streamsx.model import TopicPartition
from streamsx.task.batch import Batch

TAKE_RECORDS = 5000
HURRY_WAIT_MS = 20
HURRY_S = 10.0
"""After an assignment: what is added while a poll waits, waits for its end."""
REPLY_TIMEOUT_S = 30.0
BACKOFF_S = 0.1
BACKOFF_MAX_S = 5.0
READ_COMMITTED = 1
DAMAGED_MAX = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one lane. `held_bytes`: per partition, and of all together."""

    wait_ms: int = 250
    reply_bytes: int = 16 << 20
    partition_bytes: int = 1 << 20
    held_bytes: int = 2 << 20
    held_bytes_all: int = 64 << 20
    check_crcs: bool = True


class Piece(NamedTuple):
    """Whole record batches of one partition as they came; `start`: the first offset wanted."""

    data: memoryview
    start: int
    aborted: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Partition:
    """`position`: next offset to ask for; `end`: last stable offset by the newest reply."""

    position: int
    end: int = -1
    held: int = 0
    retry_at: float = 0.0
    backoff_s: float = BACKOFF_S
    damaged: int = 0
    pieces: deque[Piece] = field(default_factory=deque)


class OutOfRange(Protocol):
    """The broker does not have the offset of a partition; it is fetched again when it is added."""

    def __call__(self, tp: TopicPartition, offset: int) -> None: ...


class Fetcher:
    """One lane. `arrived` is called when there is something to take."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        lane: str,
        limits: Limits,
        arrived: Callable[[], None],
        out_of_range: OutOfRange,
    ) -> None:
        self._cluster, self._clock, self._lane, self._limits = cluster, clock, lane, limits
        self._arrived, self._out_of_range = arrived, out_of_range
        self._partitions: dict[TopicPartition, Partition] = {}
        self._changed = asyncio.Event()
        self._held = 0
        self._hurry_until = 0.0
        self._stale = False
        """A broker said that it leads something no more."""
        self._nodes: dict[int, asyncio.Event] = {}
        # "A refresh that a producer asked for finds no leader; a loop finds nothing to ask for and
        # waits; the next refresh finds the leader again": without a word it would wait for ever.
        cluster.watch(self._wake)

    # -- what is fetched

    def add(self, tp: TopicPartition, offset: int) -> None:
        """From this offset on; what was held of it is dropped."""
        self.remove(tp)
        self._partitions[tp] = Partition(offset)
        self._wake()

    def remove(self, tp: TopicPartition) -> None:
        """What is in flight for it never surfaces."""
        if (partition := self._partitions.pop(tp, None)) is not None:
            self._held -= partition.held

    def hurry(self) -> None:
        """An assignment has come: polls are short for a while."""
        self._hurry_until = self._clock.now() + HURRY_S

    def end(self, tp: TopicPartition) -> int:
        """What a reader can reach by the newest reply; -1 before the first."""
        partition = self._partitions.get(tp)
        return -1 if partition is None else partition.end

    def waiting(self, tp: TopicPartition) -> bool:
        """There is something to take."""
        partition = self._partitions.get(tp)
        return partition is not None and bool(partition.pieces)

    def caught_up(self, tp: TopicPartition) -> bool:
        """Everything up to the end was taken."""
        partition = self._partitions.get(tp)
        return (
            partition is not None
            and not partition.pieces
            and partition.position >= partition.end >= 0
        )

    def take(self, tp: TopicPartition) -> Batch | None:
        """The next records of a partition, up to a few thousand; None when nothing is there."""
        partition = self._partitions.get(tp)
        if partition is None or not partition.pieces:
            return None
        piece = partition.pieces.popleft()
        was_full = self._full(partition)
        partition.held -= len(piece.data)
        self._held -= len(piece.data)
        if was_full and not self._full(partition):
            self._wake()
        check, aborted = self._limits.check_crcs, piece.aborted
        try:
            found = columns(piece.data, piece.start, aborted=aborted, check=check)
        except CorruptRecord as error:
            self._damaged(tp, partition, error)
            self._held -= partition.held
            partition.pieces.clear()
            partition.held, partition.position = 0, piece.start
            return None
        partition.damaged, partition.backoff_s = 0, BACKOFF_S
        return Batch(tp.topic, tp.partition, *found)

    def _damaged(self, tp: TopicPartition, partition: Partition, error: CorruptRecord) -> None:
        """It may have been damaged on the way: fetched again, a few times."""
        partition.damaged += 1
        if partition.damaged > DAMAGED_MAX:
            raise CorruptRecord(f"{tp}: {error}: fetched {DAMAGED_MAX} times") from error
        LOG.warning("fetching %s again: %s", tp, error)
        self._pause(partition)

    def _pause(self, partition: Partition) -> None:
        """Never a tight loop: each one in a row doubles it."""
        partition.retry_at = self._clock.now() + partition.backoff_s
        partition.backoff_s = min(partition.backoff_s * 2, BACKOFF_MAX_S)

    def _full(self, partition: Partition) -> bool:
        limits = self._limits
        return partition.held >= limits.held_bytes or self._held >= limits.held_bytes_all

    # -- loops

    async def run(self) -> None:
        """Until cancelled: a loop for each broker that leads something wanted."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                leaders = {self._cluster.leader(tp) for tp in self._partitions}
                for node in sorted(n for n in leaders if n is not None and n not in self._nodes):
                    self._nodes[node] = asyncio.Event()
                    group.create_task(self._serve(node), name=f"fetch {self._lane} from {node}")
                if None in leaders:
                    await self._refresh(BACKOFF_S)
                    continue
                await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        for wanted in self._nodes.values():
            wanted.set()

    async def _serve(self, node: int) -> None:
        wake, backoff_s = self._nodes[node], BACKOFF_S
        while True:
            wake.clear()
            wanted, wait_s = self._wanted(node)
            if not wanted:
                await _wait(wake, wait_s)
                continue
            try:
                conn = await self._cluster.open(node, self._lane)
                timeout_s = self._limits.wait_ms / 1000 + REPLY_TIMEOUT_S
                reply = await conn.ask(Api.FETCH, self._request(wanted), timeout_s)
            except BrokerUnreachable as error:
                LOG.warning("fetching from broker %d: %s", node, error)
                await self._refresh(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            backoff_s = BACKOFF_S
            self._received(wanted, reply)
            if self._stale:
                self._stale = False
                await self._refresh(0.0)

    async def _refresh(self, after_s: float) -> None:
        """Who leads what may have changed."""
        await asyncio.sleep(after_s)
        with suppress(BrokerUnreachable):  # the next fetch says so
            await self._cluster.refresh()

    def _wanted(self, node: int) -> tuple[dict[TopicPartition, Partition], float | None]:
        """What to ask this broker for now; else how long until something may be asked again."""
        now, wanted, next_at = self._clock.now(), dict[TopicPartition, Partition](), None
        for tp, partition in self._partitions.items():
            if self._cluster.leader(tp) != node or self._full(partition):
                continue
            if partition.retry_at <= now:
                wanted[tp] = partition
            else:
                next_at = min(next_at or partition.retry_at, partition.retry_at)
        return wanted, None if next_at is None else max(0.0, next_at - now)

    def _request(self, wanted: Mapping[TopicPartition, Partition]) -> dict[str, Any]:
        topics: dict[str, list[dict[str, int]]] = {}
        for tp, partition in wanted.items():
            topics.setdefault(tp.topic, []).append(
                {
                    "partition": tp.partition,
                    "current_leader_epoch": -1,
                    "fetch_offset": partition.position,
                    "partition_max_bytes": self._limits.partition_bytes,
                }
            )
        hurry = self._clock.now() < self._hurry_until
        return {
            "replica_id": -1,
            "max_wait": min(HURRY_WAIT_MS, self._limits.wait_ms) if hurry else self._limits.wait_ms,
            "min_bytes": 1,
            "max_bytes": self._limits.reply_bytes,
            "isolation_level": READ_COMMITTED,
            "session_epoch": -1,
            "topics": [{"topic": t, "partitions": parts} for t, parts in topics.items()],
        }

    # -- replies

    def _received(self, wanted: Mapping[TopicPartition, Partition], reply: Any) -> None:
        arrived = False
        for topic in reply.responses:
            for part in topic.partitions:
                tp = TopicPartition(topic.topic, part.partition_index)
                partition = wanted.get(tp)
                if partition is None or self._partitions.get(tp) is not partition:
                    continue  # removed meanwhile
                if part.error_code:
                    self._refused(tp, partition, part.error_code)
                elif self._keep(tp, partition, part):
                    arrived = True
        if arrived:
            self._arrived()

    def _keep(self, tp: TopicPartition, partition: Partition, part: Any) -> bool:
        """Cut what came into pieces of whole batches; whether there was any."""
        partition.end = part.last_stable_offset
        if not part.records:
            return False
        aborted = tuple((a.producer_id, a.first_offset) for a in part.aborted_transactions or ())
        first, begin, end, records = partition.position, 0, 0, 0
        try:
            for at, size, header in scan(part.records, check=False):
                if records >= TAKE_RECORDS:
                    partition.pieces.append(Piece(part.records[begin:at], first, aborted))
                    first, begin, records = header.base_offset, at, 0
                partition.position = header.base_offset + header.last_offset_delta + 1
                records, end = records + header.records, at + size
        except CorruptRecord as error:
            self._damaged(tp, partition, error)
        if end > begin:
            partition.pieces.append(Piece(part.records[begin:end], first, aborted))
        if not end:
            self._pause(partition)  # nothing whole came: not at once again
        partition.held += end
        self._held += end
        return end > 0

    def _refused(self, tp: TopicPartition, partition: Partition, code: int) -> None:
        self._pause(partition)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            offset = partition.position
            self.remove(tp)
            self._out_of_range(tp, offset)
            return
        LOG.warning("fetching %s: %s: again in %.1f s", tp, name_of(code), partition.backoff_s)
        self._stale = True


async def _wait(event: asyncio.Event, timeout_s: float | None) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
