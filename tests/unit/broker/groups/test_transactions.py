"""Transactional ids: one producer at a time, and whole transactions only."""

import random
from types import SimpleNamespace

import pytest

from streamsx.broker.groups.coordinator_events import (
    ClientReply,
    ClientRequest,
    ExpireOffsets,
    MarkersWritten,
    Peer,
    Persist,
    WriteMarkers,
)
from streamsx.broker.groups.transactions import EXPIRY_MS, LAST_EPOCH, MARKERS_S, TransactionState
from streamsx.broker.metadata_rows import OffsetKey, TransactionKey, row_bytes
from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.wire import Api
from tests.support.coordinator_harness import CoordinatorHarness
from tests.support.sweeps import seeds
from tests.support.transacting import TOPIC, Transactor

PLACE = (TOPIC, 0)


@pytest.fixture
def harness() -> CoordinatorHarness:
    harness = CoordinatorHarness()
    harness.set_topics(t=3, u=1)
    return harness


def state(harness: CoordinatorHarness, name: str = "x") -> TransactionState:
    return harness.machine.transactions.by_id[name].state


def stable(harness: CoordinatorHarness, group: str = "g") -> list[int]:
    """Return the codes of an OffsetFetch that demands stable offsets."""
    topics = [SimpleNamespace(name=TOPIC, partition_indexes=[0])]
    waiter = harness.ask(
        9, 8, groups=[SimpleNamespace(group_id=group, topics=topics)], require_stable=True
    )
    (told,) = harness.replies[waiter]["groups"][0]["topics"][0]["partitions"]
    return [told["error_code"], told["committed_offset"]]


@pytest.mark.parametrize("modern", [False, True])
def test_transaction_ends_in_all_logs_and_groups(
    harness: CoordinatorHarness, *, modern: bool
) -> None:
    one = Transactor(harness, modern=modern)
    assert one.init() == E.NONE
    for serial, commit in ((1, True), (2, False), (3, True)):
        if not modern:
            assert one.add(PLACE, (TOPIC, 1)) == [E.NONE, E.NONE]
            assert one.add_group() == E.NONE
        assert [one.write(serial), one.write(serial, (TOPIC, 1))] == [E.NONE, E.NONE]
        assert one.commit_offset(serial) == E.NONE
        assert stable(harness)[0] == E.UNSTABLE_OFFSET_COMMIT
        assert one.end(commit=commit) == E.NONE
    assert one.owner[1] == (3 if modern else 0)
    for partition in (0, 1):
        assert harness.logs[TOPIC, partition].ended == {True: [1, 3], False: [2]}
    assert (stable(harness), harness.committed()) == ([E.NONE, 3], {PLACE: 3})


def test_decision_and_offsets_persisted_in_one_write_before_markers(
    harness: CoordinatorHarness,
) -> None:
    one = Transactor(harness)
    one.init()
    one.write(1)
    one.commit_offset(5)
    body = {"producer_id": one.owner[0], "producer_epoch": one.owner[1], "committed": True}
    about = SimpleNamespace(transactional_id="x", **body)
    request = ClientRequest(99, Api.END_TXN, 5, Peer("c", ""), about, "", 1)
    harness.asked[99] = request
    write, markers, reply, _ = harness.step(request)
    assert isinstance(write, Persist)
    assert [key for key, _ in write.puts] == [TransactionKey("x"), OffsetKey("g", TOPIC, 0)]
    assert isinstance(markers, WriteMarkers)
    assert markers.commit
    assert isinstance(reply, ClientReply)


def test_markers_of_one_transaction_complete_no_other(harness: CoordinatorHarness) -> None:
    """The transaction is of the first version, whose epoch stays. A flush takes long, so markers
    are asked for twice; the second flush ends when the next transaction waits for its own.
    """
    one = Transactor(harness, modern=False)
    one.init()
    harness.can_mark = lambda _: False
    asked = []
    for serial in (1, 2):
        one.add(PLACE)
        one.write(serial)
        one.end()
        asked.append(harness.machine.transactions.by_id["x"].decision)
        if serial == 1:
            harness.step(MarkersWritten("x", asked[0], 0))
            assert state(harness) is TransactionState.COMPLETE_COMMIT
    harness.step(MarkersWritten("x", asked[0], 0))
    assert state(harness) is TransactionState.PREPARE_COMMIT
    harness.step(MarkersWritten("x", asked[1], 0))
    assert state(harness) is TransactionState.COMPLETE_COMMIT


