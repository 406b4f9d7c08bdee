"""Answers of the codec in the terms of the member."""

from types import SimpleNamespace
from typing import Any

from streamsx.client.transactional_id import TransactionIdentity
from streamsx.group import member_events as e
from streamsx.group import requests
from streamsx.group.member import MemberConfig
from streamsx.group.requests import committed
from streamsx.model import OffsetAndMetadata, TopicPartition
from streamsx.protocol.wire import Api


def answer(**codes: int) -> Any:
    """Return the answer to a commit: by topic the code of its one partition."""
    return SimpleNamespace(
        topics=[
            SimpleNamespace(
                name=name, partitions=[SimpleNamespace(partition_index=0, error_code=code)]
            )
            for name, code in codes.items()
        ]
    )


def test_staged_offsets_name_the_member_and_its_generation() -> None:
    """Without them the coordinator would take offsets of partitions that other members own by
    now.
    """
    transaction = TransactionIdentity("app-1", 7, 3, 1)
    body = e.TxnOffsetCommit({TopicPartition("a", 0): OffsetAndMetadata(5, "x")}, transaction)
    send = e.SendRequest(1, 0, e.ConnectionName.BEAT, 1.0, body, 0.0, "m", 4, stable=True)
    api, fields = requests.request("app", MemberConfig(), "streamsx", send)
    assert api is Api.TXN_OFFSET_COMMIT
    assert (fields["member_id"], fields["generation_id"]) == ("m", 4)
    assert (fields["producer_id"], fields["producer_epoch"]) == (7, 3)


def test_denied_partitions_do_not_affect_the_other_partitions() -> None:
    """One topic without a read permission failed the commits of all others, which Kafka had
    taken.
    """
    denied = {TopicPartition("a", 0): 29, TopicPartition("c", 0): 3}
    assert committed(7, answer(a=29, b=0, c=3)) == e.Reply(7, 0, denied)


def test_commit_answer_is_error_of_partitions_not_denied() -> None:
    denied = {TopicPartition("a", 0): 29}
    assert committed(7, answer(a=29, b=27)) == e.Reply(7, 27, denied)
