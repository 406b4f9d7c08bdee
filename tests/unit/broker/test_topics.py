"""Topics: their rows, folders and configs are created and deleted together."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from streamsx.broker.configs import CONFIGS, ConfigType, wrong
from streamsx.broker.groups.coordinator import Coordinator
from streamsx.broker.groups.coordinator_events import TopicsChanged
from streamsx.broker.log import appending
from streamsx.broker.log.flusher import flush_all
from streamsx.broker.log.log import UNFLUSHED, read_note
from streamsx.broker.metadata_store import MetadataStore
from streamsx.broker.refusal import Refused
from streamsx.broker.topics import NAME, REMOVED, StoredTopic, TopicStore
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import Builder


class Places:
    """Directory that is opened again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = MetadataStore(folder / "meta", sync=False)

    def open(self) -> TopicStore:
        return TopicStore(self.folder / "logs", self.meta, clean=False, sync=False)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    places = Places(tmp_path)
    yield places
    places.meta.close()


def batch() -> memoryview:
    builder = Builder(1000)
    builder.append(1, None, b"x")
    return memoryview(builder.close())


def test_topics_restored_with_ids_partitions_configs_and_records(places: Places) -> None:
    store = places.open()
    topic = store.create("t", b"1" * 16, 2, {"segment.bytes": "1000"})
    store.grow([(topic, 3)])
    store.configure(topic, {"segment.bytes": "500", "retention.ms": "1"})
    appending.append(topic.logs[2], batch(), 1000)
    store.close()

    again = places.open()
    assert again.catalog() == store.catalog() == {"t": (b"1" * 16, 3)}
    found = again.by_id[b"1" * 16]
    assert (found.config("segment.bytes"), found.config("retention.bytes")) == ("500", "-1")
    assert [log.end for log in found.logs] == [0, 0, 1]
    assert {log.segment_bytes for log in [*found.logs, *topic.logs]} == {500}
    assert again.partitions == 3
    for partition in (3, -1):
        with pytest.raises(Refused):
            found.log(partition)


def test_deleted_topic_leaves_nothing(places: Places) -> None:
    store, changes = places.open(), list[Mapping[str, tuple[bytes, int] | None]]()
    store.changed = changes.append
    topic = store.create("t", b"1" * 16, 2, {})
    appending.append(topic.logs[0], batch(), 1000)
    store.delete(topic)
    assert changes == [{"t": (b"1" * 16, 2)}, {"t": None}]
    assert list((places.folder / "logs").iterdir()) == []
    assert (store.partitions, store.by_id, places.open().catalog()) == (0, {}, {})


def test_topic_changes_of_one_step_reported_once(places: Places) -> None:
    """Each report looks at all committed offsets."""
    store, changes = places.open(), list[Mapping[str, tuple[bytes, int] | None]]()
    made = [StoredTopic(name, name.encode() * 16, {}) for name in "ab"]
    store.changed = changes.append
    store.grow([(topic, 1) for topic in made])
    store.delete(*made)
    assert changes == [{"a": (b"a" * 16, 1), "b": (b"b" * 16, 1)}, {"a": None, "b": None}]


@pytest.mark.perf
def test_topic_creation_time_does_not_grow_with_number_of_topics(places: Places) -> None:
    """The report of one topic does not depend on the others. The fastest of a hundred counts."""
    store, took = places.open(), list[float]()
    machine = Coordinator()
    store.changed = lambda topics: machine.step(0, TopicsChanged(topics))
    for number in range(1000):
        began = time.perf_counter()
        store.create(f"t{number}", number.to_bytes(16), 1, {})
        took.append(time.perf_counter() - began)
    assert min(took[-100:]) < 2 * min(took[:100])
    assert store.partitions == sum(map(len, (t.logs for t in store.by_name.values()))) == 1000
    assert machine.catalog.identity("t999") == ((999).to_bytes(16), 1)


def test_leftover_of_deleted_topic_not_read_by_recreated_topic(places: Places) -> None:
    store = places.open()
    log = store.create("t", b"1" * 16, 1, {}).logs[0]
    appending.append(log, batch(), 1000)
    left = log.segments[0].path.read_bytes()
    store.delete(store.by_name["t"])
    (places.folder / "logs" / "t-0").mkdir()
    log.segments[0].path.write_bytes(left)
    assert places.open().create("t", b"2" * 16, 1, {}).logs[0].end == 0


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", ".a"])
def test_valid_topic_names_accepted(name: str) -> None:
    assert NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "a\n", "a\0", "٣"])
def test_invalid_topic_names_refused(name: str) -> None:
    assert not NAME.fullmatch(name)


def test_config_defaults_are_valid() -> None:
    assert not [name for name, config in CONFIGS.items() if wrong(name, config.default)]


def test_config_values_validated_by_type() -> None:
    right = {
        "cleanup.policy": "compact,delete", "retention.ms": "-1", "preallocate": "true",
        "min.cleanable.dirty.ratio": "0.9", "compression.type": "lz4",
    }  # fmt: skip
    assert not [name for name, value in right.items() if wrong(name, value)]
    bad = {
        "no.such": "1", "cleanup.policy": "forget", "retention.ms": "-2", "preallocate": "yes",
        "min.cleanable.dirty.ratio": "1.1", "segment.bytes": "2147483648", "segment.ms": "a day",
        "message.timestamp.type": "AppendTime", "flush.ms": None, "retention.bytes": "",
    }  # fmt: skip
    assert [name for name, value in bad.items() if wrong(name, value)] == list(bad)
    assert {config.kind for config in CONFIGS.values()} == set(ConfigType)


