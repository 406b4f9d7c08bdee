"""Invariants of a world, checked after events, four times a virtual second, and at the end.

Each check is a small class with its reason in the docstring. A check reports a violation to the
scheduler. A check reads the true state of all processes at once, which no process knows. Where an
invariant does not hold on purpose, the exception has a name and is counted (`world.excuse`).
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from streamsx.assignor.wire import ErrorWord, read_assignment
from streamsx.broker.groups.classic import GroupState
from streamsx.broker.groups.consumer_group import ConsumerGroup
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.groups.transactions import TransactionState
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.errors import BrokerUnreachable, DiskFailed, InstanceIdTaken
from streamsx.group import member
from streamsx.model import Role, TaskId, TopicPartition
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.protocol.consumer_protocol import Assignment
from streamsx.protocol.record_batch import columns
from streamsx.protocol.wire import Api
from streamsx.simulation import flow_results
from streamsx.simulation.apps import FAILS, POISON, UNDECODABLE, mood, readers
from streamsx.simulation.external_clients import HIDDEN, READERS, TransactionFate
from streamsx.simulation.hosts import SimulatedHost
from streamsx.simulation.nodes import NOBODY
from streamsx.simulation.scene import (
    APP,
    COUNTS,
    FINALS,
    JOINED,
    LINES,
    ROUTED,
    SIZES,
    WORDS,
    A,
    B,
)
from streamsx.state.api import INDEX, ROW
from streamsx.tasks.state_machine import TaskState
from streamsx.tasks.task_registry import TaskRegistry
from streamsx.topology.nodes import reader_name

if TYPE_CHECKING:
    from streamsx.simulation.world import World

STANDS_S = 40.0
"""Seconds after which a task that has all it needs and does nothing counts as hanging.

