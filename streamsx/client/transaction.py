"""Transactions of Kafka, through aiokafka's producer: all records are committed, or none.

aiokafka's builder builds the batches, which are handed over whole. That costs 0.5 us a record, and
aiokafka's `send` costs 3.3 us. Not here: offsets of a group within a transaction, the contents of
records.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]  # has no types
from aiokafka import errors as theirs

from streamsx.client.security import Security
from streamsx.errors import StateConflict, StreamsxError, WorldError
from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import ErrorCode, failure

BATCH_BYTES: Final = 128 << 10
OPEN_MS: Final = 300_000
"""Time-out of a transaction.

Records of a dead writer hold up readers this long, or until the next writer of the same name
begins.
"""
FENCED: Final = (
    theirs.ProducerFenced,
    theirs.InvalidProducerEpoch,
    theirs.InvalidProducerIdMapping,
)

Keyed = tuple[bytes | None, bytes | None, int]
"""Key, value, timestamp in ms."""
SendKeyed = Callable[[TopicPartition, Iterable[Keyed]], Awaitable[int]]
"""Function that sends at least one record, and returns the offset behind the last."""


@asynccontextmanager
async def transaction(bootstrap: str, security: Security, name: str) -> AsyncIterator[SendKeyed]:
    """Yield a function that sends within one transaction, committed at the end of the block.

    If the block raises, none of the records is committed. Beginning a transaction fences any other
    producer of this name, for good.

    Raises:
        StateConflict: another producer has fenced this one.
        WorldError: the brokers cannot be reached, or fail.
        StreamsxError: the broker refuses the request.
    """
    settings = {each: getattr(security, each) for each in security.__slots__}
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=name, max_batch_size=BATCH_BYTES,
        transaction_timeout_ms=OPEN_MS, **settings,
    )  # fmt: skip

    async def send(tp: TopicPartition, records: Iterable[Keyed]) -> int:
        batch = producer.create_batch()

        async def leave() -> int:
            place = await (await producer.send_batch(batch, tp.topic, partition=tp.partition))
            after: int = place.offset + batch.record_count()
            return after

        for key, value, at_ms in records:
            while batch.append(key=key, value=value, timestamp=at_ms) is None:
                await leave()
                batch = producer.create_batch()
        return await leave()

    try:
        try:
            await producer.start()
            async with producer.transaction():
                yield send
        finally:
            await producer.stop()
    except FENCED as error:
        raise StateConflict(
            f"two writers of one changelog: {name}: another one has begun since: stop one of them"
        ) from error
    except theirs.KafkaError as error:
        raise _ours(error, name) from error


def _ours(error: theirs.KafkaError, name: str) -> StreamsxError:
    code = getattr(error, "errno", -1)
    where = f"transaction {name}"
    if code in set(ErrorCode) and code != ErrorCode.UNKNOWN_SERVER_ERROR:
        return failure(code, where, str(error))
    return WorldError(f"{type(error).__name__}: {where}: {error}: try again")
