"""12 Heartbeat of the classic protocol."""

from streamsx.broker.connection import Call
from streamsx.broker.service import Service

VERSIONS = (0, 4)


def answer(service: Service, call: Call) -> None:
    """Tells of a rebalance."""
    service.groups.ask(call)
