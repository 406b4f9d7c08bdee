"""Records that are all there or none: Kafka's transactions, through aiokafka's producer.

Batches are built by its builder and handed over whole, which costs half a microsecond a record
where `send` costs 3.3. Not here: offsets of a group within a transaction, what is sent.
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
"""What a dead writer has left holds up its readers so long, or until the next of its name."""
FENCED: Final = (
    theirs.ProducerFenced,
    theirs.InvalidProducerEpoch,
    theirs.InvalidProducerIdMapping,
)

Keyed = tuple[bytes | None, bytes | None, int]
"""Key, value, timestamp."""
SendKeyed = Callable[[TopicPartition, Iterable[Keyed]], Awaitable[int]]
"""Gives the offset behind the last one, of at least one."""


@asynccontextmanager
async def transaction(bootstrap: str, security: Security, name: str) -> AsyncIterator[SendKeyed]:
    """Committed at the end of this, and nothing of it is there if something is raised. To begin one
    fences whoever else has its name, for good.

    Raises StateConflict for who is fenced, WorldError, and what the broker refuses.
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
    code, where = getattr(error, "errno", -1), f"transaction {name}"
    if code in set(ErrorCode) and code != ErrorCode.UNKNOWN_SERVER_ERROR:
        return failure(code, where, str(error))
    return WorldError(f"{type(error).__name__}: {where}: {error}: try again")
