"""Bugs that are planted into a world must be found: a check that finds none of them checks nothing.

Each bug is a child of one machine that does one thing wrong, as somebody once did.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from streamsx.assignor.claims import Metadata
from streamsx.assignor.partition_assignor import Outcome, StreamsPartitionAssignor
from streamsx.broker import events as b
from streamsx.broker.coordinator import Coordinator
from streamsx.kafka.consumer_protocol import Subscription
from streamsx.kafka.wire import Api
from streamsx.membership import events as e
from streamsx.membership.answers import Verdict
from streamsx.membership.member import Member, State
from streamsx.membership.outbox import Flight
from streamsx.testing.simulation.world import Parts, survey


class NothingIsWithheld(StreamsPartitionAssignor):
    """Claims are not looked at: the new owner begins before the old one has let go."""

    def assign(
        self,
        metadata: Metadata,
        partitions: Mapping[str, int],
        *,
        leader: str,
        generation: int,
        now_ms: int,
    ) -> Outcome:
        said = [(member, Subscription.read(data)) for member, data in metadata]
        newest = max(subscription.generation for _, subscription in said)
        bare = [
            (member, replace(one, owned=one.owned if self.counts(one, newest) else ()).write())
            for member, one in said
        ]
        return super().assign(bare, partitions, leader=leader, generation=generation, now_ms=now_ms)

    def counts(self, _: Subscription, __: int) -> bool:
        return False


class OldClaimsAreCut(NothingIsWithheld):
    """A member whose SyncGroup failed is still in the group and still holds what it had."""

    def counts(self, said: Subscription, newest: int) -> bool:
        return said.generation == newest


class NoCommitIsFenced(Coordinator):
    """Whoever commits is taken for somebody who may."""

    def step(self, now: float, event: b.Event) -> list[b.Effect]:
        if isinstance(event, b.Request) and event.api == Api.OFFSET_COMMIT:
            group = self.groups.get(event.body.group_id)
            if group is not None and group.round.members:
                event.body.member_id = min(group.round.members)
                event.body.generation_id_or_member_epoch = group.round.generation
        return super().step(now, event)


class JoinCountsWhenItIsAnswered(Member):
    """The answer may have been on its way for most of a session."""

    def _joined(self, flight: Flight, event: e.Reply) -> None:
        super()._joined(replace(flight, at=self._box.now), event)


class FencedMembersKeepTheirClaims(Member):
    """KIP-792: a zombie's claim, with an old generation, wins over nobody's."""

    def _fence(self, what: Verdict) -> None:
        self.state, self.generation, self.member_id = State.OUT, -1, ""
        self._box.abandon()
        self._mine.commits.fail(e.Refusal.FENCED)
        self._box.after(e.Timer.BACKOFF, self._box.pause())


class NobodyJoinsAfterARelease(Member):
    """What was withheld until the release stays withheld."""

    def _wish(self, reason: str | None) -> None:
        super()._wish(None if reason and reason.startswith("released") else reason)


@pytest.mark.parametrize(
    ("parts", "seeds"),
    [
        (Parts(assignor=NothingIsWithheld), range(50)),
        (Parts(assignor=OldClaimsAreCut), range(10, 60)),
        (Parts(coordinator=NoCommitIsFenced), range(50)),
        (Parts(member=JoinCountsWhenItIsAnswered), range(10, 60)),
        (Parts(member=FencedMembersKeepTheirClaims), range(50)),
        (Parts(member=NobodyJoinsAfterARelease), range(50)),
    ],
)
def test_a_planted_bug_is_found(parts: Parts, seeds: range) -> None:
    assert any(survey([seed], parts).failures for seed in seeds)
