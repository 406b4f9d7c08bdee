"""Fetch loops, one per broker and lane. Partitions come and go without touching the others.

A broker answers one request per connection at a time, so requests that may wait long have a lane of
their own: an idle poll for changelogs must never delay hot data. The next request goes out before
the records of the last answer are parsed: positions come from batch headers, and columns are made
when a batch is taken. A partition that holds too much is left out of the next request while the
others go on, so a slow task never stops its broker.

`client.fetch_state` decides what to request, keep and hand on. The fetcher's owner handles an
offset that is out of range. Not here: the assignment of partitions to readers.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from streamsx.client import fetch_state
from streamsx.client.api_versions import FETCH_BY_ID, VersionRange
from streamsx.client.cluster import Cluster
from streamsx.client.connection import Connection
from streamsx.client.error_advice import remedy
from streamsx.client.fetch_state import (
    BACKOFF_MAX_S,
    BACKOFF_S,
    FetchAsked,
    FetchLimits,
    FetchState,
)
from streamsx.clock import Clock
from streamsx.config import Config
from streamsx.errors import BrokerUnreachable
from streamsx.event_loops import wait
from streamsx.journal import LOG
from streamsx.model import TopicPartition
from streamsx.processing.batch import Batch
from streamsx.protocol.error_codes import name_of
from streamsx.protocol.wire import Api

HURRY_WAIT_MS = 20
HURRY_S = 10.0
"""Time after an assignment with short polls.

A partition that is added during a poll waits for the end of that poll.
"""
LEADERLESS_MAX_S = 1.0
"""Longest pause between two looks for a leader.

A leader may be away for long, and its partition is not read meanwhile.
"""
UNREACHABLE_EVERY_S = 30.0
"""Time between two warnings about an unreachable broker."""
READ_COMMITTED = 1
ANSWER_BYTES_MIN = 1 << 20
"""Smallest limit of one answer, however small the memory budget is."""
HELD_SHARE = 0.10
"""Share of the memory budget for fetched batches."""
RESTORE_PARTITION_BYTES: Final = 1 << 20
DAMAGED_MAX = 3
"""Times that a batch may come damaged before a report. Fetching goes on all the same."""


UnreadableBatch = Callable[[TopicPartition, int, str], None]
"""Callback for a batch that stays damaged: partition, offset, reason.

