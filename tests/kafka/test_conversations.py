"""Scripted conversations, in bare requests: the embedded broker answers as Apache Kafka does.

Each runs against both; what it expects is what Kafka answers. Not here is where we differ on
purpose: sessions may be as short as 1 ms, and a SyncGroup whose member was removed is answered.
"""

import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import pytest

from streamsx.clock import SystemClock
from streamsx.kafka import wire
from streamsx.kafka.batch import Builder, columns
from streamsx.kafka.consumer_protocol import Subscription
from streamsx.kafka.errors import ErrorCode as E
from streamsx.kafka.wire import Api
from streamsx.testing import Broker
from tests.support.apache_kafka import ApacheKafka, converse

KIND = "talk"
"""A protocol type of our own: of "consumer" Kafka wants to read what members tell each other."""
TRIES = 2000
ANSWER_S = 20.0
CLOCK = SystemClock()
NOW = int(CLOCK.wall() * 1000)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("embedded") / "data") as broker:
        yield broker


@pytest.fixture(
    params=[
        "embedded",
        pytest.param(
            "kafka",
            marks=[pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(120)],
        ),
    ]
)
def talk(request: pytest.FixtureRequest) -> "Iterator[Talk]":
    broker: Broker | ApacheKafka = request.getfixturevalue(request.param)
    with Talk(broker.bootstrap) as talk:
        yield talk
        assert talk.wrong == {}


class Parked:
    """A request on a connection of its own, that may wait for its answer."""

    def __init__(self, bootstrap: str, api: Api, version: int, body: Mapping[str, Any]) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_S)
        self._socket.sendall(wire.request_encoder(api, version)(1, body, "talk"))
        self._decode = wire.response_decoder(api, version)

    def answer(self) -> Any:
        with self._socket, self._socket.makefile("rb") as stream:
            return self._decode(stream.read(int.from_bytes(stream.read(4))))[1]


