"""8 OffsetCommit: KIP-98's leader epochs are kept, KIP-516's topic ids are understood.

Not: retention times of version 2 to 4, which Kafka ignores as well.
"""

from streamsx.broker.connection import Call
from streamsx.broker.service import Service

VERSIONS = (2, 10)


def answer(service: Service, call: Call) -> None:
    """From members and from those who assign partitions themselves."""
    service.groups.ask(call)