def test_new_producer_of_transactional_id_fences_previous_producer(
    harness: CoordinatorHarness,
) -> None:
    old, new = Transactor(harness), Transactor(harness)
    old.init()
    old.write(1)
    assert new.init() == E.CONCURRENT_TRANSACTIONS, "what is open is ended first"
    assert new.init() == E.NONE
    assert new.owner == (old.owner[0], old.owner[1] + 2)
    assert harness.logs[PLACE].ended == {True: [], False: [1]}
    assert (old.write(2), old.end()) == (E.INVALID_PRODUCER_EPOCH, E.PRODUCER_FENCED)
    assert old.end(version=1) == E.INVALID_PRODUCER_EPOCH, "which it knows"
    assert old.add(PLACE, version=1) == [E.INVALID_PRODUCER_EPOCH]
    assert old.commit_offset(1) == E.INVALID_PRODUCER_EPOCH
    assert old.init(old.owner) == E.PRODUCER_FENCED
    assert (new.write(3), new.end()) == (E.NONE, E.NONE)


def test_repeated_init_and_end_answered_alike(harness: CoordinatorHarness) -> None:
    one, again = Transactor(harness), Transactor(harness)
    one.init()
    first = one.owner
    for owner in (first, first):
        assert one.init(owner) == E.NONE
        assert one.owner == (first[0], 1)
    again.owner = one.owner
    one.write(1)
    for each in (one, again):
        assert each.end() == E.NONE
        assert each.owner == (first[0], 2)
    again.owner = (first[0], 1)
    assert again.end(commit=False) == E.INVALID_TXN_STATE


def test_last_producer_epoch_is_followed_by_new_producer_id(harness: CoordinatorHarness) -> None:
    one, again = Transactor(harness), Transactor(harness)
    one.init()
    txn = harness.machine.transactions.by_id["x"]
    txn.owner = one.owner = again.owner = (one.owner[0], LAST_EPOCH)
    one.write(1)
    harness.can_mark = lambda _: False
    assert one.end() == E.NONE
    assert again.end() == E.CONCURRENT_TRANSACTIONS
    harness.can_mark = lambda _: True
    harness.sleep(MARKERS_S)
    assert harness.logs[PLACE].ended[True] == [1]
    assert again.end() == E.NONE
    assert again.owner == one.owner
    assert one.owner[1] == 0
    assert one.owner[0] != txn.before[0]
    harness.crash()
    assert (one.write(2), one.end()) == (E.NONE, E.NONE)


def test_init_repeated_after_timeout_in_last_epoch_gives_same_new_id(
    harness: CoordinatorHarness,
) -> None:
    """The transaction is aborted, a new producer id is given, and the answer is lost."""
    one, again = Transactor(harness), Transactor(harness)
    one.init(timeout_ms=5000)
    txn = harness.machine.transactions.by_id["x"]
    last = txn.owner = one.owner = (one.owner[0], LAST_EPOCH)
    one.write(1)
    harness.sleep(6)
    for each in (one, again):
        assert each.init(last) == E.NONE
        assert each.owner == (one.owner[0], 0)
    assert one.owner[0] != last[0]


def test_timed_out_transaction_aborted_and_producer_continues(harness: CoordinatorHarness) -> None:
    one, other = Transactor(harness), Transactor(harness, "y")
    one.init(timeout_ms=5000)
    other.init(timeout_ms=9000)
    one.write(1)
    other.write(2)
    harness.sleep(6)
    assert harness.logs[PLACE].ended == {True: [], False: [1]}
    assert state(harness, "y") is TransactionState.ONGOING
    assert one.write(3) == E.INVALID_PRODUCER_EPOCH
    assert one.init(one.owner) == E.NONE, "KIP-360: it is still nobody else's"
    assert (one.write(4), one.end()) == (E.NONE, E.NONE)
    assert harness.logs[PLACE].ended == {True: [4], False: [1]}
    harness.sleep(9)
    assert harness.logs[PLACE].ended[False] == [1, 2]


@pytest.mark.parametrize("commit", [True, False])
def test_decided_transaction_completed_after_crash(
    harness: CoordinatorHarness, *, commit: bool
) -> None:
    one = Transactor(harness)
    one.init()
    for partition in range(3):
        one.write(1, (TOPIC, partition))
    one.commit_offset(7)
    harness.can_mark = lambda place: place[1] == 0
    assert one.end(commit=commit) == E.NONE
    assert state(harness) is (
        TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    )
    assert one.add(PLACE) == [E.CONCURRENT_TRANSACTIONS]
    assert stable(harness) == [E.NONE, 7 if commit else -1]
    harness.can_mark = lambda _: True
    harness.crash()
    assert [log.ended[commit] for log in harness.logs.values()] == [[1], [1], [1]]
    assert state(harness) is (
        TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    )


