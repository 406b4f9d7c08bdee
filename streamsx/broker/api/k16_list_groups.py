"""16 ListGroups: by state (KIP-518) and type (KIP-848)."""

from streamsx.broker.connection import Call
from streamsx.broker.service import Service

VERSIONS = (0, 5)


def answer(service: Service, call: Call) -> None:
    """All groups, those that hold only offsets too."""
    service.groups.ask(call)
