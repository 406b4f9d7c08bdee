"""Handler of Produce: appends each batch, or returns the reason for its refusal."""

from functools import partial
from typing import Any

from streamsx.broker.configs import listed
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.log import appending
from streamsx.broker.log.expanding import Expansions
from streamsx.broker.log.log import Log
from streamsx.broker.log.timestamps import TimeLimits
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.broker.refusal import NamedOnce, Refused, each
from streamsx.broker.service import Service
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import Header

NO_OFFSET = -1
ABORTABLE_SINCE = 11
"""Produce version from which on clients know error code 120."""
ADDS_SINCE = 12
"""Produce version from which on a batch adds its partition to its transaction (KIP-890)."""


def answer(service: Service, call: ServedRequest) -> ReplyBody | None:
    """Append all batches and return their offsets; with `sync`, reply once they are on the disk."""
    acks = call.body.acks
    responses = list[ReplyBody]()
    logs = list[Log]()
    once = NamedOnce()
    expansions = Expansions()
    for asked in call.body.topic_data:
        name = getattr(asked, "name", None)  # newer versions have topic ids only
        answered = partial(append, service, call, name, asked.topic_id, logs, once, expansions)
        partitions = each(asked.partition_data, answered, "index", base_offset=NO_OFFSET)
        responses.append(
            {"name": name, "topic_id": asked.topic_id, "partition_responses": partitions}
        )
    reply = {"responses": responses}
    if acks == 0:
        call.reply(None)
        return None
    if not service.options.sync:
        return reply
    service.flusher.when_flushed(lambda: call.reply(stored(reply, logs)))
    return None


def append(
    service: Service, call: ServedRequest, name: str | None, topic_id: bytes, logs: list[Log],
    once: NamedOnce, expansions: Expansions, asked: Any,
) -> ReplyBody:  # fmt: skip
    """Append one batch to one partition, and add the log of the partition to `logs`.

    Raises:
        Refused: The batch may not be appended.
        CorruptRecord: The batch is damaged.
        OSError: The disk refused.
    """
    once(name, topic_id, asked.index)
    topic = service.topics.find(name, topic_id)
    log = topic.log(asked.index)
    if call.body.acks not in (-1, 0, 1):
        raise Refused(ErrorCode.INVALID_REQUIRED_ACKS)
    try:
        bytes_max = int(topic.config("max.message.bytes"))
        keyed = expansions if "compact" in listed(topic.config("cleanup.policy")) else None
        admits = partial(admit, service, call, (topic.name, asked.index))
        limits = TimeLimits.of(topic.configs, int(service.clock.wall() * 1000))
        offset = appending.append(
            log, asked.records, bytes_max, admits, keyed=keyed, timed=(limits, expansions)
        )
    finally:
        if log.failed:
            service.flusher.heal()
    logs.append(log)
    service.flusher.appended(log)
    append_time = limits.log_append_time
    return {"base_offset": offset, "log_append_time": append_time, "log_start_offset": log.start}


def admit(service: Service, call: ServedRequest, place: tuple[str, int], header: Header) -> None:
    """Check that the transaction of a batch may write to this partition.

    Newer producers add a partition to the transaction by writing to it (KIP-890).

    Raises:
        Refused: The partition does not belong to the transaction.
    """
    owner = (header.producer_id, header.producer_epoch)
    adds = call.version >= ADDS_SINCE
    if (transactional_id := call.body.transactional_id) is None:
        raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    code = service.groups.may_write(transactional_id, owner, place, adds=adds)
    if code is ErrorCode.INVALID_TXN_STATE and call.version >= ABORTABLE_SINCE:
        code = ErrorCode.TRANSACTION_ABORTABLE
    if code:
        raise Refused(code)


def stored(reply: ReplyBody, logs: list[Log]) -> ReplyBody:
    """Replace the offsets of batches that did not reach the disk by an error, so that clients
    retry.

    `logs` are the logs of the appended batches, in order.
    """
    appended = iter(logs)
    for topic in reply["responses"]:
        for partition in topic["partition_responses"]:
            if "error_code" not in partition and next(appended).failed:
                partition |= {"error_code": ErrorCode.KAFKA_STORAGE_ERROR, "base_offset": NO_OFFSET}
    return reply
