"""Harness of the group coordinator: requests in, replies out, a dict as disk, time by hand.

It serves unit tests and random scripts of the state machine alone; `check` runs after each step.
Logs hold only which producer wrote a record, and how its transaction ended.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import inf
from types import MappingProxyType, SimpleNamespace
from typing import Any

from streamsx.broker.groups.classic import ClassicGroup, Round
from streamsx.broker.groups.consumer_group import AWAY, ConsumerGroup
from streamsx.broker.groups.coordinator import Coordinator
from streamsx.broker.groups.coordinator_events import (
    BrokerTick,
    ClientGone,
    ClientReply,
    ClientRequest,
    Effect,
    Event,
    Load,
    MarkersWritten,
    OpenInLogs,
    Peer,
    Persist,
    ReplyBody,
    Story,
    Topics,
    TopicsChanged,
    Wake,
    WriteMarkers,
)
from streamsx.broker.groups.group import CoordinatedGroup, GroupConfig
from streamsx.broker.metadata_rows import (
    OF_GROUPS,
    OF_TRANSACTIONS,
    ConsumerGroupKey,
    CurrentKey,
    CurrentValue,
    GroupKey,
    GroupValue,
    Key,
    Value,
    key_bytes,
)
from streamsx.errors import InvariantBroken
from streamsx.protocol.consumer_protocol import Assignment
from streamsx.protocol.wire import Api


def hold(condition: bool, what: str) -> None:
    """Raise InvariantBroken unless a condition holds; unlike an assert also under python -O."""
    if not condition:
        raise InvariantBroken(what)


def topic_id(name: str) -> bytes:
    """Return the id of a topic in the harness."""
    return name.encode().ljust(16, b"-")


def classic(group: CoordinatedGroup) -> ClassicGroup:
    """Return a group as a classic one."""
    assert isinstance(group, ClassicGroup)
    return group


def numbered(group: CoordinatedGroup) -> int:
    """Return the generation of a group, or its epoch."""
    return group.held.epoch if isinstance(group, ConsumerGroup) else classic(group).round.generation


def earliest(group: CoordinatedGroup) -> float:
    """Return the time of the next timer."""
    if isinstance(group, ConsumerGroup):
        return min((min(m.session_at, m.expected_by) for m in group.members()), default=inf)
    state = classic(group).round
    sessions = [m.session_at for m in state.members.values() if not m.parked]
    return min((state.deadline, *state.pending.values(), *sessions))


class AnsweredOnce:
    """A waiter is answered once: a second answer would put its connection out of step for ever."""

    def __init__(self) -> None:
        self.open: set[int] = set()

    def after(self, harness: "CoordinatorHarness", event: Event, effects: Iterable[Effect]) -> None:
        if isinstance(event, ClientRequest):
            self.open.add(event.waiter)
        if isinstance(event, ClientGone):
            self.open.discard(event.waiter)
        for effect in effects:
            if isinstance(effect, ClientReply):
                hold(effect.waiter in self.open, f"waiter {effect.waiter} is answered again")
                self.open.remove(effect.waiter)
        groups = harness.machine.groups.values()
        members = [m for g in groups if isinstance(g, ClassicGroup) for m in g.members()]
        parked = {w for m in members for w in (m.join, m.sync) if w is not None}
        hold(parked == self.open, f"parked {sorted(parked)}, not answered {sorted(self.open)}")


class GenerationsRise:
    """A generation or epoch never falls: an old member's requests would become valid again."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], int] = {}

    def after(self, harness: "CoordinatorHarness", event: Event, effects: Iterable[Effect]) -> None:
        now = {
            (g.id, g.kind): g.held.epoch
            if isinstance(g, ConsumerGroup)
            else classic(g).round.generation
            for g in harness.machine.groups.values()
        }
        for group_id in now.keys() & self.seen.keys():
            hold(now[group_id] >= self.seen[group_id], f"{group_id} fell to {now[group_id]}")
        self.seen = now


