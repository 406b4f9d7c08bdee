"""A group seen from outside: who is in it and who runs what, without joining it.

DescribeGroups shows what members said at their last join and what they were given then, but only
while the group is stable. In a rebalance it shows member ids and, in Kafka alone, what they were
given before: not enough to say who runs what, so whoever wants to know asks again. Right after a
tool has led the group nobody can say it either; its leaving starts the next rebalance.

Not here: what the bytes mean (`streamsx.assignor.observer`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from streamsx.assignor.observer import GroupReport, describe
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor
from streamsx.client.admin import describe_group
from streamsx.client.cluster import Cluster
from streamsx.clock import Clock
from streamsx.errors import ForeignProtocol, NotFound
from streamsx.protocol.consumer_protocol import PROTOCOL_TYPES

LOOK_EVERY_S = 0.2
DEAD, EMPTY, STABLE = "Dead", "Empty", "Stable"


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """`state`: Kafka's word for that of the group."""

    state: str
    report: GroupReport


async def look(cluster: Cluster, app: str) -> GroupDescription:
    """At the group of an app, as it is now. Raises NotFound, ForeignProtocol, WorldError."""
    told = await describe_group(cluster, app)
    if told.state == DEAD:
        raise NotFound(f"no such app: {app}: this cluster has no group of that id: check the id")
    stable = told.state == STABLE  # else the protocol is blank
    other = stable and told.protocol != StreamsPartitionAssignor.name
    if told.state != EMPTY and (other or told.protocol_type not in PROTOCOL_TYPES):
        raise ForeignProtocol(
            f"not an app of streamsx: {app}: a group of type {told.protocol_type!r}, protocol "
            f"{told.protocol!r}: give the id of an app"
        )
    blank = [(member_id, b"", b"") for member_id, _, _ in told.members]
    report = describe(told.members if stable else blank)
    return GroupDescription(told.state, replace(report, protocol_type=told.protocol_type))


async def settled(
    cluster: Cluster,
    clock: Clock,
    app: str,
    limit_s: float,
    waits: Callable[[GroupDescription], None] = lambda _: None,
) -> GroupDescription:
    """The first look that says who runs what; after `limit_s` one that does not.

    `waits` is told each look that does not. Raises as `look` does.
    """
    give_up_at = clock.now() + limit_s
    while True:
        seen = await look(cluster, app)
        if seen.report.settled or clock.now() >= give_up_at:
            return seen
        waits(seen)
        await asyncio.sleep(LOOK_EVERY_S)
