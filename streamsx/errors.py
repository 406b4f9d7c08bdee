"""The tree of exceptions, by whose fault it is.

StreamsxError
  UsageError   (exit 2)  the user's: bad option, app, setting or topology
    SettingError
    TopologyError
      PartitionMismatch TableNotInTask NameClash NotOnSpark
    NotSupported PartitionCountChanged ChangelogLost IncompatibleStore SnapshotNotPublished
    GroupNotEmpty SnapshotAhead WrongThread
  NotFound     (exit 3)  app id, instance, store or topic
  NotHere                a key of a table that another worker may have
  WorldError             the world's: retried, with a limit; exit 1, or 4 for BrokerUnreachable
    BrokerUnreachable StoreLocked DiskFailed DescriptorsUsedUp TopicGone SnapshotFailed
    StateConflict
  DataError              bytes that are not what they should be
    CorruptRecord StoreCorrupt DecodeFailed RecordTooLarge RecordRefused ValueRefused
  GroupError   (exit 1)  what the coordinator says of us
    Fenced InstanceIdTaken ForeignProtocol RebalanceInProgress
  TaskFailed   (exit 1)  a task that its policy stops, and its worker with it
  TaskStopped            a task that processes no more; its worker goes on
  Bug          (exit 1)  ours: stop and tell the story
    InvalidTransition InvariantBroken IllegalPlan

Each message says what, where and what to do, in one line: `WHAT: WHERE: WHAT TO DO`.
"""


class StreamsxError(Exception):
    """Of ours; `exit_code` is what a command ends with."""

    exit_code = 1


class UsageError(StreamsxError):
    """The user's: nothing was tried."""

    exit_code = 2


class SettingError(UsageError):
    """A setting that is unknown, has a bad value or contradicts another one."""


class TopologyError(UsageError):
    """An app that cannot become a topology."""


class PartitionMismatch(TopologyError):
    """Topics that one task reads together have different partition counts."""


class TableNotInTask(TopologyError):
    """User code touches a table that the running task does not hold."""


class NameClash(TopologyError):
    """Two things of an app have one name."""


class NotOnSpark(TopologyError):
    """An app that runs in a worker, and not on Spark."""


class NotSupported(UsageError):
    """What Faust has and this version does not."""


class PartitionCountChanged(UsageError):
    """A topic has another partition count than the app's state was made for."""


class ChangelogLost(UsageError):
    """A changelog is gone, or made anew, and a store on disk may be the last copy of its table."""


class IncompatibleStore(UsageError):
    """A store on disk, or in a snapshot, is not the one that this app wants."""


class SnapshotNotPublished(UsageError):
    """A snapshot that no changelog goes on from."""


class StateOnSpark(UsageError):
    """State that Spark has gone on with, and that was not handed over."""


class WrongThread(UsageError):
    """A table or topic that is used from another thread than the event loop's."""


class GroupNotEmpty(UsageError):
    """Workers run what Spark is to take over, or to hand over."""


class SnapshotAhead(UsageError):
    """A snapshot and what Kafka has are not of one moment."""


class NotFound(StreamsxError):
    """An app id, instance, store or topic that is not there."""

    exit_code = 3


class NotHere(StreamsxError):
    """A key of a table that is missing here, and that another worker may have.

    `partitions`: those of the table that this worker has.
    """

    def __init__(self, message: str, table: str, key: object, partitions: frozenset[int]) -> None:
        super().__init__(message)
        self.table, self.key, self.partitions = table, key, partitions


class WorldError(StreamsxError):
    """The world's: worth another try."""


class BrokerUnreachable(WorldError):
    """No broker answers."""

    exit_code = 4


class StoreLocked(WorldError):
    """Another process holds the directory."""


class DiskFailed(WorldError):
    """The disk under a store or a state directory is full, or broken."""


class DescriptorsUsedUp(WorldError):
    """A file that cannot be opened, because this process may have no more of them open."""


class TopicGone(WorldError):
    """A topic vanished while it was in use."""


class SnapshotFailed(WorldError):
    """Where snapshots lie cannot be reached, read or written."""


class SparkGone(WorldError):
    """The JVM of a session has ended."""


class StateConflict(WorldError):
    """Somebody else writes snapshots to the same place."""


class DataError(StreamsxError):
    """Bytes that are not what they should be."""


class CorruptRecord(DataError):
    """A record batch whose checksum or form is wrong."""


class StoreCorrupt(DataError):
    """A database that cannot be opened or read."""


STORE_FAULTS = (DescriptorsUsedUp, DiskFailed, StoreCorrupt, StoreLocked)
"""What a store says that cannot be read or written."""


class DecodeFailed(DataError):
    """A key or value that its codec refuses."""


class RecordTooLarge(DataError):
    """A record over the limit of its topic."""


class RecordRefused(DataError):
    """A record that its topic does not take: its time, its key or its headers."""


class ValueRefused(DataError):
    """A value of a table that its codec refuses, or that is too large for its changelog."""


class GroupError(StreamsxError):
    """What the coordinator says of this member."""


class Fenced(GroupError):
    """The group went on without this member."""


class InstanceIdTaken(GroupError):
    """Another process runs with this static instance id."""


class ForeignProtocol(GroupError):
    """The group speaks another protocol than ours."""


class RebalanceInProgress(GroupError):
    """Finish the rebalance first."""


class TaskFailed(StreamsxError):
    """A task that its policy stops, and its worker with it."""


class TaskStopped(StreamsxError):
    """A task that processes no more until it is started again; its worker goes on."""


class Bug(StreamsxError):
    """Ours: stop and tell the story."""


class InvalidTransition(Bug):
    """A machine was given an event that its state does not know; carries the story."""


class InvariantBroken(Bug):
    """What must hold does not."""


class IllegalPlan(Bug):
    """A plan that breaks its postconditions."""


def first_of(error: BaseException) -> BaseException:
    """The first error of a group of them, which is what a TaskGroup raises; else the error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