class PersistedBeforeTold:
    """An answer is stored before it is sent: it must survive a crash that follows at once."""

    def after(self, harness: "CoordinatorHarness", event: Event, effects: Iterable[Effect]) -> None:
        disk = dict(harness.disk_before)
        for effect in effects:
            if isinstance(effect, Persist):
                disk |= dict(effect.puts)
                disk = {key: row for key, row in disk.items() if key not in effect.deletes}
            elif isinstance(effect, ClientReply) and not effect.body.get("error_code"):
                self._check(harness.asked[effect.waiter], effect.body, disk)

    def _check(self, request: ClientRequest, body: ReplyBody, disk: dict[Key, Value]) -> None:
        group_id = getattr(request.body, "group_id", "")
        if ConsumerGroupKey(group_id) in disk and {"member_epoch", "assignment"} & body.keys():
            if body.get("member_epoch") not in (-1, AWAY):
                member_id = body.get("member_id") or request.body.member_id
                self._check_current(disk.get(CurrentKey(group_id, member_id)), body)
            return
        if ConsumerGroupKey(group_id) in disk and "generation_id" in body:
            current = disk.get(CurrentKey(group_id, body["member_id"]))
            assert isinstance(current, CurrentValue)
            hold(current.epoch == body["generation_id"], "another epoch is on disk")
            return
        row = disk.get(GroupKey(group_id))
        if "generation_id" in body:
            hold(isinstance(row, GroupValue), "a generation is told that is on no disk")
            assert isinstance(row, GroupValue)
            hold(row.generation == body["generation_id"], "another generation is on disk")
        if "assignment" in body:
            assert isinstance(row, GroupValue)
            stored = {m.member_id: m.assignment for m in row.members}
            hold(row.synced, "an assignment is told that is on no disk")
            hold(stored[request.body.member_id] == body["assignment"], "another assignment")

    def _check_current(self, current: Value | None, body: ReplyBody) -> None:
        """Check a member of a consumer group, or a classic member in one."""
        assert isinstance(current, CurrentValue)
        hold(body.get("member_epoch", current.epoch) == current.epoch, "another epoch is on disk")
        stored = {(t.topic_id, p) for t in current.assigned for p in t.partitions}
        match body["assignment"]:
            case bytes() as told:
                held = {
                    (topic_id(tp.topic), tp.partition) for tp in Assignment.read(told).partitions
                }
            case None:
                return
            case told:
                held = {
                    (t["topic_id"], p) for t in told["topic_partitions"] for p in t["partitions"]
                }
        hold(held <= stored, "another assignment is on disk")


class NothingForgotten:
    """Each deadline has a Wake before it, and each Tick clears what it has handled."""

    def __init__(self) -> None:
        self.armed: dict[str, float] = {}

    def after(self, harness: "CoordinatorHarness", event: Event, effects: Iterable[Effect]) -> None:
        if isinstance(event, BrokerTick):
            self.armed.pop(event.group, None)
        if isinstance(event, Load):
            self.armed.clear()
        self.armed |= {e.group: e.at for e in effects if isinstance(e, Wake)}
        for group_id, group in harness.machine.groups.items():
            due = earliest(group)
            hold(self.armed.get(group_id, inf) <= due, f"{group_id} sleeps beyond {due}")
            late = isinstance(event, BrokerTick) and event.group == group_id and due <= harness.now
            hold(not late, f"{group_id} was not done at {harness.now}")


