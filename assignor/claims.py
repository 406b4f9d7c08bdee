"""Parser of the members' join data, and the resolver of conflicting claims.

A claim is a partition that a member holds (KIP-429). For each partition the claim of the highest
generation counts (KIP-792), however old that generation is: a member whose SyncGroup failed is
still in the group and still holds its partitions. Two claims of equal generation both count: no
member gets the partition before both claimants have released it. A fenced member claims nothing, so
an old claim never belongs to a zombie.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from streamsx.assignor.model import MemberMetadata
from streamsx.assignor.wire import read_join
from streamsx.errors import DataError
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.consumer_protocol import Subscription

T = TypeVar("T")
Metadata = Sequence[tuple[str, bytes]]
"""Member ids with Subscriptions, in the form in which the leader gets them from the coordinator."""

SILENT = Subscription(())
OPAQUE = MemberMetadata("", opaque=True)


def read_members(
    metadata: Metadata, signatures: Sequence[int] = ()
) -> tuple[tuple[MemberMetadata, ...], tuple[str, ...]]:
    """Return the members, and one sentence for each member that could not be read.

    `signatures`: those of the leader's sub-topologies, in order. Damaged bytes never stop a leader:
    a member without readable user data is opaque, a member without a readable Subscription claims
    nothing.
    """
    notes: list[str] = []
    subscriptions = {m: _read(Subscription.read, data, SILENT, m, notes) for m, data in metadata}
    joins = {
        m: _read(read_join, subscriptions[m].user_data, OPAQUE, m, notes) for m in subscriptions
    }
    claims = _claims(subscriptions)
    newest = max((member.round for member in joins.values()), default=0)
    members = (
        replace(
            member,
            id=name,
            claims=claims[name],
            heirs=_promised(member, newest),
            knows=known(member.signatures, signatures),
        )
        for name, member in joins.items()
    )
    return tuple(members), tuple(notes)


def _read(
    reader: Callable[[bytes], T], data: bytes, otherwise: T, member: str, notes: list[str]
) -> T:
    try:
        return reader(data)
    except DataError as error:
        notes.append(f"a member that cannot be read: {member}: {error}")
        return otherwise


def _claims(subscriptions: Mapping[str, Subscription]) -> Mapping[str, frozenset[TopicPartition]]:
    newest: dict[TopicPartition, int] = {}
    for subscription in sorted(
        subscriptions.values(), key=lambda subscription: subscription.generation
    ):
        newest.update(dict.fromkeys(subscription.owned, subscription.generation))
    return {
        member: frozenset(tp for tp in subscription.owned if newest[tp] == subscription.generation)
        for member, subscription in subscriptions.items()
    }


def _promised(member: MemberMetadata, newest_round: int) -> frozenset[TaskId]:
    """Return the promises to a member, or none if they are not from the newest plan.

    Race: m1 is promised t and then fenced; m2 runs t for an hour; m1 comes back. The old promise
    must not give t to m1, because the copy on m1 is an hour old.
    """
    return member.heirs if member.round == newest_round else frozenset()


def known(theirs: Sequence[int], ours: Sequence[int]) -> frozenset[int] | None:
    """Return the sub-topologies that a member with the signatures `theirs` runs as we do.

    Returns:
        Numbers of sub-topologies; None for all of them, when `theirs` is empty.
    """
    if not theirs:
        return None
    return frozenset(n for n, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a == b)