The limit is above 30 s: a client gives up an answer after 30 s if the connection ended silently.
"""
AWAITS_S = 1.0
COMMITS_S = 7.0
"""Seconds within which a task must commit: more than twice the longest commit interval."""
GROUPS_SINCE = 8
"""First version of OffsetFetch that asks for several groups."""
POISONED = POISON.encode()
COMMITS = (Api.OFFSET_COMMIT, Api.TXN_OFFSET_COMMIT)
AT_REST = frozenset({TaskState.RUNNING, TaskState.TAILING})


class Check:
    """Base class of all checks: one method per kind of event, each of which does nothing.

    `needs_disk`: the check is about data that a power cut may take from a broker without `sync`.
    After such a loss, violations of the check are excused as `power cut`.
    """

    needs_disk = False

    def __init__(self, world: "World") -> None:
        self.world = world

    def wrong(self, what: str) -> None:
        if self.needs_disk and self.world.nodes.lost:
            self.world.excuse("power cut")
        else:
            self.world.scheduler.violate(type(self).__name__, what)

    def sample(self) -> None:
        """Check the world; called four times a virtual second."""

    def begins(self, home: SimulatedHost, task: TaskId) -> None:
        """Handle the start of a task on a worker that the coordinator has in the group."""

    def done(self, home: SimulatedHost, agent: str, tp: TopicPartition, offset: int) -> None:
        """Handle a record that the body of an agent has finished."""

    def said(self, home: SimulatedHost, event: str, fields: dict[str, object]) -> None:
        """Handle an event in the journal of a worker."""

    def ended(self, home: SimulatedHost, outcome: int | Exception) -> None:
        """Handle the end of a worker that was not killed."""

    def asked(self, host: str, call: ServedRequest) -> None:
        """Handle a request that has reached the broker."""

    def told(self, host: str, call: ServedRequest, body: ReplyBody) -> None:
        """Handle the answer of the broker to a request."""

    def settled(self) -> None:
        """Check the world at the end of the run."""


class OneRunner(Check):
    """Invariant S1: no two workers in the group run the same task.

    Two runners of one task write to one changelog, and a restore from there gives the state of
    neither. A worker that the coordinator has removed may still run until it learns of the removal
    or its lease ends: the coordinator refuses its commits.
    """

    def begins(self, home: SimulatedHost, task: TaskId) -> None:
        self.sample()

    def sample(self) -> None:
        homes = [home for home in self.world.homes if home.works and self.world.belongs(home)]
        for task in sorted({task for home in homes for task in home.running}):
            runners = [home.name for home in homes if task in home.running]
            if len(runners) > 1:
                self.wrong(f"{task} runs on {' and '.join(runners)}")


class NobodyOutlivesItsSession(Check):
    """Invariant S1: no worker processes records after its session has ended.

    A worker that runs on while the group goes on without it writes rows behind the new owner's
    back. Excused as `sent away`: a leader or a tool has removed the member before its session
    ended. The member runs until it learns of the removal, at most until its session ends.
    """

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.sessions: dict[str, float] = {}
        self.removed: dict[str, float] = {}
        """End of the session of each member that is no longer in the group, by member id."""
        self.sent_away: set[str] = set()

    def asked(self, host: str, call: ServedRequest) -> None:
        if call.api is Api.LEAVE_GROUP:
            members = getattr(call.body, "members", None) or (call.body,)
            self.sent_away |= {member.member_id for member in members}

    def told(self, host: str, call: ServedRequest, body: ReplyBody) -> None:
        """Sample after each answer that extends a lease.

        Seed 51852: the broker extends a session and removes the member before the next sample.
        """
        if call.api in (Api.HEARTBEAT, Api.OFFSET_COMMIT, Api.JOIN_GROUP):
            self.sample()

    def sample(self) -> None:
        if (group := self.world.group) is None:  # a loading coordinator starts all sessions anew
            self.sessions.clear()
            return
        members = group.round.members
        known = self.removed | self.sessions
        self.removed = {name: until for name, until in known.items() if name not in members}
        self.sessions = {name: one.session_at for name, one in members.items()}

    def done(self, home: SimulatedHost, agent: str, tp: TopicPartition, offset: int) -> None:
        if home.member is None or not home.works:
            return
        name = home.member.member_id
        until = self.removed.get(name)
        if until is None:
            return
        if name in self.sent_away and until > self.world.now:
            self.world.excuse("sent away")
        else:
            self.wrong(f"{home.name} processes {tp}, and the group has gone on without it")


class OnlyItsRunnerCommits(Check):
    """Invariant S2: only the worker that runs a task commits its offsets.

    A commit by an earlier owner makes the next owner lose or repeat work of the last one. The
    committer must also have processed each record of the commit, with every agent that reads the
    topic. Otherwise the record is lost as soon as another worker goes on from the committed offset.
    Records that another process has processed do not count: their results are in no changelog.
    Records that cannot be decoded are exempt: they never reach an agent.
    """

    needs_disk = True

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.readers = readers(world.scene)
        self.processed: defaultdict[tuple[str, str, TopicPartition], set[int]] = defaultdict(set)
        self.staged: defaultdict[str, dict[TopicPartition, tuple[int, OffsetMetadata]]]
        self.staged = defaultdict(dict)
        """Offsets in the open transaction of each process."""

    def done(self, home: SimulatedHost, agent: str, tp: TopicPartition, offset: int) -> None:
        self.processed[home.process.name, agent, tp].add(offset)

    def told(self, host: str, call: ServedRequest, body: ReplyBody) -> None:
        if call.api is Api.END_TXN and not body["error_code"]:
            for tp, place in self.staged.pop(host, {}).items():
                self._committed(host, tp, *place)
            return
        if call.api is Api.INIT_PRODUCER_ID and call.body.transactional_id is not None:
            self.staged.pop(host, None)
        if call.api not in COMMITS or call.body.group_id != APP:
            return
        asked = {
            TopicPartition(topic.name, p.partition_index): (
                p.committed_offset, OffsetMetadata.decode(p.committed_metadata or ""),
            )
            for topic in call.body.topics
            for p in topic.partitions
        }  # fmt: skip
        for topic in body["topics"]:
            for partition in topic["partitions"]:
                tp = TopicPartition(topic["name"], partition["partition_index"])
                if partition["error_code"]:
                    continue
                if call.api is Api.TXN_OFFSET_COMMIT:
                    self.staged[host][tp] = asked[tp]
                else:
                    self._committed(host, tp, *asked[tp])

    def _committed(
        self, host: str, tp: TopicPartition, offset: int, beside: OffsetMetadata
    ) -> None:
        before = self.world.offsets.get(tp, 0)
        if offset < before:
            self.wrong(f"{host} sets {tp} back from {before} to {offset}")
        task = TaskId(self.world.numbers[tp.topic], tp.partition)
        # Under exactly-once whoever runs the task now has waited for the end of this transaction.
        exact = self.world.scene.is_exact
        if host != (runner := self.world.runner.get(task)) and not exact:
            self.wrong(f"{host} commits {tp}, which {runner} runs")
        self.world.offsets[tp] = offset
        for agent in self.readers.get(tp.topic, ()):
            reached = offset + beside.readers.get(reader_name(agent), 0)
            self._reached(host, agent, tp, reached)

    def _reached(self, host: str, agent: str, tp: TopicPartition, reached: int) -> None:
        before = self.world.reached.get((agent, tp), 0)
        if reached < before:
            self.wrong(f"{host} sets {agent} of {tp} back from {before} to {reached}")
        self.world.reached[agent, tp] = reached
        processed = self.processed[host, agent, tp]
        for missing in (n for n in range(before, reached) if n not in processed):
            if self.world.record(tp, missing) not in (None, UNDECODABLE):
                self.wrong(f"{host} commits {tp} to {reached}: {agent} never saw {missing}")
                return

    def sample(self) -> None:
        group = self.world.group
        for (topic, partition), value in (group.committed if group else {}).items():
            tp = TopicPartition(topic, partition)
            if value.offset < self.world.offsets.get(tp, 0):
                self.wrong(f"{tp} was set back to {value.offset}")
            elif self.world.scene.is_exact:  # the answer to its end may not have been sent
                self.world.offsets[tp] = value.offset
                beside = OffsetMetadata.decode(value.metadata or "")
                for agent in self.readers.get(topic, ()):
                    reached = value.offset + beside.readers.get(reader_name(agent), 0)
                    before = self.world.reached.get((agent, tp), 0)
                    self.world.reached[agent, tp] = max(before, reached)


class CommittedIsDoneOnce(Check):
    """Invariant S7: no agent gets a record again that is done and that its task has committed.

    The rule holds on whichever worker the task goes on. Of two agents on one topic, the faster one
    repeats as little as the slower one.
    """

    needs_disk = True

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.readers = readers(world.scene)
        self.floors: dict[tuple[str, str, TopicPartition], int] = {}
        """Position of each agent when its task began to run in a process."""

    def begins(self, home: SimulatedHost, task: TaskId) -> None:
        for topic, number in self.world.numbers.items():
            if number == task.subtopology:
                tp = TopicPartition(topic, task.partition)
                for agent in self.readers.get(topic, ()):
                    reached = self.world.reached.get((agent, tp), 0)
                    self.floors[home.process.name, agent, tp] = reached

    def done(self, home: SimulatedHost, agent: str, tp: TopicPartition, offset: int) -> None:
        floor = self.floors.get((home.process.name, agent, tp), 0)
        if offset < floor:
            self.wrong(f"{home.name}: {agent} does {tp} {offset} again, {floor} is committed")


class StoresEqualTheirChangelogs(Check):
    """Invariant S3: the rows of a store equal those of its changelog up to the store's position.

    A store that lacks committed rows counts wrong for ever. The check compares them when a task
    begins to run and at the end. Excused as `zombie rows`: a worker that did not run the task any
    more has written to the changelog. Rows of these keys can win over newer ones in the changelog
    and never show in the owner's store. Processing is at least once.
    """

    needs_disk = True

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.spoiled: defaultdict[TopicPartition, set[bytes]] = defaultdict(set)
        self.number = world.numbers[WORDS]

    def begins(self, home: SimulatedHost, task: TaskId) -> None:
        if self.world.nodes.service is not None:  # without a broker no log can be read
            self._compare(home, task)

    def asked(self, host: str, call: ServedRequest) -> None:
        if call.api is not Api.PRODUCE:
            return
        for topic in call.body.topic_data:
            if topic.name in self.world.stores:
                for part in topic.partition_data:
                    owner = self.world.runner.get(TaskId(self.number, part.index))
                    if owner != host and not self.world.scene.is_exact:
                        keys = {key or b"" for key in columns(bytes(part.records), 0).keys}
                        self.spoiled[TopicPartition(topic.name, part.index)] |= keys

    def settled(self) -> None:
        for home in self.world.homes:
            for task in sorted(home.running):
                self._compare(home, task)

    def _compare(self, home: SimulatedHost, task: TaskId) -> None:
        if task.subtopology != self.number:
            return
        for changelog, node in self.world.stores.items():
            tp = TopicPartition(changelog, task.partition)
            store = home.rows(node.name, task.partition)
            position = store.position() or 0
            newest = self.world.newest(tp, position)
            logged = zip(node.local_keys(newest), newest.values(), strict=True)
            other = {key for key, _ in {*logged} ^ {*store.scan(ROW, INDEX)}}
            if other - {*node.local_keys(self.spoiled[tp])}:
                self.wrong(f"{home.name}: store {node.name} of {task} is not {tp} up to {position}")
            elif other:
                self.world.excuse("zombie rows")


class LegalPlans(Check):
    """Invariant S4: the leader verifies its plans, and ships none that breaks its promises."""

    def asked(self, host: str, call: ServedRequest) -> None:
        if call.api is not Api.SYNC_GROUP:
            return
        for told in call.body.assignments:
            data = Assignment.read(bytes(told.assignment)).user_data
            if data and read_assignment(data).error is ErrorWord.ASSIGNMENT_FAILED:
                self.wrong(f"{host} has made a plan that is none")


class CancelledStay(Check):
    """Invariant: no other process removes a worker after a tool has cancelled its leave.

    The tool that cancels a leave has promised that the worker stays.
    """

    def asked(self, host: str, call: ServedRequest) -> None:
        if call.api is not Api.LEAVE_GROUP:
            return
        ids = {m.member_id for m in getattr(call.body, "members", None) or (call.body,)}
        for home in self.world.homes:
            if not self.world.cancelled(home.name) or home.member is None:
                continue
            if host != home.process.name and home.member.member_id in ids:
                self.wrong(f"{host} removes {home.name}, whose leave was cancelled")


class NoTaskStands(Check):
    """Invariant: a task with input, a lease and a leader makes progress.

    A task that hangs looks like one that is idle. Counted as `foreign`: the agent waits for
    something outside of streamsx, which streamsx cannot hurry. In a world no such wait is longer
    than `STANDS_S`. Failures in a row hold a position for 5 s at the end of its log.
    """

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.since: dict[tuple[str, TaskId], tuple[float, dict[str, int]]] = {}

    def sample(self) -> None:
        now = self.world.now
        seen = dict[tuple[str, TaskId], tuple[float, dict[str, int]]]()
        for home in self.world.homes:
            parts = home.parts if home.works and self.world.serves else None
            for task, active in sorted(home.actives.items()) if parts else ():
                made = active.task
                key = (home.process.name, task)
                since, before = self.since.get(key, (now, {}))
                if before != made.positions or not self._input(task, made.positions):
                    since = now
                seen[key] = since, made.positions
                if made.busy and now - since > AWAITS_S:
                    self.world.excuse("foreign")
                if now - since > STANDS_S:
                    self.wrong(f"{home.name}: {task} stands at {made.positions} since {since:.3f}")
        self.since = seen

    def _input(self, task: TaskId, positions: dict[str, int]) -> bool:
        for topic, offset in positions.items():
            tp = TopicPartition(topic, task.partition)
            if self.world.nodes.leads(topic) != NOBODY and offset < self.world.end(tp):
                return True
        return False


class OutputsHoldUpTheirOwn(Check):
    """Invariant: a task waits for its own outputs alone.

    While the output topic of `route` has no leader, the other tasks commit. The check looks only
    while nothing else goes wrong.
    """

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.began = 0.0
        self.met = 0
        self.since: dict[tuple[str, TaskId, str], tuple[float, int]] = {}
        """Time when a task last had nothing to commit, or committed, and the offset it had then."""

    def sample(self) -> None:
        now = self.world.now
        met = self.world.met.total()
        if self.world.nodes.leads(ROUTED) != NOBODY or not self.world.serves or met != self.met:
            self.began = now
            self.met = met
        if now - self.began < COMMITS_S:
            self.since.clear()
            return
        for home in self.world.homes:
            for task, active in sorted(home.actives.items()) if home.works and home.parts else ():
                if active.suspended or active.denied or {A, B} & active.task.taken.keys():
                    continue
                for topic, position in active.task.positions.items():
                    self._look(home, task, TopicPartition(topic, task.partition), position)

    def _look(self, home: SimulatedHost, task: TaskId, tp: TopicPartition, position: int) -> None:
        now = self.world.now
        offset = self.world.offsets.get(tp, 0)
        key = home.process.name, task, tp.topic
        since, before = self.since.get(key, (now, offset))
        if offset != before or offset >= position:
            since = now
        self.since[key] = since, offset
        if now - since > COMMITS_S:
            self.wrong(f"{home.name}: {task} is at {position} and has committed {offset} of {tp}")


class EverythingIsCommitted(Check):
    """Liveness L: at the end every record is committed.

    A record that was processed and stays uncommitted is processed again at the next hand-over.
    """

    def settled(self) -> None:
        behind = []
        for topic in (*self.world.scene.sources, WORDS):
            for tp in self.world.partitions(topic):
                offset = self.world.offsets.get(tp, 0)
                end = self.world.end(tp)
                if offset < end:
                    behind.append(f"{tp} {offset} of {end}")
        if behind:
            self.wrong(f"committed: {'; '.join(behind)}")


class NothingIsSkipped(Check):
    """Invariant S7: each word that was fed is counted, and each record of the pair is passed on.

    Processing is at least once. Each word is counted exactly once unless a worker was killed, ended
    with an error, had a task taken away, had a commit refused for good, or gave back a task that
    was doing its records again behind a failure: the next owner knows nothing of the first run. A
    worker that hands over cleanly commits all that it has done.
    """

    needs_disk = True

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.repeats = False
        self.undone: set[tuple[str, TaskId]] = set()
        """Tasks that have gone back to their last commit, by the name of their worker."""

    def said(self, home: SimulatedHost, event: str, fields: dict[str, object]) -> None:
        refused = str(fields.get("what")).startswith("commit refused")
        self.repeats = self.repeats or event == "lost" or refused
        if event == "task" and (fields["from"], fields["to"]) == ("running", "closing"):
            self.undone.add((home.process.name, TaskId.parse(str(fields["task"]))))
        if event == "revoked":
            given = {TaskId.parse(task) for task in cast("list[str]", fields["tasks"])}
            self.repeats = self.repeats or any(self._is_undone(home, task) for task in given)
            self.undone -= {(home.process.name, task) for task in given}

    def _is_undone(self, home: SimulatedHost, task: TaskId) -> bool:
        """Return whether a task has gone back, and has not done again all that it had done."""
        if (home.process.name, task) not in self.undone:
            return False
        parts = home.parts
        active = None if parts is None else parts.tasks.actives.get(task)
        return active is None or active.task.order.careful_at(active.task.positions)

    def ended(self, home: SimulatedHost, outcome: int | Exception) -> None:
        self.repeats = self.repeats or outcome != 0

    def settled(self) -> None:
        world = self.world
        counted = self.world.counts(COUNTS)
        fed = world.client.words
        if world.upstream is not None:
            fed = fed + Counter(world.upstream.brought(counted))
        if not world.client.words and world.scene.latest:
            self.wrong("idle tasks have not committed where they begin")
        lost = {word: (counted[word], n) for word, n in fed.items() if counted[word] < n}
        if lost:
            total = sum(n - count for count, n in lost.values())
            self.wrong(f"{total} of {fed.total()} words, as {sorted(lost.items())[:3]}")
        world.surplus = counted.total() - fed.total()
        repeats = self.repeats or any(process.killed for process in world.scheduler.processes)
        repeats = repeats and not world.scene.is_exact
        if world.surplus and not repeats:
            self.wrong(f"{world.surplus} words twice, and nobody has lost anything")
        if world.scene.sizes:
            self._sizes(exact=not repeats)
        if world.scene.flows:
            self._windows(exact=not repeats)
            self._pairs(exact=not repeats)
        routed = Counter(
            value or b""
            for tp in world.partitions(ROUTED)
            for _, _, value in world.records(tp, 0, world.end(tp))
        )
        if left := world.client.lines - routed:
            self.wrong(f"{left.total()} of {world.client.lines.total()} records are not passed on")
        if world.scene.is_exact:
            self._sent(fed, routed)

    def _sent(self, fed: Counter[str], routed: Counter[bytes]) -> None:
        """Compare the outputs of an app that processes exactly once with its input."""
        world = self.world
        sent = Counter(
            (value or b"").decode()
            for tp in world.partitions(WORDS)
            for _, _, value in world.records(tp, 0, world.end(tp))
        )
        if sent != fed:
            self.wrong(f"{sent.total()} words sent of {fed.total()}, exactly once")
        if more := routed - world.client.lines:
            self.wrong(f"{more.total()} records are passed on twice, exactly once")

    def _sizes(self, *, exact: bool) -> None:
        """Compare the table with the topic, without the records that `size` fails on."""
        world = self.world
        truth = Counter[str]()
        for tp in world.partitions(WORDS):
            for offset, _, value in world.records(tp, 0, world.end(tp)):
                if not (world.scene.moody and mood(tp, offset) < FAILS):
                    word = (value or b"").decode()
                    truth[word] += len(word)
        sizes = world.counts(SIZES)
        if short := truth - sizes:
            self.wrong(f"sizes lack {short.total()} of {truth.total()}: {sorted(short)[:5]}")
        if exact and (more := sizes - truth):
            self.wrong(f"sizes have {more.total()} too much, and nobody has lost anything")

    def _words(self) -> Iterator[list[flow_results.Word]]:
        for tp in self.world.partitions(WORDS):
            yield [((value or b"").decode(), at) for _, value, at in self.world.timed(tp)]

    def _windows(self, *, exact: bool) -> None:
        """Compare each final with the window's records: no result may be missing, or too low."""
        truth = Counter[flow_results.Word]()
        for words in self._words():
            truth += flow_results.windows(words)
        found = defaultdict[flow_results.Word, list[int]](list)
        for tp in self.world.partitions(FINALS):
            for key, value, _ in self.world.timed(tp):
                word, start, _ = json.loads(key or b"")
                found[word, start].append(json.loads(value or b""))
        low = {each: n for each, n in truth.items() if min(found[each], default=0) < n}
        if low:
            first = sorted((each, n, found[each]) for each, n in low.items())[:3]
            self.wrong(f"{len(low)} of {len(truth)} windows lack records or results: {first}")
        if exact and (more := {each for each, n in found.items() if n and n != [truth[each]]}):
            self.wrong(f"{len(more)} windows differ, and nobody has lost anything")

    def _pairs(self, *, exact: bool) -> None:
        """Compare the results of the join with those of the same logs."""
        truth = Counter[flow_results.JoinedWord]()
        for words in self._words():
            truth += flow_results.pairs(words)
        found = Counter[flow_results.JoinedWord]()
        for tp in self.world.partitions(JOINED):
            for _, value, at in self.world.timed(tp):
                word, other = json.loads(value or b"")
                found[flow_results.JoinedWord(word, other is not None, at)] += 1
        if lost := truth - found:
            first = sorted(lost.items())[:3]
            self.wrong(f"{lost.total()} of {truth.total()} joined words are missing: {first}")
        if exact and (more := found - truth):
            self.wrong(f"{more.total()} joined words too many, and nobody has lost anything")


