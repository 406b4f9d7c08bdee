"""Tree of exceptions, ordered by the cause: the user, the world, or a bug.

StreamsxError
  UsageError   (exit 2)  the user: a bad option, app, setting or topology
    SettingError
    TopologyError
      PartitionMismatch NameClash NotOnSpark SeveralMistakes
    NotSupported PartitionCountChanged ChangelogLost IncompatibleStore SnapshotNotPublished
    StateOnSpark GroupNotEmpty SnapshotAhead WrongThread
  NotFound     (exit 3)  app id, instance, store or topic
  NotHere                a key of a table that another worker may have
  WorldError             the world: retried, with a limit; exit 1, or 4 for BrokerUnreachable
    BrokerUnreachable StoreLocked DiskFailed DescriptorsUsedUp TopicGone SnapshotFailed
    SparkGone StateConflict
  DataError              corrupt or unreadable bytes
    CorruptRecord StoreCorrupt DecodeFailed RecordTooLarge RecordRefused RecordTooLate
    ValueRefused
  GroupError   (exit 1)  refusals of this member by the coordinator
    Fenced InstanceIdTaken ForeignProtocol RebalanceInProgress
  TaskFailed   (exit 1)  a task that its policy stops, and its worker with the task
    AppStopped           the same, and all workers of the app
  TaskStopped            a task that processes no more; its worker goes on
    TableNotInTask       the same, and a TopologyError
  Bug          (exit 1)  a bug of streamsx: stop and print the story
    InvalidTransition InvariantBroken IllegalPlan

Each message has the form `PROBLEM: PLACE: ADVICE`, in one line.
"""

from collections.abc import Sequence


class StreamsxError(Exception):
    """Base of all errors of this package.

    Attributes:
        exit_code: Exit code of a command that ends with this error.
    """

    exit_code = 1


class UsageError(StreamsxError):
    """Mistake of the user; nothing was tried."""

    exit_code = 2


class SettingError(UsageError):
    """Setting that is unknown, has a bad value or contradicts another one."""


class TransactionFenced(UsageError):
    """Transactional id that another process uses too."""


class TopologyError(UsageError):
    """App that cannot become a topology."""


class PartitionMismatch(TopologyError):
    """Different partition counts of topics that one task reads together."""


class NameClash(TopologyError):
    """Same name for two things of an app."""


class NotOnSpark(TopologyError):
    """App that runs in a worker, and not on Spark."""


class SeveralMistakes(TopologyError):
    """Several mistakes in one app; the message has a line for each.

    Attributes:
        errors: The mistakes, each an error of its own.
    """

    def __init__(self, errors: Sequence[UsageError]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = tuple(errors)


class NotSupported(UsageError):
    """Feature of Faust or Kafka Streams that this version does not have."""


class PartitionCountChanged(UsageError):
    """Topic with another partition count than at the time when the app's state was made."""


class ChangelogLost(UsageError):
    """Changelog that is gone or made anew, while a store on disk may be the table's last copy."""


class IncompatibleStore(UsageError):
    """Store, on disk or in a snapshot, that is not the one that this app needs."""


class SnapshotNotPublished(UsageError):
    """Snapshot that no changelog continues."""


class StateOnSpark(UsageError):
    """State that Spark has continued, and that was not handed over."""


class WrongThread(UsageError):
    """Use of a table or topic from another thread than the event loop's."""


class GroupNotEmpty(UsageError):
    """Running workers in a group that Spark is to take over, or to hand over."""


class SnapshotAhead(UsageError):
    """Snapshot and Kafka's data from different moments."""


class NotFound(StreamsxError):
    """App id, worker, store or topic that does not exist."""

    exit_code = 3


class NotHere(StreamsxError):
    """Key of a table that is missing here, and that another worker may have.

    Attributes:
        table: Name of the table.
        key: The key.
        partitions: Partitions of the table on this worker.
    """

    def __init__(self, message: str, table: str, key: object, partitions: frozenset[int]) -> None:
        super().__init__(message)
        self.table = table
        self.key = key
        self.partitions = partitions


class WorldError(StreamsxError):
    """Failure of the world outside, worth another try."""


class BrokerUnreachable(WorldError):
    """No broker answers."""

    exit_code = 4


class StoreLocked(WorldError):
    """Directory that another process holds."""


class DiskFailed(WorldError):
    """Disk under a store or a state directory that is full, or broken."""


class DescriptorsUsedUp(WorldError):
    """File that cannot be opened, because this process has no file descriptors left."""


class TopicGone(WorldError):
    """Topic that vanished while in use."""


class SnapshotFailed(WorldError):
    """Snapshot location that cannot be reached, read or written."""


class SparkGone(WorldError):
    """JVM of a Spark session that has ended."""


class StateConflict(WorldError):
    """Another writer of snapshots to the same place."""


class DataError(StreamsxError):
    """Bytes that are corrupt or cannot be read."""


class CorruptRecord(DataError):
    """Record batch with a wrong checksum or form."""


class StoreCorrupt(DataError):
    """Database that cannot be opened or read."""


STORE_FAULTS = (DescriptorsUsedUp, DiskFailed, StoreCorrupt, StoreLocked)
"""Errors of a store that cannot be read or written."""


class DecodeFailed(DataError):
    """Key or value that its codec refuses."""


class RecordTooLarge(DataError):
    """Record over the size limit of its topic."""


class RecordRefused(DataError):
    """Record that its topic refuses because of its time, its key or its headers."""


class RecordTooLate(DataError):
    """Record whose windows had closed, named in its dead letter; nothing raises it."""


class ValueRefused(DataError):
    """Value of a table that its codec refuses, or that is too large for its changelog."""


class GroupError(StreamsxError):
    """Refusal of this worker by the group's coordinator."""


class Fenced(GroupError):
    """Membership that ended because the group went on without this worker."""


class InstanceIdTaken(GroupError):
    """Static instance id that another process runs with."""


class ForeignProtocol(GroupError):
    """Group that speaks another protocol than streamsx."""


class RebalanceInProgress(GroupError):
    """Request that must wait for the end of a rebalance."""


class TaskFailed(StreamsxError):
    """Task that its policy stops, and its worker with the task."""


class AppStopped(TaskFailed):
    """Task that its policy stops, with all workers of its app."""


class TaskStopped(StreamsxError):
    """Task that processes no more until it is started again; its worker goes on."""


class TableNotInTask(TaskStopped, TopologyError):
    """Access of user code to a table that the running task does not hold."""


class Bug(StreamsxError):
    """Bug of streamsx: the process stops and prints the story."""


class InvalidTransition(Bug):
    """Event that the state of a machine does not know; the message contains the story."""


class InvariantBroken(Bug):
    """Broken invariant."""


class IllegalPlan(Bug):
    """Plan that breaks its postconditions."""


def first_of(error: BaseException) -> BaseException:
    """Return the first error of an exception group (TaskGroup raises groups), else the error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
