"""All topics of a broker: by name and by id, with their configurations and their logs.

A topic's row reaches the disk behind its folders, and is deleted before they are: whatever a crash
or a refusal leaves behind belongs to no topic, and is removed when one of that name is created.
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
from streamsx.protocol.error_codes import ErrorCode
from streamsx.state.disk import sync_folder

logger = logging.getLogger(__name__)

NAME = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,249}", re.ASCII)

REMOVED = ".removed"
"""How the folder of a partition ends that is no more. No other does: those end with a number."""
Changed = Callable[[Mapping[str, tuple[bytes, int] | None]], object]
"""Id and number of partitions of topics by name; None for one that is gone."""


def alike(name: str) -> str:
    """Of two names that are alike Kafka takes one: in its metrics they would be the same."""
    return name.replace(".", "_")


class StoredTopic:
    """One log per partition; `configs` are those that were set."""

    def __init__(self, name: str, topic_id: bytes, configs: Mapping[str, str]) -> None:
        self.name = name
        self.id = topic_id
        self.configs = dict(configs)
        self.logs: list[Log] = []

    def config(self, name: str) -> str:
        """What was set, or the default."""
        return self.configs.get(name, CONFIGS[name].default)

    def log(self, partition: int, epoch: int = LEADER_EPOCH) -> Log:
        """Of this partition. Raises Refused if it is not there, out of service, or if the client
        has heard of a later `epoch` of its leader (KIP-320).
        """
        if not 0 <= partition < len(self.logs):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if epoch > LEADER_EPOCH:
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if self.logs[partition].failed:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR)
        return self.logs[partition]


class TopicStore:
    """Creates, finds, changes and deletes topics; `changed` is called behind each such step."""

    def __init__(self, folder: Path, meta: MetadataStore, *, clean: bool, sync: bool) -> None:
        """Opens all logs; after a crash (not `clean`) their tails are verified."""
        self.by_name: dict[str, StoredTopic] = {}
        self.by_id: dict[bytes, StoredTopic] = {}
        self.changed: Changed = lambda _: None
        self.remove: Callable[[list[Path]], object] = remove_folders
        """Folders that nothing needs any more; a server has that done in a thread."""
        self._set_aside = 0
        self._folder, self._meta, self._sync = folder, meta, sync
        self._descriptors = Descriptors()
        folder.mkdir(exist_ok=True)
        remove_folders(folder.glob(f"*{REMOVED}"))
        for key, value in meta.rows("T"):
            configs = {config.name: config.value for config in value.configs}
            topic = StoredTopic(key.topic, value.topic_id, configs)
            for number in range(value.partitions):
                if not (place := self._place(topic, number)).exists():
                    logger.error("log_lost folder=%s: its records are gone: it begins at 0", place)
                topic.logs.append(self._open(topic, number, clean=clean))
            self.by_name[topic.name] = self.by_id[topic.id] = topic

    def logs(self) -> Iterator[tuple[StoredTopic, int, Log]]:
        """All there are, each with its topic and the number of its partition."""
        for topic in tuple(self.by_name.values()):
            for number, log in enumerate(topic.logs):
                yield topic, number, log

    @property
    def partitions(self) -> int:
        """Of all topics together."""
        return sum(len(topic.logs) for topic in self.by_name.values())

    def catalog(self) -> dict[str, tuple[bytes, int]]:
        """Id and number of partitions, by name."""
        return {name: (topic.id, len(topic.logs)) for name, topic in self.by_name.items()}

    def find(self, name: str | None, topic_id: bytes = b"") -> StoredTopic:
        """By name, or by id if there is no name. Raises Refused if it is not there."""
        found = self.by_id.get(topic_id) if name is None else self.by_name.get(name)
        if found is None:
            by_id = name is None
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise Refused(code)
        return found

    def create(
        self, name: str, topic_id: bytes, partitions: int, configs: Mapping[str, str]
    ) -> StoredTopic:
        """A new topic; the caller has looked at everything. Raises OSError."""
        topic = StoredTopic(name, topic_id, configs)
        self.grow([(topic, partitions)])
        return topic

    def grow(self, wanted: Sequence[tuple[StoredTopic, int]]) -> None:
        """New topics and old ones to so many partitions, in one step: a disk is asked once, not for
        each of them. Raises OSError, and then all is as it was.
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
            event = "partitions_added" if topic.name in self.by_name else "topic_created"
            self.by_name[topic.name] = self.by_id[topic.id] = topic
            logger.info("%s topic=%s partitions=%d", event, topic.name, partitions)
        self.changed({topic.name: (topic.id, partitions) for topic, partitions in wanted})

    def configure(self, topic: StoredTopic, configs: Mapping[str, str]) -> None:
        """In place of all that was set. Raises OSError."""
        self._save([(topic, len(topic.logs), configs)])
        topic.configs = dict(configs)
        for log in topic.logs:
            log.segment_bytes = int(topic.config("segment.bytes"))

    def delete(self, *topics: StoredTopic) -> None:
        """With their records, in one step. Raises OSError, and then all are there."""
        self._meta.write(deletes=[TopicKey(topic.name) for topic in topics], sync=True)
        for topic in topics:
            del self.by_name[topic.name], self.by_id[topic.id]
            logger.info("topic_deleted topic=%s", topic.name)
        self.changed(dict.fromkeys(topic.name for topic in topics))
        self._remove([log for topic in topics for log in topic.logs])

    def reopen(self) -> bool:
        """Opens anew what a flush failed of, rows and logs; whether some are still left."""
        try:
            self._meta.revive()
        except OSError as error:
            logger.error("reopen_failed error=%r", str(error))
            return True
        left = False
        for topic, number, log in self.logs():
            if log.failed:
                try:
                    log.note_failure()
                    log.close()
                    topic.logs[number] = self._open(topic, number, clean=False)
                except OSError as error:
                    if not left:  # one line for all of them
                        logger.error("reopen_failed folder=%s error=%r", log.folder, str(error))
                    left = True
        return left

    def flush(self) -> None:
        """Everything to the disk. Raises OSError."""
        for *_, log in self.logs():
            if log.failed:
                raise OSError(f"{log.folder}: a flush failed: it is opened anew at the start")
            if log.flushed < log.end:
                try:
                    log.flush()
                except OSError:
                    log.fail()  # the system tells of it once: the next start is to know
                    raise

    def close(self) -> None:
        """Lets go of all files."""
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
        """They belong to no topic any more; their place is free at once."""
        removed = []
        for log in logs:
            log.close()
            aside = log.folder  # its name may be as long as names may be
            while aside.exists():
                self._set_aside += 1
                aside = log.folder.with_name(f"{self._set_aside}{REMOVED}")
            try:
                removed.append(log.folder.rename(aside))
            except OSError as error:
                logger.warning("folder_left path=%s error=%r", log.folder, str(error))
        if removed:
            self.remove(removed)


def remove_folders(folders: Iterable[Path]) -> None:
    """From any thread. What cannot be removed is in nobody's way, and is tried again at the start.

    A disk may take milliseconds for each: "a thousand partitions are deleted".
    """
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            logger.warning("folder_left path=%s error=%r", folder, str(error))
