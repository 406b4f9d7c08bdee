"""Transaction of its own for each writer of a name: all records are committed, or none.

A writer that fails asks for the abort (EndTxn), which fences nobody. The race: a late attempt of a
task writes; the next attempt begins and fences it; the late one fails. An InitProducerId, with
which a worker aborts, would fence the next attempt: Kafka does not compare epochs while a
transaction is open.

Not here: offsets of a group within a transaction, the contents of records, a second transaction of
one writer (`transactional_producer`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import groupby, islice
from operator import itemgetter
from typing import Final

from streamsx.client.cluster import Cluster
from streamsx.client.range_reader import BUFFER_BYTES, STALL_S, within
from streamsx.client.record_accumulator import BACKOFF_S
from streamsx.client.rejected_batch import RefusedRecord, refusal_message
from streamsx.client.transactional_id import VERDICTS, TransactionalId, TransactionVerdict
from streamsx.client.transactional_producer import UNAUTHORIZED, TransactionalProducer
from streamsx.clock import SystemClock
from streamsx.errors import StateConflict, StreamsxError, WorldError, first_of
from streamsx.journal import LOG
from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import ErrorCode, failure
from streamsx.protocol.wire import Api

OPEN_S: Final = 300.0
"""Time-out of a transaction.

Records of a dead writer hold up readers this long, or until the next writer of the same name
begins.
"""
ABORT_S: Final = 5.0
"""Time in which brokers have to take an abort."""
CHUNK_ROWS: Final = 1000
"""Rows between two checks of how much is not acknowledged."""
ADVICE: Final[dict[int, str]] = {
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "the brokers refuse a transaction of {timeout_s:g} s: raise their "
        "transaction.max.timeout.ms"
    ),
    UNAUTHORIZED: (
        "let {principal} write with this transactional id (ACL Write and Describe on "
        "TransactionalId)"
    ),
    ErrorCode.UNSUPPORTED_VERSION: "the brokers do not support transactions",
}
"""Remedy for each code with which a coordinator denies a transactional id."""

LATER: Final = (TransactionVerdict.AGAIN, TransactionVerdict.SOON)

Keyed = tuple[bytes, bytes | None, int]
"""Key, value, timestamp in ms."""
SendKeyed = Callable[[TopicPartition, Iterable[Keyed]], Awaitable[int]]
"""Function that sends at least one record, and returns the offset behind the last."""


class SingleTransaction(TransactionalProducer):
    """Producer of one transaction; the first error ends it."""

    remedies: Mapping[int, str] = ADVICE
    _ended = False
    """Whether the brokers have ended the transaction."""

    def is_over(self, code: int, where: str) -> None:
        self._ended = True
        name = self._id.transactional_id
        fenced = VERDICTS.get(code) is TransactionVerdict.FENCED
        if fenced or code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            self._fails(
                StateConflict(
                    f"two writers of one changelog: {name}: another one has begun since, or this "
                    f"one took longer than {OPEN_S:g} s: stop one of them"
                )
            )
        else:
            self._fails(failure(code, f"transaction {name}", f"{where}: try again"))

    async def send(self, tp: TopicPartition, records: Iterable[Keyed]) -> int:
        """Send records, wait until they have arrived, and return the offset behind the last."""
        await self._cluster.follow([tp.topic])
        what = f"changelog cannot be written: {tp}"
        push = self.rows(*tp)
        left = iter(records)
        while some := list(islice(left, CHUNK_ROWS)):
            for at_ms, run in groupby(some, itemgetter(2)):
                keys, values, _ = zip(*run, strict=True)
                push(keys, values, at_ms)
            if self.full():
                await within(self.flush(), what)
        ends = await within(self.flush(), what)
        if tp not in ends:
            raise WorldError(f"offset unknown: {tp}: the broker did not return it: try again")
        return ends[tp]

    async def commit(self) -> None:
        """Commit what was sent; after a refusal return, because `fails` was called."""
        await self.settle({}, STALL_S)
        if self._id.opened:
            await self.end()

    async def give_up(self) -> None:
        """Abort what was sent; brokers that do not answer abort it after its time-out.

        Batches arrive first. In version 1 of the protocol one that arrives behind the abort would
        begin a transaction that nobody ends.
        """
        if not self._id.opened or self._ended:
            return
        with suppress(StreamsxError, TimeoutError):
            async with asyncio.timeout(ABORT_S):
                await self.flush()
                await self._ask_for_abort()

    async def _ask_for_abort(self) -> None:
        """Ask until the coordinator answers; the reason of a refusal does not matter."""
        while True:
            reply = await self._tried(Api.END_TXN, self._id.abort_request())
            if reply is not None and VERDICTS.get(reply.error_code) not in LATER:
                return
            await asyncio.sleep(BACKOFF_S)


@asynccontextmanager
async def transaction(cluster: Cluster, name: str) -> AsyncIterator[SendKeyed]:
    """Yield a function that sends within one transaction, committed at the end of the block.

    If the block raises, none of the records is committed. Beginning a transaction fences any other
    producer of this name, for good.

    Raises:
        StateConflict: another producer has fenced this one.
        WorldError: the brokers cannot be reached, or fail.
        StreamsxError: the broker refuses the request.
    """

    async def end(error: StreamsxError) -> None:
        raise error

    def fails(error: StreamsxError) -> None:
        jobs.create_task(end(error))

    def refused(tp: TopicPartition, code: int, record: RefusedRecord) -> None:
        told = refusal_message(tp, code, record, cluster.principal)
        fails(failure(code, f"transaction {name}", told))

    where = f"transaction {name}"
    try:
        async with asyncio.TaskGroup() as jobs:
            producer = SingleTransaction(
                cluster, SystemClock(), jobs.create_task, refused,
                linger_s=0.0, buffer_bytes=BUFFER_BYTES,
                transactional_id=TransactionalId(name, OPEN_S), over=LOG.warning, fails=fails,
            )  # fmt: skip
            try:
                await within(producer.start(), where)
                yield producer.send
                await within(producer.commit(), where)
            except BaseException:
                await producer.give_up()
                raise
            finally:
                producer.close()  # a late push would spawn into an ended group
    except BaseExceptionGroup as group:
        raise first_of(group) from None
