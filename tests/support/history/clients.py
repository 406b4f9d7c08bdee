"""Clients that do one kind of thing again and again, and write a journal.

Each is a process that may be killed, `python -m tests.support.history.clients JSON`, until SIGTERM.
They are librdkafka's, unmodified, and aiokafka's (`aio_clients`). A client that cannot continue (it
is fenced, or got an unknown error) ends with exit code 3 and prints why; another one may take its
place.
"""

import faulthandler
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event as Moment
from threading import Timer
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as At

from streamsx.model import TopicPartition
from tests.support.history.aio_clients import AioProducer, AioTransactionalProducer, CannotGoOn
from tests.support.history.client_arguments import ClientArguments
from tests.support.history.events import (
    Assign,
    Commit,
    Committed,
    End,
    Level,
    Phase,
    Poll,
    Row,
    Send,
    Source,
)
from tests.support.history.journal import Journal

EXIT_CANNOT_GO_ON = 3
CALL_S, STUCK_S, POLL_S = 2.0, 4.0, 0.1
SESSION_MS = 1500
BACK_MAX = 500
NEVER_SENT = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._PURGE_QUEUE, KafkaError._QUEUE_FULL}
FATAL: Any = (KafkaException, KafkaError, SystemError, CannotGoOn)
"""What confluent-kafka raises where it cannot go on: the second in callbacks, although its types do
not know that; the third from `flush` of a producer that has met a fatal error."""
QUIET = {"log_level": 2, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}


class Sender:
    """Producer, and the numbers of its values."""

    def __init__(self, given: ClientArguments, journal: Journal, **settings: Any) -> None:
        self._given, self._journal, self._values = given, journal, 0
        common = {"bootstrap.servers": given.bootstrap, "enable.idempotence": True, **QUIET}
        self.producer = Producer({**common, "linger.ms": 2, **settings})

    def send(
        self, tp: TopicPartition, txn: str | None = None, source: Source | None = None
    ) -> None:
        self._values += 1
        action = Send(tp, f"{self._given.name}:{self._values}", txn, source=source)
        over = self._journal.begin(action)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offset = message.offset()
                over(Phase.OK, replace(action, offset=None if (offset or 0) < 0 else offset))
            else:
                over(Phase.FAIL if error.code() in NEVER_SENT else Phase.INFO, action)

        try:
            value = action.value.encode()
            self.producer.produce(tp.topic, value, partition=tp.partition, on_delivery=delivered)
        except KafkaException:
            over(Phase.FAIL, action)  # it was not taken: its transaction cannot go on

    def transactions(self) -> None:
        """Initialise transactions; earlier producers of this identity are fenced when this
        returns.
        """
        persist(self.producer.init_transactions)

    def end(self, txn: str, *, commits: bool) -> bool:
        """End the transaction; return whether it is committed. One that cannot be is aborted.
        Raises KafkaException.
        """
        over = self._journal.begin(End(txn, commits))
        producer = self.producer
        try:
            persist(producer.commit_transaction if commits else producer.abort_transaction)
        except KafkaException as error:
            over(Phase.INFO, End(txn, commits))
            if not (commits and error.args[0].txn_requires_abort()):
                raise
            return self.end(txn, commits=False)
        over(Phase.OK, End(txn, commits))
        return commits