def test_ongoing_transaction_continues_after_crash(harness: CoordinatorHarness) -> None:
    one = Transactor(harness)
    one.init()
    one.write(1)
    one.commit_offset(7)
    harness.crash()
    assert stable(harness) == [E.UNSTABLE_OFFSET_COMMIT, -1]
    assert (one.write(2), one.end()) == (E.NONE, E.NONE)
    assert (harness.logs[PLACE].ended[True], stable(harness)) == ([1, 2], [E.NONE, 7])
    one.write(3)
    harness.crash()
    harness.sleep(61)
    assert harness.logs[PLACE].ended[False] == [3], "its time has begun anew, and is over"


@pytest.mark.parametrize("last", [True, False])
def test_transaction_left_open_by_power_cut_ends_like_last_of_producer(
    harness: CoordinatorHarness, *, last: bool
) -> None:
    one = Transactor(harness)
    one.init()
    one.write(1)
    one.end(commit=last)
    harness.logs[PLACE].write((one.owner[0], one.owner[1] - 1), 2)  # the marker is lost
    harness.logs[TOPIC, 1].write((999, 0), 3)  # the row is
    harness.crash()
    assert harness.logs[PLACE].ended[last] == [1, 2]
    assert harness.logs[TOPIC, 1].ended[False] == [3]


