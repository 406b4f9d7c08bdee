"""Topics of a broker, by name and by id, with their configurations and logs.

A topic's folders are created before its row reaches the disk, and the row is deleted before the
folders. A crash or a failure therefore leaves at most folders that belong to no topic. Creating a
topic of that name removes them.
"""

import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from streamsx.broker.configs import CONFIGS
from streamsx.broker.log.log import Log
from streamsx.broker.log.segment import LEADER_EPOCH, Descriptors
from streamsx.broker.metadata_rows import ConfigValue, TopicKey, TopicValue
from streamsx.broker.metadata_store import MetadataStore
from streamsx.broker.refusal import Refused
from streamsx.log_sentences import counted
from streamsx.protocol.error_codes import ErrorCode
from streamsx.state.disk import sync_folder

logger = logging.getLogger(__name__)
CREATED = "Created topic %s with %s."
GROWN = "Topic %s has %s now."
LEFT = "Folder %s of a deleted topic cannot be removed: %s. The next start tries it again."
NOT_OPENED = "The log in %s cannot be opened again: %s. It is tried again."

NAME = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,249}", re.ASCII)

REMOVED = ".removed"
"""Suffix of the folder of a removed partition. All other folders end with a number."""
Changed = Callable[[Mapping[str, tuple[bytes, int] | None]], object]
"""Callback for changed topics: id and number of partitions by name; None for a deleted topic."""


def alike(name: str) -> str:
    """Return the form of a name in which two names that are too similar are equal.

    Kafka accepts only one of two such names, because Kafka's metrics would mix them up.
    """
    return name.replace(".", "_")


class StoredTopic:
    """Topic with one log per partition; `configs` holds the configurations that were set."""

    def __init__(self, name: str, topic_id: bytes, configs: Mapping[str, str]) -> None:
        self.name = name
        self.id = topic_id
        self.configs = dict(configs)
        self.logs: list[Log] = []

    def config(self, name: str) -> str:
        """Return the value that was set, or the default."""
        return self.configs.get(name, CONFIGS[name].default)

    def log(self, partition: int, epoch: int = LEADER_EPOCH) -> Log:
        """Return the log of a partition.

        Raises:
            Refused: There is no such partition, its log is out of service, or the client knows a
                later `epoch` of its leader (KIP-320).
        """
        if not 0 <= partition < len(self.logs):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if epoch > LEADER_EPOCH:
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if self.logs[partition].failed:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR)
        return self.logs[partition]


