"""Careful running of a task: what one record changes and sends is kept or undone by itself.

A task runs without any of this until a record fails. Then it goes back to its last commit, and the
next task (`rerun`) runs carefully: one record of one reader at a time is a unit. `begin` starts a
unit, `end` keeps its changes and sends its outputs, and `undo` drops both.

    begin    a reader takes a record, or a result leaves at a closing
    end      the reader is done with it: what was set is encoded, outputs leave, stores keep it
    undo     it failed: stores and waiting results are as before, outputs are gone

Outputs of records that the reader had done before the task went back have left already. They are
muted: not sent again.

Not here: when a task is careful (`task`), the rows of a store (`streamsx.state.careful`).
"""

from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from streamsx.errors import RecordRefused
from streamsx.model import Headers
from streamsx.processing.inbox import (
    UNKNOWN,
    Delivered,
    Done,
    Outbox,
    Send,
    SendRows,
    SendValue,
    TaskContext,
    UnroutedRecord,
    metadata_of,
    sent_to,
)
from streamsx.processing.waiting import WaitingResults
from streamsx.serde.codec import Encoders
from streamsx.state.cache import CachedStore

if TYPE_CHECKING:
    from streamsx.state.careful import Careful

CALM_RECORDS: Final = 10_000
"""Records without a failure that end the care."""


class HeldRecord:
    """Output that waits for the end of its record, and whose sender may wait for Kafka."""

    __slots__ = ("__weakref__", "_held", "_outbox", "_topic", "done")

    def __init__(self, outbox: "HeldOutbox", topic: str) -> None:
        self._outbox = outbox
        self._held = outbox.held
        self._topic = topic
        self.done: Done | None = None
        """Answer of the outbox below, once the record has left."""

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait until Kafka has the record. The record leaves for that, with those before it.

        The race without the look at the list: a job that record A has started awaits its send; A
        has failed by then, and B is at hand; the outputs of B leave, and B fails.
        """
        if self.done is None and self._held is self._outbox.held:
            self._outbox.release()
        if self.done is None:
            raise RecordRefused(f"record not sent: topic {self._topic}: its source record failed")
        return self.done.result().__await__()


HeldOutput = tuple[Send, Send, bytes | None, bytes | None, int, Headers | None, bytes | None]
"""Sender of an output, its check, and the arguments of both. Written out: a call with a star takes
0.2 us more."""


class HeldOutbox(Outbox):
    """Outbox that keeps the outputs of one record until its end. `muted`: they have left already.

    `whole`: an output counts with its transaction alone, so a sender that waits for Kafka does not
    let it leave before its record has succeeded. A topic's refusal of a record is found at the end,
    where the source record fails.
    """

    def __init__(self, below: Outbox, *, whole: bool = False) -> None:
        self.below = below
        self.closes = below.closes
        self._whole = whole
        self.muted = False
        self.held: list[HeldOutput] = []
        self._asked: dict[int, tuple[ref[HeldRecord], str, int]] = {}
        """Records whose sender may wait for Kafka, by their places in `held`: while it has them."""

    def of_reader(self, operator: str, reaction: Any) -> Outbox:
        below = self.below.of_reader(operator, reaction)
        return self if below is self.below else HeldPart(self, below)

    def to(self, topic: str, partition: int | None = None, below: Outbox | None = None) -> Send:
        """Return the sender of a topic. `below` sends at the end, in place of the task's outbox."""
        send = (below or self.below).to(topic, partition)
        check = self.below.check(topic, partition)

        def hold(
            key: bytes | None,
            value: bytes | None,
            at_ms: int,
            headers: Headers | None,
            by: bytes | None = None,
        ) -> None:
            if not self.muted:
                self.held.append((send, check, key, value, at_ms, headers, by))

        return hold

    def bound(
        self,
        topic: str,
        keys: Encoders,
        values: Encoders,
        running: TaskContext,
        rare: SendValue,
        below: Outbox | None = None,
    ) -> SendValue:
        """Return a sender in one frame, for outputs that count with their transaction alone.

        A record of an agent with a table and an output takes 19 us of a worker in care so, and 27
        by `rare`.
        """
        if not self._whole:
            return rare
        below = below or self.below
        leave = below.to(topic)
        check = self.below.check(topic)
        inbox = running.inbox
        turn = running.turn
        done = below.answer(Delivered(metadata_of(topic, UNKNOWN, UNKNOWN, UNKNOWN)))

        def send(*, key: Any = None, value: Any = None, **other: Any) -> Awaitable[Any]:
            batch = inbox.batch
            if other or batch is None or not turn._is_owned():  # noqa: SLF001  # private in RLock
                return rare(key=key, value=value, **other)
            if inbox.units is None:  # the care has ended, and the caller has kept the function
                return rare(key=key, value=value)
            raw = keys[type(key)](key)
            data = values[type(value)](value)
            if not self.muted:
                at_ms = batch.timestamps[inbox.index]
                self.held.append((leave, check, raw, data, at_ms, None, None))
            return done

        return send

    def rows(self, topic: str, partition: int) -> SendRows:
        return self.below.rows(topic, partition)

    def row_bytes_max(self, topic: str) -> int:
        return self.below.row_bytes_max(topic)

    def last_sent(self, topic: str, at_ms: int) -> Done:
        if self.muted or self._whole or not self.held:
            return sent_to(topic, at_ms)
        made = HeldRecord(self, topic)
        self._asked[len(self.held) - 1] = ref(made), topic, at_ms
        return Done(made)

    def send_unrouted(self, record: UnroutedRecord, below: Outbox | None = None) -> Done:
        """Hold a record whose topic is looked up, as an output of the record at hand.

        The race without this: record A sends to an unknown topic, and ends; B begins; the topic is
        found, and A's output is held with those of B; B fails, and the output is gone.
        """
        if self.muted:
            return sent_to(record.topic, record.at_ms)
        sender = below or self.below
        made = HeldRecord(self, record.topic)

        def leave(*_: Any) -> None:
            made.done = record.leave(sender)

        def check(*_: Any) -> None:
            record.check(sender)

        self.held.append((leave, check, None, None, record.at_ms, None, None))
        return sent_to(record.topic, record.at_ms) if self._whole else Done(made)

    def release(self) -> None:
        """Send what is held, in order; nothing of it if a topic refuses a part."""
        held = self.held
        if len(held) > 1:
            for _, check, key, value, at_ms, headers, by in held:
                check(key, value, at_ms, headers, by)
        self.held = []
        if self._asked:
            self._release_asked(held)
            return
        for send, _, key, value, at_ms, headers, by in held:
            send(key, value, at_ms, headers, by)

    def _release_asked(self, held: list[HeldOutput]) -> None:
        """Send records of which some have a sender who may wait for Kafka."""
        asked = self._asked
        self._asked = {}
        for place, (send, _, key, value, at_ms, headers, by) in enumerate(held):
            send(key, value, at_ms, headers, by)
            if place in asked:
                made, topic, sent_at = asked[place]
                if (record := made()) is not None:
                    record.done = self.below.last_sent(topic, sent_at)

    def drop(self) -> None:
        """Drop what is held."""
        if self.held:
            self.take_out()

    def take_out(self) -> Any:
        """Take out what is held, and return it."""
        held = self.held, self._asked
        self.held = []
        self._asked = {}
        return held

    def put_in(self, held: Any) -> None:
        """Go on with what `take_out` has returned."""
        self.held, self._asked = held


