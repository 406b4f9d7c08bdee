"""A broker that is killed again and again: acknowledged records are there, each once."""

import random
import socket
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.wire import Api
from tests.support.apache_kafka import converse
from tests.support.conversation import Conversation, Group
from tests.support.embedded_broker import EmbeddedBroker

PARTITIONS, RECORDS, KILLS = 3, 6000, 4
WAIT_S = 30.0


def dial(broker: EmbeddedBroker) -> socket.socket:
    host, _, port = broker.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def join(broker: EmbeddedBroker) -> str:
    """Join one member to a group, until the group is stable at generation 1."""
    body = {
        "group_id": "g", "session_timeout": 60_000, "rebalance_timeout": 60_000, "member_id": "",
        "protocol_type": "test", "protocols": [{"name": "p", "metadata": b""}],
    }  # fmt: skip
    with dial(broker) as sock:
        member_id = str(converse(sock, Api.JOIN_GROUP, 3, body).member_id)
        mine = {"member_id": member_id, "assignment": b"mine"}
        asked = {"group_id": "g", "generation_id": 1, "member_id": member_id, "assignments": [mine]}
        assert converse(sock, Api.SYNC_GROUP, 3, asked).error_code == 0
    return member_id


def still_in(broker: EmbeddedBroker, member_id: str) -> bool:
    """Check that the member is at generation 1 with its assignment."""
    about = {"group_id": "g", "generation_id": 1, "member_id": member_id, "assignments": []}
    with dial(broker) as sock:
        beat = converse(sock, Api.HEARTBEAT, 3, about).error_code
        return beat == 0 and bytes(converse(sock, Api.SYNC_GROUP, 3, about).assignment) == b"mine"


@pytest.mark.parametrize(
    "options", [pytest.param([], marks=pytest.mark.slow), ["--sync"]], ids=["interval", "sync"]
)
def test_acknowledged_records_are_neither_lost_nor_doubled_by_kills(
    options: list[str], tmp_path: Path
) -> None:
    rng = random.Random(1)
    acknowledged: set[int] = set()

    def delivered(error: object, message: object) -> None:
        assert error is None
        acknowledged.add(int(message.value()))  # type: ignore[attr-defined]  # a Message

    with EmbeddedBroker(tmp_path / "data", "--topic", f"t:{PARTITIONS}", *options) as broker:
        member_id = join(broker)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 1,
                "batch.num.messages": 20, "reconnect.backoff.max.ms": 100, "log_level": 0,
            }
        )  # fmt: skip
        kills = sorted(rng.sample(range(RECORDS // 10, RECORDS), KILLS))
        for i in range(RECORDS):
            if i in kills:
                broker.kill()
                broker.start()
                assert still_in(broker, member_id)
            producer.produce("t", b"%d" % i, partition=i % PARTITIONS, on_delivery=delivered)
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0
        assert len(acknowledged) == RECORDS
        broker.kill()
        broker.start()

        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "log_level": 0}
        )
        consumer.assign([TopicPartition("t", partition, 0) for partition in range(PARTITIONS)])
        found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        for _ in range(RECORDS):
            message = consumer.poll(WAIT_S)
            assert message is not None
            assert message.error() is None
            found[message.partition() or 0].append(int(message.value() or b""))
        assert consumer.poll(0.2) is None
        consumer.close()
    assert found == {p: list(range(p, RECORDS, PARTITIONS)) for p in range(PARTITIONS)}


def two(broker: EmbeddedBroker) -> tuple[Conversation, Group, str, str]:
    """Return leader and follower that have the answer of generation 2."""
    talk = Conversation(broker.bootstrap, ours=True)
    group = Group(talk)
    return talk, group, *group.pair()


def back(broker: EmbeddedBroker, group: Group) -> Conversation:
    broker.kill()
    broker.start()
    group.talk = Conversation(broker.bootstrap, ours=True)
    return group.talk


def test_broker_killed_amid_sync_group_continues_the_sync(tmp_path: Path) -> None:
    """Seed 001: the assignment was not stored, so all members have to sync again."""
    with EmbeddedBroker(tmp_path / "data") as broker:
        talk, group, leader, follower = two(broker)
        with talk:
            group.syncing(follower, 2)
        with back(broker, group):
            waiting = group.syncing(follower, 2)
            group.sync(leader, 2, assignments={follower: b"all"})
            assert bytes(waiting.answer().assignment) == b"all"
            assert group.state() == ("Stable", 2)


def test_broker_killed_amid_join_answers_lets_a_join_abort_the_round(
    tmp_path: Path,
) -> None:
    """Seed 001: the restarted broker does not know which members got the answer of the
    generation.
    """
    with EmbeddedBroker(tmp_path / "data") as broker:
        talk, group, leader, follower = two(broker)
        with talk, back(broker, group):
            leading = group.syncing(leader, 2)
            assert leading.answer().error_code == E.NONE
            group.sync(follower, 2)
        with back(broker, group):  # what was stored is told, and no generation more
            assert group.beat(leader, 2) == E.NONE
        talk, group, leader, follower = two(broker)
        with talk, back(broker, group):
            waiting = group.syncing(follower, 2)
            assert waiting.code(0.1) is None
            joining = group.joining(leader)
            assert waiting.answer().error_code == E.REBALANCE_IN_PROGRESS
            again = group.joining(follower)
            assert {joining.answer().generation_id, again.answer().generation_id} == {3}
