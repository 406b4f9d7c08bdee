"""14 SyncGroup of the classic protocol, with KIP-559's protocol names checked."""

from streamsx.broker.connection import Call
from streamsx.broker.service import Service

VERSIONS = (0, 5)


def answer(service: Service, call: Call) -> None:
    """Waits for the leader's assignment."""
    service.groups.ask(call)
