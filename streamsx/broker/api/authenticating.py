"""How a client shows who it is, where the broker wants to know."""

from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.broker.net.sasl import MECHANISMS
from streamsx.broker.service import Service
from streamsx.protocol.error_codes import ErrorCode

FRAMED_SINCE = 1
"""The version of SaslHandshake behind which tokens come in SaslAuthenticate (KIP-152)."""


def handshake(_: Service, call: ServedRequest) -> ReplyBody:
    """How it will."""
    authentication = call.connection.authentication
    if authentication is None:
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}
    if call.version < FRAMED_SINCE:  # naked tokens, from clients older than KIP-152
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "mechanisms": list(MECHANISMS)}
    return authentication.handshake(call.body.mechanism)


def authenticate(_: Service, call: ServedRequest) -> ReplyBody:
    """Who it is."""
    authentication = call.connection.authentication
    if authentication is None:
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "auth_bytes": b""}
    return authentication.authenticate(bytes(call.body.auth_bytes))
