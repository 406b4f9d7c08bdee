"""Reading of a whole topic by a command."""

from itertools import repeat

from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.client.range_reader import Range, RangeReader
from streamsx.clock import Clock
from streamsx.model import TopicPartition


async def newest(cluster: Cluster, clock: Clock, topic: str) -> dict[tuple[int, bytes], bytes]:
    """Return the newest values of a followed topic, by partition and key, up to its end now.

    Deleted keys are left out.

    Raises:
        WorldError: the brokers do not answer, or refuse.
        CorruptRecord: a record batch is damaged.
    """
    tps = [TopicPartition(topic, number) for number in range(cluster.partitions(topic))]
    ranges = {tp: Range(*each) for tp, each in (await admin.bounds(cluster, tps)).items()}
    reader = RangeReader(cluster, clock, ranges)
    found: dict[tuple[int, bytes | None], bytes | None] = {}
    await reader.start()
    try:
        for tp in tps:
            while batch := await reader.next(tp):
                keys = zip(repeat(tp.partition), batch.keys, strict=False)
                found.update(zip(keys, batch.values, strict=True))
    finally:
        await reader.stop()
    rows = ((number, key, value) for (number, key), value in found.items())
    return {(n, key): value for n, key, value in rows if key is not None and value is not None}