def test_lost_log_folder_is_logged(places: Places, caplog: pytest.LogCaptureFixture) -> None:
    places.open().create("t", b"1" * 16, 2, {})
    places.open()
    assert "and its records with it" not in caplog.text
    shutil.rmtree(places.folder / "logs" / "t-1")
    places.open()
    assert (
        f"Folder {places.folder / 'logs' / 't-1'} is gone, and its records with it" in caplog.text
    )


def failing(*_: object, **__: object) -> None:
    raise OSError("planted")


def test_failed_topic_creation_or_growth_leaves_nothing(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = places.open()
    topic = store.create("t", b"1" * 16, 1, {})
    folder = "streamsx.broker.topics.sync_folder"
    row = "streamsx.broker.metadata_store.MetadataStore.write"
    for what in (folder, row):
        with monkeypatch.context() as broken:
            broken.setattr(what, failing)
            with pytest.raises(OSError, match="planted"):
                store.create("u", b"2" * 16, 1, {})
            with pytest.raises(OSError, match="planted"):
                store.grow([(topic, 2)])
    assert sorted(path.name for path in (places.folder / "logs").iterdir()) == ["t-0"]
    assert places.open().catalog() == store.catalog() == {"t": (b"1" * 16, 1)}


def test_failed_log_refuses_requests_until_reopened(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = places.open()
    topic = store.create("t", b"1" * 16, 2, {})
    appending.append(topic.logs[1], batch(), 1000)
    topic.logs[1].fail()
    with pytest.raises(Refused) as refused:
        topic.log(1)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(OSError, match="a flush failed"):
        store.flush()
    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", failing)
        assert store.reopen(), "the disk is no better"
    assert not store.reopen()
    assert (topic.log(0).end, topic.log(1).end) == (0, 1)
    store.flush()


def test_failed_last_flush_leaves_unflushed_note(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start took pages for flushed that the system had given up."""
    store = places.open()
    log = store.create("t", b"1" * 16, 1, {}).log(0)
    appending.append(log, batch(), 1000)
    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", failing)
        with pytest.raises(OSError, match="planted"):
            store.flush()
    assert read_note(log.folder, UNFLUSHED) == [0, 1]


def test_log_failing_to_reopen_does_not_keep_others_failed(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = places.open()
    topic = store.create("t", b"1" * 16, 2, {})
    for log in topic.logs:
        appending.append(log, batch(), 1000)
        log.fail()

    def fdatasync(fd: int, *, real: Callable[[int], None] = os.fdatasync) -> None:
        if "/t-0/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError("planted")
        real(fd)

    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", fdatasync)
        assert store.reopen()
    assert [log.failed for log in topic.logs] == [True, False]


def test_deleted_log_leaves_folder_of_recreated_topic_alone(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of that name was flushed for the old log, and the note of a failure named its end:
    at the next start the new log was cut there.
    """
    store = places.open()
    deleted = store.create("t", b"1" * 16, 1, {}).log(0)
    appending.append(deleted, batch(), 1000)
    store.delete(store.by_name["t"])
    log = store.create("t", b"2" * 16, 1, {}).log(0)
    appending.append(log, batch(), 1000)
    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", failing)
        assert list(flush_all([deleted, log], places.meta)) == [log]
    deleted.fail()  # by a flush that began before it was deleted
    assert [path.name for path in log.folder.iterdir()] == [f"{0:020d}.log"]


def test_folders_awaiting_removal_obstruct_no_topic_and_go_at_next_start(
    places: Places,
) -> None:
    store, kept = places.open(), list[Path]()
    store.remove = kept.extend
    for number in (1, 2):
        log = store.create("t", bytes([number]) * 16, 2, {}).log(0)
        appending.append(log, batch(), 1000)
        store.delete(store.by_name["t"])
    assert store.create("t", b"3" * 16, 1, {}).log(0).end == 0
    assert len([folder for folder in kept if folder.exists()]) == 4
    assert places.open().by_name["t"].log(0).end == 0
    assert not [folder for folder in kept if folder.exists()]


def test_folder_of_longest_topic_name_is_removed(places: Places) -> None:
    """Its folder stayed with all its files: the name of the renamed folder was too long."""
    store, name = places.open(), "n" * 249
    appending.append(store.create(name, b"1" * 16, 1, {}).log(0), batch(), 1000)
    taken = places.folder / "logs" / f"1{REMOVED}"
    taken.mkdir()
    (taken / "x").touch()
    store.delete(store.by_name[name])
    assert list((places.folder / "logs").iterdir()) == [taken]


def test_unremovable_folder_blocks_recreation_until_removed(
    places: Places, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = places.open()
    topic = store.create("t", b"1" * 16, 1, {})
    appending.append(topic.logs[0], batch(), 1000)
    with monkeypatch.context() as broken:
        broken.setattr("shutil.rmtree", failing)
        broken.setattr(Path, "rename", failing)
        store.delete(topic)
        assert "of a deleted topic cannot be removed" in caplog.text
        with pytest.raises(OSError, match="planted"):  # or its records would greet the next one
            store.create("t", b"2" * 16, 1, {})
    assert not store.by_name
    assert store.create("t", b"2" * 16, 1, {}).log(0).end == 0