class EachCommitIsWhole(Check):
    """Invariant of exactly-once: outputs and tables are those of the committed input, at any time.

    The check looks whenever no worker's transaction is under way. A commit that is wrong by one
    record, which the next commit puts right, shows in no sum at the end.
    """

    needs_disk = True

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.read: dict[tuple[str, TopicPartition], int] = {}
        """Offset up to which each log was read, for each purpose."""
        self.due = Counter[str]()
        self.sent = Counter[str]()
        self.taken: dict[str, Counter[str]] = {"count": Counter(), "size": Counter()}
        self.tables: dict[str, dict[bytes, bytes | None]] = {COUNTS: {}, SIZES: {}}

    def told(self, host: str, call: ServedRequest, body: ReplyBody) -> None:
        if call.api is Api.END_TXN:
            self.sample()

    def sample(self) -> None:
        group = self.world.group
        if self._is_open() or group is None:
            return
        readers: dict[tuple[str, TopicPartition], int] = {}
        for at, value in group.committed.items():
            tp = TopicPartition(*at)
            beside = OffsetMetadata.decode(value.metadata or "")
            for agent in ("split", "count", "size"):
                ahead = beside.readers.get(reader_name(agent), 0)
                readers[agent, tp] = value.offset + ahead
        self._read(readers)
        if self.due != self.sent:
            self.wrong(f"sent {self.sent.total()} words, of {self.due.total()} committed")
        self._compare(COUNTS, self.taken["count"])
        if self.world.scene.sizes:
            self._compare(SIZES, self.taken["size"])

    def _is_open(self) -> bool:
        """Return whether a transaction is under way, or nobody can say."""
        world = self.world
        service = world.nodes.service
        machine = None if service is None else service.groups.machine
        if not world.scene.is_exact or machine is None or world.nodes.lost or world.scene.latest:
            return True
        logs = [tp for topic in (LINES, WORDS, COUNTS) for tp in world.partitions(topic)]
        if any(world.log(tp) is None for tp in logs):
            return True
        return any(
            txn.state is TransactionState.ONGOING or txn.ending
            for txn in machine.transactions.by_id.values()
        )

    def _read(self, readers: dict[tuple[str, TopicPartition], int]) -> None:
        world = self.world
        for tp in world.partitions(LINES):
            for _, value in self._more("due", tp, readers.get(("split", tp), 0)):
                if value is not None and value != UNDECODABLE and not value.startswith(POISONED):
                    self.due.update(value.decode().split())
        for tp in world.partitions(WORDS):
            for _, value in self._more("sent", tp, world.end(tp)):
                self.sent[(value or b"").decode()] += 1
            for agent, taken in self.taken.items():
                moody = agent == "size" and world.scene.moody
                for offset, value in self._more(agent, tp, readers.get((agent, tp), 0)):
                    word = (value or b"").decode()
                    if not (moody and mood(tp, offset) < FAILS):
                        taken[word] += len(word) if agent == "size" else 1

    def _more(self, what: str, tp: TopicPartition, end: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield offset and value of records that were not read before, up to an offset."""
        start = self.read.get((what, tp), 0)
        self.read[what, tp] = max(start, end)
        return ((offset, value) for offset, _, value in self.world.records(tp, start, end))

    def _compare(self, changelog: str, taken: Counter[str]) -> None:
        world = self.world
        table = self.tables[changelog]
        for tp in world.partitions(changelog):
            start = self.read.get((changelog, tp), 0)
            end = self.read[changelog, tp] = world.end(tp)
            table.update({key or b"": value for _, key, value in world.records(tp, start, end)})
        found = Counter({json.loads(k): json.loads(v) for k, v in table.items() if v is not None})
        if found != taken:
            self.wrong(f"{changelog}: {found.total()}, of {taken.total()} committed")


class WorkersEndWell(Check):
    """Invariant: a worker ends by itself only after a request to leave, or for a known reason."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.leaving: dict[str, bool] = {}
        """Processes that leave; True for one that has lost a task since it began to leave."""

    def said(self, home: SimulatedHost, event: str, fields: dict[str, object]) -> None:
        name = home.process.name
        if event == "stays":
            self.leaving.pop(name, None)
        elif event == "leaving" or (event == "lost" and name in self.leaving):
            self.leaving[name] = event == "lost"

    def ended(self, home: SimulatedHost, outcome: int | Exception) -> None:
        if isinstance(outcome, BrokerUnreachable) and home.parts is None:
            self.world.excuse("no broker at the start")
        elif isinstance(outcome, DiskFailed) and home.disk.refused:
            self.world.excuse("disk full")
        elif isinstance(outcome, InstanceIdTaken) and self.world.nodes.lost:
            self.world.excuse("power cut")  # the broker forgot that the instance had returned
        elif outcome == 1 and self.leaving.get(home.process.name):
            self.world.excuse("lost something while leaving")
        elif outcome != 0:
            self.wrong(f"{home.name}: {outcome!r}")
        elif not home.terminated and (self.world.cancelled(home.name) or not self._told(home)):
            self.wrong(f"{home.name} has left, and nobody had told it to")

    def _told(self, home: SimulatedHost) -> bool:
        return any(home.name in tool.instances and not tool.cancel for tool in self.world.tools)


class Whole(Check):
    """Liveness L: at the end the group is whole.

    A group that stays torn after all faults have ended is of no use.
    """

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.generation = -1
        self.changed_at = 0.0

    def sample(self) -> None:
        group = self.world.group
        if group is not None and group.round.generation != self.generation:
            self.generation = group.round.generation
            self.changed_at = self.world.now

    def settled(self) -> None:
        alive = [home for home in self.world.homes if home.alive]
        if self.world.faults is not None and len(alive) < len(self.world.homes):
            self.wrong(f"{[home.name for home in alive]} are alive")
        self._members(alive)
        self._tasks(alive)
        longest = max(home.scene.session_s(home.number) for home in self.world.homes)
        if self.world.now - self.changed_at < longest:
            self.wrong(f"the last rebalance was at {self.changed_at:.3f}")

    def _members(self, alive: list[SimulatedHost]) -> None:
        group = self.world.group
        ids = {home.member.member_id for home in alive if home.member is not None}
        if group is None or group.round.state is not GroupState.STABLE:
            self.wrong(f"the group is {group.round.state.value if group else 'not there'}")
        elif group.round.members.keys() != ids:
            self.wrong(f"members {sorted(group.round.members)}, alive {sorted(ids)}")
        for home in alive:
            if home.member is None or home.member.state is not member.MemberState.STABLE:
                self.wrong(f"{home.name} is {home.member and home.member.state}")
            elif home.member.leaving:
                self.wrong(f"{home.name} is leaving")

    def _tasks(self, alive: list[SimulatedHost]) -> None:
        for task in self.world.tasks():
            runners = [home.name for home in alive if task in home.running and home.works]
            if len(runners) != 1:
                self.wrong(f"{task} runs on {runners}")
        for home in alive:
            if (parts := home.parts) is not None:
                held = parts.registry
                learns = [t for t in held.tasks() if held.of(t).role is Role.LEARNER]
                rest = [t for t in held.tasks() if held.of(t).state not in AT_REST]
                if learns or rest:
                    self.wrong(f"{home.name} learns {learns}, is not at rest with {rest}")
        self._standbys([home.parts.registry for home in alive if home.parts is not None])
        number = self.world.numbers[WORDS]
        counts = [sum(t.subtopology == number for t in home.running) for home in alive]
        if not self.world.scene.imbalance and max(counts, default=0) - min(counts, default=0) > 1:
            self.wrong(f"stateful tasks {counts}")

    def _standbys(self, workers: list[TaskRegistry]) -> None:
        """Check the number of standbys of each task with state.

        One standby too many is allowed: the next rebalance would end it.
        """
        least = min(self.world.scene.standbys, len(workers) - 1)
        for task in self.world.tasks():
            if task.subtopology == self.world.numbers[WORDS]:
                count = sum(task in held.tasks(TaskState.TAILING) for held in workers)
                if not least <= count <= least + (least > 0):
                    self.wrong(f"{task} has {count} standbys of {least}")


class TransactionsAreWholeOrNot(Check):
    """Invariant S7: open and aborted transactions are never visible, and committed ones are."""

    needs_disk = True

    def done(self, home: SimulatedHost, agent: str, tp: TopicPartition, offset: int) -> None:
        if self.world.upstream is None or tp.topic != LINES:
            return
        if (log := self.world.log(tp)) is None:
            return
        (value, *_) = columns(log.read(offset, 1), offset).values or [None]
        word = (value or b"").decode(errors="replace")
        if self.world.upstream.fates.get(word) in HIDDEN:
            self.wrong(f"{home.name} reads {word}: {self.world.upstream.fates[word].name}")

    def settled(self) -> None:
        if (upstream := self.world.upstream) is None:
            return
        if not upstream.quiet:
            self.wrong(f"a transaction is {list(upstream.fates.values())[-1]}")
        counted = self.world.counts(COUNTS)
        brought = upstream.brought({})
        for word, fate in upstream.fates.items():
            if fate in HIDDEN and counted[word]:
                self.wrong(f"{word} is {fate.name}, and was counted {counted[word]} times")
            elif fate is TransactionFate.UNSURE and 0 < counted[word] < upstream.lines[word]:
                self.wrong(f"{word} was counted {counted[word]} times of {upstream.lines[word]}")
        self.world.excused["transactions"] += len(brought)


class ReadersAreNotSentBack(Check):
    """Invariant: the end of a log never moves back behind an end that a client has seen.

    A client that has seen an end has read up to there and may have committed that offset. In a log
    that ends earlier, this offset is out of range, or the client never sees the records that are
    written there instead.
    """

    needs_disk = True

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.ends: dict[tuple[bytes, int], tuple[int, int]] = {}
        """High watermark and last stable offset, by topic id and partition."""

    def told(self, host: str, call: ServedRequest, body: ReplyBody) -> None:
        if call.api is not Api.FETCH or (service := self.world.nodes.service) is None:
            return
        for topic in body.get("responses", ()):
            for each in topic["partitions"]:
                if "error_code" not in each:
                    found = service.topics.find(topic["topic"], topic["topic_id"])
                    tp = found.id, each["partition_index"]
                    end = each["high_watermark"], each["last_stable_offset"]
                    before = self.ends.get(tp, end)
                    if end[0] < before[0] or end[1] < before[1]:
                        self.wrong(f"{host}: {found.name}-{tp[1]} ends at {end} behind {before}")
                    self.ends[tp] = end


class ReadersShareTheirTopic(Check):
    """Invariant of KIP-848 and KIP-1251: each partition has one reader that is in the group.

    Records that one reader has committed are not read again by the next one.
    """

    needs_disk = True

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.committed: dict[int, int] = {}

    def told(self, host: str, call: ServedRequest, body: ReplyBody) -> None:
        if call.api is Api.OFFSET_COMMIT and call.body.group_id == READERS:
            (topic,) = call.body.topics
            (answered,) = body["topics"]
            codes = {each["partition_index"]: each["error_code"] for each in answered["partitions"]}
            for each in topic.partitions:
                number = each.partition_index
                offset = each.committed_offset
                if not codes[number]:
                    self._moved(f"{host} commits {number}", number, offset)
        elif call.api is Api.OFFSET_FETCH and call.version >= GROUPS_SINCE:
            for group in body["groups"]:
                for topic in () if group["group_id"] != READERS else group.get("topics", ()):
                    for each in topic["partitions"]:
                        number = each["partition_index"]
                        offset = each["committed_offset"]
                        self._moved(f"{host} is told of {number}", number, max(0, offset))

    def _moved(self, what: str, number: int, offset: int) -> None:
        before = self.committed.get(number, 0)
        if offset < before:
            self.wrong(f"{what}: {offset} behind {before}")
        self.committed[number] = offset

    def _owners(self) -> dict[int, list[str]]:
        """Return the readers of each partition, of those that the coordinator has in the group."""
        service = self.world.nodes.service
        found = defaultdict[int, list[str]](list)
        machine = None if service is None else service.groups.machine
        group = None if machine is None else machine.groups.get(READERS)
        if isinstance(group, ConsumerGroup):
            members = {member.id for member in group.members()}
            for reader in self.world.readers:
                if reader.process.alive and reader.member_id in members:
                    for number in reader.held:
                        found[number].append(reader.name)
        return found

    def sample(self) -> None:
        for number, owners in self._owners().items():
            if len(owners) > 1:
                self.wrong(f"{LINES}-{number} is read by {owners}")

    def settled(self) -> None:
        if not self.world.readers:
            return
        found = self._owners()
        for tp in self.world.partitions(LINES):
            if len(found[tp.partition]) != 1:
                self.wrong(f"{tp} is read by {found[tp.partition]}")
            if (at := self.committed.get(tp.partition, 0)) != self.world.end(tp):
                self.wrong(f"{tp} is read up to {at} of {self.world.end(tp)}")


CHECKS = tuple(Check.__subclasses__())
"""All checks, in the order of this module."""
