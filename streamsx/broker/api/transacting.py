"""Handlers of producer ids, and of transactions of producers with a transactional id."""

from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.groups.transactions import BUMPS_SINCE, LAST_EPOCH
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.broker.refusal import why_not
from streamsx.broker.service import Service
from streamsx.protocol.wire import Api


def producer(service: Service, call: ServedRequest) -> ReplyBody | None:
    """Assign a producer id.

    A producer without a transactional id gets a new id at epoch 0. Otherwise the transaction
    coordinator answers, and may have to assign such a new id too.
    """
    fresh_id = ""
    if call.api is Api.INIT_PRODUCER_ID or last_epoch_ends(call):
        try:
            new = service.meta.next_producer_id()
        except OSError as error:
            return {"producer_id": -1, "producer_epoch": -1, **why_not(error)}
        if call.body.transactional_id is None:
            return {"producer_id": new, "producer_epoch": 0}
        fresh_id = str(new)
    service.groups.ask(call, fresh_id)
    return None


def last_epoch_ends(call: ServedRequest) -> bool:
    """Return whether a transaction ends in the last epoch, so that the next needs a new
    producer id.
    """
    ends = call.api is Api.END_TXN and call.version >= BUMPS_SINCE
    return ends and bool(call.body.producer_epoch >= LAST_EPOCH)
