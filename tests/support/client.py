"""Blocking client for tests: topics, records in and out, offsets; of one broker or of several.

It survives restarts of brokers and moves of leaders: a request that fails is sent again for a
while. This is safe, because each of them may be sent twice: records are sent with the idempotence
of Kafka's own producers.

Not here: joining groups (`streamsx.group`), speed.
"""

import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from threading import Event as Moment
from typing import Any, NamedTuple, TypeVar

from streamsx.clock import Clock, SystemClock
from streamsx.errors import BrokerUnreachable
from streamsx.model import Headers, TopicPartition
from streamsx.protocol.compiler import Malformed
from streamsx.protocol.error_codes import RETRIABLE, ErrorCode, failure
from streamsx.protocol.record_batch import NO_HEADERS, Builder, columns, commits, scan
from streamsx.protocol.wire import Api, Body
from tests.support.apache_kafka import converse

PATIENCE_S = 30.0
ANSWER_S = 10.0
AGAIN_S = 0.05
BATCH_BYTES = 900_000
FETCH_BYTES = 4 << 20
EARLIEST, LATEST = -2, -1
UNCOMMITTED, COMMITTED = 0, 1
GROUPS, TRANSACTIONS = 0, 1
"""Kinds of coordinators, as FindCoordinator names them."""
BROKERS_DEFAULT = -1

T = TypeVar("T")
Address = tuple[str, int]


