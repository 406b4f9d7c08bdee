"""Idempotent producer with one batch in flight per partition; `send` never waits.

A record goes straight into the open batch of its partition: no future, no queue, no await (12 times
as fast as aiokafka's `send`). While a batch is in flight the next one grows, up to the size that
the topic takes. With batches closed at 64 KiB, a partition would move 64 KiB per round trip, and a
commit would wait 0.5 s for its flush instead of 0.1 s. A failed batch keeps its place and its
numbers, so no batch overtakes another and no record arrives twice.

Records of tasks need the lease: without it no batch leaves, neither for the first time nor again,
and batches in flight are cut off. The race: the new owner of a task reads the changelog's end; then
a row of the old owner arrives, an absolute value without the new owner's additions. Records that
user code sends outside of tasks have a producer of their own, without a lease: they never wait for
a task, and are never dropped or held with a task.

Each partition remembers its current sender (one comparison a record, 5 ns). So a task waits for its
own records alone, and a refused record is traced to its sender. The same step compares the
timestamp with the latest time that the topic takes.

Not here: numbers of batches (`idempotence`), transactions (`transactional_producer`), and the
reasons to wait for a flush.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from streamsx.client import record_accumulator
from streamsx.client.cluster import Cluster
from streamsx.client.connection import GIVEN_UP, Connection
from streamsx.client.idempotence import Idempotence
from streamsx.client.record_accumulator import (
    BACKOFF_S,
    REQUEST_TIMEOUT_S,
    OutputPartition,
    OutputTopic,
    RecordAccumulator,
    Sent,
)
from streamsx.client.rejected_batch import OF_RECORDS, OUTSIDE, RefusedRecord, Sender, advice
from streamsx.client.topic_limits import ALWAYS_ASKED, TopicLimits
from streamsx.client.topic_limits_watch import OutputLimits
from streamsx.clock import Clock
from streamsx.errors import BrokerUnreachable, Bug, RecordRefused, RecordTooLarge
from streamsx.event_loops import wait
from streamsx.journal import LOG
from streamsx.model import RECORD_BYTES_MAX, Headers, TaskId, TopicPartition
from streamsx.processing.inbox import (
    RUNNING,
    UNKNOWN,
    Done,
    Outbox,
    RecordMetadata,
    Send,
    SendRows,
    SendValue,
    TaskContext,
    metadata_of,
)
from streamsx.protocol.error_codes import ErrorCode, name_of
from streamsx.protocol.partitioner import check_place, partition_of
from streamsx.protocol.record_batch import NO_HEADERS
from streamsx.protocol.wire import Api
from streamsx.serde.codec import Encoders

if TYPE_CHECKING:
    from streamsx.client.api_versions import VersionRange

LANE: Final = "produce"
WARN_EVERY_S = 5.0
TIMER_MIN_S = 0.001
REMEMBERED_BYTES = 12 << 20
"""Memory for keys with their partitions, over all topics.

A look-up takes 30 ns; without it, finding the partition takes 0.9 us for a key of 11 bytes, or 1.4
ms for 15 KB. A limit of 65,536 keys of any length came to 1 GB.
"""
REMEMBERED_KEY_BYTES = 150
"""Memory of a key beside its own bytes: an object, and a slot in a dict."""


ROW_OVERHEAD = 100
"""Bytes of a batch with one row, beside its key and value, at most."""

Goals = Sequence[tuple[OutputPartition, int]]
"""Partitions, each with the number of batches that must be acknowledged there."""
OnRefused = Callable[[TopicPartition, int, RefusedRecord], None]
"""Callback for records that a broker has refused for good: partition, broker's code, records."""


def always() -> bool:
    return True


def never() -> bool:
    return False


