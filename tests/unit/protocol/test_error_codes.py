"""Error codes: Kafka's numbers, and our exceptions."""

import kio.schema.errors
import pytest

from streamsx import errors
from streamsx.protocol.error_codes import RETRIABLE, ErrorCode, failure, name_of


def test_error_names_codes_and_retriability_match_kafka() -> None:
    theirs = {(e.name.upper(), e.value, e.retriable) for e in kio.schema.errors.ErrorCode}
    assert {(e.name, e.value, e in RETRIABLE) for e in ErrorCode} <= theirs


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.INVALID_CONFIG, errors.SettingError),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, errors.TopicGone),
        (ErrorCode.UNKNOWN_MEMBER_ID, errors.Fenced),
        (ErrorCode.FENCED_INSTANCE_ID, errors.InstanceIdTaken),
        (ErrorCode.MESSAGE_TOO_LARGE, errors.RecordTooLarge),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, errors.WorldError),
        (ErrorCode.INVALID_REQUEST, errors.StreamsxError),
        (12345, errors.StreamsxError),
    ],
)
def test_error_code_maps_to_exception_type(code: int, kind: type[errors.StreamsxError]) -> None:
    assert type(failure(code, "topic orders")) is kind


def test_failure_message_names_code_subject_and_remedy() -> None:
    assert str(failure(40, "topic orders", "cleanup.policy is odd")) == (
        "INVALID_CONFIG: topic orders: cleanup.policy is odd"
    )
    assert str(failure(12345, "topic orders")) == "error code 12345: topic orders"
    assert name_of(0) == "NONE"
