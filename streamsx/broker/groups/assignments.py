"""Members of a consumer-protocol group, with their current and target assignments. Pure.

This module alone holds the group's persisted state, and changes it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf

from streamsx.broker.groups import coordinator_events as e
from streamsx.broker.groups.assignors import ASSIGNORS, Target, TopicIdPartition, all_of
from streamsx.broker.groups.group import GroupConfig, GroupTurn
from streamsx.broker.groups.member_names import removed, settled
from streamsx.broker.groups.offsets import NO_ID, Catalog
from streamsx.broker.metadata_rows import (
    OF_A_MEMBER,
    ConsumerGroupKey,
    ConsumerGroupValue,
    ConsumerMemberKey,
    ConsumerMemberValue,
    CurrentKey,
    CurrentValue,
    GroupRowKey,
    GroupRowValue,
    PlacesValue,
    TargetKey,
    TargetValue,
)
from streamsx.broker.refusal import Refused
from streamsx.protocol.error_codes import ErrorCode

FIRST_EPOCH = 1  # epoch of a group before its first member, as in Kafka
NOBODY = ConsumerMemberValue(None, None, "", "", (), None, -1, None)
"""Description of a new member, before its first heartbeat is read."""
Epochs = dict[TopicIdPartition, int]
"""Partitions of a member, with the epochs at which they were assigned to this member."""


class Reconciliation(IntEnum):
    """Progress of a member towards the target assignment, numbered as Kafka stores it."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


@dataclass(slots=True)
class ConsumerMember:
    """Member of a consumer-protocol group.

    The member may have the partitions in `assigned`, and must give up those in `revoking`. Both are
    replaced, never changed in place.
    """

    id: str
    about: ConsumerMemberValue = NOBODY
    epoch: int = 0
    previous_epoch: int = 0
    state: Reconciliation = Reconciliation.STABLE
    assigned: Epochs = field(default_factory=dict)
    revoking: Epochs = field(default_factory=dict)
    session_at: float = 0.0
    expected_by: float = inf

    def since(self, place: TopicIdPartition) -> float:
        """Return the epoch at which a partition was assigned to this member; inf if it was not."""
        return self.assigned.get(place, self.revoking.get(place, inf))


