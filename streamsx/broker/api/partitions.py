"""The frame of requests about partitions of topics that are named: one answer for each."""

from collections.abc import Callable
from typing import Any

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.log import Log
from streamsx.broker.service import Service
from streamsx.kafka.errors import ErrorCode


def each(
    service: Service,
    call: Call,
    answer: Callable[[Log, Any], ReplyBody],
    *,
    topic_field: str = "name",
    partition_field: str = "partition_index",
    **usual: int,
) -> ReplyBody:
    """What `answer` says of the log of each partition that there is, and of what was asked of it.

    The fields bear what is asked for, in the request and in the reply; `usual` stands in a reply
    that says nothing else of it.
    """
    topics = []
    for asked in call.body.topics:
        name, partitions = getattr(asked, topic_field), []
        topic = service.topics.by_name.get(name)
        for wanted in asked.partitions:
            number = getattr(wanted, partition_field)
            log = topic.log(number) if topic else None
            unknown = {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            told = unknown if log is None else answer(log, wanted)
            partitions.append({partition_field: number, **usual, **told})
        topics.append({topic_field: name, "partitions": partitions})
    return {"topics": topics}
