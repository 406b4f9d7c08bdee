"""How far an app is behind its input: what is there, and what its group has committed of it.

Both are the brokers' to say, so nobody has to be asked who is busy or gone.
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
    """Of each task, in records, all that is there where nothing is committed; None where that
    cannot be told now."""
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
    with suppress(WorldError):  # the coordinator is moving
        left = await uncommitted(cluster, app, chain.from_iterable(reads.values()))
    return {
        task: sum(left[tp] for tp in tps) if left.keys() >= set(tps) else None
        for task, tps in reads.items()
    }


async def uncommitted(
    cluster: Cluster, group: str, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Records of each that the group has not committed, where that can be told now. Raises
    WorldError.

    What is committed is asked before what there is: no more can be committed than there is, and
    what comes of a record is there when that is committed. So where nothing is left of an app's
    topics, of all of them, nothing more can come.
    """
    done = await admin.committed(cluster, group)
    bounds, _ = await admin.bounds_now(cluster, tps)
    return {
        tp: max(0, end - max(start, done.get(tp, (0, ""))[0]))
        for tp, (start, end) in bounds.items()
    }
