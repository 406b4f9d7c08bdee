"""Transactions in bare requests: the embedded broker answers as Apache Kafka does.

Kafka writes markers after its answer, so it is asked again until they are there. These tests leave
out the intended differences: a partition without records gets no marker, each batch and each offset
is checked with the coordinator, also after the first one, and a fenced producer that asks for its
id again ends no other transaction.
"""

import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.record_batch import Builder, columns, scan
from streamsx.protocol.wire import Api
from tests.support.conversation import CLOCK, NOW, Consumers, Conversation, Group

T = TypeVar("T")
NOT_YET = (E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR,
           E.COORDINATOR_NOT_AVAILABLE)  # fmt: skip
READY_S = 20.0


def until(asks: Callable[[], T], done: Callable[[T], bool]) -> T:
    """Ask until `done` is true of the answer, 20 s at most; return the newest answer."""
    end, told = CLOCK.now() + READY_S, asks()
    while not done(told) and CLOCK.now() < end:
        told = asks()
    return told


class Producer:
    """Producer with a transactional id of its own, unless another's is given."""

    def __init__(self, talk: Conversation, name: str = "") -> None:
        self.talk, self.name = talk, name or f"tx-{uuid.uuid4()}"
        self.owner = (-1, -1)
        for kind in (0, 1):
            until(
                lambda kind=kind: talk.ask(Api.FIND_COORDINATOR, 1, key="a", key_type=kind),  # type: ignore[misc]
                lambda told: told.error_code == E.NONE,
            )

    def init(
        self, owner: tuple[int, int] = (-1, -1), *, timeout_ms: int = 60_000, version: int = 4,
        patient: bool = True,
    ) -> int:  # fmt: skip
        told = until(
            lambda: self.talk.ask(
                Api.INIT_PRODUCER_ID, version, transactional_id=self.name,
                transaction_timeout=timeout_ms, producer_id=owner[0], producer_epoch=owner[1],
            ),
            lambda told: told.error_code not in NOT_YET[0 if patient else 1:],
        )  # fmt: skip
        if told.error_code == E.NONE:
            self.owner = told.producer_id, told.producer_epoch
        return int(told.error_code)

    def _about(self, owner: tuple[int, int] | None) -> dict[str, Any]:
        producer_id, epoch = owner or self.owner
        return {"transactional_id": self.name, "producer_id": producer_id, "producer_epoch": epoch}

    def add(
        self, *places: tuple[str, int], owner: tuple[int, int] | None = None, version: int = 3
    ) -> list[int]:
        about = {f"v3_and_below_{name}": value for name, value in self._about(owner).items()}
        topics = [{"name": name, "partitions": [p]} for name, p in places]

        def asks() -> list[int]:
            told = self.talk.ask(
                Api.ADD_PARTITIONS_TO_TXN, version, **about, v3_and_below_topics=topics
            )
            found = {
                (t.name, p.partition_index): p.partition_error_code
                for t in told.results_by_topic_v3_and_below
                for p in t.results_by_partition
            }
            return [found[place] for place in places]

        return until(asks, lambda codes: codes[0] not in NOT_YET)

    def add_group(
        self, group: str, *, owner: tuple[int, int] | None = None, version: int = 3
    ) -> int:
        return until(
            lambda: int(
                self.talk.ask(
                    Api.ADD_OFFSETS_TO_TXN, version, **self._about(owner), group_id=group
                ).error_code
            ),
            lambda code: code not in NOT_YET,
        )

    def end(
        self, *, commit: bool = True, owner: tuple[int, int] | None = None, version: int = 3
    ) -> tuple[int, int]:
        """End the transaction; return the code, and by how much the epoch has risen."""
        told = until(
            lambda: self.talk.ask(Api.END_TXN, version, **self._about(owner), committed=commit),
            lambda told: told.error_code not in NOT_YET,
        )
        before = owner or self.owner
        if told.error_code != E.NONE or version < 5:
            return int(told.error_code), 0
        self.owner = told.producer_id, told.producer_epoch
        assert before[0] == told.producer_id
        return E.NONE, told.producer_epoch - before[1]

    def write(
        self, topic: str, value: bytes, seq: int = 0, *, partition: int = 0, version: int = 9,
        owner: tuple[int, int] | None = None, transactional: bool = True, name: str | None = "",
    ) -> int:  # fmt: skip
        builder = Builder(1 << 20, transactional=transactional)
        builder.append(NOW, None, value)
        records = builder.close(*(owner or self.owner), seq)
        by = {"name": topic} if version < 13 else {"topic_id": self.talk.topic_id(topic)}
        data = [{**by, "partition_data": [{"index": partition, "records": records}]}]

        def asks() -> int:
            told = self.talk.ask(
                Api.PRODUCE, version, acks=-1, timeout=5000, topic_data=data,
                transactional_id=self.name if name == "" else name,
            )  # fmt: skip
            return int(told.responses[0].partition_responses[0].error_code)

        return until(asks, lambda code: code not in NOT_YET)

    def commit_offset(
        self, group: str, topic: str, offset: int, *, partition: int = 0, version: int = 3,
        owner: tuple[int, int] | None = None, generation: int = -1, member: str = "",
    ) -> int:  # fmt: skip
        wanted = {
            "partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1,
            "committed_metadata": "",
        }  # fmt: skip
        return until(
            lambda: int(
                self.talk.ask(
                    Api.TXN_OFFSET_COMMIT, version, **self._about(owner), group_id=group,
                    generation_id=generation, member_id=member, group_instance_id=None,
                    topics=[{"name": topic, "partitions": [wanted]}],
                ).topics[0].partitions[0].error_code
            ),
            lambda code: code not in NOT_YET,
        )  # fmt: skip


