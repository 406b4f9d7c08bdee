"""Advice for errors that Kafka returns for good."""

import pytest

from streamsx.client.error_advice import commit_error, fatal_group_error
from streamsx.errors import Fenced, ForeignProtocol, SettingError
from streamsx.model import TaskId, TopicPartition

T, P = TaskId(0, 1), TopicPartition("orders", 1)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (29, "let the user of this worker read the topic"),
        (12, "raise offset.metadata.max.bytes of the brokers to 4096"),
        (28, "raise max.message.bytes of __consumer_offsets"),
        (999, "see the log of the broker"),
        (3, "no action needed if it is gone"),
    ],
)
def test_denied_commit_error_names_task_partition_and_remedy(code: int, remedy: str) -> None:
    told = commit_error(T, P, code)
    assert told.pauses is (code != 3)
    assert told.what.startswith("commit refused: ")
    assert ": task 0_1, orders-1: " in told.what
    assert told.what.endswith(remedy)


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        (0, Fenced, 1),
        (25, Fenced, 1),
        (30, SettingError, 2),
        (26, SettingError, 2),
        (23, ForeignProtocol, 1),
    ],
)
def test_group_refusal_code_decides_error_type_and_exit_code(
    code: int, kind: type, exit_code: int
) -> None:
    error = fatal_group_error("quiet", code)
    assert (type(error), error.exit_code) == (kind, exit_code)
    assert "the group refuses this worker" in str(error)


def test_session_timeout_refusal_names_the_setting() -> None:
    assert "set session_timeout within" in str(fatal_group_error("quiet", 26))


def test_missing_right_names_the_user_and_the_resource() -> None:
    told = commit_error(T, P, 29, "user alice")
    assert f"{P}" in told.what
    assert told.what.endswith("let user alice read the topic")
    assert "let user alice read the group" in str(fatal_group_error("quiet", 30, "user alice"))
