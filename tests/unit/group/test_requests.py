"""Answers as the codec has them, in the member's words."""

from types import SimpleNamespace
from typing import Any

from streamsx.group import member_events as e
from streamsx.group.requests import committed
from streamsx.model import TopicPartition


def answer(**codes: int) -> Any:
    """Of a commit: per topic the code of its one partition."""
    return SimpleNamespace(
        topics=[
            SimpleNamespace(
                name=name, partitions=[SimpleNamespace(partition_index=0, error_code=code)]
            )
            for name, code in codes.items()
        ]
    )


def test_denied_partitions_do_not_affect_the_other_partitions() -> None:
    """One topic that may not be read failed the commits of all others, which Kafka had taken."""
    denied = {TopicPartition("a", 0): 29, TopicPartition("c", 0): 3}
    assert committed(7, answer(a=29, b=0, c=3)) == e.Reply(7, 0, denied)


def test_commit_answer_is_error_of_partitions_not_denied() -> None:
    denied = {TopicPartition("a", 0): 29}
    assert committed(7, answer(a=29, b=27)) == e.Reply(7, 27, denied)