class Record(NamedTuple):
    """Record that was read; `timestamp` in ms."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers = NO_HEADERS


class Transaction(NamedTuple):
    """Transaction that has ended, as one partition holds it.

    Its records include those that a compaction removed. `producer`: id and epoch of the producer
    that ended it.
    """

    records: int
    committed: bool
    producer: tuple[int, int]


class Client:
    """Client of a cluster, for one thread."""

    def __init__(self, bootstrap: str, clock: Clock | None = None) -> None:
        """Prepare a client. `bootstrap`: HOST:PORT[,HOST:PORT]."""
        given = (address.rpartition(":") for address in bootstrap.split(","))
        self._bootstrap: deque[Address] = deque((host, int(port)) for host, _, port in given)
        self._clock = clock or SystemClock()
        self._sockets: dict[Address, socket.socket] = {}
        self._leaders: dict[TopicPartition, Address] = {}
        self._moment = Moment()
        self._producer_id = -1
        self._sequences: dict[TopicPartition, int] = {}

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    # -- topics

    def create(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic, and wait until it can be written."""
        said = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        topic = {
            "name": name, "num_partitions": partitions, "replication_factor": BROKERS_DEFAULT,
            "configs": said,
        }  # fmt: skip

        def attempt() -> bool:
            told = self._ask(Api.CREATE_TOPICS, 4, {"topics": [topic], "timeout": 5000})
            code = told.topics[0].error_code
            # While a busy machine has let the broker's session with its controller end there is
            # nobody for a replica.
            alone = code == ErrorCode.INVALID_REPLICATION_FACTOR
            return not alone and good(code, also=ErrorCode.TOPIC_ALREADY_EXISTS)

        self._persist(attempt, f"create {name}")
        self.ends(TopicPartition(name, partition) for partition in range(partitions))

    def grow(self, name: str, partitions: int) -> None:
        """Grow a topic to this many partitions, and wait until all can be written."""
        topic = {"name": name, "count": partitions, "assignments": None}
        body = {"topics": [topic], "timeout": 5000, "validate_only": False}

        def attempt() -> bool:
            told = self._ask(Api.CREATE_PARTITIONS, 1, body)
            return good(told.results[0].error_code, also=ErrorCode.INVALID_PARTITIONS)

        self._persist(attempt, f"grow {name}")
        self.ends(TopicPartition(name, partition) for partition in range(partitions))

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until no broker knows it."""

        def attempt() -> bool:
            body = {"topic_names": [name], "timeout": 5000}
            told = self._ask(Api.DELETE_TOPICS, 4, body)
            good(told.responses[0].error_code, also=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return not self.partitions(name)

        self._persist(attempt, f"delete {name}")

    def partitions(self, topic: str) -> int:
        """Return the number of partitions; 0 without the topic."""

        def attempt() -> tuple[int]:
            body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
            return (len(self._ask(Api.METADATA, 8, body).topics[0].partitions),)

        return self._persist(attempt, f"partitions of {topic}")[0]

    def delete_records(self, tp: TopicPartition, before: int) -> None:
        body = {"topics": by_topic([tp], lambda _: {"offset": before}), "timeout": 5000}
        self._persist(
            lambda: good(
                *(p.error_code for _, p in parts(self._lead(tp, Api.DELETE_RECORDS, 1, body)))
            ),
            f"delete records of {tp}",
        )

    # -- records

    def send(
        self,
        tp: TopicPartition,
        records: Sequence[tuple[bytes | None, bytes | None]],
        times: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """Send keys and values; each is stored once when this returns.

        Args:
            times: Timestamps in ms, by default now.
            headers: Headers of each record.
        """
        if self._producer_id < 0:
            self._producer_id = self._persist(self._new_producer, "a producer id")
        builder = Builder(BATCH_BYTES)
        now_ms = int(self._clock.wall() * 1000)
        sequence = self._sequences.get(tp, 0)
        for at, (key, value) in enumerate(records):
            time_ms = times[at] if times else now_ms
            if not builder.append(time_ms, key, value, headers[at] if headers else NO_HEADERS):
                self._send(tp, builder.close(self._producer_id, 0, sequence), builder.count)
                self.send(tp, records[at:], times and times[at:], headers and headers[at:])
                return
        self._send(tp, builder.close(self._producer_id, 0, sequence), builder.count)

    def send_raw(self, tp: TopicPartition, batch: bytes | bytearray) -> None:
        """Send a record batch as it is, once or several times."""
        part = {"index": tp.partition, "records": batch}
        body = {
            "transactional_id": None, "acks": -1, "timeout": 5000,
            "topic_data": [{"name": tp.topic, "partition_data": [part]}],
        }  # fmt: skip

        def attempt() -> bool:
            told = self._lead(tp, Api.PRODUCE, 8, body)
            code = told.responses[0].partition_responses[0].error_code
            return good(code, also=ErrorCode.DUPLICATE_SEQUENCE_NUMBER)

        self._persist(attempt, f"send to {tp}")

    def _send(self, tp: TopicPartition, batch: bytearray, records: int) -> None:
        self.send_raw(tp, batch)
        self._sequences[tp] = self._sequences.get(tp, 0) + records

    def _new_producer(self) -> int | None:
        body = {"transactional_id": None, "transaction_timeout": 0, "producer_id": -1}
        told = self._ask(Api.INIT_PRODUCER_ID, 4, body)
        return int(told.producer_id) if good(told.error_code) else None

    def read(self, tp: TopicPartition, start: int | None = None) -> Iterator[Record]:
        """Return all committed records up to the stable end of now, from the first one or an offset
        on.
        """
        (first,), (end,) = self.starts([tp]).values(), self.stable_ends([tp]).values()
        position = first if start is None else start
        while position < end:
            data, aborted = self._persist(partial(self._fetch, tp, position), f"read {tp}")
            found = columns(data, position, aborted=aborted)
            position = found.next_offset
            headers = found.headers or repeat(NO_HEADERS)
            rows = zip(found.offsets, found.keys, found.values, found.timestamps, headers)  # noqa: B905
            yield from (Record(*row) for row in rows if row[0] < end)

    def transactions(self, tp: TopicPartition) -> Iterator[Transaction]:
        """Return all transactions that have ended by now, in the order of their ends."""
        (position,), (end,) = self.starts([tp]).values(), self.ends([tp]).values()
        records: Counter[int] = Counter()
        while position < end:
            ask = partial(self._fetch, tp, position, UNCOMMITTED)
            data = memoryview(self._persist(ask, f"read {tp}")[0])
            for at, size, header in scan(data, check=False):
                position = header.last_offset + 1
                if header.control:
                    committed = bool(commits(header, data[at : at + size]))
                    producer = header.producer_id, header.producer_epoch
                    yield Transaction(records.pop(header.producer_id, 0), committed, producer)
                elif header.transactional:
                    records[header.producer_id] += 1 + header.last_offset_delta

    def _fetch(
        self, tp: TopicPartition, offset: int, isolation: int = COMMITTED
    ) -> tuple[bytes, list[tuple[int, int]]] | None:
        """Return batches, and the producers and first offsets of aborted transactions."""
        part = {
            "partition": tp.partition, "current_leader_epoch": -1, "fetch_offset": offset,
            "partition_max_bytes": FETCH_BYTES,
        }  # fmt: skip
        body = {
            "replica_id": -1, "max_wait": 100, "min_bytes": 1, "max_bytes": FETCH_BYTES,
            "isolation_level": isolation, "session_epoch": -1,
            "topics": [{"topic": tp.topic, "partitions": [part]}],
        }  # fmt: skip
        told = self._lead(tp, Api.FETCH, 11, body).responses[0].partitions[0]
        if not good(told.error_code):
            return None
        aborted = [
            (each.producer_id, each.first_offset) for each in told.aborted_transactions or ()
        ]
        return bytes(told.records or b""), aborted

    def fence(self, transactional_id: str) -> None:
        """Initialise the id of a producer: its open transaction is aborted, and it is fenced once.

        A second call would fence it again, once it has a new epoch.
        """
        body = {
            "transactional_id": transactional_id, "transaction_timeout": 60_000, "producer_id": -1,
            "producer_epoch": -1,
        }  # fmt: skip

        def attempt() -> bool:
            node = self._coordinator(transactional_id, TRANSACTIONS)
            code = self._ask(Api.INIT_PRODUCER_ID, 4, body, node).error_code
            return good(code, also=ErrorCode.CONCURRENT_TRANSACTIONS)

        self._persist(attempt, f"fence {transactional_id}")

    # -- offsets

    def starts(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(list(tps), EARLIEST)

    def ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermarks."""
        return self._offsets(list(tps), LATEST)

    def stable_ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermarks, or the first offsets of open transactions."""
        return self._offsets(list(tps), LATEST, COMMITTED)

    def _offsets(
        self, tps: list[TopicPartition], time: int, isolation: int = UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        def attempt() -> dict[TopicPartition, int] | None:
            found: list[tuple[TopicPartition, Any]] = []
            for leader, led in self._led(tps).items():
                topics = by_topic(led, lambda _: {"timestamp": time})
                body = {"replica_id": -1, "isolation_level": isolation, "topics": topics}
                found += parts(self._ask(Api.LIST_OFFSETS, 5, body, leader))
            if not good(*(part.error_code for _, part in found)):
                return None
            return {tp: part.offset for tp, part in found}

        return self._persist(attempt, f"offsets of {tps}")

    def committed(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offsets; -1 without one."""
        return {tp: part.committed_offset for tp, part in self._committed(group, tps).items()}

    def beside(self, group: str, tp: TopicPartition) -> str:
        """Return the text beside a committed offset; empty without one."""
        return self._committed(group, [tp])[tp].metadata or ""

    def _committed(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Any]:
        wanted: dict[str, list[int]] = {}
        for tp in tps:
            wanted.setdefault(tp.topic, []).append(tp.partition)
        topics = [{"name": topic, "partition_indexes": some} for topic, some in wanted.items()]

        def attempt() -> dict[TopicPartition, Any] | None:
            body = {"group_id": group, "topics": topics}
            told = self._ask(Api.OFFSET_FETCH, 7, body, self._coordinator(group))
            found = list(parts(told))
            if not good(told.error_code, *(part.error_code for _, part in found)):
                return None
            return dict(found)

        return self._persist(attempt, f"committed offsets of {group}")

    def members(self, group: str) -> list[str]:
        """Return the member ids of a group."""

        def attempt() -> tuple[list[str]] | None:
            body, node = {"groups": [group]}, self._coordinator(group)
            told = self._ask(Api.DESCRIBE_GROUPS, 4, body, node).groups[0]
            return ([m.member_id for m in told.members],) if good(told.error_code) else None

        return self._persist(attempt, f"members of {group}")[0]

    # -- asking

    def _ask(self, api: Api, version: int, body: Body, at: Address | None = None) -> Any:
        """Ask this broker, or one of those that were given at the start."""
        address = at or self._bootstrap[0]
        if address not in self._sockets:
            self._sockets[address] = socket.create_connection(address, ANSWER_S)
        return converse(self._sockets[address], api, version, body)

    def _lead(self, tp: TopicPartition, api: Api, version: int, body: Body) -> Any:
        (leader,) = self._led([tp])
        return self._ask(api, version, body, leader)

    def _led(self, tps: Iterable[TopicPartition]) -> dict[Address, list[TopicPartition]]:
        """Return partitions by their leaders. Raises BrokerUnreachable while one has no leader."""
        found: dict[Address, list[TopicPartition]] = {}
        for tp in tps:
            if tp not in self._leaders:
                self._learn(tp.topic)
            if tp not in self._leaders:
                raise BrokerUnreachable(f"{tp} has no leader")
            found.setdefault(self._leaders[tp], []).append(tp)
        return found

    def _learn(self, topic: str) -> None:
        body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        told = self._ask(Api.METADATA, 8, body)
        where = {broker.node_id: (broker.host, broker.port) for broker in told.brokers}
        for part in told.topics[0].partitions:
            if part.leader_id in where:
                tp = TopicPartition(topic, part.partition_index)
                self._leaders[tp] = where[part.leader_id]

    def _coordinator(self, name: str, kind: int = GROUPS) -> Address:
        """Return the coordinator of a group. Raises BrokerUnreachable while there is none."""
        told = self._ask(Api.FIND_COORDINATOR, 2, {"key": name, "key_type": kind})
        if told.error_code:
            raise BrokerUnreachable(f"{name} has no coordinator: {told.error_code}")
        return told.host, told.port

    def _persist(self, attempt: Callable[[], T | None], what: str) -> T:
        """Try until there is a result. Raises BrokerUnreachable when it takes too long."""
        over, last = self._clock.now() + PATIENCE_S, "no answer"
        while self._clock.now() < over:
            try:
                if found := attempt():
                    return found
            except (OSError, Malformed, BrokerUnreachable) as error:
                last = str(error)
                self.close()
                self._bootstrap.rotate()
            self._leaders.clear()
            self._moment.wait(AGAIN_S)
        raise BrokerUnreachable(f"{what}: {self._bootstrap}: not in {PATIENCE_S} s: {last}")


def good(*codes: int, also: int = ErrorCode.NONE) -> bool:
    """Return whether an error code means success; False: try again. Raises what a retry cannot
    change.
    """
    bad = sorted({code for code in codes if code not in (ErrorCode.NONE, also)})
    for code in bad:
        if code not in RETRIABLE:
            raise failure(code, "asked by a test")
    return not bad


def by_topic(
    tps: Iterable[TopicPartition], about: Callable[[TopicPartition], Mapping[str, int]]
) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, int]]] = {}
    for tp in tps:
        topics.setdefault(tp.topic, []).append({"partition_index": tp.partition, **about(tp)})
    return [{"name": topic, "partitions": some} for topic, some in topics.items()]


def parts(told: Any) -> Iterator[tuple[TopicPartition, Any]]:
    """Return the partitions of a reply by topics."""
    for topic in told.topics:
        for part in topic.partitions:
            yield TopicPartition(topic.name, part.partition_index), part
