"""Handlers of requests that name partitions: one answer for each partition."""

import sys
from collections.abc import Callable
from typing import Any

from streamsx.broker.configs import listed
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.log.expanding import Expansions
from streamsx.broker.log.log import Log
from streamsx.broker.log.segment import LEADER_EPOCH
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.broker.refusal import NamedOnce, Refused, each
from streamsx.broker.service import Service
from streamsx.broker.topics import StoredTopic
from streamsx.protocol.error_codes import ErrorCode

READ_COMMITTED = 1
NOTHING = (-1, -1)
END = -1
NO_EPOCH = -1
SINCE = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
"""ListOffsets version from which on each special timestamp is known."""


def list_offsets(service: Service, call: ServedRequest) -> ReplyBody:
    """Return offset and timestamp for each partition; -1 where there is none."""
    expansions = Expansions()

    def answer(_: StoredTopic, log: Log, asked: Any) -> ReplyBody:
        if asked.timestamp < 0 and call.version < SINCE.get(asked.timestamp, sys.maxsize):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION)
        committed = call.body.isolation_level == READ_COMMITTED
        offset, timestamp = find(log, asked.timestamp, expansions, committed=committed)
        epoch = NO_EPOCH if offset < 0 else LEADER_EPOCH
        return {"offset": offset, "timestamp": timestamp, "leader_epoch": epoch}

    return each_partition(service, call, answer)


def find(log: Log, timestamp: int, expansions: Expansions, *, committed: bool) -> tuple[int, int]:
    """Return (offset, timestamp) for a timestamp or a special value.

    Raises:
        CorruptRecord: A batch is damaged.
    """
    match timestamp:
        case -1:
            return log.readable_to(committed=committed), -1
        case -2 | -4:
            return log.start, -1
        case -3:
            return log.newest(expansions, committed=committed) or NOTHING
        case -5 | -6:
            return NOTHING
        case _:
            return log.at_time(timestamp, expansions, committed=committed) or NOTHING


def delete_records(service: Service, call: ServedRequest) -> ReplyBody:
    """Delete records before an offset; return the new start of each partition.

    Topics that are only compacted are refused: their records are deleted by tombstones.
    """

    def answer(topic: StoredTopic, log: Log, asked: Any) -> ReplyBody:
        policy = listed(topic.config("cleanup.policy"))
        if "compact" in policy and "delete" not in policy:
            raise Refused(ErrorCode.POLICY_VIOLATION)
        if not END <= asked.offset <= log.high_watermark:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        log.delete_before(log.high_watermark if asked.offset == END else asked.offset)
        return {"low_watermark": log.start}

    return each_partition(service, call, answer, low_watermark=-1)


def epoch_ends(service: Service, call: ServedRequest) -> ReplyBody:
    """Return the end of each partition, which is the end of its only epoch."""

    def answer(_: StoredTopic, log: Log, asked: Any) -> ReplyBody:
        if asked.leader_epoch != LEADER_EPOCH:
            return {"leader_epoch": NO_EPOCH, "end_offset": -1}
        return {"leader_epoch": LEADER_EPOCH, "end_offset": log.high_watermark}

    return each_partition(service, call, answer, "topic", "partition")


def each_partition(
    service: Service, call: ServedRequest, answer: Callable[[StoredTopic, Log, Any], ReplyBody],
    topic_field: str = "name", partition_field: str = "partition_index", **usual: int,
) -> ReplyBody:  # fmt: skip
    """Return what `answer` returns for each requested partition, by topic.

    Args:
        answer: Takes the topic, the log, and the requested entry.
        topic_field: Field of the topic's name in request and response.
        partition_field: Field of the partition's number in request and response.
        usual: Fields of a response that is an error.
    """

    once = NamedOnce()

    def of_topic(asked: Any) -> ReplyBody:
        def of_partition(wanted: Any) -> ReplyBody:
            name = getattr(asked, topic_field)
            partition = getattr(wanted, partition_field)
            once(name, partition)
            epoch = getattr(wanted, "current_leader_epoch", NO_EPOCH)
            topic = service.topics.find(name)
            return answer(topic, topic.log(partition, epoch), wanted)

        return {"partitions": each(asked.partitions, of_partition, partition_field, **usual)}

    return {"topics": each(call.body.topics, of_topic, topic_field)}