class TopicStore:
    """Store of all topics; `changed` is called after each change."""

    def __init__(self, folder: Path, meta: MetadataStore, *, clean: bool, sync: bool) -> None:
        """Open all logs; after a crash (not `clean`) verify their tails."""
        self.by_name: dict[str, StoredTopic] = {}
        self.by_id: dict[bytes, StoredTopic] = {}
        self.changed: Changed = lambda _: None
        self.remove: Callable[[list[Path]], object] = remove_folders
        """Deletes folders that are not needed any more; a server does this in a thread."""
        self._set_aside = 0
        self._folder = folder
        self._meta = meta
        self._sync = sync
        self._descriptors = Descriptors()
        folder.mkdir(exist_ok=True)
        remove_folders(folder.glob(f"*{REMOVED}"))
        for key, value in meta.rows("T"):
            configs = {config.name: config.value for config in value.configs}
            topic = StoredTopic(key.topic, value.topic_id, configs)
            for number in range(value.partitions):
                if not (place := self._place(topic, number)).exists():
                    logger.error(
                        "Folder %s is gone, and its records with it: it begins at offset 0.", place
                    )
                topic.logs.append(self._open(topic, number, clean=clean))
            self.by_name[topic.name] = self.by_id[topic.id] = topic

    def logs(self) -> Iterator[tuple[StoredTopic, int, Log]]:
        """Yield every log with its topic and the number of its partition."""
        for topic in tuple(self.by_name.values()):
            for number, log in enumerate(topic.logs):
                yield topic, number, log

    @property
    def partitions(self) -> int:
        """Return the number of partitions of all topics together."""
        return sum(len(topic.logs) for topic in self.by_name.values())

    def catalog(self) -> dict[str, tuple[bytes, int]]:
        """Return the id and the number of partitions of each topic, by name."""
        return {name: (topic.id, len(topic.logs)) for name, topic in self.by_name.items()}

    def find(self, name: str | None, topic_id: bytes = b"") -> StoredTopic:
        """Return the topic of this name, or of this id if the name is None.

        Raises:
            Refused: There is no such topic.
        """
        found = self.by_id.get(topic_id) if name is None else self.by_name.get(name)
        if found is None:
            by_id = name is None
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise Refused(code)
        return found

    def create(
        self, name: str, topic_id: bytes, partitions: int, configs: Mapping[str, str]
    ) -> StoredTopic:
        """Create a topic. The caller has checked all arguments.

        Raises:
            OSError: The topic was not created.
        """
        topic = StoredTopic(name, topic_id, configs)
        self.grow([(topic, partitions)])
        return topic

    def grow(self, wanted: Sequence[tuple[StoredTopic, int]]) -> None:
        """Create new topics, and add partitions to existing ones, up to the wanted numbers.

        All changes are one step, so that the disk syncs once and not once for each topic.

        Raises:
            OSError: The disk failed; all topics are as before.
        """
        added: list[tuple[StoredTopic, Log]] = []
        try:
            for topic, partitions in wanted:
                for number in range(len(topic.logs), partitions):
                    if (left := self._place(topic, number)).exists():
                        shutil.rmtree(left)
                    added.append((topic, self._open(topic, number, clean=True)))
            sync_folder(self._folder)
            self._save((topic, partitions, topic.configs) for topic, partitions in wanted)
        except OSError:
            self._remove(log for _, log in added)
            raise
        for topic, log in added:
            topic.logs.append(log)
        for topic, partitions in wanted:
            text = GROWN if topic.name in self.by_name else CREATED
            self.by_name[topic.name] = self.by_id[topic.id] = topic
            logger.info(text, topic.name, counted(partitions, "partition"))
        self.changed({topic.name: (topic.id, partitions) for topic, partitions in wanted})

    def configure(self, topic: StoredTopic, configs: Mapping[str, str]) -> None:
        """Replace all configurations that were set.

        Raises:
            OSError: The configurations were not replaced.
        """
        self._save([(topic, len(topic.logs), configs)])
        topic.configs = dict(configs)
        for log in topic.logs:
            log.segment_bytes = int(topic.config("segment.bytes"))

    def delete(self, *topics: StoredTopic) -> None:
        """Delete topics with their records, in one step.

        Raises:
            OSError: The disk failed; no topic was deleted.
        """
        self._meta.write(deletes=[TopicKey(topic.name) for topic in topics], sync=True)
        for topic in topics:
            del self.by_name[topic.name], self.by_id[topic.id]
            logger.info("Deleted topic %s.", topic.name)
        self.changed(dict.fromkeys(topic.name for topic in topics))
        self._remove([log for topic in topics for log in topic.logs])

    def reopen(self) -> bool:
        """Open the database and logs again after a failed flush; return whether any still fail."""
        try:
            self._meta.revive()
        except OSError as error:
            logger.error("The metadata cannot be opened again: %s. It is tried again.", error)
            return True
        left = False
        for topic, number, log in self.logs():
            if log.failed:
                try:
                    log.note_failure()
                    log.close()
                    topic.logs[number] = self._open(topic, number, clean=False)
                except OSError as error:
                    if not left:  # one line for all logs
                        logger.error(NOT_OPENED, log.folder, error)
                    left = True
        return left

    def flush(self) -> None:
        """Write everything out to the disk.

        Raises:
            OSError: A flush failed, now or earlier.
        """
        for *_, log in self.logs():
            if log.failed:
                raise OSError(f"{log.folder}: a flush failed: it is opened again at the next start")
            if log.flushed < log.end:
                try:
                    log.flush()
                except OSError:
                    log.fail()  # the OS reports it only once: leave a note for the next start
                    raise

    def close(self) -> None:
        """Close all files."""
        for *_, log in self.logs():
            log.close()

    def _save(self, topics: Iterable[tuple[StoredTopic, int, Mapping[str, str]]]) -> None:
        rows = []
        for topic, partitions, configs in topics:
            given = tuple(ConfigValue(name, value) for name, value in sorted(configs.items()))
            rows.append((TopicKey(topic.name), TopicValue(topic.id, partitions, given)))
        self._meta.write(rows, sync=True)

    def _place(self, topic: StoredTopic, number: int) -> Path:
        return self._folder / f"{topic.name}-{number}"

    def _open(self, topic: StoredTopic, number: int, *, clean: bool) -> Log:
        return Log(
            self._place(topic, number),
            self._descriptors,
            segment_bytes=int(topic.config("segment.bytes")),
            clean=clean,
            sync=self._sync,
        )

    def _remove(self, logs: Iterable[Log]) -> None:
        """Remove folders of logs that belong to no topic; their names are free at once."""
        removed = []
        for log in logs:
            log.close()
            aside = log.folder  # no suffix: the name may have the maximum length already
            while aside.exists():
                self._set_aside += 1
                aside = log.folder.with_name(f"{self._set_aside}{REMOVED}")
            try:
                removed.append(log.folder.rename(aside))
            except OSError as error:
                logger.warning(LEFT, log.folder, error)
        if removed:
            self.remove(removed)


def remove_folders(folders: Iterable[Path]) -> None:
    """Delete folders; callable from any thread.

    A folder that cannot be deleted is in the way of nothing, and the next start tries again.
    Deleting a folder may take a disk milliseconds, and a topic may have a thousand partitions.
    """
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            logger.warning(LEFT, folder, error)
