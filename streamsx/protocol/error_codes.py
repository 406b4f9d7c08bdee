"""Error codes of Kafka: whether a code is retriable, and which exception a code becomes.

Not here: the reaction of a member or a producer to a code, which depends on its current work.
"""

from enum import IntEnum, unique
from typing import Self

from streamsx import errors


@unique
class ErrorCode(IntEnum):
    """Error codes that this project returns or handles, with Kafka's names and numbers.

    Each code has the exception that it becomes: an error of the user, a topic, a record or the
    group where the code identifies one.
    """

    kind: type[errors.StreamsxError]

    def __new__(cls, number: int, kind: type[errors.StreamsxError] = errors.StreamsxError) -> Self:
        made = int.__new__(cls, number)
        made._value_ = number
        made.kind = kind
        return made

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2, errors.CorruptRecord
    UNKNOWN_TOPIC_OR_PARTITION = 3, errors.TopicGone
    LEADER_NOT_AVAILABLE = 5, errors.WorldError
    NOT_LEADER_OR_FOLLOWER = 6, errors.WorldError
    REQUEST_TIMED_OUT = 7, errors.WorldError
    REPLICA_NOT_AVAILABLE = 9, errors.WorldError
    MESSAGE_TOO_LARGE = 10, errors.RecordTooLarge
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13, errors.WorldError
    COORDINATOR_LOAD_IN_PROGRESS = 14, errors.WorldError
    COORDINATOR_NOT_AVAILABLE = 15, errors.WorldError
    NOT_COORDINATOR = 16, errors.WorldError
    INVALID_TOPIC_EXCEPTION = 17, errors.SettingError
    RECORD_LIST_TOO_LARGE = 18, errors.RecordTooLarge
    NOT_ENOUGH_REPLICAS = 19, errors.WorldError
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, errors.WorldError
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22, errors.Fenced
    INCONSISTENT_GROUP_PROTOCOL = 23, errors.ForeignProtocol
    INVALID_GROUP_ID = 24, errors.SettingError
    UNKNOWN_MEMBER_ID = 25, errors.Fenced
    INVALID_SESSION_TIMEOUT = 26, errors.SettingError
    REBALANCE_IN_PROGRESS = 27, errors.RebalanceInProgress
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29, errors.SettingError
    GROUP_AUTHORIZATION_FAILED = 30, errors.SettingError
    CLUSTER_AUTHORIZATION_FAILED = 31, errors.SettingError
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33, errors.UsageError
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37, errors.SettingError
    INVALID_REPLICATION_FACTOR = 38, errors.SettingError
    INVALID_REPLICA_ASSIGNMENT = 39, errors.SettingError
    INVALID_CONFIG = 40, errors.SettingError
    NOT_CONTROLLER = 41, errors.WorldError
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44, errors.SettingError
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47, errors.Fenced
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49, errors.Fenced
    INVALID_TRANSACTION_TIMEOUT = 50, errors.SettingError
    CONCURRENT_TRANSACTIONS = 51, errors.WorldError
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, errors.SettingError
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56, errors.WorldError
    SASL_AUTHENTICATION_FAILED = 58, errors.UsageError
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69, errors.NotFound
    FETCH_SESSION_ID_NOT_FOUND = 70, errors.WorldError
    FENCED_LEADER_EPOCH = 74, errors.WorldError
    UNKNOWN_LEADER_EPOCH = 75, errors.WorldError
    OFFSET_NOT_AVAILABLE = 78, errors.WorldError
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82, errors.InstanceIdTaken
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88, errors.WorldError
    THROTTLING_QUOTA_EXCEEDED = 89, errors.WorldError
    PRODUCER_FENCED = 90, errors.Fenced
    UNKNOWN_TOPIC_ID = 100, errors.TopicGone
    INCONSISTENT_TOPIC_ID = 103, errors.WorldError
    FENCED_MEMBER_EPOCH = 110, errors.Fenced
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113, errors.Fenced
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128, errors.SettingError


RETRIABLE = frozenset(
    code for code in ErrorCode if issubclass(code.kind, errors.WorldError | errors.CorruptRecord)
)
"""Codes after which the same request may succeed later, perhaps at another broker."""


def name_of(code: int) -> str:
    """Return Kafka's name of a code, or its number if the code is not listed."""
    return ErrorCode(code).name if code in set(ErrorCode) else f"error code {code}"


def failure(code: int, where: str, advice: str = "") -> errors.StreamsxError:
    """Return the exception for a code, with the text `NAME: where: advice`.

    `advice` may be the broker's own error message.
    """
    kind = ErrorCode(code).kind if code in set(ErrorCode) else errors.StreamsxError
    return kind(": ".join(part for part in (name_of(code), where, advice) if part))
