"""Handlers of SaslHandshake and SaslAuthenticate."""

from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.broker.net.sasl import MECHANISMS
from streamsx.broker.service import Service
from streamsx.protocol.error_codes import ErrorCode

FRAMED_SINCE = 1
"""SaslHandshake version from which on tokens are sent in SaslAuthenticate (KIP-152)."""


def handshake(_: Service, call: ServedRequest) -> ReplyBody:
    """Choose the SASL mechanism."""
    authentication = call.connection.authentication
    if authentication is None:
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}
    if call.version < FRAMED_SINCE:  # clients before KIP-152 send tokens without a request frame
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "mechanisms": list(MECHANISMS)}
    return authentication.handshake(call.body.mechanism)


def authenticate(_: Service, call: ServedRequest) -> ReplyBody:
    """Authenticate the client with a SASL token."""
    authentication = call.connection.authentication
    if authentication is None:
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "auth_bytes": b""}
    return authentication.authenticate(bytes(call.body.auth_bytes))
