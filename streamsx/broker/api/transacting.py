"""Producer ids, and the transactions of those who have a transactional id."""

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.refusal import why_not
from streamsx.broker.service import Service
from streamsx.broker.transactions import BUMPS_SINCE, LAST_EPOCH
from streamsx.kafka.wire import Api


def producer(service: Service, call: Call) -> ReplyBody | None:
    """Of somebody without a transactional id: an id that nobody had, at epoch 0. Else by the
    coordinator, which may have to give out such a new one.
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


def last_epoch_ends(call: Call) -> bool:
    """There is none behind it for the next transaction."""
    ends = call.api is Api.END_TXN and call.version >= BUMPS_SINCE
    return ends and bool(call.body.producer_epoch >= LAST_EPOCH)
