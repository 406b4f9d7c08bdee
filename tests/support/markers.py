"""When a transaction is over for who reads: Kafka answers its end once that is decided, and writes
the markers behind the answer; the embedded broker answers behind them.
"""

from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.model import TopicPartition


async def end_of_settled(cluster: Cluster, tp: TopicPartition) -> int:
    """The end of the partition once no transaction is open in it, with its last marker."""
    while True:
        # In this order: behind an end that is stable nothing of before is to come.
        _, stable = (await admin.bounds(cluster, [tp], committed=True))[tp]
        if (await admin.bounds(cluster, [tp]))[tp].high_watermark == stable:
            return stable
