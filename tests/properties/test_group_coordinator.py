"""The group coordinator under random requests, closed connections, time and crashes.

The harness checks its invariants after each step; a failure is replayed with its seed.
"""

import random
from collections import Counter

import pytest

from streamsx.broker.groups.classic import TABLE, Cause, GroupState, Round
from streamsx.broker.groups.coordinator_events import ClientGone
from streamsx.broker.groups.group import GroupConfig
from tests.support.coordinator_harness import CoordinatorHarness
from tests.support.sweeps import seeds

SEEDS = 150
STEPS = 250
OFFERS = ({"range": b"a"}, {"range": b"b"}, {"sticky": b"s", "range": b"a"}, {"mine": b""})
SESSIONS_MS, REBALANCE_MS = (3000, 3000, 12_000), 5000


class Clients:
    """Clients that send any request at any time, mostly one that makes sense."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = CoordinatorHarness(
            GroupConfig(members_max=4, initial_delay_ms=self.random.choice([0, 0, 2000]))
        )
        self.harness.set_topics(t=2, u=1)
        self.sessions = random.Random(f"sessions {seed}")
        self.seen: Counter[tuple[Cause, GroupState]] = Counter()

    def group(self) -> str:
        return self.random.choice("ggh")

    def held(self, group: str) -> Round | None:
        return self.harness.round(group) if group in self.harness.machine.groups else None

    def member(self, group: str) -> str:
        """Draw a member id: one of a member, one that was promised, any earlier one, or none."""
        held = self.held(group)
        ids = [*held.members, *held.pending] if held else []
        told = [r["member_id"] for r in self.harness.replies.values() if r.get("member_id")]
        return str(self.random.choice([*ids * 3, *told[-3:], ""]))

    def instance(self, group: str, member_id: str) -> str | None:
        held = self.held(group)
        member = held.members.get(member_id) if held else None
        if member and self.random.random() < 0.9:
            return member.about.group_instance_id
        return self.random.choice([None, None, "one", "two"])

    def generation(self, group: str) -> int:
        held = self.held(group)
        return (held.generation if held else 0) - (self.random.random() < 0.1)

    def joins(self) -> None:
        group = self.group()
        member_id = self.member(group)
        self.harness.join(
            member_id, group=group, instance=self.instance(group, member_id),
            protocols=self.random.choices(OFFERS, (6, 3, 3, 1))[0],
            version=self.random.choice([0, 3, 5, 9]),
            session_ms=self.sessions.choice(SESSIONS_MS),
            rebalance_ms=REBALANCE_MS,
        )  # fmt: skip

    def syncs(self) -> None:
        group = self.group()
        held = self.held(group)
        leader = (held.leader if held else None) or ""
        member_id = self.random.choice([leader, self.member(group)])
        self.harness.sync(
            member_id, self.generation(group), group=group,
            instance=self.instance(group, member_id),
            assignments={m: m.encode() for m in held.members} if held else {},
        )  # fmt: skip

    def beats(self) -> None:
        group = self.group()
        member_id = self.member(group)
        self.harness.heartbeat(
            member_id, self.generation(group), group=group,
            instance=self.instance(group, member_id),
        )  # fmt: skip

    def commits(self) -> None:
        group = self.group()
        generation = self.random.choice([-1, self.generation(group)])
        member_id = self.member(group) if generation >= 0 else ""
        offsets = {(self.random.choice("tu"), 0): self.random.randrange(100)}
        self.harness.commit(member_id, generation, offsets, group=group)

    def leaves(self) -> None:
        group = self.group()
        member_id = self.member(group)
        self.harness.leave((member_id, self.instance(group, member_id)), group=group)

    def hangs_up(self) -> None:
        waiting = sorted(self.harness.asked.keys() - self.harness.replies.keys())
        if waiting:
            waiter = self.random.choice(waiting)
            self.harness.step(ClientGone(self.harness.asked[waiter].body.group_id, waiter))

    def sleeps(self) -> None:
        self.harness.sleep(self.random.choice([0.01, 0.5, 2, 6]))

    def changes_topics(self) -> None:
        self.harness.set_topics(t=2, **self.random.choice([{}, {"u": 1}]))

    def deletes(self) -> None:
        self.harness.ask(42, 2, groups_names=[self.group()])

    def step(self) -> None:
        actions = (
            (self.joins, 30), (self.syncs, 25), (self.beats, 15), (self.commits, 8),
            (self.leaves, 4), (self.hangs_up, 4), (self.sleeps, 10), (self.changes_topics, 1),
            (self.deletes, 1), (self.harness.crash, 2),
        )  # fmt: skip
        (act,) = self.random.choices([a for a, _ in actions], [weight for _, weight in actions])
        act()
        for group in self.harness.machine.groups:
            story = self.harness.round(group).story
            self.seen |= Counter({(cause, state): 1 for _, cause, state, _ in story})

    def settle(self) -> None:
        """Let all members leave; the next member must find a group that works."""
        self.harness.sleep(3600)
        ids = [str(self.harness.replies[self.harness.join()]["member_id"]) for _ in range(2)]
        waiters = {member_id: self.harness.join(member_id) for member_id in ids}
        self.harness.sleep(2)
        waiters = {
            m: self.harness.join(m) if w in self.harness.replies else w for m, w in waiters.items()
        }
        told = {m: self.harness.replies[w] for m, w in waiters.items()}
        (leader,) = {reply["leader"] for reply in told.values()}
        (generation,) = {reply["generation_id"] for reply in told.values()}
        parked = [self.harness.sync(m, generation) for m in ids if m != leader]
        self.harness.sync(leader, generation, assignments=dict.fromkeys(ids, b"yours"))
        assert [self.harness.replies[w]["assignment"] for w in parked] == [b"yours"]


@pytest.mark.parametrize("ten", seeds(5, SEEDS // 10))
def test_coordinator_invariants_hold_in_any_order_and_the_group_recovers(ten: int) -> None:
    for seed in range(ten * 10, ten * 10 + 10):
        clients = Clients(seed)
        for _ in range(STEPS):
            clients.step()
        clients.settle()


def test_seeds_reach_every_entry_of_the_transition_table() -> None:
    """Without every entry the test above would prove less than it seems to."""
    wanted = {
        (cause, state)
        for cause, row in TABLE.items()
        for state, action in zip(GroupState, row, strict=True)
        if action
    }
    seen: set[tuple[Cause, GroupState]] = set()
    for seed in range(SEEDS):
        clients = Clients(seed)
        for _ in range(STEPS):
            clients.step()
        seen |= clients.seen.keys()
        if seen >= wanted:
            return
    assert not wanted - seen