class HeldByOne:
    """A partition has one member at most, and no epoch is ahead of the group's."""

    def after(self, harness: "CoordinatorHarness", event: Event, effects: Iterable[Effect]) -> None:
        for group in harness.machine.groups.values():
            if not isinstance(group, ConsumerGroup):
                continue
            held = [(p, m.id) for m in group.members() for p in (*m.assigned, *m.revoking)]
            hold(len(held) == len(group.held.holders), f"held by several: {held}")
            hold(dict(held) == group.held.holders, f"held {held}, known {group.held.holders}")
            aimed = [p for places in group.held.target.values() for p in places]
            hold(len(aimed) == len(set(aimed)), f"the target gives something twice: {aimed}")
            hold(group.held.target_epoch <= group.held.epoch, "the target is of an epoch to come")
            for m in group.members():
                hold(m.epoch <= group.held.target_epoch, f"{m.id} is beyond the target")
                for since in (*m.assigned.values(), *m.revoking.values()):
                    hold(since <= m.epoch or m.epoch == AWAY, f"{m.id} has what is to come")


def remembered(group: CoordinatedGroup) -> object:
    """Return what must be the same after a crash."""
    if isinstance(group, ConsumerGroup):
        held = {m.id: (m.about, m.state, m.assigned, m.revoking) for m in group.members()}
        return group.held.epoch, group.held.target, held, group.described()
    told = group.described()
    return told if told["group_state"] == "Stable" else None


Place = tuple[str, int]


