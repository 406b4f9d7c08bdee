"""Kafka's error codes: which are worth another try, which of our exceptions they are.

What a member or a producer does about a code depends on what it is doing, and stands there.
"""

from enum import IntEnum, unique

from streamsx import errors


@unique
class ErrorCode(IntEnum):
    """The codes that we answer or act on, with Kafka's names and numbers."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, perhaps at another broker."""
        return self in RETRIABLE


RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)

KINDS: dict[int, type[errors.StreamsxError]] = {
    ErrorCode.CORRUPT_MESSAGE: errors.CorruptRecord,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: errors.TopicGone,
    ErrorCode.UNKNOWN_TOPIC_ID: errors.TopicGone,
    ErrorCode.MESSAGE_TOO_LARGE: errors.RecordTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: errors.RecordTooLarge,
    ErrorCode.ILLEGAL_GENERATION: errors.Fenced,
    ErrorCode.UNKNOWN_MEMBER_ID: errors.Fenced,
    ErrorCode.FENCED_MEMBER_EPOCH: errors.Fenced,
    ErrorCode.INVALID_PRODUCER_EPOCH: errors.Fenced,
    ErrorCode.PRODUCER_FENCED: errors.Fenced,
    ErrorCode.FENCED_INSTANCE_ID: errors.InstanceIdTaken,
    ErrorCode.UNRELEASED_INSTANCE_ID: errors.InstanceIdTaken,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: errors.ForeignProtocol,
    ErrorCode.REBALANCE_IN_PROGRESS: errors.RebalanceInProgress,
    ErrorCode.GROUP_ID_NOT_FOUND: errors.NotFound,
    ErrorCode.INVALID_TOPIC_EXCEPTION: errors.SettingError,
    ErrorCode.INVALID_GROUP_ID: errors.SettingError,
    ErrorCode.INVALID_SESSION_TIMEOUT: errors.SettingError,
    ErrorCode.INVALID_PARTITIONS: errors.SettingError,
    ErrorCode.INVALID_REPLICATION_FACTOR: errors.SettingError,
    ErrorCode.INVALID_CONFIG: errors.SettingError,
    ErrorCode.POLICY_VIOLATION: errors.SettingError,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: errors.SettingError,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: errors.SettingError,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: errors.SettingError,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: errors.SettingError,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: errors.SettingError,
    ErrorCode.SASL_AUTHENTICATION_FAILED: errors.SettingError,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: errors.SettingError,
}


def name_of(code: int) -> str:
    """Kafka's name, or the number of one that is not in our list."""
    return ErrorCode(code).name if code in set(ErrorCode) else f"error code {code}"


def failure(code: int, where: str, advice: str = "") -> errors.StreamsxError:
    """The exception for a code: `NAME: where: advice`. `advice` may be the broker's own words.

    The user's, a topic's, a record's or the group's where the code says so; else WorldError for
    what is worth another try and StreamsxError for what is not.
    """
    retriable = code in RETRIABLE
    kind = KINDS.get(code, errors.WorldError if retriable else errors.StreamsxError)
    return kind(": ".join(part for part in (name_of(code), where, advice) if part))
