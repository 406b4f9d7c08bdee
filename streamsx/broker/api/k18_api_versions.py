"""18 ApiVersions: what is served; a version that we do not know is answered as version 0 (KIP-511).

Not: features (KIP-584): none is finalized.
"""

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.service import Service
from streamsx.kafka.errors import ErrorCode

VERSIONS = (0, 4)


def answer(service: Service, call: Call) -> ReplyBody:
    """Each request and its versions."""
    keys = [
        {"api_key": key, "min_version": oldest, "max_version": newest}
        for key, (oldest, newest) in sorted(service.versions.items())
    ]
    code = ErrorCode.NONE if call.body else ErrorCode.UNSUPPORTED_VERSION
    return {"error_code": code, "api_keys": keys}
