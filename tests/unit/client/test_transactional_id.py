"""Transactional id: its gate, its requests, and the effect of each answer."""

from types import SimpleNamespace
from typing import Any

import pytest

from streamsx.client.idempotence import BatchOutcome
from streamsx.client.transactional_id import (
    FENCES_S,
    LATE_FOR_S,
    OVER,
    VERDICTS,
    TransactionalId,
    TransactionStage,
    TransactionVerdict,
    error_code,
)
from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api

P, Q = TopicPartition("t", 0), TopicPartition("u", 1)


def reply(epoch: int = 0, producer_id: int = 7, code: int = 0) -> Any:
    return SimpleNamespace(error_code=code, producer_id=producer_id, producer_epoch=epoch)


def begun(version: int = 2, timeout_s: float = 10.0) -> TransactionalId:
    made = TransactionalId("app-1", timeout_s)
    made.version = version
    assert made.initialised(reply()) == 0
    return made


def test_batches_leave_only_while_a_transaction_is_open() -> None:
    one = TransactionalId("app-1", 10.0)
    assert not one.leaves(0.0)
    one.initialised(reply())
    assert one.leaves(0.0)
    one.shut()
    assert not one.leaves(0.0)
    one.ended(reply(1))
    assert one.leaves(0.0)
    one.aborted()
    assert (one.leaves(0.0), one.stage) == (False, TransactionStage.BEGINNING)


def test_second_version_numbers_batches_with_the_epoch_of_the_last_end() -> None:
    one = begun()
    assert one.number(P, 3) == (7, 0, 0)
    one.shut()
    one.ended(reply(1))
    assert [one.number(P, 1), one.number(P, 1)] == [(7, 1, 0), (7, 1, 1)]
    one.shut()
    one.ended(reply(0, producer_id=8))  # the epochs of 7 are used up
    assert one.number(P, 1) == (8, 0, 0)


def test_first_version_goes_on_with_its_numbers_and_adds_partitions_anew() -> None:
    one = begun(version=1)
    one.added.add(P)
    assert one.number(P, 3) == (7, 0, 0)
    one.shut()
    one.ended(reply(-1, producer_id=-1))
    assert (one.number(P, 1), one.added) == ((7, 0, 3), set())


def test_begun_anew_all_numbers_begin_anew() -> None:
    one = begun()
    one.number(P, 3)
    one.aborted()
    one.initialised(reply(5))
    assert one.number(P, 1) == (7, 5, 0)
    assert one.open_transaction == ("app-1", 7, 5, 2)


def test_refused_beginning_changes_nothing() -> None:
    one = TransactionalId("app-1", 10.0)
    assert one.initialised(reply(3, code=ErrorCode.CONCURRENT_TRANSACTIONS))
    assert one.stage is TransactionStage.BEGINNING


@pytest.mark.parametrize("code", sorted(OVER))
def test_code_that_ends_a_transaction_ends_that_of_a_batch(code: int) -> None:
    one = begun()
    one.number(P, 1)
    assert one.answered(P, 1, code) is BatchOutcome.ABORTED


def test_batch_behind_a_transaction_that_is_being_ended_goes_again_soon() -> None:
    one = begun()
    one.number(P, 1)
    soon = one.answered(P, 1, ErrorCode.CONCURRENT_TRANSACTIONS)
    assert soon is BatchOutcome.SOON
    assert one.answered(P, 1, ErrorCode.NONE) is BatchOutcome.TAKEN


def test_record_fault_ends_no_transaction() -> None:
    one = begun()
    one.number(P, 2)
    assert one.answered(P, 2, ErrorCode.MESSAGE_TOO_LARGE) is BatchOutcome.REFUSED
    assert one.number(P, 1) == (7, 0, 0)


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.NONE, TransactionVerdict.GOOD),
        (ErrorCode.NOT_COORDINATOR, TransactionVerdict.AGAIN),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, TransactionVerdict.AGAIN),
        (ErrorCode.CONCURRENT_TRANSACTIONS, TransactionVerdict.SOON),
        (ErrorCode.INVALID_PRODUCER_EPOCH, TransactionVerdict.FENCED),
        (ErrorCode.PRODUCER_FENCED, TransactionVerdict.FENCED),
        (ErrorCode.INVALID_TXN_STATE, TransactionVerdict.ABORT),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, TransactionVerdict.ABORT),
        (ErrorCode.TRANSACTION_ABORTABLE, TransactionVerdict.ABORT),
    ],
)
def test_each_code_has_its_verdict(code: ErrorCode, verdict: TransactionVerdict) -> None:
    assert VERDICTS[code] is verdict


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_TRANSACTION_TIMEOUT, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
)
def test_missing_right_is_not_asked_for_again(code: ErrorCode) -> None:
    assert code not in VERDICTS


def test_third_fence_in_a_minute_is_one_too_many() -> None:
    one = begun()
    assert [one.fenced(at) for at in (0.0, 30.0, FENCES_S - 1)] == [False, False, True]
    other = begun()
    assert not any(other.fenced(at) for at in (0.0, 30.0, FENCES_S + 1, 95.0))


def test_transaction_that_has_timed_out_is_no_fence() -> None:
    one = begun(timeout_s=2.0)
    for at in (0.0, 10.0, 20.0, 30.0):
        one.left(at)
        assert not one.fenced(at + 2.0)
        one.aborted()
        one.initialised(reply())
    assert not one.fenced(31.0)


def test_records_leave_late_once_a_body_works_for_a_fifth_of_the_time_out() -> None:
    one = begun(timeout_s=10.0)
    assert not one.worked(0.0, 1.9)
    assert one.leaves(0.0)
    assert one.worked(1.0, 2.0)
    assert not one.worked(2.0, 3.0), "it is told once"
    assert not one.leaves(2.0)
    one.flush()
    assert one.leaves(2.0)
    one.shut()
    one.ended(reply(1))
    assert not one.leaves(3.0)
    assert one.leaves(2.0 + LATE_FOR_S)


def test_requests_name_the_producer_and_its_partitions() -> None:
    one = begun(version=1)
    about = {"transactional_id": "app-1", "producer_id": 7, "producer_epoch": 0}
    assert one.init_request()["transaction_timeout"] == 10_000
    assert one.end_request() == {**about, "committed": True}
    assert one.group_request("app") == {**about, "group_id": "app"}
    added = one.add_request([Q, P])
    assert added["v3_and_below_producer_id"] == 7
    names = [(topic["name"], topic["partitions"]) for topic in added["v3_and_below_topics"]]
    assert names == [("t", [0]), ("u", [1])]


@pytest.mark.parametrize(("version", "newest"), [(1, 3), (2, 5)])
def test_end_has_the_version_of_the_protocol(version: int, newest: int) -> None:
    found = begun(version).versions(Api.END_TXN)
    assert found is not None
    assert found.newest == newest
    assert begun(version).versions(Api.INIT_PRODUCER_ID) is None


def test_first_refusal_of_several_partitions_is_the_answer() -> None:
    codes = (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    parts = [SimpleNamespace(partition_error_code=code) for code in codes]
    topics = [SimpleNamespace(results_by_partition=parts)]
    answer = SimpleNamespace(error_code=0, results_by_topic_v3_and_below=topics)
    assert error_code(answer) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
