"""13 LeaveGroup: of several members (KIP-345); the reason of KIP-800 is not kept."""

from streamsx.broker.connection import Call
from streamsx.broker.service import Service

VERSIONS = (0, 5)


def answer(service: Service, call: Call) -> None:
    """Also in the name of others."""
    service.groups.ask(call)
