"""Clients of other makes beside the app: a transactional producer and readers of KIP-848.

The producer writes lines in transactions and commits its progress in them as an offset. The readers
form a group of the consumer protocol (KIP-848). All clients send bare requests, one by one.
If an answer does not come, a client gives up the connection and asks again. Now and then a client
dies or freezes, and comes back; each client draws from a stream of its own. `checks` judges the
records that they have seen.

Not here: how a log is fetched (readers look into it), topics of more than one name, other protocols
in the same group (`tests/kafka/conversations`).
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any

from streamsx.model import TopicPartition
from streamsx.protocol import wire
from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.record_batch import Builder
from streamsx.protocol.wire import Api
from streamsx.simulation.nodes import HOSTS, PORT
from streamsx.simulation.process import Process
from streamsx.simulation.scene import LINES

if TYPE_CHECKING:
    from streamsx.simulation.world import World

READERS = "readers"
PROGRESS = "progress"
"""Groups: that of the readers, and that with the number of the last transaction as offset."""
PATIENCE_S = 4.0
AGAIN_S = 0.3
TRIES = 60
BATCH_BYTES = 1 << 16
AT_ONCE = struct.pack("ii", 1, 0)
GIVES_UP_S = 1.0
SUFFERS = 0.03
"""Share of the acts of a client after which the client freezes or dies."""
BACK_S = FROZEN_S = (0.3, 3.0, 9.0)
PAUSES_S = (0.05, 0.05, 0.05, 0.5, 0.5, 0.5, 0.5, 14.0)
"""Pauses between the writes of a transaction; the last exceeds the transaction timeout."""
TRANSACTION_MS = 8000
WRITES = 4
"""Maximum number of writes in a transaction."""
MARKS = "tx"
"""Prefix of the words that transactions write."""
AGAIN = frozenset({
    E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS,
    E.CONCURRENT_TRANSACTIONS, E.NOT_LEADER_OR_FOLLOWER, E.NOT_ENOUGH_REPLICAS,
    E.REQUEST_TIMED_OUT, E.KAFKA_STORAGE_ERROR, E.UNKNOWN_TOPIC_OR_PARTITION,
    E.UNSTABLE_OFFSET_COMMIT,
})  # fmt: skip
"""Error codes after which another try may succeed."""
ELSEWHERE = frozenset({
    E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS,
})  # fmt: skip
"""Error codes of a node that has done nothing, because another one is asked for that."""
OUT = frozenset({E.UNKNOWN_MEMBER_ID, E.FENCED_MEMBER_EPOCH})


class ExternalClient:
    """Base of the clients: a machine with one process at a time."""

    pause_s = 1.0

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.rng = world.scheduler.stream(name)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._left_open: list[object] = []
        """Connections of killed processes: a writer collected early complains of its loop."""
        self.start()

    def start(self) -> None:
        self.process = Process(self.world.network, self.name)
        self.process.start(self._live)
        self._left_open.append(self._streams)
        self._streams = None
        self._node = 0

    async def act(self) -> None:
        """Act once.

        Raises:
            OSError: The act failed; the client begins anew after a pause.
        """
        raise NotImplementedError

    async def ask(self, node: int, api: Api, version: int, body: wire.Body) -> Any:
        """Send a request to a node and return the answer.

        Raises:
            OSError: The connection failed, or no answer came within `PATIENCE_S`.
        """
        if self._streams is None or node != self._node:
            self._hang_up()
        try:
            async with asyncio.timeout(PATIENCE_S):
                if self._streams is None:
                    self._node = node
                    address = HOSTS[node]
                    self._streams = await asyncio.open_connection(address, PORT)
                reader, writer = self._streams
                writer.write(wire.request_encoder(api, version)(1, body, self.name))
                size = int.from_bytes(await reader.readexactly(4))
                return wire.response_decoder(api, version)(await reader.readexactly(size))[1]
        except (OSError, EOFError) as error:
            self._hang_up()
            raise ConnectionError(f"{api.name}: {error!r}") from None

    async def insist(
        self, where: Callable[[], int], api: Api, version: int, body: wire.Body,
        code: Callable[[Any], int],
    ) -> Any:  # fmt: skip
        """Repeat a request until the answer is one that another try would not change.

        Raises:
            OSError: No such answer came in `TRIES` tries.
        """
        for _ in range(TRIES):
            with suppress(OSError):
                answer = await self.ask(where(), api, version, body)
                if code(answer) not in AGAIN:
                    return answer
            await asyncio.sleep(AGAIN_S)
        raise TimeoutError(api.name)

    async def _live(self) -> None:
        while True:
            try:
                await self.act()
            except OSError as error:
                self.say(f"begins anew: {error}")
            await asyncio.sleep(self.rng.random() * 2 * self.pause_s)
            if not self.world.healed and self.rng.random() < SUFFERS:
                self.world.after(0.0, self.rng.choice((self._freeze, self._die)))

    def say(self, what: str) -> None:
        self.world.say(self.name, what)

    def leads(self) -> int:
        return self.world.nodes.leader

    def coordinates(self) -> int:
        return self.world.nodes.coordinator

    def _hang_up(self) -> None:
        """Abort the connection and drop bytes that the kernel would still deliver.

        `client.connection` does the same. Seed 102, without this: a commit is given up; the next
        one is granted; the first one arrives.
        """
        if self._streams is not None:
            transport = self._streams[1].transport
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            transport.abort()
            self._streams = None

    def _freeze(self) -> None:
        self.say("freezes")
        self.process.freeze(self.rng.choice(FROZEN_S))

    def _die(self) -> None:
        self.say("dies")
        self.process.kill()
        self.world.after(self.rng.choice(BACK_S), self.start)


class Fence(ExternalClient):
    """Process with the transactional id of a worker: it begins once, and so fences the worker.

    One request that may have arrived is all. Seed 3081, without this: each try that the broker
    answers with CONCURRENT_TRANSACTIONS aborts the worker's newest transaction; the worker has been
    fenced three times in a minute, and ends.
    """

    def __init__(self, world: "World", transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.at = world.now
        super().__init__(world, f"fence {len(world.fences)}")

    async def _live(self) -> None:
        body = {
            "transactional_id": self.transactional_id, "transaction_timeout": TRANSACTION_MS,
            "producer_id": -1, "producer_epoch": -1,
        }  # fmt: skip
        code: int = E.NOT_COORDINATOR
        with suppress(OSError):
            while code in ELSEWHERE:
                answer = await self.ask(self.coordinates(), Api.INIT_PRODUCER_ID, 4, body)
                code = answer.error_code
                await asyncio.sleep(AGAIN_S)
        self._hang_up()


class TransactionFate(Enum):
    """Fate of a transaction, as known to the producer."""

    OPEN = "nobody has decided"
    COMMITTING = "it was asked to be committed"
    ABORTING = "it was asked to be aborted"
    COMMITTED = "it is"
    ABORTED = "it is not"
    UNSURE = "the producer died, or was fenced, over its answer, and has not looked yet"


HIDDEN = frozenset({TransactionFate.OPEN, TransactionFate.ABORTING, TransactionFate.ABORTED})
"""Fates of transactions that must not be visible."""


class Outdated(ConnectionError):
    """Error of a producer with an old epoch: its transaction was aborted."""


class Upstream(ExternalClient):
    """Transactional producer: each one has lines of a new word, and commits a number as offset.

    `modern`: use the protocol of KIP-890.
    """

    def __init__(self, world: "World", *, modern: bool) -> None:
        self.fates: dict[str, TransactionFate] = {}
        self.lines: dict[str, int] = {}
        self._modern = modern
        super().__init__(world, "upstream")

    def start(self) -> None:
        super().start()
        self._owner: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}
        self._word = next(reversed(self.fates), "")

    @property
    def quiet(self) -> bool:
        """Return whether no transaction is under way."""
        return self.fates.get(self._word) not in (
            TransactionFate.OPEN,
            TransactionFate.COMMITTING,
            TransactionFate.ABORTING,
        )

    def brought(self, counted: dict[str, int]) -> dict[str, int]:
        """Return the required count of each word; unsure words are required if counted."""
        sure = {word for word, fate in self.fates.items() if fate is TransactionFate.COMMITTED}
        maybe = {word for word, fate in self.fates.items() if fate is TransactionFate.UNSURE}
        return {word: self.lines[word] for word in sure | {w for w in maybe if counted.get(w)}}

    async def act(self) -> None:
        if self._owner is None:
            await self._begin()
        if self.fates:
            await self._look()
        if self.world.client.feeding:
            try:
                await self._transaction()
            except OSError:
                self._owner = None
                raise

    async def _begin(self) -> None:
        """Ask for a producer id and a new epoch.

        That aborts an open transaction. A commit that was asked for may stand.
        """
        body = {
            "transactional_id": self.name, "transaction_timeout": TRANSACTION_MS,
            "producer_id": -1, "producer_epoch": -1,
        }  # fmt: skip
        answer = await self.insist(self.coordinates, Api.INIT_PRODUCER_ID, 4, body, answered)
        if answer.error_code:
            raise ConnectionError(f"refused: {E(answer.error_code).name}")
        self._owner = (answer.producer_id, answer.producer_epoch)
        self._sequences = {}
        ended = {
            TransactionFate.OPEN: TransactionFate.ABORTED,
            TransactionFate.ABORTING: TransactionFate.ABORTED,
        }
        if not self.quiet:
            self._decided(ended.get(self.fates[self._word], TransactionFate.UNSURE))

    async def _look(self) -> None:
        """Check the committed offset, and decide an unsure transaction by it.

        The offset must be the number of the last committed transaction, or of the one whose commit
        was asked for without an answer.
        """
        asked = {"group_id": PROGRESS, "topics": [{"name": LINES, "partition_indexes": [0]}]}
        body = {"groups": [asked], "require_stable": True}
        answer = await self.insist(self.coordinates, Api.OFFSET_FETCH, 8, body, looked_up)
        if looked_up(answer):
            raise ConnectionError(f"refused: {E(looked_up(answer)).name}")
        if self.world.nodes.lost:
            return
        number = answer.groups[0].topics[0].partitions[0].committed_offset
        fates = list(self.fates.values())
        sure = max(
            (n for n, fate in enumerate(fates, 1) if fate is TransactionFate.COMMITTED), default=-1
        )
        unsure = fates[-1] is TransactionFate.UNSURE
        if number != sure and not (unsure and number == len(fates)):
            what = f"{PROGRESS} is at {number}, of {len(fates)} with {sure} committed last"
            self.world.scheduler.violate("TransactionsAreWholeOrNot", what)
        if unsure:
            self._decided(
                TransactionFate.COMMITTED if number == len(fates) else TransactionFate.ABORTED
            )

    def _decided(self, fate: TransactionFate) -> None:
        self.fates[self._word] = fate
        self.say(f"{self._word}: {fate.name}")

    async def _transaction(self) -> None:
        self._word = f"{MARKS}{len(self.fates)}"
        self.lines[self._word] = 0
        self._decided(TransactionFate.OPEN)
        acts = [self._write] * self.rng.randint(1, WRITES)
        acts.insert(self.rng.randint(0, len(acts)), self._progress)
        for act in acts:
            await act()
            await asyncio.sleep(self.rng.choice(PAUSES_S))
        commit = self.rng.random() < 0.6
        self._decided(TransactionFate.COMMITTING if commit else TransactionFate.ABORTING)
        try:
            await self._end(commit=commit)
        except Outdated:  # timed out before the end was asked for
            self._decided(TransactionFate.ABORTED)
            raise
        self._decided(TransactionFate.COMMITTED if commit else TransactionFate.ABORTED)

    def _about(self) -> dict[str, Any]:
        producer, epoch = self._owner or (-1, -1)
        return {"transactional_id": self.name, "producer_id": producer, "producer_epoch": epoch}

    async def _write(self) -> None:
        word = self._word
        partition = self.rng.randrange(self.world.scene.lines)
        if not self._modern:
            about = {f"v3_and_below_{name}": value for name, value in self._about().items()}
            topics = [{"name": LINES, "partitions": [partition]}]
            body = {**about, "v3_and_below_topics": topics}
            await self._granted(self.coordinates, Api.ADD_PARTITIONS_TO_TXN, 3, body, added)
        builder = Builder(BATCH_BYTES, transactional=True)
        count = self.rng.choice((1, 3))
        for _ in range(count):
            builder.append(int(self.process.clock.wall() * 1000), None, word.encode())
        sequence = self._sequences.get(partition, 0)
        data = {"index": partition, "records": builder.close(*(self._owner or (-1, -1)), sequence)}
        body = {
            "transactional_id": self.name, "acks": -1, "timeout": 1000,
            "topic_data": [{"name": LINES, "partition_data": [data]}],
        }  # fmt: skip
        await self._granted(self.leads, Api.PRODUCE, 12 if self._modern else 8, body, produced)
        self._sequences[partition] = sequence + count
        self.lines[word] += count

    async def _progress(self) -> None:
        """Commit the number of this transaction as an offset within the transaction."""
        if not self._modern:
            about = {**self._about(), "group_id": PROGRESS}
            await self._granted(self.coordinates, Api.ADD_OFFSETS_TO_TXN, 3, about, answered)
        part = {"partition_index": 0, "committed_offset": len(self.fates),
                "committed_leader_epoch": -1, "committed_metadata": None}  # fmt: skip
        body = {
            **self._about(), "group_id": PROGRESS, "generation_id": -1, "member_id": "",
            "group_instance_id": None, "topics": [{"name": LINES, "partitions": [part]}],
        }  # fmt: skip
        version = 5 if self._modern else 3
        await self._granted(self.coordinates, Api.TXN_OFFSET_COMMIT, version, body, staged)

    async def _end(self, *, commit: bool) -> None:
        body = {**self._about(), "committed": commit}
        version = 5 if self._modern else 3
        answer = await self._granted(self.coordinates, Api.END_TXN, version, body, answered)
        if self._modern:
            self._owner = (answer.producer_id, answer.producer_epoch)
            self._sequences = {}

    async def _granted(
        self, where: Callable[[], int], api: Api, version: int, body: wire.Body,
        code: Callable[[Any], int],
    ) -> Any:  # fmt: skip
        """Send a request and insist on a grant; return the answer.

        Raises:
            Outdated: The coordinator or the leader refused the request.
            OSError: No final answer came in `TRIES` tries.
        """
        answer = await self.insist(where, api, version, body, code)
        if code(answer) not in (E.NONE, E.DUPLICATE_SEQUENCE_NUMBER):
            raise Outdated(f"{api.name} of {self._word}: {E(code(answer)).name}")
        return answer


def answered(answer: Any) -> int:
    return int(answer.error_code)


def added(answer: Any) -> int:
    """Return the error code in an answer to AddPartitionsToTxn."""
    (topic,) = answer.results_by_topic_v3_and_below
    return int(topic.results_by_partition[0].partition_error_code)


def produced(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


def staged(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def looked_up(answer: Any) -> int:
    """Return the error code in an answer to OffsetFetch."""
    (group,) = answer.groups
    return int(group.error_code or group.topics[0].partitions[0].error_code)


class GroupReader(ExternalClient):
    """Member of the readers' group; `held`: the next offset of each partition read."""

    def __init__(self, world: "World", number: int) -> None:
        self._static = world.scene.is_static(number)
        super().__init__(world, f"reader{number}")

    def start(self) -> None:
        super().start()
        self.member_id = f"{self.name}-{self.process.life}"
        self._topic_id = b""
        self._heard = False
        self._out()

    def _out(self) -> None:
        self.epoch = 0
        self.held: dict[int, int] = {}
        self._wanted: set[int] = set()

    async def act(self) -> None:
        if not self._topic_id:
            await self._look_up()
        self._read()  # also partitions it has lost without knowing yet
        await self._commit(self.held)
        if await self._beat():
            await self._take_over()
        if self.epoch > 0 and not self.world.healed and self.rng.random() < SUFFERS:
            await self._leave()

    async def _look_up(self) -> None:
        body = {"topics": [{"name": LINES}], "allow_auto_topic_creation": False}
        answer = await self.ask(self.leads(), Api.METADATA, 12, body)
        self._topic_id = answer.topics[0].topic_id

    async def _beat(self) -> bool:
        """Send a heartbeat, and commit partitions before giving them up.

        After a lost answer the next heartbeat carries all fields, and so does its answer.

        Returns:
            True if the reader is in the group.
        """
        whole = self.epoch == 0 or not self._heard
        self._heard = False
        held = [{"topic_id": self._topic_id, "partitions": [*self.held]}]
        answer = await self._heartbeat(
            self.epoch,
            rebalance_timeout=6000 if whole else -1,
            subscribed_topic_names=[LINES] if whole else None,
            topic_partitions=held if self.held else [],
        )
        self._heard = True
        if answer.error_code in OUT:
            self.say(f"is out: {E(answer.error_code).name}")
            self._out()
        if answer.error_code:
            return False
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            self._wanted = {number for topic in topics for number in topic.partitions}
            lost = {number: at for number, at in self.held.items() if number not in self._wanted}
            if lost:  # rebalance callbacks take a while
                await asyncio.sleep(self.rng.random() * GIVES_UP_S)
                await self._commit(lost)
            self.held = {number: at for number, at in self.held.items() if number in self._wanted}
        self.epoch = answer.member_epoch
        return True

    async def _heartbeat(self, epoch: int, **about: Any) -> Any:
        body = {
            "group_id": READERS, "member_id": self.member_id, "member_epoch": epoch,
            "instance_id": self.name if self._static else None, "rack_id": None,
            "rebalance_timeout": -1, "subscribed_topic_names": None,
            "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": None,
            **about,
        }  # fmt: skip
        return await self.ask(self.coordinates(), Api.CONSUMER_GROUP_HEARTBEAT, 1, body)

    async def _take_over(self) -> None:
        """Take over new partitions at the offsets that their earlier readers have committed."""
        new = sorted(self._wanted - self.held.keys())
        if not new:
            return
        topics = [{"name": LINES, "partition_indexes": new}]
        asked = {"group_id": READERS, "member_id": self.member_id, "member_epoch": self.epoch}
        body = {"groups": [{**asked, "topics": topics}], "require_stable": False}
        answer = (await self.ask(self.coordinates(), Api.OFFSET_FETCH, 9, body)).groups[0]
        if not answer.error_code:
            for part in answer.topics[0].partitions:
                self.held[part.partition_index] = max(0, part.committed_offset)

    def _read(self) -> None:
        for number, at in self.held.items():
            end = self.world.end(TopicPartition(LINES, number))
            much = self.rng.randint(at, max(at, end))
            self.held[number] = much if self.world.client.feeding else max(at, end)

    async def _commit(self, held: dict[int, int]) -> None:
        """Commit offsets and ignore a refusal: a later heartbeat gives the reason."""
        if not held:
            return
        partitions = [
            {"partition_index": number, "committed_offset": at, "committed_leader_epoch": -1,
             "committed_metadata": ""}
            for number, at in sorted(held.items())
        ]  # fmt: skip
        body = {
            "group_id": READERS, "member_id": self.member_id,
            "generation_id_or_member_epoch": self.epoch,
            "group_instance_id": self.name if self._static else None,
            "topics": [{"name": LINES, "partitions": partitions}],
        }  # fmt: skip
        await self.ask(self.coordinates(), Api.OFFSET_COMMIT, 9, body)

    async def _leave(self) -> None:
        """Leave the group; a static reader may come back to its partitions."""
        epoch = -2 if self._static and self.rng.random() < 0.5 else -1
        await self._heartbeat(epoch)
        self.say(f"leaves with {epoch}")
        self._out()
