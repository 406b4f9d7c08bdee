"""Group seen from outside: its members and their tasks, without joining the group.

DescribeGroups returns the subscriptions of the last join and the assignments of that time, but only
while the group is stable. During a rebalance DescribeGroups returns member ids and, in Kafka alone,
the old assignments. That is not enough to name the owner of a task, so the caller asks again. Right
after a tool has led the group, the owners are unknown too; the tool's departure starts the next
rebalance.

Not here: the decoding of the bytes (`streamsx.assignor.observer`).
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
DEAD = "Dead"
EMPTY = "Empty"
STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Description of a group; `state` is Kafka's name of the group's state."""

    state: str
    report: GroupReport


async def look(cluster: Cluster, app: str) -> GroupDescription:
    """Describe the group of an app as of now.

    Raises:
        NotFound: the cluster has no group of this id.
        ForeignProtocol: the group belongs to another program.
        WorldError: the cluster does not answer.
    """
    group = await describe_group(cluster, app)
    if group.state == DEAD:
        raise NotFound(f"no such app: {app}: this cluster has no group of that id: check the id")
    stable = group.state == STABLE  # in other states the protocol is blank
    other = stable and group.protocol != StreamsPartitionAssignor.name
    if group.state != EMPTY and (other or group.protocol_type not in PROTOCOL_TYPES):
        raise ForeignProtocol(
            f"not an app of streamsx: {app}: a group of type {group.protocol_type!r}, protocol "
            f"{group.protocol!r}: give the id of an app"
        )
    blank = [(member_id, b"", b"") for member_id, _, _ in group.members]
    report = describe(group.members if stable else blank)
    return GroupDescription(group.state, replace(report, protocol_type=group.protocol_type))


async def settled(
    cluster: Cluster,
    clock: Clock,
    app: str,
    limit_s: float,
    waits: Callable[[GroupDescription], None] = lambda _: None,
) -> GroupDescription:
    """Return the first description with known owners; after `limit_s` one without.

    `waits` is called with each description without known owners. Raises the errors of `look`.
    """
    give_up_at = clock.now() + limit_s
    while True:
        seen = await look(cluster, app)
        if seen.report.settled or clock.now() >= give_up_at:
            return seen
        waits(seen)
        await asyncio.sleep(LOOK_EVERY_S)
