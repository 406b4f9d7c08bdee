"""Records that clients append, and the ids by which batches that come twice are recognised."""

from functools import partial
from typing import Any

from streamsx.broker import appending
from streamsx.broker.configs import listed
from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.log import Log
from streamsx.broker.refusal import Refused, each, why_not
from streamsx.broker.service import Service
from streamsx.kafka.errors import ErrorCode

NO_OFFSET = -1


def answer(service: Service, call: Call) -> ReplyBody | None:
    """The offset of each batch; with `sync`, once it is on the disk."""
    acks, responses, logs = call.body.acks, [], list[Log]()
    for asked in call.body.topic_data:
        name = getattr(asked, "name", None)  # newer versions name topics by id alone
        answered = partial(append, service, acks, name, asked.topic_id, logs)
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
    service: Service, acks: int, name: str | None, topic_id: bytes, logs: list[Log], asked: Any
) -> ReplyBody:
    """Appends one batch to one partition, whose log joins `logs`. Raises what `each` knows."""
    topic = service.topics.find(name, topic_id)
    log = topic.log(asked.index)
    if acks not in (-1, 0, 1):
        raise Refused(ErrorCode.INVALID_REQUIRED_ACKS)
    try:
        bytes_max = int(topic.config("max.message.bytes"))
        keyed = "compact" in listed(topic.config("cleanup.policy"))
        offset = appending.append(log, asked.records, bytes_max, keyed=keyed)
    finally:
        if log.failed:
            service.flusher.heal()
    logs.append(log)
    service.flusher.appended(log)
    return {"base_offset": offset, "log_start_offset": log.start}


def stored(reply: ReplyBody, logs: list[Log]) -> ReplyBody:
    """What did not reach the disk is to be sent again; `logs`: of what was appended, in order."""
    appended = iter(logs)
    for topic in reply["responses"]:
        for partition in topic["partition_responses"]:
            if "error_code" not in partition and next(appended).failed:
                partition |= {"error_code": ErrorCode.KAFKA_STORAGE_ERROR, "base_offset": NO_OFFSET}
    return reply


def producer_id(service: Service, call: Call) -> ReplyBody:
    """An id that nobody had, at epoch 0."""
    if call.body.transactional_id is not None:
        return {"error_code": ErrorCode.INVALID_REQUEST, "producer_epoch": -1}
    try:
        return {"producer_id": service.meta.next_producer_id(), "producer_epoch": 0}
    except OSError as error:
        return {"producer_epoch": -1, **why_not(error)}