class Assignments:
    """Current and target assignments of a group's members, with their epochs."""

    def __init__(self, turn: GroupTurn, config: GroupConfig, catalog: Catalog) -> None:
        self.settled: frozenset[str] = frozenset()
        """Members of the newest line about all of them."""
        self.turn = turn
        self.config = config
        self.catalog = catalog
        self.id = turn.group_id
        self.epoch = FIRST_EPOCH
        self.target_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.target: Target = {}
        self.holders: dict[TopicIdPartition, str] = {}  # members by assigned or revoking partition
        self._catalog_seen = -1
        self._changed: dict[GroupRowKey, GroupRowValue | None] = {}

    def changes(self) -> list[e.Effect]:
        """Return one write of all rows that changed since the last call."""
        changed = self._changed
        self._changed = {}
        if not changed:
            return []
        puts = tuple((key, value) for key, value in changed.items() if value is not None)
        return [e.Persist(puts, tuple(key for key, value in changed.items() if value is None))]

    def load(self, key: GroupRowKey, value: GroupRowValue) -> None:
        """Load a persisted row, the group's own first; members get a full session to return."""
        match key, value:
            case ConsumerGroupKey(), ConsumerGroupValue():
                self.epoch = value.epoch
                self.target_epoch = value.target_epoch
            case ConsumerMemberKey(), ConsumerMemberValue():
                self.members[key.member_id] = member = ConsumerMember(key.member_id, value)
                self.touch(member)
            case TargetKey(), TargetValue():
                self.target[key.member_id] = frozenset(epochs_of(value.places, 0))
            case CurrentKey(), CurrentValue():
                self._load_current(self.members[key.member_id], value)

    def _load_current(self, member: ConsumerMember, value: CurrentValue) -> None:
        member.epoch = value.epoch
        member.previous_epoch = value.previous_epoch
        member.state = Reconciliation(value.state)
        member.assigned = epochs_of(value.assigned, value.epoch)
        member.revoking = epochs_of(value.revoking, value.epoch)
        self.holders |= dict.fromkeys((*member.assigned, *member.revoking), member.id)
        if member.state is Reconciliation.UNREVOKED:
            self.expect(member)

    # Target assignment, and the steps towards it.

    def aim(self) -> None:
        """Compute a new target if the group epoch rose, or if the subscribed partitions changed.

        Changed partitions raise the group epoch too.
        """
        stale = self.epoch > self.target_epoch
        if not stale and self.catalog.version == self._catalog_seen:
            return
        self._catalog_seen = self.catalog.version
        read = {m.id: self._topics_of(m) for m in sorted(self.members.values(), key=static_first)}
        partitions = {topic: count for topics in read.values() for topic, count in topics.items()}
        subscribed = {member_id: frozenset(topics) for member_id, topics in read.items()}
        if not stale and all_of(subscribed, partitions) == frozenset().union(*self.target.values()):
            return
        target = ASSIGNORS[self.assignor()](subscribed, partitions, self.target)
        for member_id, places in target.items():
            if self.target.get(member_id) != places:
                self.aim_at(member_id, places)
        epoch = self.epoch if stale else self.epoch + 1
        self.set_epochs(epoch, epoch)
        members = frozenset(self.members)
        said = ""
        if members != self.settled:
            self.settled = members
            said = settled(self.turn.group_id, (m.about for m in self.members.values()))
        self.turn.tell("group_target", f"epoch={epoch} members={len(self.members)}", said)

    def _topics_of(self, member: ConsumerMember) -> dict[bytes, int]:
        """Return id and number of partitions of each subscribed topic that exists."""
        return dict(
            found for t in member.about.topics if (found := self.catalog.identity(t))[0] != NO_ID
        )

    def assignor(self) -> str:
        """Return the name of the assignor that most members ask for.

        Among equals the first by name wins, whatever the order in which members joined.
        """
        wanted = (m.about.assignor for m in self.members.values() if m.about.assignor)
        asked = Counter(sorted(wanted))
        return asked.most_common(1)[0][0] if asked else next(iter(ASSIGNORS))

    def reconcile(self, m: ConsumerMember, owned: set[TopicIdPartition] | None) -> None:
        """Move a member one step towards its target, if the step is possible now.

        Args:
            m: Member that sent a heartbeat.
            owned: Partitions that the member reports as owned; None if the heartbeat reports none.
        """
        unrevoked = m.state is Reconciliation.UNREVOKED
        if unrevoked:
            if owned is None or not owned.isdisjoint(m.revoking):
                self.unsubscribe(m)
                return
        elif m.state is Reconciliation.STABLE and m.epoch == self.target_epoch:
            return
        wanted = self.target.get(m.id, frozenset())
        kept = {place: since for place, since in m.assigned.items() if place in wanted}
        lost = {place: since for place, since in m.assigned.items() if place not in wanted}
        if lost and (owned is None or not owned.isdisjoint(lost)):
            self.hold(m, m.epoch, Reconciliation.UNREVOKED, kept, lost)
            self.expect(m)
            return
        free = self.free(m)
        all_free = len(free) == len(wanted) - len(kept)
        heard = m.previous_epoch == m.epoch  # the member has seen its last assignment
        if free or unrevoked or lost or m.epoch != self.target_epoch or all_free or not heard:
            state = Reconciliation.STABLE if all_free else Reconciliation.UNRELEASED
            assigned = kept | dict.fromkeys(free, self.target_epoch)
            self.hold(m, self.target_epoch, state, assigned, {})

    def free(self, m: ConsumerMember) -> list[TopicIdPartition]:
        """Return the partitions of the target that the member lacks and no other member holds."""
        wanted = self.target.get(m.id, ())
        return sorted(p for p in wanted if p not in self.holders or p in m.revoking)

    def unsubscribe(self, m: ConsumerMember) -> None:
        """Revoke partitions of topics that the member no longer reads, beside earlier ones."""
        topics = self._topics_of(m)
        gone = {place: since for place, since in m.assigned.items() if place[0] not in topics}
        if gone:
            kept = {place: since for place, since in m.assigned.items() if place not in gone}
            self.hold(m, m.epoch, Reconciliation.UNREVOKED, kept, m.revoking | gone)
            self.expect(m)

    def expect(self, member: ConsumerMember) -> None:
        """Give the member its rebalance timeout to revoke, or to sync."""
        member.expected_by = self.turn.now + member.about.rebalance_timeout / 1000
        self.turn.arm(member.expected_by)

    def touch(self, member: ConsumerMember) -> None:
        """Extend the member's session from now on."""
        classic = member.about.classic
        session_ms = classic.session_timeout if classic else self.config.consumer_session_timeout_ms
        member.session_at = self.turn.now + session_ms / 1000
        self.turn.arm(member.session_at)

    def seat(self, member_id: str) -> ConsumerMember:
        """Return the member with this id, or add a new one.

        Raises:
            Refused: The group is full.
        """
        known = self.members.get(member_id)
        if known is None:
            if len(self.members) >= self.config.members_max:
                raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED)
            known = self.members[member_id] = ConsumerMember(member_id)
        return known

    def take_over(self, static: ConsumerMember, member_id: str) -> ConsumerMember:
        """Replace a static member by a new member id, and return the new member.

        The old assignment counts as assigned from the beginning, at epoch 0. The new member's own
        epoch is 0 too, so that the next step moves this member to the target.
        """
        target = self.target.get(static.id, frozenset())
        self.forget(static)
        self.members[member_id] = member = ConsumerMember(member_id)
        self.describe(member, static.about)
        self.hold(member, 0, Reconciliation.STABLE, dict.fromkeys(static.assigned, 0), {})
        self.aim_at(member_id, target)
        return member

    def hear(self, member: ConsumerMember, about: ConsumerMemberValue) -> None:
        """Store the member's new description; a changed subscription raises the group epoch."""
        old = member.about
        if about != old:
            self.describe(member, about)
        if (about.topics, about.regex) != (old.topics, old.regex):
            self.set_epochs(self.epoch + 1, self.target_epoch)

    def set_epochs(self, epoch: int, target_epoch: int) -> None:
        """Set the group epoch and the target epoch."""
        self.epoch = epoch
        self.target_epoch = target_epoch
        self._changed[ConsumerGroupKey(self.id)] = ConsumerGroupValue(epoch, target_epoch)

    def describe(self, member: ConsumerMember, about: ConsumerMemberValue) -> None:
        """Store a member's description."""
        member.about = about
        self._changed[ConsumerMemberKey(self.id, member.id)] = about

    def aim_at(self, member_id: str, places: frozenset[TopicIdPartition]) -> None:
        """Store a member's target assignment."""
        self.target[member_id] = places
        self._changed[TargetKey(self.id, member_id)] = TargetValue(by_topic(places))

    def hold(
        self, m: ConsumerMember, epoch: int, state: Reconciliation, assigned: Epochs,
        revoking: Epochs,
    ) -> None:  # fmt: skip
        """Store a member's current assignment: epoch, state, and partitions it has or revokes."""
        m.previous_epoch = m.epoch
        self._let_go(m)
        m.epoch = epoch
        m.state = state
        m.assigned = assigned
        m.revoking = revoking
        m.expected_by = inf
        self.holders |= dict.fromkeys((*assigned, *revoking), m.id)
        self._changed[CurrentKey(self.id, m.id)] = CurrentValue(
            epoch,
            m.previous_epoch,
            state,
            by_topic(assigned, assigned),
            by_topic(revoking, revoking),
        )

    def _let_go(self, member: ConsumerMember) -> None:
        for place in (*member.assigned, *member.revoking):
            del self.holders[place]

    def remove(self, member: ConsumerMember, why: str) -> None:
        """Remove a member from the group, raise the group epoch, and log the reason."""
        self.forget(member)
        self.set_epochs(self.epoch + 1, self.target_epoch)
        said = removed(self.turn.group_id, member.about, why)
        self.turn.tell("member_removed", f"member={member.id} why={why!r}", said)

    def forget(self, member: ConsumerMember) -> None:
        """Delete all that is stored of a member."""
        self._let_go(member)
        del self.members[member.id]
        self.target.pop(member.id, None)
        for row in OF_A_MEMBER:
            self.delete(row(self.id, member.id))

    def delete(self, key: GroupRowKey) -> None:
        """Mark a row for deletion by the next write."""
        self._changed[key] = None


def static_first(member: ConsumerMember) -> tuple[bool, str]:
    """Return the sort key by which members are served: static members first."""
    instance_id = member.about.group_instance_id
    return instance_id is None, instance_id or member.id


def by_topic(
    places: Iterable[TopicIdPartition], epochs: Mapping[TopicIdPartition, int] | None = None
) -> tuple[PlacesValue, ...]:
    """Group partitions by topic, in the order in which they are persisted."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(places):
        topics.setdefault(topic_id, []).append(partition)
    return tuple(
        PlacesValue(t, tuple(held), None if epochs is None else tuple(epochs[t, p] for p in held))
        for t, held in topics.items()
    )


def epochs_of(places: Iterable[PlacesValue], member_epoch: int) -> Epochs:
    """Return persisted partitions with their epochs.

    A broker that knew no epochs of partitions stored none. These partitions get the member's epoch:
    then only commits at the newest epoch are accepted, as that broker did.
    """
    found: Epochs = {}
    for of in places:
        told = of.epochs or ()
        epochs = told if len(told) == len(of.partitions) else (member_epoch,) * len(of.partitions)
        found |= {(of.topic_id, p): at for p, at in zip(of.partitions, epochs, strict=True)}
    return found