def persist(call: Callable[[float], Any]) -> None:
    """Repeat a call until it succeeds; a client that takes too long is killed. Raises
    KafkaException.
    """
    while True:
        try:
            call(CALL_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


class PlainProducer:
    """Producer of some records in random partitions, several under way at once."""

    def __init__(self, given: ClientArguments, journal: Journal, rng: random.Random) -> None:
        self._given, self._rng, self._pause = given, rng, Moment()
        self._sender = Sender(given, journal)

    def step(self) -> None:
        for _ in range(self._rng.randint(1, 10)):
            self._sender.send(self._rng.choice(self._given.tps(self._given.topic)))
        self._pause.wait(self._rng.uniform(0, 0.05))
        self._sender.producer.poll(0)

    def close(self) -> None:
        self._sender.producer.flush()


class TransactionalProducer:
    """Producer of one transaction after the other, of which it aborts some."""

    def __init__(self, given: ClientArguments, journal: Journal, rng: random.Random) -> None:
        self._given, self._rng, self._number = given, rng, 0
        timeout = {"transaction.timeout.ms": given.transaction_ms}
        self._sender = Sender(given, journal, **{"transactional.id": given.identity, **timeout})
        self._sender.transactions()

    def step(self) -> None:
        self._number += 1
        txn = f"{self._given.name}/{self._number}"
        self._sender.producer.begin_transaction()
        for _ in range(self._rng.randint(1, 6)):
            self._sender.send(self._rng.choice(self._given.tps(self._given.topic)), txn)
            self._sender.producer.poll(self._rng.uniform(0, 0.02))
        # What is aborted is there: librdkafka asks Kafka 4 for the end of nothing, which refuses.
        self._sender.producer.flush()
        self._sender.end(txn, commits=self._rng.random() < 0.75)

    def close(self) -> None:
        """End nothing: each step ends what it begins."""


class Reader:
    """Reader of all partitions, from the start or from where its arguments say."""

    level = Level.COMMITTED

    def __init__(self, given: ClientArguments, journal: Journal, rng: random.Random) -> None:
        self._journal, self._rng = journal, rng
        self._tps = [*given.tps(given.topic), *given.tps(given.made)]
        self._consumer = Consumer(consumer_settings(given, given.name, self.level))
        self.seek(dict.fromkeys(self._tps, 0))

    def seek(self, positions: dict[TopicPartition, int]) -> None:
        self.positions = positions
        self._journal.note(Assign(dict(positions)))
        self._consumer.assign([At(tp.topic, tp.partition, at) for tp, at in positions.items()])

    def step(self) -> None:
        if self._rng.random() < 0.01:
            back = self._rng.randint(0, BACK_MAX)
            self.seek({tp: max(0, at - back) for tp, at in self.positions.items()})
        rows = polled(self._consumer, self._rng.randint(1, 50))
        self.positions |= {row.tp: row.offset + 1 for row in rows}
        if rows:
            self._journal.note(Poll(self.level, rows))

    def close(self) -> None:
        self._consumer.close()


class UncommittedReader(Reader):
    """Reader that also sees records of open and aborted transactions."""

    level = Level.UNCOMMITTED


def polled(
    consumer: Consumer, most: int, ends: dict[TopicPartition, int] | None = None
) -> tuple[Row, ...]:
    """Yield records, after a while none; `ends`: partitions that were read to their end.

    Raises:
        KafkaException: an error that is not of the network.
    """
    rows: list[Row] = []
    while len(rows) < most:
        message = consumer.poll(0.0 if rows else POLL_S)
        if message is None:
            break
        tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
        offset, error = int(message.offset() or 0), message.error()
        if error is None:
            rows.append(Row(tp, offset, (message.value() or b"").decode()))
        elif error.code() == KafkaError._PARTITION_EOF and ends is not None:
            ends[tp] = offset
        elif not error.retriable():
            raise KafkaException(error)
    return tuple(rows)


def consumer_settings(given: ClientArguments, group: str, level: Level) -> dict[str, Any]:
    """Return settings of a consumer that gets an error for an unknown offset, and does not jump."""
    return {
        "bootstrap.servers": given.bootstrap, "group.id": group, "enable.auto.commit": False,
        "isolation.level": f"read_{level}", "auto.offset.reset": "error",
        "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 300,
        "fetch.wait.max.ms": 100, "fetch.min.bytes": 2000,
        **QUIET,
    }  # fmt: skip


class Member:
    """Member of a group: reads what it is assigned, and commits."""

    level = Level.UNCOMMITTED

    def __init__(self, given: ClientArguments, journal: Journal, rng: random.Random) -> None:
        self._given, self._journal, self._rng = given, journal, rng
        self.group = f"{given.topic}-{given.kind}"
        self.positions: dict[TopicPartition, int] = {}
        self._assignments, self._closes = 0, False
        self._consumer = Consumer(consumer_settings(given, self.group, self.level))
        self._consumer.subscribe([given.topic], on_assign=self._assigned, on_revoke=self._revoked)

    def step(self) -> None:
        if (rows := self.rows(20)) and self._rng.random() < 0.3:
            self._journal.note(Poll(self.level, rows))
            self._commit()
        elif rows:
            self._journal.note(Poll(self.level, rows))

    def rows(self, most: int) -> tuple[Row, ...]:
        """Return rows of one assignment: rows that were read before it changed are dropped."""
        before = self._assignments
        rows = polled(self._consumer, most)
        if self._assignments != before:
            self._resume()
            return ()
        self.positions |= {row.tp: row.offset + 1 for row in rows}
        return rows

    def _resume(self) -> None:
        """Continue from the committed positions, whatever was read since."""
        offsets = [At(tp.topic, tp.partition, at) for tp, at in self.positions.items()]
        self._consumer.assign(offsets)
        self._journal.note(Assign(dict(self.positions)))

    def committed(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offsets. Raises KafkaException."""
        asked = Committed(self.group, tuple(tps), {})
        over = self._journal.begin(asked)
        found = self._consumer.committed([At(*tp) for tp in tps], timeout=5 * CALL_S)
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        offsets = {tp: each.offset for tp, each in zip(tps, found, strict=True) if each.offset >= 0}
        over(Phase.OK, replace(asked, offsets=offsets))
        return offsets

    def _commit(self) -> None:
        action = Commit(self.group, dict(self.positions))
        over = self._journal.begin(action)
        offsets = [At(tp.topic, tp.partition, at) for tp, at in self.positions.items()]
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False) or ()
            whole = all(answer.error is None for answer in answers)
        except KafkaException:
            whole = False  # perhaps it was done
        over(Phase.OK if whole else Phase.INFO, action)

    def _assigned(self, consumer: Consumer, given: list[At]) -> None:
        self._assignments += 1
        if self._closes:
            return
        tps = [TopicPartition(at.topic, at.partition) for at in given]
        found = self.committed(tps)
        self.positions = {tp: found.get(tp, 0) for tp in tps}
        consumer.assign([At(tp.topic, tp.partition, at) for tp, at in self.positions.items()])
        self._journal.note(Assign(dict(self.positions)))

    def _revoked(self, consumer: Consumer, _: list[At]) -> None:
        self._assignments += 1
        self.positions = {}
        consumer.unassign()
        self._journal.note(Assign({}))

    def close(self) -> None:
        self._closes = True
        self._consumer.close()


class Copier(Member):
    """Copier of each record that it reads, exactly once: the transaction of the copies commits the
    offsets.
    """

    level = Level.COMMITTED

    def __init__(self, given: ClientArguments, journal: Journal, rng: random.Random) -> None:
        super().__init__(given, journal, rng)
        self._number = 0
        timeout = {"transaction.timeout.ms": given.transaction_ms}
        # Each process has an id of its own: the group's generation fences it (KIP-447).
        self._sender = Sender(given, journal, **{"transactional.id": given.name, **timeout})
        self._sender.transactions()

    def step(self) -> None:
        before = dict(self.positions)
        if not (rows := self.rows(10)):
            return
        self._number += 1
        txn = f"{self._given.name}/{self._number}"
        self._journal.note(Poll(self.level, rows, txn))
        self._sender.producer.begin_transaction()
        for row in rows:
            to = TopicPartition(self._given.made, row.tp.partition)
            self._sender.send(to, txn, Source(self.group, row.tp, row.offset))
        commits = self._rng.random() < 0.8 and self._commit_in(txn)
        if not self._sender.end(txn, commits=commits):
            self.positions = before
            self._resume()

    def _commit_in(self, txn: str) -> bool:
        """Commit in the transaction; return whether the client can continue."""
        action = Commit(self.group, dict(self.positions), txn)
        over = self._journal.begin(action)
        offsets = [At(tp.topic, tp.partition, at) for tp, at in self.positions.items()]
        send_offsets = self._sender.producer.send_offsets_to_transaction
        # With librdkafka 2.16 a call that loses its connection may never end, whatever its
        # time-out, on Apache Kafka too: then the process does.
        patience = Timer(STUCK_S, os._exit, [EXIT_CANNOT_GO_ON])
        patience.start()
        try:
            send_offsets(offsets, self._consumer.consumer_group_metadata(), CALL_S)
        except KafkaException as error:
            over(Phase.INFO, action)
            if not error.args[0].txn_requires_abort():
                raise
            return False
        finally:
            patience.cancel()
        over(Phase.OK, action)
        return True


class RunningClient(Protocol):
    """Client that does one thing at each step, and waits at most as long as that takes."""

    def step(self) -> None: ...

    def close(self) -> None: ...


KINDS: dict[str, Callable[[ClientArguments, Journal, random.Random], RunningClient]] = {
    "plain": PlainProducer,
    "transactional": TransactionalProducer,
    "reader": Reader,
    "uncommitted": UncommittedReader,
    "member": Member,
    "copier": Copier,
    "aio": AioProducer,
    "aio-transactional": AioTransactionalProducer,
}


def main(given: ClientArguments) -> int:
    """Run until SIGTERM, and end what was begun. SIGUSR1 prints the current step."""
    faulthandler.register(signal.SIGUSR1)
    told_to_stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told_to_stop.append(number))
    journal = Journal(Path(given.journal), given.name)
    try:
        client = KINDS[given.kind](given, journal, random.Random(given.seed))
        while not told_to_stop:
            client.step()
        client.close()
    except FATAL as error:
        sys.stderr.write(f"{given.name} cannot go on: {error!r}\n")
        return EXIT_CANNOT_GO_ON
    return 0


if __name__ == "__main__":
    sys.exit(main(ClientArguments(**json.loads(sys.argv[1]))))