class Talk:
    """One client that speaks bare requests. `check` notes what was not answered as expected."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.name = f"talk-{uuid.uuid4()}"
        self.wrong: dict[str, tuple[object, object]] = {}
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def check(self, label: str, answer: object, expected: object) -> None:
        if answer != expected:
            self.wrong[label] = (answer, expected)

    def ask(self, api: Api, version: int, **body: Any) -> Any:
        return converse(self._socket, api, version, body)

    def ready(self, api: Api, version: int, **body: Any) -> Any:
        """The answer once the coordinator has loaded what it needs."""
        answer = self.ask(api, version, **body)
        for _ in range(TRIES):
            if answer.error_code != E.COORDINATOR_LOAD_IN_PROGRESS:
                break
            answer = self.ask(api, version, **body)
        return answer

    def park(self, api: Api, version: int, **body: Any) -> Parked:
        return Parked(self.bootstrap, api, version, body)

    # Topics.

    def create(self, name: str, partitions: int = 1, **about: Any) -> int:
        configs = [{"name": n, "value": v} for n, v in about.pop("configs", {}).items()]
        topic = {
            "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [],
            "configs": configs, **about,
        }  # fmt: skip
        return int(self.ask(Api.CREATE_TOPICS, 5, topics=[topic]).topics[0].error_code)

    def topic(self, partitions: int = 1, **about: Any) -> str:
        """A new one, ready for use."""
        name = f"{self.name}-{uuid.uuid4()}"
        assert self.create(name, partitions, **about) == E.NONE
        for _ in range(TRIES):
            if all(self.offset(name, p, -1)[0] == E.NONE for p in range(partitions)):
                return name
        raise AssertionError(f"{name} does not appear")

    def topic_id(self, name: str) -> bytes:
        found = self.ask(Api.METADATA, 12, topics=[{"name": name}])
        return bytes(found.topics[0].topic_id)

    def offset(self, topic: str, partition: int, timestamp: int) -> tuple[int, int, int]:
        asked = [{"partition_index": partition, "timestamp": timestamp}]
        (found,) = self.ask(
            Api.LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": topic, "partitions": asked}]
        ).topics[0].partitions  # fmt: skip
        return found.error_code, found.offset, found.timestamp

    def produce(
        self, topic: str, records: bytes | bytearray, *, acks: int = -1, partition: int = 0
    ) -> tuple[int, int]:
        data = [{"index": partition, "records": records}]
        found = self.ask(
            Api.PRODUCE, 9, acks=acks, timeout=5000,
            topic_data=[{"name": topic, "partition_data": data}],
        ).responses[0].partition_responses[0]  # fmt: skip
        return found.error_code, found.base_offset

    def fetch(self, topic: str, offset: int, **about: Any) -> Any:
        partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, **about}
        found = self.ask(
            Api.FETCH, 11, replica_id=-1, **body,
            topics=[{"topic": topic, "partitions": [partition]}], forgotten_topics_data=[],
        )  # fmt: skip
        return found.responses[0].partitions[0] if found.responses else found


def batch(
    *values: bytes, time: int = NOW, pid: int = -1, epoch: int = -1, seq: int = -1
) -> bytearray:
    builder = Builder(1 << 20)
    for i, value in enumerate(values):
        builder.append(time + i, None, value)
    return builder.close(pid, epoch, seq)


def test_topics_are_made_changed_and_deleted(talk: Talk) -> None:
    check, name = talk.check, talk.topic(2, configs={"retention.ms": "5000"})
    check("create again", talk.create(name), E.TOPIC_ALREADY_EXISTS)
    for bad in ("", ".", "..", "a b", "a/b", "x" * 250):
        check(f"create {bad!r:.9}", talk.create(bad), E.INVALID_TOPIC_EXCEPTION)
    other = f"{talk.name}-other"
    check("create with 0 partitions", talk.create(other, 0), E.INVALID_PARTITIONS)
    check(
        "create with 2 replicas",
        talk.create(other, replication_factor=2),
        E.INVALID_REPLICATION_FACTOR,
    )
    for config in (
        {"no.such": "1"},
        {"retention.ms": "x"},
        {"cleanup.policy": "x"},
        {"segment.bytes": "-1"},
    ):
        check(f"create with {config}", talk.create(other, configs=config), E.INVALID_CONFIG)

    def grow(topic: str, count: int) -> int:
        asked = [{"name": topic, "count": count, "assignments": None}]
        found = talk.ask(Api.CREATE_PARTITIONS, 2, topics=asked, timeout=5000, validate_only=False)
        return int(found.results[0].error_code)

    check("grow to fewer", grow(name, 1), E.INVALID_PARTITIONS)
    check("grow to as many", grow(name, 2), E.INVALID_PARTITIONS)
    check("grow what is not there", grow(other, 2), E.UNKNOWN_TOPIC_OR_PARTITION)
    check("grow", grow(name, 3), E.NONE)

    def metadata(**asked: object) -> tuple[int, str | None]:
        found = talk.ask(
            Api.METADATA, 12, topics=[asked], allow_auto_topic_creation=False
        ).topics[0]  # fmt: skip
        return found.error_code, found.name

    whole = talk.ask(Api.METADATA, 10, topics=[{"name": name}], allow_auto_topic_creation=False)
    nothing = -(2**31)  # operations were not asked for
    check("operations", whole.cluster_authorized_operations, nothing)
    check("operations on a topic", whole.topics[0].topic_authorized_operations, nothing)
    check(
        "metadata of what is not there", metadata(name=other), (E.UNKNOWN_TOPIC_OR_PARTITION, other)
    )
    check(
        "metadata of an unknown id", metadata(topic_id=b"?" * 16, name=None)[0], E.UNKNOWN_TOPIC_ID
    )
    check("metadata of no name", metadata(name="a b")[0], E.INVALID_TOPIC_EXCEPTION)
    check("metadata by id", metadata(topic_id=talk.topic_id(name), name=None), (E.NONE, name))

    def alter(topic: str, operation: int, key: str, value: str | None) -> int:
        changes = [{"name": key, "config_operation": operation, "value": value}]
        asked = [{"resource_type": 2, "resource_name": topic, "configs": changes}]
        return int(
            talk.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=asked).responses[0].error_code
        )

    check(
        "alter what is not there",
        alter(other, 0, "retention.ms", "1"),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    )
    check("alter an unknown key", alter(name, 0, "no.such", "1"), E.INVALID_CONFIG)
    check("alter to a bad value", alter(name, 0, "retention.ms", "soon"), E.INVALID_CONFIG)
    check("append to what is no list", alter(name, 2, "retention.ms", "1"), E.INVALID_CONFIG)
    check("alter by no operation", alter(name, 9, "retention.ms", "1") != E.NONE, True)
    check("a list with blanks", alter(name, 0, "cleanup.policy", " compact, delete"), E.NONE)
    check("no such policy", alter(name, 0, "cleanup.policy", "compact, burn"), E.INVALID_CONFIG)
    check("delete a list", alter(name, 1, "cleanup.policy", None), E.NONE)
    check("a large boolean", alter(name, 0, "preallocate", " TRUE"), E.NONE)
    check("alter", alter(name, 0, "max.message.bytes", "10000"), E.NONE)
    check("append", alter(name, 2, "cleanup.policy", "compact"), E.NONE)
    check("delete a setting", alter(name, 1, "retention.ms", None), E.NONE)

    three = ("cleanup.policy", "max.message.bytes", "retention.ms")

    def described(topic: str, keys: Iterable[str] = three) -> Any:
        asked = [{"resource_type": 2, "resource_name": topic, "configuration_keys": [*keys]}]
        return talk.ask(Api.DESCRIBE_CONFIGS, 4, resources=asked).results[0]

    told = {c.name for c in described(name, ()).configs}
    check("describe by no keys", told >= set(three), True)

    check("describe what is not there", described(other).error_code, E.UNKNOWN_TOPIC_OR_PARTITION)
    check(
        "describe",
        sorted((c.name, c.value, c.config_source, c.config_type) for c in described(name).configs),
        [
            ("cleanup.policy", "delete,compact", 1, 7), ("max.message.bytes", "10000", 1, 3),
            ("retention.ms", "604800000", 5, 5),
        ],
    )  # fmt: skip
    check("a long batch", talk.produce(name, batch(bytes(10_000)))[0], E.MESSAGE_TOO_LARGE)

    def delete(**asked: object) -> int:
        found = talk.ask(Api.DELETE_TOPICS, 6, topics=[asked], timeout=5000)
        return int(found.responses[0].error_code)

    topic_id = talk.topic_id(name)
    check("delete what is not there", delete(name=other), E.UNKNOWN_TOPIC_OR_PARTITION)
    check("delete an unknown id", delete(name=None, topic_id=b"?" * 16), E.UNKNOWN_TOPIC_ID)
    check("delete by id", delete(name=None, topic_id=topic_id), E.NONE)


def test_batches_are_taken_or_refused_and_read_again(talk: Talk) -> None:
    check, name = talk.check, talk.topic()
    good = batch(b"a", b"b")
    damaged, old = bytearray(good), bytearray(good)
    damaged[-1] ^= 1
    old[16] = 1
    check("produce", talk.produce(name, good), (E.NONE, 0))
    check("produce damaged", talk.produce(name, damaged)[0], E.CORRUPT_MESSAGE)
    check("produce nothing", talk.produce(name, b"")[0], E.INVALID_RECORD)
    check("produce a cut batch", talk.produce(name, good[:-1])[0], E.INVALID_RECORD)
    check("produce two batches", talk.produce(name, good + good)[0], E.INVALID_RECORD)
    check("produce magic 1", talk.produce(name, old)[0], E.INVALID_RECORD)
    check("produce with acks 2", talk.produce(name, good, acks=2)[0], E.INVALID_REQUIRED_ACKS)
    check(
        "produce with acks 2 to nowhere",
        talk.produce(f"{name}-no", good, acks=2)[0],
        E.UNKNOWN_TOPIC_OR_PARTITION,
    )
    check("produce to nowhere", talk.produce(f"{name}-no", good)[0], E.UNKNOWN_TOPIC_OR_PARTITION)
    check(
        "produce to partition 9",
        talk.produce(name, good, partition=9)[0],
        E.UNKNOWN_TOPIC_OR_PARTITION,
    )
    check("produce again", talk.produce(name, batch(b"c")), (E.NONE, 2))

    by_id = talk.ask(
        Api.PRODUCE, 13, acks=-1, timeout=5000, topic_data=[
            {"topic_id": i, "partition_data": [{"index": 0, "records": batch(b"d")}]}
            for i in (talk.topic_id(name), b"?" * 16)
        ],
    )  # fmt: skip
    codes = sorted(
        (t.partition_responses[0].error_code, t.partition_responses[0].base_offset)
        for t in by_id.responses
    )
    check("produce by id", codes, [(E.NONE, 3), (E.UNKNOWN_TOPIC_ID, -1)])

    def read(offset: int, **about: Any) -> tuple[int, list[bytes | None], int]:
        found = talk.fetch(name, offset, **about)
        data = bytes(found.records or b"")
        return found.error_code, columns(data, offset).values, found.high_watermark

    check("fetch", read(0), (E.NONE, [b"a", b"b", b"c", b"d"], 4))
    check("fetch within a batch", read(1), (E.NONE, [b"b", b"c", b"d"], 4))
    check("fetch a little", read(0, max_bytes=1), (E.NONE, [b"a", b"b"], 4))
    check("fetch at the end", read(4), (E.NONE, [], 4))
    check("fetch beyond", read(5)[:2], (E.OFFSET_OUT_OF_RANGE, []))
    check("fetch before", read(-1)[:2], (E.OFFSET_OUT_OF_RANGE, []))
    check("fetch committed", read(2, isolation_level=1), (E.NONE, [b"c", b"d"], 4))
    check(
        "fetch of a session",
        talk.fetch(name, 0, session_id=9, session_epoch=1).error_code,
        E.FETCH_SESSION_ID_NOT_FOUND,
    )
    check(
        "fetch from nowhere", talk.fetch(f"{name}-no", 0).error_code, E.UNKNOWN_TOPIC_OR_PARTITION
    )

    partition = {"partition": 0, "fetch_offset": 4, "partition_max_bytes": 1 << 20}
    poll = talk.park(
        Api.FETCH, 13, replica_id=-1, max_wait=15_000, min_bytes=1, max_bytes=1 << 20,
        topics=[{"topic_id": talk.topic_id(name), "partitions": [partition]}],
        forgotten_topics_data=[],
    )  # fmt: skip
    talk.produce(name, batch(b"e"))
    found = poll.answer().responses[0].partitions[0]
    check("a fetch waits", columns(bytes(found.records), 4).values, [b"e"])


def test_a_producer_is_heard_once(talk: Talk) -> None:
    check, name = talk.check, talk.topic()
    made = talk.ready(
        Api.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=1000, producer_id=-1,
        producer_epoch=-1,
    )  # fmt: skip
    check("a producer id", (made.error_code, made.producer_epoch), (E.NONE, 0))
    pid = made.producer_id

    def send(seq: int, epoch: int = 0, count: int = 1) -> tuple[int, int]:
        return talk.produce(name, batch(*[b"%d" % seq] * count, pid=pid, epoch=epoch, seq=seq))

    check("in order", [send(0), send(1, count=2), send(3)], [(E.NONE, 0), (E.NONE, 1), (E.NONE, 3)])
    check("again", [send(0), send(1, count=2)], [(E.NONE, 0), (E.NONE, 1)])
    check("a gap", send(9)[0], E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    for seq in range(4, 8):
        send(seq)
    check("long ago", send(0)[0], E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    check("a new epoch, later", send(5, epoch=1)[0], E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    check("a new epoch", send(0, epoch=1), (E.NONE, 8))
    check("the old epoch", send(8)[0], E.INVALID_PRODUCER_EPOCH)
    check(
        "no sequence",
        talk.produce(name, batch(b"x", pid=pid, epoch=1, seq=-1))[0],
        E.INVALID_RECORD,
    )
    unknown = batch(b"x", pid=pid + 100_000, epoch=0, seq=7)
    check("an unknown producer", talk.produce(name, unknown), (E.NONE, 9))


def test_offsets_are_found_and_records_deleted(talk: Talk) -> None:
    check, name = talk.check, talk.topic()
    for i in range(3):
        talk.produce(name, batch(b"a", b"b", time=NOW + 100 * i))
    check("the end", talk.offset(name, 0, -1), (E.NONE, 6, -1))
    check("the start", talk.offset(name, 0, -2), (E.NONE, 0, -1))
    check("the youngest", talk.offset(name, 0, -3), (E.NONE, 5, NOW + 201))
    check("before all", talk.offset(name, 0, 0), (E.NONE, 0, NOW))
    check("within a batch", talk.offset(name, 0, NOW + 1), (E.NONE, 1, NOW + 1))
    check("between batches", talk.offset(name, 0, NOW + 50), (E.NONE, 2, NOW + 100))
    check("after all", talk.offset(name, 0, NOW + 202), (E.NONE, -1, -1))
    check("of partition 1", talk.offset(name, 1, -1)[0], E.UNKNOWN_TOPIC_OR_PARTITION)
    empty = talk.topic()
    check("the youngest of none", talk.offset(empty, 0, -3), (E.NONE, -1, -1))

    asked = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    found = talk.ask(
        Api.OFFSET_FOR_LEADER_EPOCH, 4, topics=[{"topic": name, "partitions": asked}]
    ).topics[0].partitions[0]  # fmt: skip
    check(
        "of a leader epoch",
        (found.error_code, found.leader_epoch, found.end_offset),
        (E.NONE, 0, 6),
    )

    def delete(offset: int, topic: str = name) -> tuple[int, int]:
        partition = [{"partition_index": 0, "offset": offset}]
        found = talk.ask(
            Api.DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": partition}], timeout=5000
        )
        answer = found.topics[0].partitions[0]
        return answer.error_code, answer.low_watermark

    check("delete", delete(3), (E.NONE, 3))
    check("delete less", delete(1), (E.NONE, 3))
    check("delete beyond", delete(7)[0], E.OFFSET_OUT_OF_RANGE)
    check("delete nowhere", delete(0, f"{name}-no")[0], E.UNKNOWN_TOPIC_OR_PARTITION)
    check("the new start", talk.offset(name, 0, -2), (E.NONE, 3, -1))
    check("fetch what is gone", talk.fetch(name, 2).error_code, E.OFFSET_OUT_OF_RANGE)
    check("find what is left", talk.offset(name, 0, 0), (E.NONE, 3, NOW + 101))
    check("delete all", delete(-1), (E.NONE, 6))
    check("go on", talk.produce(name, batch(b"c")), (E.NONE, 6))


# Groups. The conversations of the coordinator's machine, once more over the wire.


class Group:
    """One group of a talk; what a member asks is answered at once, or parked."""

    def __init__(self, talk: Talk) -> None:
        self.talk, self.id = talk, f"{talk.name}-{uuid.uuid4()}"

    def joining(self, member_id: str = "", **about: Any) -> Parked:
        body = {
            "group_id": self.id, "session_timeout": 10_000, "rebalance_timeout": 10_000,
            "member_id": member_id, "group_instance_id": None, "protocol_type": KIND,
            "protocols": [{"name": "range", "metadata": b"topics"}], **about,
        }  # fmt: skip
        return self.talk.park(Api.JOIN_GROUP, body.pop("version", 5), **body)

    def join(self, member_id: str = "", **about: Any) -> Any:
        return self.joining(member_id, **about).answer()

    def syncing(self, member_id: str, generation: int, *, version: int = 4, **about: Any) -> Parked:
        given = about.pop("assignments", {})
        body = {
            "group_id": self.id, "generation_id": generation, "member_id": member_id,
            "group_instance_id": None, "protocol_type": None, "protocol_name": None,
            "assignments": [{"member_id": m, "assignment": a} for m, a in given.items()], **about,
        }  # fmt: skip
        return self.talk.park(Api.SYNC_GROUP, version, **body)

    def sync(self, member_id: str, generation: int, **about: Any) -> Any:
        return self.syncing(member_id, generation, **about).answer()

    def beat(self, member_id: str, generation: int, instance: str | None = None) -> int:
        return int(
            self.talk.ask(
                Api.HEARTBEAT, 4, group_id=self.id, generation_id=generation, member_id=member_id,
                group_instance_id=instance,
            ).error_code
        )  # fmt: skip

    def leave(self, member_id: str, instance: str | None = None) -> tuple[int, list[int]]:
        who = [{"member_id": member_id, "group_instance_id": instance}]
        found = self.talk.ask(Api.LEAVE_GROUP, 4, group_id=self.id, members=who)
        return found.error_code, [m.error_code for m in found.members]

    def commit(
        self, member_id: str, generation: int, offsets: Mapping[tuple[str, int], int], **about: Any
    ) -> list[int]:
        topics = [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": partition, "committed_offset": offset,
                        "committed_metadata": about.get("note", ""),
                    }
                ],
            }
            for (topic, partition), offset in offsets.items()
        ]  # fmt: skip
        found = self.talk.ask(
            Api.OFFSET_COMMIT, about.get("version", 8), group_id=self.id, member_id=member_id,
            generation_id_or_member_epoch=generation, topics=topics,
            group_instance_id=about.get("instance"),
        )  # fmt: skip
        codes = {t.name: [p.error_code for p in t.partitions] for t in found.topics}
        return [code for name, _ in offsets for code in codes[name]]

    def committed(self, topics: Any = None, **about: Any) -> list[tuple[str, int, int, int]]:
        asked = [{"group_id": self.id, "topics": topics}]
        found = self.talk.ask(Api.OFFSET_FETCH, 8, groups=asked, require_stable=True).groups[0]
        return sorted(
            (t.name, p.partition_index, p.committed_offset, p.error_code)
            for t in found.topics
            for p in t.partitions
        )

    def state(self) -> tuple[str, int]:
        found = self.talk.ask(Api.DESCRIBE_GROUPS, 5, groups=[self.id]).groups[0]
        return found.group_state, len(found.members)

    def delete(self) -> int:
        return int(
            self.talk.ask(Api.DELETE_GROUPS, 2, groups_names=[self.id]).results[0].error_code
        )

    def first(self) -> str:
        """A member alone in STABLE, at generation 1."""
        member_id = str(self.join().member_id)
        self.join(member_id)
        self.sync(member_id, 1, assignments={member_id: member_id.encode()})
        return member_id

    def pair(self) -> tuple[str, str]:
        """Leader and follower in COMPLETING, at generation 2."""
        leader, follower = self.first(), str(self.join().member_id)
        joining = self.joining(follower)
        self.until_rebalancing(leader, 1)
        self.join(leader)
        joining.answer()
        return leader, follower

    def until_rebalancing(self, member_id: str, generation: int) -> None:
        until = CLOCK.now() + ANSWER_S
        while self.beat(member_id, generation) != E.REBALANCE_IN_PROGRESS:
            assert CLOCK.now() < until, "no rebalance begins"


@pytest.fixture
def group(talk: Talk) -> Group:
    return Group(talk)


def test_a_group_forms_works_and_dissolves(talk: Talk, group: Group) -> None:
    check = talk.check
    promised = group.join()
    check("a member id first", promised.error_code, E.MEMBER_ID_REQUIRED)
    member_id = str(promised.member_id)
    joined = group.join(member_id)
    told = (joined.error_code, joined.generation_id, joined.protocol_name, joined.leader)
    check("alone", told, (E.NONE, 1, "range", member_id))
    check(
        "who is there",
        [(m.member_id, bytes(m.metadata)) for m in joined.members],
        [(member_id, b"topics")],
    )
    check("between join and sync", group.state(), ("CompletingRebalance", 1))
    check("a beat before the sync", group.beat(member_id, 1), E.NONE)
    check(
        "a commit before the sync",
        group.commit(member_id, 1, {("t", 0): 1}),
        [E.UNKNOWN_TOPIC_OR_PARTITION],
    )
    synced = group.sync(member_id, 1, assignments={member_id: b"mine"})
    check("assigned", (synced.error_code, bytes(synced.assignment)), (E.NONE, b"mine"))
    check("assigned again", bytes(group.sync(member_id, 1).assignment), b"mine")
    check("stable", group.state(), ("Stable", 1))
    check("a beat", group.beat(member_id, 1), E.NONE)
    for wrong in (0, 2):
        check(f"a beat at {wrong}", group.beat(member_id, wrong), E.ILLEGAL_GENERATION)
        check(f"a sync at {wrong}", group.sync(member_id, wrong).error_code, E.ILLEGAL_GENERATION)
    for kind, name, code in (
        (KIND, "range", E.NONE),
        (KIND, "sticky", E.INCONSISTENT_GROUP_PROTOCOL),
        ("connect", "range", E.INCONSISTENT_GROUP_PROTOCOL),
        (None, None, E.INCONSISTENT_GROUP_PROTOCOL),
    ):
        found = group.sync(member_id, 1, version=5, protocol_type=kind, protocol_name=name)
        check(f"a sync for {kind}, {name}", found.error_code, code)
    check("a beat of nobody", group.beat("nobody", 1), E.UNKNOWN_MEMBER_ID)
    check("a beat nowhere", Group(talk).beat("nobody", 1), E.UNKNOWN_MEMBER_ID)
    check("a sync nowhere", Group(talk).sync("nobody", 1).error_code, E.UNKNOWN_MEMBER_ID)
    check("leave nowhere", Group(talk).leave("nobody"), (E.NONE, [E.UNKNOWN_MEMBER_ID]))
    check("nobody leaves", group.leave("nobody"), (E.NONE, [E.UNKNOWN_MEMBER_ID]))
    check("delete it", group.delete(), E.NON_EMPTY_GROUP)
    check("the last leaves", group.leave(member_id), (E.NONE, [E.NONE]))
    check("empty", group.state(), ("Empty", 0))
    check("delete it empty", group.delete(), E.NONE)
    check("delete it again", group.delete(), E.GROUP_ID_NOT_FOUND)
    check("dead", group.state(), ("Dead", 0))
    absent = talk.ask(Api.DESCRIBE_GROUPS, 6, groups=[group.id]).groups[0]
    check("absent", (absent.error_code, absent.group_state), (E.GROUP_ID_NOT_FOUND, "Dead"))


def test_joins_that_are_refused(talk: Talk, group: Group) -> None:
    check = talk.check
    group.first()
    two = [{"name": "mine", "metadata": b""}, {"name": "range", "metadata": b""}]
    for label, about, code in (
        ("another type", {"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ("nothing in common", {"protocols": two[:1]}, E.INCONSISTENT_GROUP_PROTOCOL),
        ("something in common", {"protocols": two}, E.MEMBER_ID_REQUIRED),
        ("no protocol", {"protocols": []}, E.INCONSISTENT_GROUP_PROTOCOL),
        ("a long session", {"session_timeout": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
        ("no session", {"session_timeout": 0}, E.INVALID_SESSION_TIMEOUT),
        ("no group", {"group_id": ""}, E.INVALID_GROUP_ID),
        ("an unknown id", {"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
    ):
        check(label, group.join(**about).error_code, code)
    check("an id to no group", Group(talk).join("nobody").error_code, E.UNKNOWN_MEMBER_ID)
    check(
        "no type, no group",
        Group(talk).join(protocol_type="").error_code,
        E.INCONSISTENT_GROUP_PROTOCOL,
    )


def test_members_join_and_sync_in_two_halves(talk: Talk, group: Group) -> None:
    check = talk.check
    leader, follower = group.pair()
    again = group.join(follower)
    check("told again", (again.generation_id, again.leader, again.members), (2, leader, []))
    parked = group.syncing(follower, 2)
    late = group.joining(str(group.join().member_id))
    check("a newcomer aborts a sync", parked.answer().error_code, E.REBALANCE_IN_PROGRESS)
    group.until_rebalancing(leader, 2)
    check("a sync while joining", group.sync(leader, 2).error_code, E.REBALANCE_IN_PROGRESS)
    joining = group.joining(follower)
    check("three", len(group.join(leader).members), 3)
    check("all at once", {joining.answer().generation_id, late.answer().generation_id}, {3})
    third = late_id(group, leader, follower)
    waiting = [group.syncing(m, 3) for m in (follower, third)]
    group.sync(leader, 3, assignments={follower: b"f", third: b"t"})
    check("assignments", [bytes(w.answer().assignment) for w in waiting], [b"f", b"t"])

    changed = group.joining(third, protocols=[{"name": "range", "metadata": b"other"}])
    group.until_rebalancing(leader, 3)
    joining = group.joining(follower)
    told = {m.member_id: bytes(m.metadata) for m in group.join(leader).members}
    check("changed metadata", told, {leader: b"topics", follower: b"topics", third: b"other"})
    check(
        "a generation more", {changed.answer().generation_id, joining.answer().generation_id}, {4}
    )

    group.leave(leader)
    group.until_rebalancing(follower, 4)
    joining = group.joining(third, protocols=[{"name": "range", "metadata": b"other"}])
    found = group.join(follower)
    check("another leads", (found.generation_id, found.leader), (5, joining.answer().leader))


def late_id(group: Group, *known: str) -> str:
    found = group.talk.ask(Api.DESCRIBE_GROUPS, 5, groups=[group.id]).groups[0]
    (late,) = {m.member_id for m in found.members} - set(known)
    return str(late)


def test_static_members_come_back(talk: Talk, group: Group) -> None:
    check, fenced = talk.check, E.FENCED_INSTANCE_ID
    old = str(group.join(group_instance_id="one").member_id)
    group.sync(old, 1, group_instance_id="one", assignments={old: b"mine"})
    back = group.join(group_instance_id="one", protocols=[{"name": "range", "metadata": b"new"}])
    told = (back.error_code, back.generation_id, back.leader, back.members)
    check("back", told, (E.NONE, 1, old, []))
    new = str(back.member_id)
    check("no round", group.beat(new, 1, "one"), E.NONE)
    check("its assignment", bytes(group.sync(new, 1, group_instance_id="one").assignment), b"mine")
    check("the old beats", group.beat(old, 1, "one"), fenced)
    check("the old beats without instance", group.beat(old, 1), E.UNKNOWN_MEMBER_ID)
    check("the old syncs", group.sync(old, 1, group_instance_id="one").error_code, fenced)
    check("the old joins", group.join(old, group_instance_id="one").error_code, fenced)
    check("the old leaves", group.leave(old, "one"), (E.NONE, [fenced]))
    topic = talk.topic()
    check("the old commits", group.commit(old, 1, {(topic, 0): 1}, instance="one"), [fenced])
    check("an unknown instance", group.beat(new, 1, "two"), E.UNKNOWN_MEMBER_ID)
    skips = group.join(group_instance_id="one", version=9, reason=None)
    answer = (skips.leader, skips.skip_assignment, len(skips.members))
    check("since version 9 it skips", answer, (skips.member_id, True, 1))
    check("leave by instance", group.leave("", "one"), (E.NONE, [E.NONE]))
    check("leave by unknown instance", group.leave("", "two"), (E.NONE, [E.UNKNOWN_MEMBER_ID]))
    third = group.join(group_instance_id="two")
    check("a new instance", third.error_code, E.NONE)
    check("leave by member id alone", group.leave(third.member_id), (E.NONE, [E.NONE]))


def test_sessions_end(talk: Talk, group: Group) -> None:
    check = talk.check
    leader, follower = group.first(), str(group.join(session_timeout=1000).member_id)
    joining = group.joining(follower, session_timeout=1000)
    group.until_rebalancing(leader, 1)
    group.join(leader)
    joining.answer()
    group.sync(leader, 2)
    group.until_rebalancing(leader, 2)
    found = group.join(leader)
    check("who was silent is removed", (found.generation_id, len(found.members)), (3, 1))
    check("and unknown", group.beat(follower, 3), E.UNKNOWN_MEMBER_ID)


def test_offsets_are_committed_and_fetched(talk: Talk, group: Group) -> None:
    check, topic = talk.check, talk.topic(2)
    nobody = Group(talk)
    at = (topic, 0)
    check("nothing yet", nobody.committed(), [])
    check(
        "nothing yet, asked",
        nobody.committed([{"name": topic, "partition_indexes": [0]}]),
        [(topic, 0, -1, E.NONE)],
    )
    check("a member of nothing", nobody.commit("m", 1, {at: 1}), [E.ILLEGAL_GENERATION])
    check("since version 9", nobody.commit("m", 1, {at: 1}, version=9), [E.GROUP_ID_NOT_FOUND])
    check("on its own", nobody.commit("", -1, {at: 7}), [E.NONE])
    check("its offset", nobody.committed(), [(topic, 0, 7, E.NONE)])
    check("empty", nobody.state(), ("Empty", 0))
    check("a generation of the empty", nobody.commit("m", 1, {at: 8}), [E.UNKNOWN_MEMBER_ID])
    check(
        "unknown topic",
        nobody.commit("", -1, {at: 8, (f"{topic}-no", 0): 1}),
        [E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION],
    )
    check(
        "unknown partition", nobody.commit("", -1, {(topic, 5): 1}), [E.UNKNOWN_TOPIC_OR_PARTITION]
    )
    check(
        "a long note",
        nobody.commit("", -1, {at: 9}, note="x" * 4097),
        [E.OFFSET_METADATA_TOO_LARGE],
    )
    check(
        "fetch unknown",
        nobody.committed([{"name": f"{topic}-no", "partition_indexes": [0]}]),
        [(f"{topic}-no", 0, -1, E.NONE)],
    )

    leader, follower = group.pair()
    check("between join and sync", group.commit(leader, 2, {at: 1}), [E.REBALANCE_IN_PROGRESS])
    check("alone into a group", group.commit("", -1, {at: 1}), [E.UNKNOWN_MEMBER_ID])
    group.sync(leader, 2)
    check("stable", group.commit(leader, 2, {at: 3}), [E.NONE])
    check("at an old generation", group.commit(leader, 1, {at: 4}), [E.ILLEGAL_GENERATION])
    check("nobody", group.commit("nobody", 2, {at: 4}), [E.UNKNOWN_MEMBER_ID])
    joining = group.joining(follower, protocols=[{"name": "range", "metadata": b"x"}])
    group.until_rebalancing(leader, 2)
    check("while joining", group.commit(leader, 2, {at: 5}), [E.NONE])
    group.leave(leader)
    joining.answer()
    check("the offset", group.committed(), [(topic, 0, 5, E.NONE)])

    talk.ask(Api.DELETE_TOPICS, 5, topic_names=[topic], timeout=5000)
    for _ in range(TRIES):
        if not nobody.committed():
            break
    check("of a deleted topic", nobody.committed(), [])


def test_offsets_are_deleted(talk: Talk, group: Group) -> None:
    check, topic, other = talk.check, talk.topic(2), talk.topic()

    def delete(of: Group, *places: tuple[str, int]) -> tuple[int, list[int]]:
        topics = [
            {"name": name, "partitions": [{"partition_index": p} for n, p in places if n == name]}
            for name in dict.fromkeys(name for name, _ in places)
        ]
        found = talk.ask(Api.OFFSET_DELETE, 0, group_id=of.id, topics=topics)
        codes = [p.error_code for t in found.topics for p in t.partitions]
        return found.error_code, codes

    nobody = Group(talk)
    check("of no group", delete(nobody, (topic, 0)), (E.GROUP_ID_NOT_FOUND, []))
    nobody.commit("", -1, {(topic, 0): 7, (topic, 1): 8, (other, 0): 9})
    check("one", delete(nobody, (topic, 0)), (E.NONE, [E.NONE]))
    check("once more", delete(nobody, (topic, 0)), (E.NONE, [E.NONE]))
    check(
        "what is not there",
        delete(nobody, (f"{topic}-no", 0), (topic, 5)),
        (E.NONE, [E.UNKNOWN_TOPIC_OR_PARTITION] * 2),
    )
    left = sorted([(topic, 1, 8, E.NONE), (other, 0, 9, E.NONE)])
    check("the others are there", nobody.committed(), left)

    reads = Subscription((topic,)).write()
    joining: dict[str, Any] = {
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": reads}],
    }  # fmt: skip
    member = str(group.join(**joining).member_id)
    group.join(member, **joining)
    group.sync(member, 1, assignments={member: b""})
    check("of members", group.commit(member, 1, {(topic, 0): 1, (other, 0): 1}), [E.NONE] * 2)
    told = delete(group, (topic, 0), (other, 0))
    check("what they read", told, (E.NONE, [E.GROUP_SUBSCRIBED_TO_TOPIC, E.NONE]))
    check("is left", group.committed(), [(topic, 0, 1, E.NONE)])
    group.leave(member)
    check("behind the last one", delete(group, (topic, 0)), (E.NONE, [E.NONE]))
    check("nothing", group.committed(), [])

    strange = Group(talk)
    strange.first()
    check("of strangers", delete(strange, (topic, 0)), (E.NON_EMPTY_GROUP, []))


def test_groups_are_listed(talk: Talk, group: Group) -> None:
    check, topic = talk.check, talk.topic()
    group.first()
    alone = Group(talk)
    alone.commit("", -1, {(topic, 0): 1})

    def listed(**filters: list[str]) -> set[tuple[str, str, str, str]]:
        body = {"states_filter": [], "types_filter": [], **filters}
        return {
            (g.group_id, g.protocol_type, g.group_state, g.group_type)
            for g in talk.ask(Api.LIST_GROUPS, 5, **body).groups
            if g.group_id in (group.id, alone.id)
        }

    stable = (group.id, KIND, "Stable", "classic")
    empty = (alone.id, "", "Empty", "classic")
    check("all", listed(), {stable, empty})
    check("by state", listed(states_filter=["stable"]), {stable})
    check("by type", listed(types_filter=["Classic"]), {stable, empty})
    check("by another type", listed(types_filter=["consumer"]), set())


def test_who_is_asked_tells_who_it_is(talk: Talk) -> None:
    check, port = talk.check, int(talk.bootstrap.rpartition(":")[2])
    cluster = talk.ask(Api.DESCRIBE_CLUSTER, 1, endpoint_type=1)
    check("brokers", [(b.host, b.port) for b in cluster.brokers], [("127.0.0.1", port)])
    found = talk.ask(Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["a", "b"])
    told = [(c.key, c.error_code, c.host, c.port) for c in found.coordinators]
    check("coordinators", told, [(key, E.NONE, "127.0.0.1", port) for key in ("a", "b")])
    first = talk.ask(Api.FIND_COORDINATOR, 3, key="a", key_type=0)
    check("a coordinator", (first.error_code, first.port), (E.NONE, port))
    versions = talk.ask(
        Api.API_VERSIONS, 3, client_software_name="talk", client_software_version="1"
    )
    check("versions", versions.error_code, E.NONE)
    host = talk.bootstrap.rpartition(":")[0]
    with socket.create_connection((host, port), ANSWER_S) as sock, sock.makefile("rb") as stream:
        sock.sendall(bytes.fromhex("0000000b 0012 0063 00000001 ffff 00"))
        frame = stream.read(int.from_bytes(stream.read(4)))
    newer = wire.response_decoder(Api.API_VERSIONS, 0)(frame)[1]
    check("a version to come", newer.error_code, E.UNSUPPORTED_VERSION)
    check("what it would know", Api.API_VERSIONS in {k.api_key for k in newer.api_keys}, True)
