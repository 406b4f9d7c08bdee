"""Topics whose names are known only from a record: looked up then, and created if that is allowed.

A router sends to `app.topic(name)` with a name from a record. The first record for a topic waits
here until the metadata contain the topic; its body waits too, and other tasks go on. Whether the
body awaits `send` or not, its task receives no more chunks meanwhile, and its position stays at
that record. So a record that waits here is not committed. In a careful task it leaves or is dropped
with the record that has sent it (`UnroutedRecord`).

A topic that is looked up while the broker is away is looked up again until there is an answer, like
every other send.

Not here: topics that an app names before its start (`app_topics`), records for a known topic.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any

from streamsx.client import admin
from streamsx.client.admin import NewTopic
from streamsx.client.cluster import Cluster
from streamsx.config import Config
from streamsx.errors import BrokerUnreachable, StreamsxError, UsageError, WorldError
from streamsx.journal import LOG
from streamsx.log_sentences import counted
from streamsx.processing.inbox import (
    RUNNING,
    Done,
    Host,
    Outbox,
    RecordMetadata,
    SentRecord,
    UnroutedRecord,
    sent_to,
)
from streamsx.protocol.error_codes import RETRIABLE, ErrorCode, failure
from streamsx.topology.internal_topics import TopicSpec

PAUSE_S = 0.2
"""Pause after a lookup without an answer."""
ASKED_MAX = 10
"""Number of retriable errors until the topic counts as one without a leader for longer. Then the
record goes into a batch that waits for a leader."""
NOT_AWAITED = (
    "A record was not sent: %s. Nothing awaited the send: await it, and the record that sends it "
    "fails in its place."
)
CREATED = "Created topic %s with %s."


class LateSend(Done):
    """Record that waits for the lookup of its topic; awaiting this object waits for the lookup.

    A failure that no code awaits is logged.
    """

    def __init__(self, job: asyncio.Task[Awaitable[RecordMetadata]]) -> None:
        super().__init__(job)
        self._job = job
        self._awaited = False
        job.add_done_callback(self._over)

    def __await__(self) -> Generator[Any, None, Any]:
        self._awaited = True
        return self._job.__await__()

    def _over(self, job: asyncio.Task[Any]) -> None:
        if not job.cancelled() and job.exception() is not None and not self._awaited:
            LOG.error(NOT_AWAITED, job.exception())

    # -- as a future

    def done(self) -> bool:
        return self._job.done()

    def cancelled(self) -> bool:
        return self._job.cancelled()

    def cancel(self, msg: Any = None) -> bool:
        """Give up waiting; return False if the record is sent already."""
        return self._job.cancel(msg)

    def result(self) -> Awaitable[RecordMetadata]:
        self._awaited = True
        return self._job.result()

    def exception(self) -> BaseException | None:
        self._awaited = True
        return self._job.exception()

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Any = None) -> None:
        self._job.add_done_callback(lambda _: callback(self), context=context)


class LateTopics:
    """Lookups of topics while a worker runs.

    `arrived` is called for each waiting record that is sent or has failed, because a task may go
    on.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: Config,
        spawn: Callable[..., object],
        arrived: Callable[[], object],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._spawn = spawn
        self._arrived = arrived
        self._looking: dict[str, asyncio.Future[None]] = {}

    def send(
        self, outbox: Outbox | Host, spec: TopicSpec, partition: int | None, record: SentRecord
    ) -> Done:
        """Send a record as soon as its topic is found.

        The awaited result raises UsageError for a topic that may not be created, with the broker's
        error.
        """
        running = RUNNING.get(None)
        inbox = None if running is None or running.inbox.batch is None else running.inbox
        release = None if inbox is None else inbox.hold()
        found = self._found(spec)
        late = UnroutedRecord(spec.name, partition, record)
        held = sent_to(spec.name, record.timestamp)
        if running is None:
            late.leave(outbox)
        else:
            held = running.outbox.send_unrouted(late)

        async def later() -> Awaitable[RecordMetadata]:
            await asyncio.shield(found)
            if inbox is not None and inbox.over:  # the next life of the task sends it
                return sent_to(spec.name, record.timestamp).result()
            return (late.found() or held).result()

        def over(_: object) -> None:
            if release is not None:
                release()
            self._arrived()

        job = asyncio.get_running_loop().create_task(later(), name=f"send to {spec.name}")
        job.add_done_callback(over)  # `later` does not even begin if it is cancelled at once
        return LateSend(job)

    def _found(self, spec: TopicSpec) -> asyncio.Future[None]:
        """Return the future of the only lookup of a topic."""
        found = self._looking.get(spec.name)
        if found is None:
            found = self._looking[spec.name] = asyncio.get_running_loop().create_future()
            self._spawn(self._look(spec, found), name=f"look up {spec.name}")
        return found

    async def _look(self, spec: TopicSpec, found: asyncio.Future[None]) -> None:
        """Look up a topic; a failure reaches only the waiting senders."""
        try:
            await self._find(spec)
        except UsageError as error:
            found.set_exception(error)
            found.exception()  # marks the error as retrieved; the senders raise it
        else:
            found.set_result(None)
        finally:
            del self._looking[spec.name]

    async def _find(self, spec: TopicSpec) -> None:
        """Look up a topic, create it if that is allowed, and follow its metadata."""
        asked = 0
        while asked < ASKED_MAX and (code := await self._asked(spec.name)) != ErrorCode.NONE:
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                await self._make(spec)
            elif code in RETRIABLE:
                asked += 1
            else:
                raise UsageError(str(failure(code, f"topic {spec.name}")))
            await asyncio.sleep(PAUSE_S)
        while not self._cluster.partitions(spec.name):
            with suppress(BrokerUnreachable):
                await self._cluster.follow([spec.name])
                await self._cluster.refresh()
            if not self._cluster.partitions(spec.name):
                await asyncio.sleep(PAUSE_S)

    async def _asked(self, topic: str) -> int:
        """Return the broker's error code for a topic."""
        while True:
            try:
                answer = await self._cluster.metadata([topic])
            except BrokerUnreachable as error:
                LOG.info("Topic %s is looked up again: %s.", topic, error)
                await asyncio.sleep(PAUSE_S)
            else:
                code: int = answer.topics[0].error_code
                return code

    async def _make(self, spec: TopicSpec) -> None:
        if not self._config.topic_allow_declare:
            raise UsageError(
                f"unknown topic: {spec.name}: it does not exist, and the app may not create it: "
                "create it, or set topic_allow_declare"
            )
        partitions = spec.partitions or self._config.topic_partitions
        made = NewTopic(spec.name, partitions, spec.replication, spec.config)
        try:
            await admin.create_topics(self._cluster, [made])
        except WorldError as error:  # the lookup is repeated
            LOG.warning("Topic %s is not created yet, and is tried again: %s.", spec.name, error)
            return
        except StreamsxError as error:
            raise UsageError(f"topic not created: {spec.name}: {error}") from error
        LOG.info(CREATED, spec.name, counted(partitions, "partition"))
