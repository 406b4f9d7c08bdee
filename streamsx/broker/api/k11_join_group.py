"""11 JoinGroup: KIP-62 time-outs, KIP-345 static members, KIP-394 ids first, KIP-814 skips."""

from streamsx.broker.connection import Call
from streamsx.broker.service import Service

VERSIONS = (0, 9)


def answer(service: Service, call: Call) -> None:
    """Waits until everybody has joined."""
    service.groups.ask(call)
