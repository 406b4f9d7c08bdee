"""21 DeleteRecords: everything before an offset (KIP-107); -1 stands for the end."""

from typing import Any

from streamsx.broker.api import partitions
from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.log import Log
from streamsx.broker.service import Service
from streamsx.kafka.errors import ErrorCode

VERSIONS = (0, 2)
END = -1


def answer(service: Service, call: Call) -> ReplyBody:
    """Where each partition begins now."""
    return partitions.each(service, call, delete, low_watermark=-1)


def delete(log: Log, asked: Any) -> ReplyBody:
    """Of one partition."""
    if not END <= asked.offset <= log.high_watermark:
        return {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}
    log.delete_before(log.high_watermark if asked.offset == END else asked.offset)
    return {"low_watermark": log.start}
