"""42 DeleteGroups: with their offsets, if nobody is in them (KIP-229)."""

from streamsx.broker.connection import Call
from streamsx.broker.service import Service

VERSIONS = (0, 2)


def answer(service: Service, call: Call) -> None:
    """Each by itself."""
    service.groups.ask(call)
