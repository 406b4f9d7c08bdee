"""What the members of a group say, from their bytes.

A claim is a partition that a member holds (KIP-429). Per partition the claim of the highest
generation counts (KIP-792), however old it is: a member whose SyncGroup failed is still in the
group and still holds what it had. Of two equal ones both count: nobody gets the partition before
both have let go. A fenced member claims nothing, so an old claim is never a zombie's.
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
"""Member ids with their Subscriptions, as the coordinator hands them to the leader."""

SILENT = Subscription(())
OPAQUE = MemberMetadata("", opaque=True)


def read_members(
    metadata: Metadata, signatures: Sequence[int] = ()
) -> tuple[tuple[MemberMetadata, ...], tuple[str, ...]]:
    """The members, and a sentence per member that could not be read. `signatures`: of the leader's
    sub-topologies, in their order.

    Damaged bytes never stop a leader: without user data a member is opaque, without a Subscription
    it claims nothing.
    """
    notes: list[str] = []
    said = {m: _read(Subscription.read, data, SILENT, m, notes) for m, data in metadata}
    told = {m: _read(read_join, said[m].user_data, OPAQUE, m, notes) for m in said}
    claims = _claims(said)
    newest = max((member.round for member in told.values()), default=0)
    members = (
        replace(
            member,
            id=name,
            claims=claims[name],
            heirs=_promised(member, newest),
            knows=known(member.signatures, signatures),
        )
        for name, member in told.items()
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


def _claims(said: Mapping[str, Subscription]) -> Mapping[str, frozenset[TopicPartition]]:
    newest: dict[TopicPartition, int] = {}
    for subscription in sorted(said.values(), key=lambda subscription: subscription.generation):
        newest.update(dict.fromkeys(subscription.owned, subscription.generation))
    return {
        member: frozenset(tp for tp in told.owned if newest[tp] == told.generation)
        for member, told in said.items()
    }


def _promised(member: MemberMetadata, newest_round: int) -> frozenset[TaskId]:
    """A promise is of the last plan, or it is none: "m1 is promised t and fenced; m2 runs t for an
    hour; m1 comes back" must not give t to m1, whose copy is an hour old."""
    return member.heirs if member.round == newest_round else frozenset()


def known(theirs: Sequence[int], ours: Sequence[int]) -> frozenset[int] | None:
    """Which of our sub-topologies somebody with these signatures runs as we do; None: all."""
    if not theirs:
        return None
    return frozenset(n for n, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a == b)
