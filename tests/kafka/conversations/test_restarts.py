"""State of a broker that was killed and is back."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.record_batch import columns
from streamsx.protocol.wire import Api
from tests.support.apache_kafka import ApacheKafka
from tests.support.conversation import NOW, Conversation, Group, batch
from tests.support.embedded_broker import EmbeddedBroker


@pytest.fixture(
    params=[
        "embedded",
        pytest.param(
            "kafka",
            marks=[
                pytest.mark.kafka,
                pytest.mark.xdist_group("kafka"),
                pytest.mark.timeout(240),
                pytest.mark.slow,  # what our client sees of it is in kafka/test_client
            ],
        ),
    ]
)
def broker(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[EmbeddedBroker | ApacheKafka]:
    if request.param == "kafka":
        yield request.getfixturevalue("kafka")
    else:
        with EmbeddedBroker(tmp_path / "data") as broker:
            yield broker


Ask = Callable[[Conversation], None]
"""What is asked when the broker is back."""


def stable(talk: Conversation) -> Ask:
    """Start a group whose assignment was stored, and not sent to all members (seed 001)."""
    group, topic = Group(talk), talk.topic()
    leader, follower = group.pair()
    group.sync(leader, 2, assignments={leader: b"l", follower: b"f"})
    group.commit(leader, 2, {(topic, 0): 5})

    def after(talk: Conversation) -> None:
        group.talk, check = talk, talk.check
        check("stable", group.state(), ("Stable", 2))
        synced = group.sync(follower, 2)
        check("the stored assignment", (synced.error_code, bytes(synced.assignment)), (0, b"f"))
        check("the same generation", group.beat(leader, 2), E.NONE)
        check("a zombie of an older one", group.beat(leader, 1), E.ILLEGAL_GENERATION)
        zombie = group.commit(leader, 1, {(topic, 0): 9})
        check("which commits nothing", zombie, [E.ILLEGAL_GENERATION])
        check("what was committed", group.committed(), [(topic, 0, 5, E.NONE)])
        check("a commit", group.commit(follower, 2, {(topic, 0): 6}), [E.NONE])
        check("its leader", group.join(follower).leader, leader)

    return after


def joining(talk: Conversation) -> Ask:
    """Start a group that not all members have joined (seed 001)."""
    group = Group(talk)
    leader, follower = group.first(), str(group.join().member_id)
    group.joining(follower)
    group.until_rebalancing(leader, 1)

    def after(talk: Conversation) -> None:
        group.talk, check = talk, talk.check
        check("as it was before", group.state(), ("Stable", 1))
        check("its members live", group.beat(leader, 1), E.NONE)
        check("who had not joined is unknown", group.join(follower).error_code, E.UNKNOWN_MEMBER_ID)
        check("all join again", group.join(leader).generation_id, 2)

    return after


def static(talk: Conversation) -> Ask:
    group = Group(talk)
    old = str(group.join(group_instance_id="one").member_id)
    group.sync(old, 1, group_instance_id="one", assignments={old: b"mine"})

    def after(talk: Conversation) -> None:
        group.talk, check = talk, talk.check
        back = group.join(group_instance_id="one")
        check("a static member is back", (back.error_code, back.generation_id), (E.NONE, 1))
        synced = group.sync(back.member_id, 1, group_instance_id="one")
        check("with its assignment", bytes(synced.assignment), b"mine")
        check("its former self", group.beat(old, 1, "one"), E.FENCED_INSTANCE_ID)

    return after


def left(talk: Conversation) -> Ask:
    group, topic = Group(talk), talk.topic()
    member_id = group.first()
    group.commit(member_id, 1, {(topic, 0): 5})
    group.leave(member_id)
    deleted = Group(talk)
    deleted.commit("", -1, {(topic, 0): 5})
    deleted.delete()

    def after(talk: Conversation) -> None:
        group.talk = deleted.talk = talk
        talk.check("left", group.state(), ("Empty", 0))
        talk.check("with its offsets", group.committed(), [(topic, 0, 5, E.NONE)])
        talk.check("who left", group.beat(member_id, 1), E.UNKNOWN_MEMBER_ID)
        talk.check("deleted", (deleted.state(), deleted.committed()), (("Dead", 0), []))

    return after


def records(talk: Conversation) -> Ask:
    name, gone = talk.topic(configs={"retention.ms": "86400000"}), talk.topic()
    topic_id = talk.topic_id(name)
    made = talk.ready(
        Api.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=1000, producer_id=-1,
        producer_epoch=-1,
    )  # fmt: skip

    def send(talk: Conversation, seq: int, epoch: int = 0) -> tuple[int, int]:
        return talk.produce(name, batch(b"%d" % seq, pid=made.producer_id, epoch=epoch, seq=seq))

    before = [send(talk, seq, 1) for seq in range(4)]
    talk.ask(Api.DELETE_TOPICS, 5, topic_names=[gone], timeout=5000)

    def after(talk: Conversation) -> None:
        check = talk.check
        check("the topic's id", talk.topic_id(name), topic_id)
        check("a deleted topic", talk.fetch(gone, 0).error_code, E.UNKNOWN_TOPIC_OR_PARTITION)
        check("the end", talk.offset(name, 0, -1), (E.NONE, 4, -1))
        values = columns(bytes(talk.fetch(name, 0).records), 0).values
        check("records", values, [b"0", b"1", b"2", b"3"])
        check("the youngest", talk.offset(name, 0, -3)[:2], (E.NONE, 0))
        check("a batch once more", send(talk, 3, 1), before[3])
        check("a gap", send(talk, 7, 1)[0], E.OUT_OF_ORDER_SEQUENCE_NUMBER)
        check("an older epoch", send(talk, 4)[0], E.INVALID_PRODUCER_EPOCH)
        check("the next batch", send(talk, 4, 1), (E.NONE, 4))
        other = talk.ready(
            Api.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=1000,
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        check("another producer id", other.producer_id > made.producer_id, True)
        check("another time", talk.offset(name, 0, NOW + 10**6), (E.NONE, -1, -1))

    return after


def test_acknowledged_groups_and_records_survive_a_broker_kill(
    broker: EmbeddedBroker | ApacheKafka,
) -> None:
    ours = isinstance(broker, EmbeddedBroker)
    with Conversation(broker.bootstrap, ours=ours) as before:
        asked = [ask(before) for ask in (stable, joining, static, left, records)]
        broker.kill()
    broker.start()
    with Conversation(broker.bootstrap, ours=ours) as talk:
        for ask in asked:
            ask(talk)
        assert talk.wrong == {}
