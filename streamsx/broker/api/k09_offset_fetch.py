"""9 OffsetFetch: several groups at once (KIP-709), topic ids (KIP-1074).

There are no transactions, so nothing committed is ever unstable (KIP-447).
"""

from streamsx.broker.connection import Call
from streamsx.broker.service import Service

VERSIONS = (1, 10)


def answer(service: Service, call: Call) -> None:
    """Of all partitions that were asked for, or that there are."""
    service.groups.ask(call)
