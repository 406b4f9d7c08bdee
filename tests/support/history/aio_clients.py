"""Producers of aiokafka that do one thing again and again, as those of `clients`.

aiokafka has other code for transactions, and orders and repeats its batches in other ways.
"""

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]  # has no types
from aiokafka.errors import KafkaError  # type: ignore[import-untyped]  # has no types

from streamsx.model import TopicPartition
from tests.support.history.client_arguments import ClientArguments
from tests.support.history.events import End, Phase, Send
from tests.support.history.journal import Journal

PATIENCE_S = 20.0


class CannotGoOn(Exception):
    """Call that failed, or that takes longer than any that ends well."""


class AioProducer:
    """Producer of some records in random partitions, several under way at once."""

    transactional = False

    def __init__(self, given: ClientArguments, journal: Journal, rng: random.Random) -> None:
        self._given, self._journal, self._rng, self._values = given, journal, rng, 0
        self._runner = asyncio.Runner()
        self._producer = self._do(self._started())

    def step(self) -> None:
        self._do(self._send_some(None))

    def close(self) -> None:
        self._do(self._producer.stop())
        self._runner.close()

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._runner.run(asyncio.wait_for(what, PATIENCE_S))
        except (KafkaError, TimeoutError) as error:
            raise CannotGoOn(repr(error)) from error

    async def _started(self) -> Any:
        own: dict[str, Any] = {}
        if self.transactional:
            own["transactional_id"] = self._given.identity
            own["transaction_timeout_ms"] = self._given.transaction_ms
        producer = AIOKafkaProducer(
            bootstrap_servers=self._given.bootstrap, enable_idempotence=True, linger_ms=2,
            retry_backoff_ms=50, **own,
        )  # fmt: skip
        await producer.start()
        return producer

    async def _send_some(self, txn: str | None) -> None:
        """Send some records, and wait until each of them is answered."""
        tps = self._given.tps(self._given.topic)
        count = self._rng.randint(1, 10)
        told = [await self._send(self._rng.choice(tps), txn) for _ in range(count)]
        await asyncio.gather(*told)
        await asyncio.sleep(self._rng.uniform(0, 0.05))

    async def _send(self, tp: TopicPartition, txn: str | None) -> asyncio.Future[Any]:
        """Send a record once all records before it are on their way."""
        self._values += 1
        action = Send(tp, f"{self._given.name}:{self._values}", txn)
        over = self._journal.begin(action)

        def told(sent: asyncio.Future[Any]) -> None:
            if sent.cancelled() or sent.exception() is not None:
                over(Phase.INFO, action)
            else:
                offset = sent.result().offset
                over(Phase.OK, replace(action, offset=offset if offset >= 0 else None))

        value = action.value.encode()
        sent: asyncio.Future[Any]
        sent = await self._producer.send(tp.topic, value, partition=tp.partition)
        sent.add_done_callback(told)
        return sent


class AioTransactionalProducer(AioProducer):
    """Producer of one transaction after the other, of which it aborts some."""

    transactional = True

    def __init__(self, given: ClientArguments, journal: Journal, rng: random.Random) -> None:
        super().__init__(given, journal, rng)
        self._number = 0

    def step(self) -> None:
        self._number += 1
        self._do(self._transact(f"{self._given.name}/{self._number}"))

    async def _transact(self, txn: str) -> None:
        await self._producer.begin_transaction()
        await self._send_some(txn)
        commits = self._rng.random() < 0.75
        over = self._journal.begin(End(txn, commits))
        producer = self._producer
        await (producer.commit_transaction() if commits else producer.abort_transaction())
        over(Phase.OK, End(txn, commits))