@pytest.fixture
def one(talk: Conversation) -> Producer:
    return Producer(talk)


class Seen:
    """Records and ends of partition 0 of a topic, as readers get them."""

    def __init__(self, talk: Conversation) -> None:
        self.talk, self.topic = talk, talk.topic(2)

    def bounds(self) -> tuple[int, int, int]:
        """Return the first open offset, the end, and the end by ListOffsets for read_committed."""
        told = self.talk.fetch(self.topic, 0, isolation_level=1)
        return told.last_stable_offset, told.high_watermark, self.at(-1)

    def at(self, timestamp: int, isolation_level: int = 1) -> int:
        asked = [{"partition_index": 0, "timestamp": timestamp}]
        (found,) = self.talk.ask(
            Api.LIST_OFFSETS, 7, replica_id=-1, isolation_level=isolation_level,
            topics=[{"name": self.topic, "partitions": asked}],
        ).topics[0].partitions  # fmt: skip
        return int(found.offset)

    def stable(self) -> None:
        """Wait until the markers are written."""
        until(self.bounds, lambda bounds: bounds[0] == bounds[1] == bounds[2])

    def values(self, offset: int = 0) -> list[bytes | None]:
        told = self.talk.fetch(self.topic, offset, isolation_level=1)
        aborted = [(a.producer_id, a.first_offset) for a in told.aborted_transactions or ()]
        return list(columns(bytes(told.records or b""), offset, aborted=aborted).values)

    def batches(self, offset: int = 0) -> list[tuple[int, int, bool]]:
        """Return offset, epoch, and whether it is a marker, of each batch."""
        data = bytes(self.talk.fetch(self.topic, offset, isolation_level=0).records or b"")
        return [(h.base_offset, h.producer_epoch, h.control) for _, _, h in scan(data, check=True)]


def test_transactional_id_belongs_to_one_producer_at_a_time(
    talk: Conversation, one: Producer
) -> None:
    check = talk.check
    for timeout_ms in (-1, 0, 900_001):
        code = one.init(timeout_ms=timeout_ms)
        check(f"a time-out of {timeout_ms}", code, E.INVALID_TRANSACTION_TIMEOUT)
    nameless = Producer(talk)
    nameless.name = ""
    check("no id", nameless.init(), E.INVALID_REQUEST)
    check("first", (one.init(), one.owner[1]), (E.NONE, 0))
    mine = one.owner[0]
    check("again", (one.init(), one.owner), (E.NONE, (mine, 1)))
    check("its own", (one.init((mine, 1)), one.owner), (E.NONE, (mine, 2)))
    check("that once more", (one.init((mine, 1)), one.owner), (E.NONE, (mine, 2)))
    for owner in ((mine, 0), (mine, 9), (mine + 100_000, 2)):
        check(f"not its own {owner}", one.init(owner), E.PRODUCER_FENCED)
    check("in an old version", one.init((mine, 0), version=3), E.INVALID_PRODUCER_EPOCH)


