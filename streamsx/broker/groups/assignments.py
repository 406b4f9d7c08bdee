"""Who is in a group of the consumer protocol, what each has and what it is to get. Pure.

All that is persisted of the group is here, and changed here alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf

from streamsx.broker.groups import coordinator_events as e
from streamsx.broker.groups.assignors import ASSIGNORS, Target, TopicIdPartition, all_of
from streamsx.broker.groups.group import GroupConfig, GroupTurn
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

FIRST_EPOCH = 1  # of a group before its first member, as Kafka's
NOBODY = ConsumerMemberValue(None, None, "", "", (), None, -1, None)
"""Of whom nothing is known yet."""
Epochs = dict[TopicIdPartition, int]
"""Partitions of a member, and the epochs at which they were assigned to it."""


class Reconciliation(IntEnum):
    """How far a member is on its way to the target; as Kafka stores it."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


@dataclass(slots=True)
class ConsumerMember:
    """One member. `assigned` it may have, `revoking` it is to give up; both are never changed, only
    replaced.
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
        """The epoch at which it was assigned; inf for what is not."""
        return self.assigned.get(place, self.revoking.get(place, inf))


class Assignments:
    """What the members of one group have and are to get, at which epochs."""

    def __init__(self, turn: GroupTurn, config: GroupConfig, catalog: Catalog) -> None:
        self.turn, self.config, self.catalog = turn, config, catalog
        self.id = turn.group_id
        self.epoch, self.target_epoch = FIRST_EPOCH, 0
        self.members: dict[str, ConsumerMember] = {}
        self.target: Target = {}
        self.holders: dict[TopicIdPartition, str] = {}  # of all that is assigned or to be revoked
        self._catalog_seen = -1
        self._changed: dict[GroupRowKey, GroupRowValue | None] = {}

    def changes(self) -> list[e.Effect]:
        """One write, of all that changed since it was last asked."""
        changed, self._changed = self._changed, {}
        if not changed:
            return []
        puts = tuple((key, value) for key, value in changed.items() if value is not None)
        return [e.Persist(puts, tuple(key for key, value in changed.items() if value is None))]

    def load(self, key: GroupRowKey, value: GroupRowValue) -> None:
        """The group's row comes first; all members have a full session to come back."""
        match key, value:
            case ConsumerGroupKey(), ConsumerGroupValue():
                self.epoch, self.target_epoch = value.epoch, value.target_epoch
            case ConsumerMemberKey(), ConsumerMemberValue():
                self.members[key.member_id] = member = ConsumerMember(key.member_id, value)
                self.touch(member)
            case TargetKey(), TargetValue():
                self.target[key.member_id] = frozenset(epochs_of(value.places, 0))
            case CurrentKey(), CurrentValue():
                self._load_current(self.members[key.member_id], value)

    def _load_current(self, member: ConsumerMember, value: CurrentValue) -> None:
        member.epoch, member.previous_epoch = value.epoch, value.previous_epoch
        member.state = Reconciliation(value.state)
        member.assigned = epochs_of(value.assigned, value.epoch)
        member.revoking = epochs_of(value.revoking, value.epoch)
        self.holders |= dict.fromkeys((*member.assigned, *member.revoking), member.id)
        if member.state is Reconciliation.UNREVOKED:
            self.expect(member)

    # The target, and the way there.

    def aim(self) -> None:
        """At what the target should be now."""
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
        self.turn.tell("group_target", f"epoch={epoch} members={len(self.members)}")

    def _topics_of(self, member: ConsumerMember) -> dict[bytes, int]:
        """Of those that are there: ids, and numbers of partitions."""
        return dict(
            found for t in member.about.topics if (found := self.catalog.identity(t))[0] != NO_ID
        )

    def assignor(self) -> str:
        """The one that most members ask for; of several the first by name, whoever joined first."""
        wanted = (m.about.assignor for m in self.members.values() if m.about.assignor)
        asked = Counter(sorted(wanted))
        return asked.most_common(1)[0][0] if asked else next(iter(ASSIGNORS))

    def reconcile(self, m: ConsumerMember, owned: set[TopicIdPartition] | None) -> None:
        """One step towards the target, if it may; `owned` is what it says it has, if it says so."""
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
        heard = m.previous_epoch == m.epoch  # of what it was told last
        if free or unrevoked or lost or m.epoch != self.target_epoch or all_free or not heard:
            state = Reconciliation.STABLE if all_free else Reconciliation.UNRELEASED
            assigned = kept | dict.fromkeys(free, self.target_epoch)
            self.hold(m, self.target_epoch, state, assigned, {})

    def free(self, m: ConsumerMember) -> list[TopicIdPartition]:
        """What it is to get, and nobody else has."""
        wanted = self.target.get(m.id, ())
        return sorted(p for p in wanted if p not in self.holders or p in m.revoking)

    def unsubscribe(self, m: ConsumerMember) -> None:
        """What it does not want any more it is to give back, whatever else it is to give back."""
        topics = self._topics_of(m)
        gone = {place: since for place, since in m.assigned.items() if place[0] not in topics}
        if gone:
            kept = {place: since for place, since in m.assigned.items() if place not in gone}
            self.hold(m, m.epoch, Reconciliation.UNREVOKED, kept, m.revoking | gone)
            self.expect(m)

    def expect(self, member: ConsumerMember) -> None:
        """It must do what it was told in the time that it asked for."""
        member.expected_by = self.turn.now + member.about.rebalance_timeout / 1000
        self.turn.arm(member.expected_by)

    def touch(self, member: ConsumerMember) -> None:
        """It lives: its session begins anew."""
        classic = member.about.classic
        session_ms = classic.session_timeout if classic else self.config.consumer_session_timeout_ms
        member.session_at = self.turn.now + session_ms / 1000
        self.turn.arm(member.session_at)

    def seat(self, member_id: str) -> ConsumerMember:
        """The member of this id, or a new one. Raises Refused if the group is full."""
        known = self.members.get(member_id)
        if known is None:
            if len(self.members) >= self.config.members_max:
                raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED)
            known = self.members[member_id] = ConsumerMember(member_id)
        return known

    def take_over(self, static: ConsumerMember, member_id: str) -> ConsumerMember:
        """What it was assigned counts as assigned from the beginning: its epochs are 0. So is its
        own, so that it goes on to the target.
        """
        target = self.target.get(static.id, frozenset())
        self.forget(static)
        self.members[member_id] = member = ConsumerMember(member_id)
        self.describe(member, static.about)
        self.hold(member, 0, Reconciliation.STABLE, dict.fromkeys(static.assigned, 0), {})
        self.aim_at(member_id, target)
        return member

    def hear(self, member: ConsumerMember, about: ConsumerMemberValue) -> None:
        """What it says of itself now."""
        old = member.about
        if about != old:
            self.describe(member, about)
        if (about.topics, about.regex) != (old.topics, old.regex):
            self.set_epochs(self.epoch + 1, self.target_epoch)

    def set_epochs(self, epoch: int, target_epoch: int) -> None:
        self.epoch, self.target_epoch = epoch, target_epoch
        self._changed[ConsumerGroupKey(self.id)] = ConsumerGroupValue(epoch, target_epoch)

    def describe(self, member: ConsumerMember, about: ConsumerMemberValue) -> None:
        member.about = about
        self._changed[ConsumerMemberKey(self.id, member.id)] = about

    def aim_at(self, member_id: str, places: frozenset[TopicIdPartition]) -> None:
        self.target[member_id] = places
        self._changed[TargetKey(self.id, member_id)] = TargetValue(by_topic(places))

    def hold(
        self, m: ConsumerMember, epoch: int, state: Reconciliation, assigned: Epochs,
        revoking: Epochs,
    ) -> None:  # fmt: skip
        m.previous_epoch = m.epoch
        self._let_go(m)
        m.epoch, m.state, m.assigned, m.revoking = epoch, state, assigned, revoking
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
        """It is not in the group any more."""
        self.forget(member)
        self.set_epochs(self.epoch + 1, self.target_epoch)
        self.turn.tell("member_removed", f"member={member.id} why={why!r}")

    def forget(self, member: ConsumerMember) -> None:
        self._let_go(member)
        del self.members[member.id]
        self.target.pop(member.id, None)
        for row in OF_A_MEMBER:
            self.delete(row(self.id, member.id))

    def delete(self, key: GroupRowKey) -> None:
        """This row too."""
        self._changed[key] = None


def static_first(member: ConsumerMember) -> tuple[bool, str]:
    """The order in which members are served."""
    instance_id = member.about.group_instance_id
    return instance_id is None, instance_id or member.id


def by_topic(
    places: Iterable[TopicIdPartition], epochs: Mapping[TopicIdPartition, int] | None = None
) -> tuple[PlacesValue, ...]:
    """In order, as they are persisted."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(places):
        topics.setdefault(topic_id, []).append(partition)
    return tuple(
        PlacesValue(t, tuple(held), None if epochs is None else tuple(epochs[t, p] for p in held))
        for t, held in topics.items()
    )


def epochs_of(places: Iterable[PlacesValue], member_epoch: int) -> Epochs:
    """As they were persisted; by a broker that knew no epochs of partitions, those of the member:
    then only the newest epoch may commit, as it was there.
    """
    found: Epochs = {}
    for of in places:
        told = of.epochs or ()
        epochs = told if len(told) == len(of.partitions) else (member_epoch,) * len(of.partitions)
        found |= {(of.topic_id, p): at for p, at in zip(of.partitions, epochs, strict=True)}
    return found
