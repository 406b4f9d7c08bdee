"""23 OffsetForLeaderEpoch: there is one leader in one epoch, so nothing was ever cut (KIP-320)."""

from typing import Any

from streamsx.broker.api import partitions
from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.log import Log
from streamsx.broker.service import LEADER_EPOCH, Service

VERSIONS = (2, 4)


def answer(service: Service, call: Call) -> ReplyBody:
    """The end of each partition."""
    return partitions.each(service, call, end, topic_field="topic", partition_field="partition")


def end(log: Log, _: Any) -> ReplyBody:
    """Of one partition."""
    return {"leader_epoch": LEADER_EPOCH, "end_offset": log.high_watermark}