def test_only_the_current_producer_may_add_partitions_and_end(
    talk: Conversation, one: Producer
) -> None:
    check, topic = talk.check, talk.topic()
    one.init()
    one.init()
    pid, unknown = one.owner[0], Producer(talk)
    unknown.owner = one.owner
    empty = Producer(talk)
    empty.name = ""
    mapping, fenced = E.INVALID_PRODUCER_ID_MAPPING, E.PRODUCER_FENCED
    cases = (
        ("unknown", unknown, one.owner, 3, mapping),
        ("nameless", empty, one.owner, 3, E.INVALID_REQUEST),
        ("another id", one, (pid + 100_000, 1), 3, mapping),
        ("an old epoch", one, (pid, 0), 3, fenced),
        ("a new epoch", one, (pid, 2), 3, fenced),
        ("old, in an old version", one, (pid, 0), 1, E.INVALID_PRODUCER_EPOCH),
    )
    for label, who, owner, version, code in cases:
        about: dict[str, Any] = {"owner": owner, "version": version}
        check(f"add: {label}", who.add((topic, 0), **about), [code])
        check(f"add a group: {label}", who.add_group("g", **about), code)
        check(f"end: {label}", who.end(**about), (code, 0))
    missing = [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]
    check("add what is not there", one.add((topic, 0), (topic, 9)), missing)
    for commit in (True, False):
        check(f"end nothing: {commit}", one.end(commit=commit), (E.INVALID_TXN_STATE, 0))


def test_transactional_records_are_visible_from_the_marker_on(
    talk: Conversation, one: Producer
) -> None:
    check, seen = talk.check, Seen(talk)
    topic = seen.topic
    one.init()
    check("not added", one.write(topic, b"a"), E.INVALID_TXN_STATE)
    check("not added, v11", one.write(topic, b"a", version=11), E.TRANSACTION_ABORTABLE)
    nobody = E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    check("no id", one.write(topic, b"a", name=None), nobody)
    check("another id", one.write(topic, b"a", name="who"), E.INVALID_PRODUCER_ID_MAPPING)
    check("add", one.add((topic, 0)), [E.NONE])
    for epoch in (-1, 1):
        owner = (one.owner[0], one.owner[1] + epoch)
        if owner[1] >= 0:
            check(f"epoch {epoch}", one.write(topic, b"a", owner=owner), E.INVALID_PRODUCER_EPOCH)
    check("write", one.write(topic, b"a"), E.NONE)
    check("to another", one.write(topic, b"a", partition=1), E.INVALID_TXN_STATE)
    plain = one.write(topic, b"b", 1, transactional=False)
    check("a plain batch amid it", plain, E.INVALID_TXN_STATE)
    talk.produce(topic, batch_of(b"plain"))
    check("bounds", seen.bounds(), (0, 2, 0))
    check("times", (seen.at(0), seen.at(0, 0), seen.at(-3)), (-1, 0, -1))
    check("nothing yet", seen.values(), [])
    check("commit", one.end(), (E.NONE, 0))
    seen.stable()
    check("again", one.end(), (E.NONE, 0))
    check("the other way", one.end(commit=False), (E.INVALID_TXN_STATE, 0))
    check("all", (seen.values(), seen.bounds()), ([b"a", b"plain"], (3, 3, 3)))
    check("the youngest", seen.at(-3), 2)
    check("late", one.write(topic, b"late", 1), E.INVALID_TXN_STATE)
    check("aborted", [one.add((topic, 0)), one.write(topic, b"no", 1)], [[E.NONE], E.NONE])
    check("abort", one.end(commit=False), (E.NONE, 0))
    seen.stable()
    check("as before", (seen.values(), seen.bounds()), ([b"a", b"plain"], (5, 5, 5)))
    check("without it", (seen.values(4), seen.batches(3)), ([], [(3, 0, False), (4, 0, True)]))


def batch_of(value: bytes) -> bytearray:
    builder = Builder(1 << 20)
    builder.append(NOW, None, value)
    return builder.close()


