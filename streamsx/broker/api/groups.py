"""8, 9, 11 to 16 and 42: requests of groups, which the coordinator answers, perhaps later."""

from streamsx.broker.connection import Call
from streamsx.broker.service import Service
from streamsx.kafka.wire import Api

VERSIONS = {
    # KIP-98's leader epochs are kept, KIP-516's topic ids are understood. Not: the retention times
    # of version 2 to 4, which Kafka ignores as well.
    Api.OFFSET_COMMIT: (2, 10),
    # Several groups at once (KIP-709), topic ids (KIP-1074). There are no transactions, so nothing
    # committed is ever unstable (KIP-447).
    Api.OFFSET_FETCH: (1, 10),
    # KIP-62 time-outs, KIP-345 static members, KIP-394 ids first, KIP-814 skips.
    Api.JOIN_GROUP: (0, 9),
    # Of the classic protocol.
    Api.HEARTBEAT: (0, 4),
    # Of several members, also in the name of others (KIP-345); KIP-800's reason is not kept.
    Api.LEAVE_GROUP: (0, 5),
    # Of the classic protocol, with KIP-559's protocol names checked.
    Api.SYNC_GROUP: (0, 5),
    # Of the classic protocol; an absent group is an error since 6 (KIP-1043).
    Api.DESCRIBE_GROUPS: (0, 6),
    # By state (KIP-518) and type (KIP-848); those that hold only offsets too.
    Api.LIST_GROUPS: (0, 5),
    # With their offsets, if nobody is in them (KIP-229); each by itself.
    Api.DELETE_GROUPS: (0, 2),
}


def answer(service: Service, call: Call) -> None:
    """Whoever waits for others is answered when they have come."""
    service.groups.ask(call)
