"""Numbers of batches, partition by partition."""

import pytest

from streamsx.client.idempotence import EPOCHS, SEQUENCES, Idempotence
from streamsx.model import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER_ID = 7


def test_sequences_follow_each_other_in_each_partition() -> None:
    numbers = Idempotence(PRODUCER_ID)
    assert [numbers.number(tp, 3) for tp in (A, A, B)] == [(7, 0, 0), (7, 0, 3), (7, 0, 0)]


def test_a_new_epoch_is_one_partitions_and_begins_at_0() -> None:
    numbers = Idempotence(PRODUCER_ID)
    for tp in (A, B):
        numbers.number(tp, 3)
    numbers.renew(A)
    assert [numbers.number(tp, 1) for tp in (A, A, B)] == [(7, 1, 0), (7, 1, 1), (7, 0, 3)]


def test_behind_the_last_sequence_there_is_comes_0() -> None:
    numbers = Idempotence(PRODUCER_ID)
    numbers.number(A, SEQUENCES - 1)
    assert numbers.number(A, 2) == (7, 0, SEQUENCES - 1)
    assert numbers.number(A, 1) == (7, 0, 1)


def test_an_epoch_that_no_batch_can_bear_is_an_invariant_broken() -> None:
    numbers = Idempotence(PRODUCER_ID)
    numbers.number(A, 1)
    for _ in range(EPOCHS - 1):
        numbers.renew(A)
    with pytest.raises(AssertionError, match="t-0: its epochs are used up"):
        numbers.renew(A)
