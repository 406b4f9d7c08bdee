"""Producer ids, and the transactions of those who have a transactional id."""

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.refusal import why_not
from streamsx.broker.service import Service
from streamsx.broker.transactions import BUMPS_SINCE, LAST_EPOCH
from streamsx.kafka.wire import Api


def producer_id(service: Service, call: Call) -> ReplyBody | None:
    """An id that nobody had, at epoch 0; that of a transactional id, at its next epoch."""
    if call.body.transactional_id is not None:
        return ask(service, call)
    try:
        return {"producer_id": service.meta.next_producer_id(), "producer_epoch": 0}
    except OSError as error:
        return {"producer_epoch": -1, **why_not(error)}


def ask(service: Service, call: Call) -> ReplyBody | None:
    """By the coordinator, which may have to give out a new producer id."""
    fresh_id = ""
    if call.api is Api.INIT_PRODUCER_ID or last_epoch_ends(call):
        try:
            fresh_id = str(service.meta.next_producer_id())
        except OSError as error:
            return {"producer_id": -1, "producer_epoch": -1, **why_not(error)}
    service.groups.ask(call, fresh_id)
    return None


def last_epoch_ends(call: Call) -> bool:
    """There is none behind it for the next transaction."""
    ends = call.api is Api.END_TXN and call.version >= BUMPS_SINCE
    return ends and bool(call.body.producer_epoch >= LAST_EPOCH)
