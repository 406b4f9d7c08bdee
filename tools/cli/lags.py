"""Reading of an app's progress from the brokers: lag, committed offsets, metadata beside them.

All numbers come from the brokers, so a worker that is busy or gone need not answer.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from streamsx.assignor.observer import GroupReport
from streamsx.client import admin
from streamsx.client.admin import READ_COMMITTED
from streamsx.client.cluster import Cluster
from streamsx.client.fetch_state import Damaged, FetchAsked, FetchLimits, FetchState
from streamsx.client.fetcher import answer_of
from streamsx.client.range_reader import Range
from streamsx.errors import StreamsxError, WorldError
from streamsx.model import TopicPartition
from streamsx.processing.progress import separated
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.protocol.wire import Api
from streamsx.tools.cli.app_input import AppInput, CommittedOffset, TaskInput

PEEKED_MAX = 1000
"""Most offsets behind a commit among which a command looks for records.

A partition that is farther behind surely has some.
"""
PEEK = FetchLimits(wait_ms=0, reply_bytes=1 << 20, partition_bytes=16 << 10, check_crcs=False)
"""Limits of a look: 1 MiB from a broker, however many partitions it leads. 200 markers of
transactions take 16 KiB."""
PEEK_LANE = "peek"


async def input_of(cluster: Cluster, app: str, report: GroupReport) -> AppInput:
    """Return the progress of an app.

    A partition without a committed offset counts with all its records. Without workers nothing
    tells the tasks, and only partitions with a committed offset count.
    """
    tasks = {task for here in report.instances for task in here.active}.union(report.withheld)
    sources = {topic for topics in report.topics.values() for topic in topics}
    await cluster.follow(sources)
    await cluster.refresh()  # a topic that was followed before may have been deleted since
    reads = {
        task: [
            TopicPartition(topic, task.partition)
            for topic in report.topics[task.subtopology]
            if task.partition < cluster.partitions(topic)
        ]
        for task in sorted(tasks)
    }
    read = {tp for tps in reads.values() for tp in tps}
    places: dict[TopicPartition, CommittedOffset] = {}
    left: dict[TopicPartition, int] = {}
    with suppress(WorldError):  # such as while the coordinator moves
        places = {
            tp: CommittedOffset(offset, OffsetMetadata.decode(text))
            for tp, (offset, text) in (await admin.committed(cluster, app)).items()
        }
        read = read or set(places)
        done = {tp: place.offset for tp, place in places.items()}
        left = await waiting(cluster, done, read)
    found = {
        task: TaskInput(_sum(left, tps), {tp: places[tp] for tp in tps if tp in places})
        for task, tps in reads.items()
    }
    lag = _sum(left, read) if places else None  # commits of topics that are read no more stay
    absent = sorted(topic for topic in sources if cluster.error(topic) == admin.ABSENT)
    return AppInput(found, lag, TaskInput(lag, places).committed_s, tuple(absent))


def _sum(left: Mapping[TopicPartition, int], tps: Collection[TopicPartition]) -> int | None:
    return sum(left[tp] for tp in tps) if left.keys() >= set(tps) else None


async def uncommitted(
    cluster: Cluster, group: str, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the offsets of each partition that the group has not committed.

    Partitions whose bounds are not known now are left out.

    Committed offsets are fetched first, end offsets second. Two facts hold: an offset beyond the
    end cannot be committed, and the output of a record is in its topic once the record is
    committed. Therefore, if no record is left in any topic of an app, none can follow.

    Raises:
        WorldError: the coordinator does not answer, or refuses.
    """
    done = await admin.committed(cluster, group)
    bounds, _ = await admin.bounds_now(cluster, tps)
    return {
        tp: max(0, end - max(start, done.get(tp, (0, ""))[0]))
        for tp, (start, end) in bounds.items()
    }


async def waiting(
    cluster: Cluster, done: Mapping[TopicPartition, int], tps: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the records of each partition behind its committed offset, as a worker can read them.

    Partitions whose bounds are not known now are left out. Records of an open transaction do not
    count before it is committed. Offsets without a record (markers of transactions, aborted
    records, holes of compaction) do not count as far as one look shows them.
    """
    bounds, _ = await admin.bounds_now(cluster, tps, READ_COMMITTED)
    ranges = {tp: Range(max(start, done.get(tp, 0)), end) for tp, (start, end) in bounds.items()}
    left = {tp: max(0, each.end - each.start) for tp, each in ranges.items()}
    near = {tp: ranges[tp] for tp, count in left.items() if 0 < count <= PEEKED_MAX}
    return left | await peeked(cluster, near)


async def peeked(
    cluster: Cluster, ranges: Mapping[TopicPartition, Range]
) -> dict[TopicPartition, int]:
    """Return the records of each range, by one look at its first ones.

    Behind these each offset counts as a record. A range that cannot be read now is left out. Small
    ranges come first, because a broker fills its answer in the order of the request, and a range
    of one marker is what a look is for.
    """
    state = FetchState(PEEK)
    for tp in sorted(ranges, key=lambda tp: ranges[tp].end - ranges[tp].start):
        state.add(tp, ranges[tp].start)
    leaders = {cluster.leader(tp) for tp in ranges} - {None}
    for node in sorted(node for node in leaders if node is not None):
        with suppress(StreamsxError):
            await _peek(cluster, node, state)
    found = {tp: _records(state, tp, each) for tp, each in ranges.items()}
    return {tp: count for tp, count in found.items() if count is not None}


async def _peek(cluster: Cluster, node: int, state: FetchState) -> None:
    wanted, _ = state.wanted(0.0, lambda tp: cluster.leader(tp) == node)
    connection = await cluster.open(node, PEEK_LANE)
    reply = await connection.ask(Api.FETCH, _request(wanted), cluster.timeout_s)
    for topic in reply.responses:
        for part in topic.partitions:
            tp = TopicPartition(topic.topic, part.partition_index)
            if tp in wanted:
                state.answered(0.0, tp, wanted[tp], answer_of(part))


def _request(wanted: Mapping[TopicPartition, FetchAsked]) -> dict[str, Any]:
    topics: dict[str, list[dict[str, int]]] = {}
    for tp, asked in wanted.items():
        topics.setdefault(tp.topic, []).append(
            {
                "partition": tp.partition,
                "current_leader_epoch": -1,
                "fetch_offset": asked.offset,
                "partition_max_bytes": asked.bytes_max,
            }
        )
    return {
        "replica_id": -1,
        "max_wait": PEEK.wait_ms,
        "min_bytes": 0,
        "max_bytes": PEEK.reply_bytes,
        "isolation_level": READ_COMMITTED,
        "session_epoch": -1,
        "topics": [{"topic": name, "partitions": parts} for name, parts in topics.items()],
    }


def _records(state: FetchState, tp: TopicPartition, asked: Range) -> int | None:
    count = 0
    reached = asked.start
    while (batch := state.take(0.0, tp)) is not None:
        if isinstance(batch, Damaged):
            return None
        offsets = separated(batch).offsets  # without the times that writers of the topic tell
        count += sum(asked.start <= offset < asked.end for offset in offsets)
        reached = batch.next_offset
    return count + max(0, asked.end - reached) if reached > asked.start else None
