"""22 InitProducerId: a new id for an idempotent producer (KIP-98).

Not: transactional ids, and what belongs to them (KIP-360, KIP-890, KIP-939).
"""

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.service import Service
from streamsx.kafka.errors import ErrorCode

VERSIONS = (0, 5)


def answer(service: Service, call: Call) -> ReplyBody:
    """An id that nobody had, at epoch 0."""
    if call.body.transactional_id is not None:
        return {"error_code": ErrorCode.INVALID_REQUEST, "producer_epoch": -1}
    return {"producer_id": service.meta.next_producer_id(), "producer_epoch": 0}
