"""End of a transaction, as readers see it.

Kafka answers EndTxn once the end is decided, and writes the markers after the answer. The embedded
broker answers after the markers.
"""

from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.model import TopicPartition


async def end_of_settled(cluster: Cluster, tp: TopicPartition) -> int:
    """Return the end of the partition once no transaction is open in it, with its last marker."""
    while True:
        # In this order: behind an end that is stable nothing of before is to come.
        _, stable = (await admin.bounds(cluster, [tp], committed=True))[tp]
        if (await admin.bounds(cluster, [tp]))[tp].high_watermark == stable:
            return stable