def test_partitions_added_to_transaction_all_or_none(harness: CoordinatorHarness) -> None:
    one = Transactor(harness, modern=False)
    one.init()
    assert one.add(PLACE, (TOPIC, 9)) == [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert one.write(1) == E.INVALID_TXN_STATE
    assert one.end() == E.INVALID_TXN_STATE
    for bad in ("", "nobody"):
        code = E.INVALID_PRODUCER_ID_MAPPING if bad else E.INVALID_REQUEST
        other = Transactor(harness, bad)
        other.owner = one.owner
        assert [*other.add(PLACE), other.add_group(), other.end()] == [code] * 3


@pytest.mark.parametrize("timeout_ms", [-1, 0, 15 * 60 * 1000 + 1])
def test_invalid_transaction_timeout_or_id_refused(
    harness: CoordinatorHarness, timeout_ms: int
) -> None:
    assert Transactor(harness).init(timeout_ms=timeout_ms) == E.INVALID_TRANSACTION_TIMEOUT
    assert Transactor(harness, "").init() == E.INVALID_REQUEST


def test_transactional_offset_commit_does_not_renew_session(harness: CoordinatorHarness) -> None:
    """As in Kafka, where a member that relied on it is removed."""
    one = Transactor(harness)
    one.init()
    member = str(harness.replies[harness.join(version=3, session_ms=10_000)]["member_id"])
    harness.sync(member, 1, assignments={member: b""})
    harness.sleep(6)
    assert one.commit_offset(1, member=member, generation=1) == E.NONE
    harness.sleep(6)
    assert one.commit_offset(2, member=member, generation=1) == E.UNKNOWN_MEMBER_ID


def test_transactional_offset_commit_is_fenced_like_plain_commit(
    harness: CoordinatorHarness,
) -> None:
    """KIP-447; older requests do not name the member."""
    one = Transactor(harness)
    one.init()
    member = str(harness.replies[harness.join()]["member_id"])
    harness.join(member)
    harness.sync(member, 1, assignments={member: b"mine"})
    about = {"member": member, "generation": 1}
    assert one.commit_offset(1, **about) == E.NONE  # type: ignore[arg-type]
    assert one.commit_offset(1, member=member, generation=0) == E.ILLEGAL_GENERATION
    assert one.commit_offset(1, member="who", generation=1) == E.UNKNOWN_MEMBER_ID
    assert one.commit_offset(1) == E.NONE
    assert one.commit_offset(1, "absent", member="who", generation=1) == E.ILLEGAL_GENERATION
    assert one.commit_offset(1, "") == E.INVALID_GROUP_ID
    assert one.commit_offset(1, place=("nowhere", 0)) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert one.commit_offset(1, "h", version=4) == E.INVALID_TXN_STATE, "it was not added"
    static = str(harness.replies[harness.join(group="s", instance="i")]["member_id"])
    again = str(harness.replies[harness.join(group="s", instance="i")]["member_id"])
    codes = [
        one.commit_offset(1, "s", member=m, generation=2, instance="i") for m in (static, again)
    ]
    assert codes == [E.FENCED_INSTANCE_ID, E.NONE], "in the midst of a round too"


@pytest.mark.parametrize("how", ["group", "topic", "offsets"])
def test_pending_offsets_dropped_with_group_topic_or_offsets(
    harness: CoordinatorHarness, how: str
) -> None:
    one = Transactor(harness)
    one.init()
    one.commit_offset(1)
    one.commit_offset(2, "other", place=("u", 0))
    if how == "group":
        assert (
            harness.replies[harness.ask(42, 2, groups_names=["g"])]["results"][0]["error_code"] == 0
        )
    elif how == "topic":
        harness.set_topics(u=1)
        harness.set_topics(t=3, u=1)
    else:
        assert harness.delete_offsets((TOPIC, 0)) == {TOPIC: [E.NONE]}
    harness.crash()
    assert (stable(harness), one.end()) == ([E.NONE, -1], E.NONE)
    assert (harness.committed(), harness.committed("other")) == ({}, {("u", 0): 2})


def test_group_with_pending_offsets_does_not_expire(harness: CoordinatorHarness) -> None:
    one = Transactor(harness)
    one.init(timeout_ms=900_000)
    one.commit_offset(1)
    harness.step(ExpireOffsets(10**15))
    assert [*harness.machine.groups] == ["g"]
    one.end(commit=False)
    harness.step(ExpireOffsets(10**15))
    assert [*harness.machine.groups] == []


def test_unused_transactional_ids_expire(harness: CoordinatorHarness) -> None:
    one, other = Transactor(harness), Transactor(harness, "y")
    one.init()
    other.init(timeout_ms=900_000)
    other.write(1)
    harness.step(ExpireOffsets(int(harness.now * 1000) + EXPIRY_MS))
    assert [*harness.machine.transactions.by_id] == ["y"], "it is under way"
    assert TransactionKey("x") not in harness.disk
    assert one.write(1) == E.INVALID_PRODUCER_ID_MAPPING


class Life:
    """Producers of two ids, over logs that sometimes cannot be written, with crashes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = CoordinatorHarness()
        self.harness.set_topics(t=3)
        self.clients = [
            Transactor(self.harness, name, modern=self.random.random() < 0.6) for name in "xxyy"
        ]
        self.serial = 0
        self.current: dict[Transactor, int] = {}
        self.told: dict[int, bool] = {}
        self.staged: dict[int, str] = {}
        self.epochs: dict[str, tuple[int, int]] = {}

    def well(self, _: object) -> bool:
        return self.random.random() < 0.7

    def step(self) -> None:
        self.harness.can_mark = self.well
        client = self.random.choice(self.clients)
        (act,) = self.random.choices(
            [self.works, self.ends, self.inits, self.sleeps, self.crashes], [12, 6, 2, 2, 1]
        )
        act(client)
        for name, txn in self.harness.machine.transactions.by_id.items():
            assert txn.owner >= self.epochs.get(name, (-1, -1)), "an epoch fell"
            self.epochs[name] = txn.owner
        for key, value in self.harness.disk.items():
            row_bytes(key, value)

    def works(self, client: Transactor) -> None:
        if client not in self.current:
            self.serial += 1
            self.current[client] = self.serial
        place = (TOPIC, self.random.randrange(3))
        if self.random.random() < 0.3:
            group = f"g{client.name}"
            if not client.modern:
                client.add_group(group)
            if client.commit_offset(self.current[client], group) == E.NONE:
                self.staged[self.current[client]] = group
            return
        if not client.modern:
            client.add(place)
        client.write(self.current[client], place)

    def ends(self, client: Transactor) -> None:
        commit = self.random.random() < 0.7
        if client in self.current and client.end(commit=commit) == E.NONE:
            self.told[self.current.pop(client)] = commit

    def inits(self, client: Transactor) -> None:
        own = client.owner if self.random.random() < 0.3 else (-1, -1)
        if client.init(own, timeout_ms=self.random.choice([2000, 20_000])) == E.NONE:
            self.current.pop(client, None)

    def sleeps(self, _: Transactor) -> None:
        self.harness.sleep(self.random.choice([0.1, 1, 3]))

    def crashes(self, _: Transactor) -> None:
        self.harness.crash()

    def settle(self) -> None:
        self.harness.can_mark = lambda _: True
        self.harness.crash()
        self.harness.sleep(60)
        outcome: dict[int, set[bool]] = {}
        for log in self.harness.logs.values():
            assert log.open == {}, "it would hold up its readers for ever"
            for commit, serials in log.ended.items():
                for serial in serials:
                    outcome.setdefault(serial, set()).add(commit)
        assert all(len(found) == 1 for found in outcome.values()), "some of it, and not all"
        for serial, commit in self.told.items():
            assert outcome.get(serial, {commit}) == {commit}, "another end than was told"
        for name in "xy":
            last = max((s for s, c in self.told.items() if c and self.staged.get(s) == f"g{name}"),
                       default=-1)  # fmt: skip
            assert self.harness.committed(f"g{name}").get(PLACE, -1) == last


@pytest.mark.parametrize("ten", seeds(5, 20))
def test_transactions_are_atomic_under_random_failures(ten: int) -> None:
    for seed in range(ten * 10, ten * 10 + 10):
        life = Life(seed)
        for _ in range(250):
            life.step()
        life.settle()
