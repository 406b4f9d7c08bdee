"""2 ListOffsets: the ends, by timestamp (KIP-79), the youngest record (KIP-734).

Not: leader epochs, transactions; of tiered storage (-4, -5) what there is without tiers.
"""

from typing import Any

from streamsx.broker.api import partitions
from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.log import Log
from streamsx.broker.service import LEADER_EPOCH, Service
from streamsx.errors import CorruptRecord
from streamsx.kafka.errors import ErrorCode

VERSIONS = (1, 11)
NOTHING = (-1, -1)


def answer(service: Service, call: Call) -> ReplyBody:
    """Offset and timestamp per partition, -1 for what there is not."""
    return partitions.each(service, call, found)


def found(log: Log, asked: Any) -> ReplyBody:
    """Of one partition."""
    try:
        offset, timestamp = find(log, asked.timestamp)
    except CorruptRecord:
        return {"error_code": ErrorCode.CORRUPT_MESSAGE}
    return {"offset": offset, "timestamp": timestamp, "leader_epoch": LEADER_EPOCH}


def find(log: Log, timestamp: int) -> tuple[int, int]:
    """(offset, timestamp). Raises CorruptRecord."""
    match timestamp:
        case -1:
            return log.high_watermark, -1
        case -2 | -4:
            return log.start, -1
        case -3:
            return log.newest() or NOTHING
        case -5:
            return NOTHING
        case _:
            return log.at_time(timestamp) or NOTHING
