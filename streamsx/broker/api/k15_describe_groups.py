"""15 DescribeGroups: of the classic protocol; an absent group is an error since 6 (KIP-1043)."""

from streamsx.broker.connection import Call
from streamsx.broker.service import Service

VERSIONS = (0, 6)


def answer(service: Service, call: Call) -> None:
    """Also of groups that are not there."""
    service.groups.ask(call)