def test_each_transaction_end_raises_the_epoch_in_version_2(
    talk: Conversation, one: Producer
) -> None:
    check, seen = talk.check, Seen(talk)
    topic = seen.topic
    one.init(version=5)
    pid = one.owner[0]

    def end(epoch: int, *, commit: bool = True) -> tuple[int, int]:
        return one.end(commit=commit, owner=(pid, epoch), version=5)

    state = (E.INVALID_TXN_STATE, 0)
    check("commit nothing", end(0), state)
    check("abort nothing", end(0, commit=False), (E.NONE, 1))
    check("abort once more", end(0, commit=False), (E.NONE, 1))
    check("commit that", end(0), state)
    check("an epoch ahead", end(7, commit=False), (E.PRODUCER_FENCED, 0))
    check("write", one.write(topic, b"a", version=12), E.NONE)
    for epoch in (0, 2):
        code = one.write(topic, b"a", version=12, owner=(pid, epoch))
        check(f"write at {epoch}", code, E.INVALID_PRODUCER_EPOCH)
    check("end the one before", end(0), (E.PRODUCER_FENCED, 0))
    check("commit", end(1), (E.NONE, 1))
    seen.stable()
    check("commit once more", end(1), (E.NONE, 1))
    check("abort that", end(1, commit=False), state)
    check("commit at the new one", end(2), state)
    check("by id", one.write(topic, b"b", version=13), E.NONE)
    check("abort", end(2, commit=False), (E.NONE, 1))
    seen.stable()
    check("abort once more again", end(2, commit=False), (E.NONE, 1))
    check("values", seen.values(), [b"a"])
    markers = [(0, 1, False), (1, 2, True), (2, 2, False), (3, 3, True)]
    check("batches", seen.batches(), markers)
    check("init", (one.init((pid, 3)), one.owner), (E.NONE, (pid, 4)))


def test_init_of_the_same_id_aborts_the_open_transaction(talk: Conversation, one: Producer) -> None:
    check, seen = talk.check, Seen(talk)
    other = Producer(talk, one.name)
    one.init()
    one.write(seen.topic, b"a", version=12)
    check("at first", other.init(patient=False), E.CONCURRENT_TRANSACTIONS)
    check("then", (other.init(), other.owner), (E.NONE, (one.owner[0], 2)))
    seen.stable()
    check("batches", (seen.values(), seen.batches()), ([], [(0, 0, False), (1, 1, True)]))
    for version, code in ((1, E.INVALID_PRODUCER_EPOCH), (3, E.PRODUCER_FENCED)):
        check(f"the old one ends v{version}", one.end(version=version), (code, 0))
    check("its id is gone", one.init(one.owner), E.PRODUCER_FENCED)
    other.write(seen.topic, b"b", version=12)
    mine = other.owner
    check("its own, amid", (other.init(mine), other.owner), (E.NONE, (mine[0], mine[1] + 1)))