class HeldPart(Outbox):
    """Outbox of one reader, whose outputs are held with those of the others.

    Args:
        held: holds the outputs.
        below: sends those of this reader.
    """

    def __init__(self, held: HeldOutbox, below: Outbox) -> None:
        self._held = held
        self._below = below
        self.closes = below.closes

    def to(self, topic: str, partition: int | None = None) -> Send:
        return self._held.to(topic, partition, self._below)

    def bound(
        self, topic: str, keys: Encoders, values: Encoders, running: TaskContext, rare: SendValue
    ) -> SendValue:
        return self._held.bound(topic, keys, values, running, rare, self._below)

    def rows(self, topic: str, partition: int) -> SendRows:
        return self._held.rows(topic, partition)

    def row_bytes_max(self, topic: str) -> int:
        return self._held.row_bytes_max(topic)

    def last_sent(self, topic: str, at_ms: int) -> Done:
        return self._held.last_sent(topic, at_ms)

    def send_unrouted(self, record: UnroutedRecord) -> Done:
        return self._held.send_unrouted(record, self._below)


class Care:
    """Care of a task: keeps or undoes each record by itself.

    `reached`: per topic, the offset below which the outputs of each reader have left. `shares`:
    whether one record's objects get into several units, such as its value into several branches.
    Results that wait for a commit may share objects with rows too.
    """

    def __init__(
        self,
        stores: Collection[CachedStore],
        pending: MutableMapping[int, dict[Any, Any]],
        outbox: Outbox,
        reached: Mapping[str, Mapping[str, int]],
        *,
        whole: bool = False,
        shares: bool = False,
    ) -> None:
        self._stores = stores
        self._shares = shares
        self._pending = pending
        self.outbox = HeldOutbox(outbox, whole=whole)
        self._reached = reached
        self.calm = 0
        """Records since the last failure."""
        self.touched: list[Careful] = []
        """Changed rows of the stores that the unit has changed or read."""
        for store in stores:
            store.touched = self.touched

    def reached(self, topic: str, reader: str) -> int:
        """Return the offset below which a reader's outputs have left."""
        return self._reached.get(topic, {}).get(reader, 0)

    def begin(self, *, muted: bool) -> None:
        """Begin a unit. What has changed outside of units stays."""
        if self.touched:
            self._keep()
        self.outbox.muted = muted

    def end(self) -> None:
        """Encode the changes of the unit, send its outputs, then keep the changes.

        Raises:
            Exception: a value cannot be encoded, or a topic refuses an output; the unit can still
                be undone.
        """
        touched = self.touched
        alone = len(touched) == 1 and not (self._shares or self._pending)
        for rows in touched:
            rows.encode(alone=alone)
        outbox = self.outbox
        if outbox.held:
            outbox.release()
        outbox.muted = False
        for rows in touched:
            rows.keep()
        touched.clear()
        if self._pending:
            self._keep_results()

    def undo(self) -> None:
        """Undo the unit, because its record has failed."""
        self.calm = 0
        self.outbox.drop()
        self.outbox.muted = False
        for rows in self.touched:
            rows.store.undo()
        self.touched.clear()
        for results in self._pending.values():
            if isinstance(results, WaitingResults):
                results.undo()

    def interrupt(self, others: Callable[[], None], *, waits: bool) -> None:
        """Run other units at a seal. `waits`: whether a body waits in the middle of its own.

        The seals that follow leave that one out.
        """
        for store in self._stores:
            store.record_open = waits
        if not waits:
            others()
            return
        aside = self.outbox
        held = aside.take_out()
        own = [store.take_out() for store in self._stores]
        muted = aside.muted
        aside.muted = False
        others()
        for store, rows in zip(self._stores, own, strict=True):
            store.put_in(rows)
        aside.put_in(held)
        aside.muted = muted

    def _keep(self) -> None:
        for rows in self.touched:
            rows.keep()
        self.touched.clear()
        self._keep_results()

    def _keep_results(self) -> None:
        for results in self._pending.values():
            if isinstance(results, WaitingResults):
                results.keep()
