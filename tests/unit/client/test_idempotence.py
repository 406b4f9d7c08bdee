"""Numbers of batches, partition by partition."""

import pytest

from streamsx.client.idempotence import EPOCHS, SEQUENCES, Idempotence
from streamsx.model import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER_ID = 7


def test_sequences_are_consecutive_per_partition() -> None:
    numbers = Idempotence(PRODUCER_ID)
    assert [numbers.number(tp, 3) for tp in (A, A, B)] == [(7, 0, 0), (7, 0, 3), (7, 0, 0)]


def test_new_epoch_of_one_partition_begins_at_sequence_0() -> None:
    numbers = Idempotence(PRODUCER_ID)
    for tp in (A, B):
        numbers.number(tp, 3)
    numbers.renew(A)
    assert [numbers.number(tp, 1) for tp in (A, A, B)] == [(7, 1, 0), (7, 1, 1), (7, 0, 3)]


def test_sequence_wraps_to_0_after_the_last() -> None:
    numbers = Idempotence(PRODUCER_ID)
    numbers.number(A, SEQUENCES - 1)
    assert numbers.number(A, 2) == (7, 0, SEQUENCES - 1)
    assert numbers.number(A, 1) == (7, 0, 1)


def test_used_up_epochs_raise_assertion_error() -> None:
    numbers = Idempotence(PRODUCER_ID)
    numbers.number(A, 1)
    for _ in range(EPOCHS - 1):
        numbers.renew(A)
    with pytest.raises(AssertionError, match="t-0: its epochs are used up"):
        numbers.renew(A)