class Delivery:
    """Acknowledgement of one record, which lies in the open batch of `partition`.

    Without a partition: acknowledgement of everything sent before the await.
    """

    def __init__(
        self,
        producer: "Producer",
        topic: str,
        at_ms: int = UNKNOWN,
        partition: OutputPartition | None = None,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._at_ms = at_ms
        self._partition = partition
        if partition is not None:
            assert partition.builder is not None, "a record that was sent lies in an open batch"
            self._batch = partition.builder
            self._number = partition.closed + 1
            self._behind = partition.builder.count

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self._acknowledged().__await__()

    async def _acknowledged(self) -> RecordMetadata:
        running = RUNNING.get(None)
        if running is not None:
            running.track(self._topic)
        partition = self._partition
        if partition is None:
            await self._producer.flush()
            return metadata_of(self._topic, UNKNOWN, UNKNOWN, self._at_ms)
        end = await self._producer.acknowledged(partition, self._number)
        code = partition.refused.get(self._number, {}).get(self._behind - 1)
        if code is not None:
            raise self._producer.refusal(partition.tp, code)
        offset = end if end == UNKNOWN else end - self._batch.count + self._behind - 1
        return metadata_of(self._topic, partition.tp.partition, offset, self._at_ms)


class DoneFuture(asyncio.Future[Awaitable[Any]]):
    """Result of `send`'s fast path: one future for all records of a body and topic.

    Awaiting this future runs no Python: 30 ns each time.
    """

    def __init__(self, delivery: Awaitable[Any]) -> None:
        super().__init__()
        self.set_result(delivery)


class Producer(Outbox):
    """Outbox that sends to Kafka.

    `transactional`: what is sent counts once its transaction is committed.

    `refused` is called with records that no retry can mend. `held` returns whether the lease is
    held, for producers that need one. `room` is called when the producer was `full` and is no
    longer.
    """

    transactional = False

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        spawn: Callable[..., object],
        refused: OnRefused,
        *,
        linger_s: float,
        buffer_bytes: int,
        compression: str = "none",
        held: Callable[[], bool] = always,
        room: Callable[[], object] = always,
        limits: OutputLimits | None = None,
        numbers: Idempotence | None = None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._spawn = spawn
        self._refused = refused
        self._held = held
        self._room = room
        self._linger_s = linger_s
        self._numbers = Idempotence() if numbers is None else numbers
        self._sending = RecordAccumulator(
            compression, self._opened, self._numbers, linger_s=linger_s, buffer_bytes=buffer_bytes
        )
        self._limits = limits
        if limits is not None:
            limits.watch(self._limited)
        cluster.watch(self._grown)
        self._remembered = 0
        """Bytes of remembered keys, over all topics."""
        self._connections: dict[int, Connection] = {}
        self._opening: set[int] = set()
        self._versions: VersionRange | None = None
        """Versions of Produce; None for the usual ones."""
        self._leased = self._stalled = False
        self._timer: asyncio.TimerHandle | None = None
        self._refreshed_at = -BACKOFF_S
        self._warned_at = 0.0
        self._moved = asyncio.Event()
        self._senders: dict[TaskId, Sender] = {}
        self._last: OutputPartition
        """Partition of the record that `to` has sent last."""

    async def start(self) -> None:
        """Ask for a producer id until a broker gives one; a starting broker may need some time."""
        self._warned_at = self._clock.now()
        while True:
            try:
                conn = await self._cluster.any(LANE)
                body = self._numbers.init_request()
                reply = await conn.ask(Api.INIT_PRODUCER_ID, body, REQUEST_TIMEOUT_S)
            except BrokerUnreachable as error:
                self._warn("no producer id", str(error))
            else:
                code = self._numbers.initialised(reply)
                if not code:
                    return
                self._warn("no producer id", name_of(code))
            await asyncio.sleep(BACKOFF_S)

    # -- sending

    def of(self, task: TaskId, at_hand: Callable[[], object]) -> "TaskOutbox":
        """Return the outbox of a task that begins.

        `at_hand` returns the source records that the task is handling, as
        `rejected_batch.SourceRecords`, or None.
        """
        sender = self._senders[task] = Sender(task, at_hand)
        return TaskOutbox(self, sender)

    def to(self, topic: str, partition: int | None = None, sender: Sender = OUTSIDE) -> Send:
        """Return a function that sends to a topic, or to one partition of the topic.

        Raises:
            NotFound: the metadata do not have the topic.
            UsageError: the topic has no such partition.
        """
        out = self._out(topic, partition)
        targets = out.partitions if partition is None else [out.partitions[partition]]
        known = out.known if partition is None else {}

        def target_of(key: bytes | None) -> OutputPartition:
            if key is None:
                out.limits.check_key(topic)
                return record_accumulator.sticky(targets)
            target = targets[partition_of(key, len(targets))]
            self._remember(known, key, target)
            return target

        def send(
            key: bytes | None,
            value: bytes | None,
            timestamp: int,
            headers: Headers | None,
            by: bytes | None = None,
        ) -> None:
            chooser = key if by is None else by
            self._last = target = known.get(chooser) or target_of(chooser)
            if target.writer is not sender or timestamp > target.latest:
                self._admit(target, sender, timestamp)
            builder = target.builder
            if builder is not None:
                count = builder.count
                if builder.add(count, timestamp, key, value, headers or NO_HEADERS) is not None:
                    builder.count = count + 1
                    return
                self._sending.close(target)
            try:
                target.open(timestamp, key, value, headers or NO_HEADERS)
            except RecordTooLarge:
                self._ask(topic)
                raise

        return send

    def check(self, topic: str, partition: int | None = None) -> Send:
        """Return a function that raises what the sender of `to` would raise, and sends nothing."""
        out = self._out(topic, partition)

        def check(
            key: bytes | None,
            value: bytes | None,
            timestamp: int,
            headers: Headers | None,
            by: bytes | None = None,
        ) -> None:
            if partition is None and key is None and by is None:
                out.limits.check_key(topic)
            target = out.partitions[partition or 0]
            if timestamp > target.latest:
                self._check_time(target, timestamp)
            target.checked(timestamp, key, value, headers or NO_HEADERS)

        return check

    def _remember(
        self, known: dict[bytes | None, OutputPartition], key: bytes, partition: OutputPartition
    ) -> None:
        size = len(key) + REMEMBERED_KEY_BYTES
        self._remembered += size
        if self._remembered > REMEMBERED_BYTES:
            self._remembered = size
            for each in self._sending.topics.values():
                each.known.clear()
        known[key] = partition

    def bound(
        self, topic: str, keys: Encoders, values: Encoders, running: TaskContext, rare: SendValue,
        sender: Sender = OUTSIDE,
    ) -> SendValue:  # fmt: skip
        """Return a `send` that does everything in one frame.

        The frame finds the encoders by type, the partition of a known key, and the open batch. A
        caller may keep the function and call it while another body is at work, or none: `rare`
        sends then.
        """
        send_bytes = self.to(topic, None, sender)
        inbox = running.inbox
        known = self._out(topic, None).known
        done = DoneFuture(Delivery(self, topic))
        turn = running.turn

        def send(*, key: Any = None, value: Any = None, **other: Any) -> Awaitable[Any]:
            batch = inbox.batch
            if other or batch is None or not turn._is_owned():  # noqa: SLF001  # private in RLock
                return rare(key=key, value=value, **other)
            raw = keys[type(key)](key)
            data = values[type(value)](value)
            at_ms = batch.timestamps[inbox.index]
            target = known.get(raw)
            if (
                target is not None
                and target.writer is sender
                and at_ms <= target.latest
                and (builder := target.builder) is not None
            ):
                count = builder.count
                if builder.add(count, at_ms, raw, data, NO_HEADERS) is not None:
                    builder.count = count + 1
                    return done
            send_bytes(raw, data, at_ms, None)
            return done

        return send

    def last_sent(self, topic: str, at_ms: int) -> Done:
        """Return an awaitable for the record that was sent last."""
        return Done(Delivery(self, topic, at_ms, self._last))

    def _admit(self, partition: OutputPartition, sender: Sender, timestamp: int) -> None:
        """Check a record that is later than `latest`, or from another sender than the one before.

        Raises:
            RecordRefused: the topic does not take the timestamp.
        """
        if timestamp > partition.latest:
            self._check_time(partition, timestamp)
        if partition.writer is not sender:
            partition.written_by(sender)

    def _check_time(self, partition: OutputPartition, timestamp: int) -> None:
        now_ms = self._now_ms()
        topic = partition.topic
        partition.latest = topic.limits.latest(now_ms)
        if timestamp > partition.latest or partition.latest == ALWAYS_ASKED:
            try:
                topic.limits.check_time(topic.name, timestamp, now_ms)
            except RecordRefused:
                self._ask(topic.name)
                raise

    def _now_ms(self) -> int:
        return int(self._clock.wall() * 1000)

    def rows(self, topic: str, partition: int, sender: Sender = OUTSIDE) -> SendRows:
        out = self._out(topic, partition)
        out.changelog = True
        target = out.partitions[partition]

        def send(keys: Sequence[bytes], values: Sequence[bytes | None], timestamp: int) -> None:
            at_ms = out.limits.within(timestamp, self._now_ms())
            done = 0
            if target.writer is not sender:
                target.written_by(sender)
            while done < len(keys):
                if target.builder is None:
                    target.open_row(at_ms, keys[done], values[done])
                    done += 1
                assert target.builder is not None, "a first record opens a batch"
                done = target.builder.extend(at_ms, keys, values, done)
                if done < len(keys):
                    self._sending.close(target)

        return send

    def row_bytes_max(self, topic: str) -> int:
        """Return the most bytes that key and value of a changelog's row may have together."""
        out = self._sending.topic(topic)
        return out.limits.bytes_max - ROW_OVERHEAD if out.partitions else RECORD_BYTES_MAX

    def _out(self, topic: str, partition: int | None) -> OutputTopic:
        count = self._cluster.partitions(topic)
        check_place(topic, partition, count)
        out = self._sending.topic(topic)
        if len(out.partitions) != count:
            self._spread(out, count)
            if self._limits is not None:
                out.limit(self._limits.of(topic))
        return out

    def _spread(self, out: OutputTopic, count: int) -> None:
        """Send to `count` partitions from now on.

        The list changes in place, so that every holder of the list has the new partitions.
        """
        tps = [TopicPartition(out.name, n) for n in range(count)]
        out.partitions[:] = [self._sending.partition(tp) for tp in tps]
        out.known.clear()

    def _grown(self) -> None:
        """Partition keys by the new count as soon as the metadata have it.

        Sent records stay in their partitions.
        """
        for out in self._sending.topics.values():
            count = self._cluster.partitions(out.name)
            if out.partitions and count and count != len(out.partitions):
                before = len(out.partitions)
                LOG.info("Topic %s has %d partitions now, %d before.", out.name, count, before)
                self._spread(out, count)

    def _limited(self, topic: str, limits: TopicLimits) -> None:
        if topic in self._sending.topics:
            self._sending.topics[topic].limit(limits)

    def _ask(self, topic: str) -> None:
        if self._limits is not None:
            self._limits.ask(topic)

    def _opened(self, partition: OutputPartition) -> None:
        self._sending.opened(partition, self._clock.now())
        self._arm(self._linger_s)

    def full(self) -> bool:
        """Return whether more is unacknowledged than may be.

        Callers that can wait do so until `room` is called.
        """
        self._stalled = self._sending.full()
        return self._stalled

    def full_elsewhere(self) -> bool:
        """Return whether the producer is full, paused partitions left out.

        Tasks wait for paused partitions one by one (`crowding`).
        """
        self._stalled = self._sending.full(but_paused=True)
        return self._stalled

    def crowding(self) -> frozenset[TaskId]:
        """Return the tasks to feed no more.

        Too many records of these tasks are in partitions that take nothing.
        """
        return self._sending.crowding()

    # -- flushing

    async def flush(self) -> Mapping[TopicPartition, int]:
        """Wait until everything sent so far is acknowledged.

        Returns:
            Next offset of each partition, where one is known.
        """
        goals = self._sending.flush()
        self.push()
        while any(each.acknowledged < goal for each, goal in goals):
            self._moved.clear()
            await self._moved.wait()
        return self._sending.ends()

    async def acknowledged(self, partition: OutputPartition, number: int) -> int:
        """Wait until the broker has batch `number` of a partition, counted from 1.

        Returns:
            Offset behind the batch, -1 if unknown.
        """
        if partition.closed < number:
            self._sending.close(partition)
        self.push()
        while partition.acknowledged < number:
            self._moved.clear()
            await self._moved.wait()
        known = partition.acknowledged == number and partition.reworked != number
        return partition.end if known else UNKNOWN

    def refusal(self, tp: TopicPartition, code: int) -> RecordRefused:
        """Return the error for awaiting a record that a broker has refused."""
        what = f"record refused: {tp}: {name_of(code)}: "
        return RecordRefused(what + advice(tp, code, self._cluster.principal))

    def forget(self, task: TaskId) -> None:
        """Forget a task that has ended; its records may still be on their way."""
        if (sender := self._senders.pop(task, None)) is not None:
            for each in sender.whole:
                each.at_hand = None

    def current(self, sender: Sender) -> bool:
        """Return whether the sender is the present life of its task, not an earlier one."""
        if sender.task is None or sender.task not in self._senders:
            return False
        return sender in self._senders[sender.task].whole

    def await_last(self, task: TaskId) -> None:
        """Let the commit of a task that is on its way wait for the record that was sent last.

        The race without this: the task is sealed; a broker refuses one of its records; the dead
        letter is sent; the worker is killed before it leaves, and the task has committed.
        """
        last = self._last
        self._senders[task].sealed.append((last, last.closed + (last.builder is not None)))

    def sealed(self, task: TaskId) -> Goals:
        """Return the batches that must arrive before the task's work so far may be committed."""
        return self._senders[task].seal()

    def arrived(self, goals: Goals) -> bool:
        """Return whether all these batches are acknowledged."""
        return all(each.acknowledged >= goal for each, goal in goals)

    def ends(self) -> Mapping[TopicPartition, int]:
        """Return the next offset of each partition, where one is known."""
        return self._sending.ends()

    async def settle(self, goals: Mapping[TaskId, Goals], patience_s: float) -> frozenset[TaskId]:
        """Wait until all goals have arrived, at most `patience_s` seconds.

        Time without a lease does not count, because no batch may leave then.

        Returns:
            Tasks with goals that have not arrived.
        """
        left = self._flushed(goals)
        until = self._clock.now() + patience_s
        while True:
            while left and left[-1][0].acknowledged >= left[-1][1]:
                left.pop()
            now = self._clock.now()
            if not self._leased:
                until = now + patience_s
            if not left or now >= until:
                late = {task: goals[task] for task in goals if not self.arrived(goals[task])}
                if not late or now >= until:
                    return frozenset(late)
                left = self._flushed(late)  # dead letters of records refused meanwhile
            self._moved.clear()
            await wait(self._moved, until - now)

    def _flushed(self, goals: Mapping[TaskId, Goals]) -> list[tuple[OutputPartition, int]]:
        """Let all open batches leave; return the goals of all tasks."""
        self._sending.flush()
        self.push()
        return [each for task in goals for each in goals[task]]

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        """Drop the unacknowledged batches of changelogs that this worker no longer owns.

        The race: m1 seals 1_0, and the broker stands still; m1's session ends; m2 restores 1_0 and
        counts on; m1 is back in the group, and sends its batches. An old value would replace a
        newer one.
        """
        if self._sending.drop(tps):
            self._cut()
        self._moved.set()

    def follow_lease(self) -> bool:
        """Return whether the lease is held, and cut off batches in flight if it has just ended.

        Without the lease nothing leaves. Check before each sending, not only once a turn: a process
        that was stopped wakes up anywhere, its timers first.
        """
        held = self._held()
        if self._leased and not held:
            self._cut()
        self._leased = held
        return held

    async def finish(self) -> None:
        """Leave nothing behind that others would wait for, at the end of a worker."""

    def close(self) -> None:
        """Stop sending for good: cut off batches in flight, and request nothing more."""
        self._held = never
        self.follow_lease()

    def _cut(self) -> None:
        for connection in self._connections.values():
            connection.abort()
        self._connections.clear()

    # -- requests

    def push(self) -> None:
        """Send every batch that is due, to each broker."""
        if not self.follow_lease():
            return
        by_node, leaderless = self._sending.due(self._clock.now(), self._cluster.leader)
        for partition in leaderless:
            gone = self._cluster.error(partition.tp.topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._later(str(partition.tp), "" if gone else "no leader")
        for node, partitions in by_node.items():
            connection = self._connections.get(node)
            if connection is None or connection.closed:
                self._connect(node, partitions)
                continue
            for request in self._sending.requests(self._admitted(partitions)):
                self._request(connection, request)

    def _admitted(self, partitions: list[OutputPartition]) -> list[OutputPartition]:
        """Return the partitions to which batches may leave; a transaction has to know them."""
        return partitions

    def _over(self, tp: TopicPartition, code: int) -> None:
        """Hear that a broker refuses a batch because its transaction cannot be committed."""
        raise Bug(f"{tp}: {name_of(code)}, and this producer has no transactions")

    def _request(self, connection: Connection, request: list[Sent]) -> None:
        loop = asyncio.get_running_loop()
        overdue = loop.call_later(self._cluster.records_timeout_s, connection.abort)

        def answered(reply: Any) -> None:
            overdue.cancel()
            self._answered(request, reply)

        body = record_accumulator.body_of(request, self._numbers.transactional_id)
        connection.call(Api.PRODUCE, body, answered, self._versions)

    def _answered(self, request: list[Sent], reply: Any) -> None:
        answers = dict[TopicPartition, record_accumulator.Acknowledged]()
        if isinstance(reply, BrokerUnreachable):
            why = "" if GIVEN_UP in str(reply) else str(reply)
            self._later(f"{len(request)} partitions", why)
        else:
            answers = answers_of(reply)
        now = self._clock.now()
        now_ms = self._now_ms()
        for tp, code, again, records, over in self._sending.answered(now, request, answers, now_ms):
            if over:
                self._over(tp, code)
            elif again:
                self._later(str(tp), name_of(code))
            elif code in OF_RECORDS:
                self._ask(tp.topic)
            for record in records:
                self._refused(tp, code, record)
        self._moved.set()
        if self._stalled and not self.full():
            self._room()
        self.push()
        self._arm_again()

    # -- later tries

    def _later(self, where: str, why: str) -> None:
        """Schedule another try after a pause, with fresh metadata; without a lease do nothing.

        `why` is empty if there is nothing to warn of: a topic that is gone, which other code
        reports, or a connection that this worker has aborted.
        """
        if not self._leased:
            return
        now = self._clock.now()
        if why:
            self._warn(f"Sending again to {where}", why)
        if now - self._refreshed_at >= BACKOFF_S:
            self._refreshed_at = now
            self._spawn(self._refresh(), name="refresh for produce")
        self._arm(BACKOFF_S)

    def _warn(self, what: str, why: str) -> None:
        """Log a warning, but not for each try of many."""
        now = self._clock.now()
        if now - self._warned_at >= WARN_EVERY_S:
            self._warned_at = now
            LOG.warning("%s: %s.", what, why)

    async def _refresh(self) -> None:
        with suppress(BrokerUnreachable):  # the next try reports it
            await self._cluster.refresh()

    def _arm(self, after_s: float) -> None:
        """Schedule a push in `after_s` seconds, unless an earlier one is scheduled."""
        loop = asyncio.get_running_loop()
        at = loop.time() + after_s
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._rang)

    def _rang(self) -> None:
        self._timer = None
        self.push()
        self._arm_again()

    def _arm_again(self) -> None:
        """Schedule a push for batches still to be sent; without a lease the next turn does that."""
        next_at = self._sending.next_at()
        if next_at is not None and self._leased:
            left_s = next_at - self._clock.now()  # at most 0: a connection is opening
            self._arm(max(left_s if left_s > 0 else self._linger_s, TIMER_MIN_S))

    def _connect(self, node: int, partitions: list[OutputPartition]) -> None:
        if node not in self._opening:
            self._opening.add(node)
            self._spawn(self._open(node, partitions), name=f"produce connection to {node}")

    async def _open(self, node: int, partitions: list[OutputPartition]) -> None:
        try:
            self._connections[node] = await self._cluster.open(node, LANE)
        except BrokerUnreachable as error:
            self._sending.pause(self._clock.now(), partitions)
            self._later(f"broker {node}", str(error))
        finally:
            self._opening.discard(node)
        self.push()


def answers_of(reply: Any) -> dict[TopicPartition, record_accumulator.Acknowledged]:
    """Return the broker's answer for each partition, taken from a decoded reply."""
    return {
        TopicPartition(topic.name, part.index): record_accumulator.Acknowledged(
            part.error_code,
            part.base_offset,
            {e.batch_index: e.batch_index_error_message or "" for e in part.record_errors},
            part.error_message or "",
        )
        for topic in reply.responses
        for part in topic.partition_responses
    }


class TaskOutbox(Outbox):
    """Outbox of one life of a task; records sent here count as that task's."""

    def __init__(self, producer: Producer, sender: Sender) -> None:
        self._producer = producer
        self._sender = sender
        self.closes = producer.transactional

    def of_reader(self, operator: str, reaction: Any) -> Outbox:
        if reaction is None:
            return self
        return TaskOutbox(self._producer, self._sender.part(operator, reaction))

    def row_bytes_max(self, topic: str) -> int:
        return self._producer.row_bytes_max(topic)

    def to(self, topic: str, partition: int | None = None) -> Send:
        return self._producer.to(topic, partition, self._sender)

    def check(self, topic: str, partition: int | None = None) -> Send:
        return self._producer.check(topic, partition)

    def answer(self, delivery: Awaitable[Any]) -> Awaitable[Any]:
        return DoneFuture(delivery)

    def last_sent(self, topic: str, at_ms: int) -> Done:
        return self._producer.last_sent(topic, at_ms)

    def rows(self, topic: str, partition: int) -> SendRows:
        return self._producer.rows(topic, partition, self._sender)

    def bound(
        self, topic: str, keys: Encoders, values: Encoders, running: TaskContext, rare: SendValue
    ) -> SendValue:
        return self._producer.bound(topic, keys, values, running, rare, self._sender)