def test_transactional_offsets_are_visible_from_the_commit_on(
    talk: Conversation, one: Producer
) -> None:
    check, topic, group = talk.check, talk.topic(), f"g-{uuid.uuid4()}"
    one.init()

    def told(*, stable: bool = True, version: int = 8) -> tuple[int, int]:
        wanted = [{"name": topic, "partition_indexes": [0]}]
        asked: dict[str, Any] = {"groups": [{"group_id": group, "topics": wanted}]}
        if version < 8:
            asked = {"group_id": group, "topics": wanted}
        found = talk.ask(Api.OFFSET_FETCH, version, **asked, require_stable=stable)
        (p,) = (found.groups[0] if version >= 8 else found).topics[0].partitions
        return p.error_code, p.committed_offset

    def settled() -> tuple[int, int]:
        return until(told, lambda found: found[0] == E.NONE)

    def deleted() -> int:
        return int(talk.ask(Api.DELETE_GROUPS, 2, groups_names=[group]).results[0].error_code)

    unstable = E.UNSTABLE_OFFSET_COMMIT
    check("not added", one.commit_offset(group, topic, 5), E.INVALID_TXN_STATE)
    check("nothing", told(), (E.NONE, -1))
    check("add", one.add_group(group), E.NONE)
    check("stage", one.commit_offset(group, topic, 7), E.NONE)
    check("unstable", (told(), told(version=7)), ((unstable, -1), (unstable, -1)))
    check("who does not mind", told(stable=False), (E.NONE, -1))
    for label, about, code in (
        ("another epoch", {"owner": (one.owner[0], 1)}, E.INVALID_PRODUCER_EPOCH),
        ("another id", {"owner": (one.owner[0] + 99, 0)}, E.INVALID_PRODUCER_ID_MAPPING),
        ("another partition", {"partition": 9}, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("a stranger", {"generation": 3, "member": "who"}, E.UNKNOWN_MEMBER_ID),
    ):
        check(label, one.commit_offset(group, topic, 9, **about), code)
    check("nowhere", one.commit_offset(group, f"{topic}-no", 9), E.UNKNOWN_TOPIC_OR_PARTITION)
    absent = one.commit_offset(f"{group}-no", topic, 9, generation=3, member="m")
    check("absent group", absent, E.ILLEGAL_GENERATION)
    check("no group", one.commit_offset("", topic, 9), E.INVALID_GROUP_ID)
    asked = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    dropped = talk.ask(Api.OFFSET_DELETE, 0, group_id=group, topics=asked)
    check("delete", dropped.topics[0].partitions[0].error_code, E.NONE)
    check("deleted", told(), (E.NONE, -1))
    check("stage again", one.commit_offset(group, topic, 8), E.NONE)
    check("commit", (one.end(), settled()), ((E.NONE, 0), (E.NONE, 8)))
    staged = [one.add_group(group), one.commit_offset(group, topic, 9)]
    check("stage and abort", [*staged, one.end(commit=False)], [E.NONE, E.NONE, (E.NONE, 0)])
    check("as before", settled(), (E.NONE, 8))
    check(
        "stage more", [one.add_group(group), one.commit_offset(group, topic, 11)], [E.NONE, E.NONE]
    )
    check("delete the group", deleted(), E.NONE)
    check("commit that", (one.end(), settled()), ((E.NONE, 0), (E.NONE, -1)))


def test_replaced_member_commits_no_transactional_offsets(
    talk: Conversation, one: Producer
) -> None:
    """KIP-447: a commit names its member, and is refused from an old one."""
    group, topic = Group(talk), talk.topic()
    member = group.first()
    one.init()
    talk.check("add", one.add_group(group.id), E.NONE)
    for label, about, code in (
        ("a member", {"member": member, "generation": 1}, E.NONE),
        ("an old generation", {"member": member, "generation": 0}, E.ILLEGAL_GENERATION),
        ("a stranger", {"member": "who", "generation": 1}, E.UNKNOWN_MEMBER_ID),
        ("nobody in particular", {}, E.NONE),
    ):
        code_told = one.commit_offset(group.id, topic, 1, **about)  # type: ignore[arg-type]
        talk.check(label, code_told, code)


def test_transaction_version_feature_is_offered(talk: Conversation) -> None:
    told = talk.ask(
        Api.API_VERSIONS, 3, client_software_name="talk", client_software_version="1"
    ).finalized_features  # fmt: skip
    found = [(f.min_version_level, f.max_version_level) for f in told
             if f.name == "transaction.version"]  # fmt: skip
    talk.check("features", found, [(2, 2)])


def test_transactional_offset_commit_checks_the_consumer_epoch(
    talk: Conversation, one: Producer
) -> None:
    """KIP-1251: the answer without a transaction, but with an older error code."""
    check, group = talk.check, Consumers(talk)
    group.beat("a", 0)
    group.beat("b", 0)
    group.beat("a", 2)
    one.init()
    check("add", one.add_group(group.id), E.NONE)

    def commit(member: str, epoch: int, partition: int, **about: Any) -> int:
        return one.commit_offset(
            group.id, group.topic, 1, partition=partition, member=member, generation=epoch, **about
        )

    for label, told, code in (
        ("its own", commit("a", 2, 0), E.NONE),
        ("to be revoked", commit("a", 2, 2), E.NONE),
        ("an epoch to come", commit("a", 4, 0), E.ILLEGAL_GENERATION),
        ("an epoch before", commit("a", 1, 0), E.ILLEGAL_GENERATION),
        ("a stranger", commit("x", 2, 0), E.UNKNOWN_MEMBER_ID),
        ("nobody in particular", commit("", -1, 0), E.NONE),
        ("a stranger at no epoch", commit("x", -1, 0), E.UNKNOWN_MEMBER_ID),
        ("in an old version", commit("a", 2, 0, version=0), E.NONE),
    ):
        check(label, told, code)
    group.beat("a", 2, 0, 1)
    check("kept", commit("a", 2, 0), E.NONE)
    check("given up", commit("a", 2, 2), E.ILLEGAL_GENERATION)
    group.beat("b", 3)
    check("given to another", commit("b", 3, 2), E.NONE)
    check("before it was given", commit("b", 2, 2), E.ILLEGAL_GENERATION)
    check("commit", one.end(), (E.NONE, 0))
