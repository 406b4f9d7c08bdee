"""10 FindCoordinator: of groups, it is us; several at once since 4 (KIP-699).

Not: coordinators of transactions and of share groups.
"""

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.service import NODE_ID, Service
from streamsx.kafka.errors import ErrorCode

VERSIONS = (0, 6)
GROUP = 0


def answer(_: Service, call: Call) -> ReplyBody:
    """One answer per key, and the first once more at the top, where it was before version 4."""
    body = call.body
    if body.key_type != GROUP:
        why = "only groups have a coordinator here"
        us = {"node_id": -1, "error_code": ErrorCode.INVALID_REQUEST, "error_message": why}
    else:
        host, port = call.connection.address
        us = {"node_id": NODE_ID, "host": host, "port": port}
    return {**us, "coordinators": [{"key": key, **us} for key in body.coordinator_keys]}