No record behind that batch is handed on meanwhile.
"""


class Fetcher:
    """Fetch loops of one lane.

    `arrived` is called when there are records to take. `out_of_range` is called when the broker
    does not have an offset; the partition is not fetched again before it is added again.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        lane: str,
        limits: FetchLimits,
        arrived: Callable[[], None],
        out_of_range: Callable[[TopicPartition, int], None],
        unreadable: UnreadableBatch,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lane = lane
        self._limits = limits
        self._arrived = arrived
        self._out_of_range = out_of_range
        self._unreadable = unreadable
        self._fetching = machine = FetchState(limits)
        self.end = machine.end
        self.waiting = machine.waiting
        self.caught_up = machine.caught_up
        self._changed = asyncio.Event()
        self._hurry_until = 0.0
        self._stale = False
        """Set when a broker refuses a partition, since its leader may have moved."""
        self._nodes: dict[int, asyncio.Event] = {}
        # The race: a refresh by a producer finds no leader; a fetch loop has nothing to ask for,
        # and waits; the next refresh finds the leader again. Unwatched, the loop waits for ever.
        cluster.watch(self._wake)

    # -- partitions

    def add(self, tp: TopicPartition, offset: int, topic_id: str | None = None) -> None:
        """Fetch a partition from this offset on, and drop the records held of that partition.

        With `topic_id`, fetch from that topic only: a broker that supports ids refuses to read
        another topic of the same name.
        """
        self._fetching.add(tp, offset, topic_id)
        self._wake()

    def remove(self, tp: TopicPartition) -> None:
        """Stop fetching a partition; an answer in flight for that partition is dropped."""
        self._fetching.remove(tp)
        self._wake()

    def hurry(self) -> None:
        """Shorten polls for a while, after an assignment."""
        self._hurry_until = self._clock.now() + HURRY_S

    def take(self, tp: TopicPartition) -> Batch | None:
        """Return the next records of a partition, up to a few thousand; None if there are none."""
        found = self._fetching.take(self._clock.now(), tp)
        if found is not None:
            self._ask_again()
        if isinstance(found, fetch_state.Damaged):
            self._damaged(tp, found)
            return None
        return found

    def _wake(self) -> None:
        self._changed.set()
        self._ask_again()

    def _ask_again(self) -> None:
        """Wake every fetch loop: any broker may have room, or more to be asked for."""
        for wanted in self._nodes.values():
            wanted.set()

    # -- loops

    async def run(self) -> None:
        """Run a fetch loop for each broker that leads a wanted partition, until cancelled."""
        backoff_s = BACKOFF_S
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                leaders = {self._cluster.leader(tp) for tp in self._fetching}
                for node in sorted(n for n in leaders if n is not None and n not in self._nodes):
                    self._nodes[node] = asyncio.Event()
                    group.create_task(self._serve(node), name=f"fetch {self._lane} from {node}")
                if None in leaders:
                    await wait(self._changed, backoff_s)
                    await self._refresh(0.0)
                    backoff_s = min(backoff_s * 2, LEADERLESS_MAX_S)
                    continue
                backoff_s = BACKOFF_S
                await self._changed.wait()

    async def _serve(self, node: int) -> None:
        wake = self._nodes[node]
        backoff_s = BACKOFF_S
        warn_at = 0.0

        def leads(tp: TopicPartition) -> bool:
            return self._cluster.leader(tp) == node

        while True:
            wake.clear()
            wanted, wait_s = self._fetching.wanted(self._clock.now(), leads)
            if not wanted:
                await wait(wake, wait_s)
                continue
            try:
                conn = await self._cluster.open(node, self._lane)
                timeout_s = self._limits.wait_ms / 1000 + self._cluster.records_timeout_s
                versions = versions_for(conn, wanted)
                reply = await conn.ask(Api.FETCH, self._request(wanted), timeout_s, versions)
            except BrokerUnreachable as error:
                if (now := self._clock.now()) >= warn_at:
                    warn_at = now + UNREACHABLE_EVERY_S
                    LOG.warning("Broker %d does not answer: %s. Trying again.", node, error)
                await self._refresh(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            backoff_s = BACKOFF_S
            self._received(wanted, reply)
            if self._stale:
                self._stale = False
                await self._refresh(0.0)

    async def _refresh(self, after_s: float) -> None:
        """Refresh the metadata after a pause, since leaders may have moved."""
        await asyncio.sleep(after_s)
        with suppress(BrokerUnreachable):  # the next fetch reports it
            await self._cluster.refresh()

    def _request(self, wanted: Mapping[TopicPartition, FetchAsked]) -> dict[str, Any]:
        topics: dict[tuple[str, str | None], list[dict[str, int]]] = {}
        for tp, asked in wanted.items():
            topics.setdefault((tp.topic, asked.partition.topic_id), []).append(
                {
                    "partition": tp.partition,
                    "current_leader_epoch": -1,
                    "fetch_offset": asked.offset,
                    "partition_max_bytes": asked.bytes_max,
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
            "topics": [
                {"topic": name, "topic_id": bytes.fromhex(known or ""), "partitions": parts}
                for (name, known), parts in topics.items()
            ],
        }

    # -- replies

    def _received(self, wanted: Mapping[TopicPartition, FetchAsked], reply: Any) -> None:
        arrived = False
        now = self._clock.now()
        names = {asked.partition.topic_id: tp.topic for tp, asked in wanted.items()}
        for topic in reply.responses:
            name = getattr(topic, "topic", "") or names.get(topic.topic_id.hex(), "")
            for part in topic.partitions:
                tp = TopicPartition(name, part.partition_index)
                if (asked := wanted.get(tp)) is None:
                    continue
                trouble = self._fetching.answered(now, tp, asked, answer_of(part))
                arrived = arrived or self._fetching.waiting(tp)
                if trouble is not None:
                    self._carry_out(tp, trouble)
        if arrived:
            self._arrived()

    def _carry_out(self, tp: TopicPartition, trouble: fetch_state.FetchTrouble) -> None:
        match trouble:
            case fetch_state.FetchOutOfRange(offset):
                self._out_of_range(tp, offset)
            case fetch_state.FetchRefused(code, again_s):
                why = ": ".join(
                    filter(None, (name_of(code), remedy(code, self._cluster.principal)))
                )
                LOG.warning("Cannot read %s: %s. Trying again in %.1f s.", tp, why, again_s)
                self._stale = True
            case fetch_state.Damaged():
                self._damaged(tp, trouble)

    def _damaged(self, tp: TopicPartition, found: fetch_state.Damaged) -> None:
        if found.times < DAMAGED_MAX:  # the network may have damaged it
            LOG.warning("Reading %s again: %s.", tp, found.why)
        elif found.times == DAMAGED_MAX:
            self._unreadable(tp, found.offset, found.why)


def versions_for(
    conn: Connection, wanted: Mapping[TopicPartition, FetchAsked]
) -> VersionRange | None:
    """Return the versions that name topics by id, or None for the default ones.

    The former need the ids of all topics, and a broker that speaks them.
    """
    known = all(asked.partition.topic_id for asked in wanted.values())
    return FETCH_BY_ID if known and conn.speaks(Api.FETCH, FETCH_BY_ID) else None


def answer_of(part: Any) -> fetch_state.FetchAnswer:
    """Return one partition's answer, taken from a decoded reply."""
    aborted = [(a.producer_id, a.first_offset) for a in part.aborted_transactions or ()]
    return fetch_state.FetchAnswer(part.error_code, part.last_stable_offset, part.records, aborted)


def limits_of(config: Config) -> tuple[FetchLimits, FetchLimits]:
    """Return the limits of the lanes for sources and for changelogs.

    Both lanes together hold at most HELD_SHARE of the memory budget.
    """
    held = int(config.memory_budget_bytes * HELD_SHARE)
    wait_ms = int(config.fetch_max_wait_s * 1000)
    data = FetchLimits(
        wait_ms,
        min(config.fetch_max_bytes, max(ANSWER_BYTES_MIN, held - held // 4)),
        config.consumer_max_fetch_size_bytes,
        config.fetch_hold_bytes,
        held - held // 4,
        config.broker_check_crcs,
        unreadable=True,
    )
    log = replace(
        data,
        unreadable=False,
        partition_bytes=RESTORE_PARTITION_BYTES,
        held_bytes=2 * RESTORE_PARTITION_BYTES,
        held_bytes_all=held // 4,
    )
    return data, log
