"""Sequence numbers of batches, by partition, and the effect of each answer on them."""

from types import SimpleNamespace

import pytest

from streamsx.client.idempotence import (
    EPOCHS,
    FORGOTTEN,
    SEQUENCES,
    BatchOutcome,
    Idempotence,
)
from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import RETRIABLE, ErrorCode

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER_ID = 7
TAKEN = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
REFUSED = (*set(ErrorCode) - {*TAKEN, *RETRIABLE, *FORGOTTEN}, 9999)


def test_producer_id_comes_from_the_answer_to_init_producer_id() -> None:
    numbers = Idempotence()
    asked = numbers.init_request()
    assert asked == {"transactional_id": None, "transaction_timeout": 0, "producer_id": -1}
    busy = SimpleNamespace(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_id=9)
    assert numbers.initialised(busy) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert numbers.initialised(SimpleNamespace(error_code=0, producer_id=PRODUCER_ID)) == 0
    assert numbers.number(A, 1) == (PRODUCER_ID, 0, 0)


def test_sequences_are_consecutive_per_partition() -> None:
    numbers = Idempotence(PRODUCER_ID)
    assert [numbers.number(tp, 3) for tp in (A, A, B)] == [(7, 0, 0), (7, 0, 3), (7, 0, 0)]


@pytest.mark.parametrize("code", sorted(TAKEN))
def test_numbers_of_a_batch_that_the_broker_has_are_used(code: int) -> None:
    numbers = Idempotence(PRODUCER_ID)
    numbers.number(A, 3)
    assert numbers.answered(A, 3, code) is BatchOutcome.TAKEN
    assert numbers.number(A, 1) == (7, 0, 3)


@pytest.mark.parametrize("code", sorted(RETRIABLE))
def test_batch_with_retriable_answer_keeps_its_numbers(code: int) -> None:
    numbers = Idempotence(PRODUCER_ID)
    numbers.number(A, 3)
    assert numbers.answered(A, 3, code) is BatchOutcome.AGAIN
    assert numbers.answered(A, 3, ErrorCode.NONE) is BatchOutcome.TAKEN
    assert numbers.number(A, 1) == (7, 0, 3)


@pytest.mark.parametrize("code", sorted(FORGOTTEN))
def test_forgotten_producer_begins_a_new_epoch_of_that_partition(code: int) -> None:
    numbers = Idempotence(PRODUCER_ID)
    for tp in (A, B):
        numbers.number(tp, 3)
    assert numbers.answered(A, 3, code) is BatchOutcome.RENUMBER
    assert [numbers.number(tp, 1) for tp in (A, A, B)] == [(7, 1, 0), (7, 1, 1), (7, 0, 3)]


@pytest.mark.parametrize("code", sorted(REFUSED))
def test_next_batch_gets_the_numbers_of_a_refused_batch(code: int) -> None:
    numbers = Idempotence(PRODUCER_ID)
    numbers.number(A, SEQUENCES - 1)
    numbers.number(A, 3)
    assert numbers.answered(A, 3, code) is BatchOutcome.REFUSED
    assert numbers.number(A, 1) == (7, 0, SEQUENCES - 1)


def test_given_up_batch_begins_a_new_epoch() -> None:
    numbers = Idempotence(PRODUCER_ID)
    numbers.number(A, 3)
    numbers.given_up(A)
    assert numbers.number(A, 1) == (7, 1, 0)


def test_sequence_wraps_to_0_after_the_last() -> None:
    numbers = Idempotence(PRODUCER_ID)
    numbers.number(A, SEQUENCES - 1)
    assert numbers.number(A, 2) == (7, 0, SEQUENCES - 1)
    assert numbers.number(A, 1) == (7, 0, 1)


def test_used_up_epochs_raise_assertion_error() -> None:
    numbers = Idempotence(PRODUCER_ID)
    numbers.number(A, 1)
    for _ in range(EPOCHS - 1):
        numbers.given_up(A)
    with pytest.raises(AssertionError, match="t-0: its epochs are used up"):
        numbers.given_up(A)
