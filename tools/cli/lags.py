"""Lag of an app behind its input: end offsets, less the offsets that its group has committed.

Both numbers come from the brokers, so a worker that is busy or gone need not answer.
"""

from collections.abc import Iterable
from contextlib import suppress
from itertools import chain

from streamsx.assignor.observer import GroupReport
from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.errors import WorldError
from streamsx.model import TaskId, TopicPartition


async def lags(cluster: Cluster, app: str, report: GroupReport) -> dict[TaskId, int | None]:
    """Return the lag of each task in records; None where the lag is not known now.

    A partition without a committed offset counts with all its records.
    """
    tasks = {task for here in report.instances for task in here.active}.union(report.withheld)
    await cluster.follow({topic for topics in report.topics.values() for topic in topics})
    reads = {
        task: [
            TopicPartition(topic, task.partition)
            for topic in report.topics[task.subtopology]
            if task.partition < cluster.partitions(topic)
        ]
        for task in sorted(tasks)
    }
    left: dict[TopicPartition, int] = {}
    with suppress(WorldError):  # such as while the coordinator moves
        left = await uncommitted(cluster, app, chain.from_iterable(reads.values()))
    return {
        task: sum(left[tp] for tp in tps) if left.keys() >= set(tps) else None
        for task, tps in reads.items()
    }


async def uncommitted(
    cluster: Cluster, group: str, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the records of each partition that the group has not committed.

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