class FakeLog:
    """Records of producers in one partition."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[int, list[int]]] = {}
        """By producer id: its epoch, and what it has written since its last marker."""
        self.ended: dict[bool, list[int]] = {True: [], False: []}
        """What was committed, and what was aborted."""

    def write(self, owner: tuple[int, int], what: int) -> None:
        self.open.setdefault(owner[0], (owner[1], []))[1].append(what)

    def mark(self, owner: tuple[int, int], *, commit: bool) -> None:
        _, written = self.open.pop(owner[0], (0, []))
        self.ended[commit] += written


class CoordinatorHarness:
    """Driver of a coordinator, by hand. `replies` is by waiter; a waiter that is missing there
    still waits.
    """

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.config = config
        self.now = 1000.0
        self.disk: dict[Key, Value] = {}
        self.disk_before: dict[Key, Value] = {}
        self.asked: dict[int, ClientRequest] = {}
        self.replies: dict[int, ReplyBody] = {}
        self.story: list[str] = []
        self.topics: dict[str, tuple[bytes, int]] = {}
        self.wakes: dict[str, float] = {}
        self.logs: defaultdict[Place, FakeLog] = defaultdict(FakeLog)
        self.can_mark: Callable[[Place], bool] = lambda _: True
        self.invariants = (
            AnsweredOnce(), GenerationsRise(), PersistedBeforeTold(), NothingForgotten(),
            HeldByOne(),
        )  # fmt: skip
        self.machine = Coordinator(config)

    def step(self, event: Event) -> list[Effect]:
        """Play one event, carry its effects out, and check the invariants."""
        self.disk_before = dict(self.disk)
        if isinstance(event, BrokerTick):
            self.wakes.pop(event.group, None)
        effects, written = self.machine.step(self.now, event), list[MarkersWritten]()
        for effect in effects:
            self._carry_out(effect, written)
        for invariant in self.invariants:
            invariant.after(self, event, effects)
        for each in written:
            self.step(each)
        return effects

    def _carry_out(self, effect: Effect, written: list[MarkersWritten]) -> None:
        match effect:
            case WriteMarkers():
                if self._mark(effect):
                    about = effect.transactional_id, effect.decision
                    written.append(MarkersWritten(*about, int(self.now * 1000)))
            case Persist():
                self.disk |= dict(effect.puts)
                self.disk = {k: v for k, v in self.disk.items() if k not in effect.deletes}
            case ClientReply():
                self.replies[effect.waiter] = effect.body
            case Wake():
                self.wakes[effect.group] = effect.at
            case Story():
                self.story.append(effect.text)

    def _mark(self, effect: WriteMarkers) -> bool:
        """Write transaction markers; return whether all were written."""
        for place in effect.places:
            if not self.can_mark(place):
                return False
            self.logs[place].mark(effect.owner, commit=effect.commit)
        return True

    def round(self, group: str = "g") -> Round:
        """Return the current round of a classic group."""
        return classic(self.machine.groups[group]).round

    def ask(self, api: int, version: int, client: str = "c", **body: Any) -> int:
        """Send a request, and return its waiter."""
        waiter = len(self.asked) + 1
        peer = Peer(client, "127.0.0.1")
        wall_ms = int(self.now * 1000)
        request = ClientRequest(
            waiter, Api(api), version, peer, SimpleNamespace(**body), f"{waiter:04d}", wall_ms
        )
        self.asked[waiter] = request
        self.step(request)
        return waiter

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        version: int = 5,
        instance: str | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        protocols: Mapping[str, bytes] = MappingProxyType({"range": b"topics"}),
        kind: str = "consumer",
    ) -> int:
        """Send a JoinGroup."""
        offered = [SimpleNamespace(name=n, metadata=data) for n, data in protocols.items()]
        return self.ask(
            11, version, group_id=group, member_id=member_id, group_instance_id=instance,
            session_timeout=session_ms, rebalance_timeout=rebalance_ms, protocol_type=kind,
            protocols=offered,
        )  # fmt: skip

    def sync(
        self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None,
        assignments: Mapping[str, bytes] = MappingProxyType({}), protocol: str | None = None,
    ) -> int:  # fmt: skip
        """Send a SyncGroup."""
        given = [SimpleNamespace(member_id=m, assignment=a) for m, a in assignments.items()]
        return self.ask(
            14, 5 if protocol else 4, group_id=group, member_id=member_id,
            generation_id=generation, group_instance_id=instance,
            protocol_type=protocol and "consumer", protocol_name=protocol,
            assignments=given,
        )  # fmt: skip

    def heartbeat(
        self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None
    ) -> ReplyBody:
        """Send a Heartbeat, and return its answer."""
        waiter = self.ask(
            12, 4, group_id=group, member_id=member_id, generation_id=generation,
            group_instance_id=instance,
        )  # fmt: skip
        return self.replies[waiter]

    def beat(
        self, member_id: str, epoch: int, *, group: str = "g", instance: str | None = None,
        topics: Iterable[str] | None = None, owned: Iterable[tuple[str, int]] | None = None,
        rebalance_ms: int = -1, assignor: str | None = None, regex: str | None = None,
        version: int = 1,
    ) -> ReplyBody:  # fmt: skip
        """Send a ConsumerGroupHeartbeat, and return its answer.

        With epoch 0 the member subscribes to t by default, and owns nothing.
        """
        if epoch == 0:
            topics = ("t",) if topics is None and regex is None else topics
            owned, rebalance_ms = owned or (), 60_000 if rebalance_ms == -1 else rebalance_ms
        held = None
        if owned is not None:
            held = [SimpleNamespace(topic_id=topic_id(t), partitions=[p]) for t, p in owned]
        waiter = self.ask(
            68, version, group_id=group, member_id=member_id, member_epoch=epoch,
            instance_id=instance, rack_id=None, rebalance_timeout=rebalance_ms,
            subscribed_topic_names=topics and tuple(topics), subscribed_topic_regex=regex,
            server_assignor=assignor, topic_partitions=held,
        )  # fmt: skip
        return self.replies[waiter]

    def consumers(self, group: str = "g") -> ConsumerGroup:
        """Return a group of the consumer protocol."""
        found = self.machine.groups[group]
        assert isinstance(found, ConsumerGroup)
        return found

    def leave(self, *members: tuple[str, str | None], group: str = "g") -> list[int]:
        """Send a LeaveGroup of (member id, instance id); return the code of each, or of the
        whole.
        """
        who = [SimpleNamespace(member_id=m, group_instance_id=i) for m, i in members]
        waiter = self.ask(13, 3, group_id=group, members=who)
        reply = self.replies[waiter]
        return [answer["error_code"] for answer in reply.get("members", [reply])]

    def commit(
        self, member_id: str, generation: int, offsets: Mapping[tuple[str, int], int], *,
        group: str = "g", instance: str | None = None, version: int = 8, note: str | None = None,
    ) -> dict[tuple[str, int], int]:  # fmt: skip
        """Send an OffsetCommit; return the code of each partition."""
        names = sorted({name for name, _ in offsets})
        topics = [
            SimpleNamespace(
                name=name, topic_id=bytes(16),
                partitions=[
                    SimpleNamespace(
                        partition_index=p, committed_offset=offset, committed_leader_epoch=-1,
                        committed_metadata=note,
                    )
                    for (n, p), offset in offsets.items() if n == name
                ],
            )
            for name in names
        ]  # fmt: skip
        waiter = self.ask(
            8, version, group_id=group, member_id=member_id, group_instance_id=instance,
            generation_id_or_member_epoch=generation, topics=topics,
        )  # fmt: skip
        return {
            (t["name"], p["partition_index"]): p["error_code"]
            for t in self.replies[waiter]["topics"]
            for p in t["partitions"]
        }

    def committed(self, group: str = "g") -> dict[tuple[str, int], int]:
        """Send an OffsetFetch of all that the group has committed."""
        waiter = self.ask(
            9, 8, groups=[SimpleNamespace(group_id=group, topics=None)], require_stable=False
        )
        return {
            (t["name"], p["partition_index"]): p["committed_offset"]
            for t in self.replies[waiter]["groups"][0]["topics"]
            for p in t["partitions"]
        }

    def delete_offsets(self, *places: tuple[str, int], group: str = "g") -> dict[str, list[int]]:
        """Send an OffsetDelete; return the codes of each topic's partitions, or under "" that of
        the whole.
        """
        topics = [
            SimpleNamespace(
                name=name,
                partitions=[SimpleNamespace(partition_index=p) for n, p in places if n == name],
            )
            for name in sorted({name for name, _ in places})
        ]
        told = self.replies[self.ask(47, 0, group_id=group, topics=topics)]
        if told["error_code"]:
            return {"": [told["error_code"]]}
        return {t["name"]: [p["error_code"] for p in t["partitions"]] for t in told["topics"]}

    def set_topics(self, **partitions: int) -> None:
        """Set the topics that exist, each under the id of its name."""
        before = self.topics
        self.topics = {t: (topic_id(t), n) for t, n in partitions.items()}
        for name in sorted({*before, *self.topics}):
            if before.get(name) != self.topics.get(name):
                self.step(TopicsChanged({name: self.topics.get(name)}))

    def sleep(self, seconds: float) -> None:
        """Let time pass; groups wake up at their timers."""
        until = self.now + seconds
        while self.wakes and min(self.wakes.values()) <= until:
            at, group = min((at, group) for group, at in self.wakes.items())
            self.now = max(self.now, at)
            self.step(BrokerTick(group, int(self.now * 1000)))
        self.now = until

    def crash(self) -> None:
        """Replace the coordinator by one that loads the disk; waiters are never answered."""
        before = {g.id: remembered(g) for g in self.machine.groups.values()}
        for invariant in self.invariants:
            if isinstance(invariant, AnsweredOnce):
                invariant.open.clear()
        self.machine, self.wakes = Coordinator(self.config), {}
        self.step(Load(tuple(sorted(self.disk.items(), key=lambda row: in_order(row[0])))))
        self.step(Topics(self.topics))
        found = [
            ((producer_id, epoch), place)
            for place, log in self.logs.items()
            for producer_id, (epoch, _) in log.open.items()
        ]
        self.step(OpenInLogs(tuple(found), int(self.now * 1000)))
        for group_id, known in before.items():
            if known is not None and (group := self.machine.groups.get(group_id)):
                hold(remembered(group) == known, f"{group_id} came back otherwise than it was")


def in_order(key: Key) -> tuple[int, bytes]:
    """Return rows in the order in which they are loaded."""
    row = key_bytes(key)
    return (OF_GROUPS + OF_TRANSACTIONS).index(chr(row[0])), row
